package arena

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// smallTmpfs mounts a tmpfs of size bytes.
func smallTmpfs(t *testing.T, size int64) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Skip("mounting a tmpfs is refused here: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil { // EBUSY: something is still mapped or open
			t.Errorf("unmount: %v", err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	return dir
}

func TestFileTooLarge(t *testing.T) {
	dir := smallTmpfs(t, 64<<20)
	before := len(openFDs())
	k := *realKernel
	k.fallocate = func(int, uint32, int64, int64) error {
		t.Error("took space that is known not to suffice")
		return unix.ENOSPC
	}
	for _, name := range []string{"", "kvcr-pool.arena"} {
		_, err := k.mapArena(Options{Size: 1 << 30, Backing: File, Path: filepath.Join(dir, name)})
		var se *SpaceError
		if !errors.As(err, &se) || se.Need != 1<<30 || se.Free != 64<<20 || !strings.HasPrefix(se.Path, dir) {
			t.Fatalf("%v, want a *SpaceError with 1 GiB, 64 MiB and a path in %s", err, dir)
		}
		for _, want := range []string{"1 GiB", "64 MiB", dir} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q lacks %q", err, want)
			}
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
	if now := openFDs(); len(now) != before {
		t.Errorf("left open: %v", now)
	}
	// Somebody else is faster: what our own part took is counted as free.
	k.fallocate = func(fd int, mode uint32, off, n int64) error {
		if off > 0 {
			return unix.ENOSPC
		}
		return unix.Fallocate(fd, mode, off, n)
	}
	_, err := k.mapArena(Options{Size: 60 << 20, Backing: File, Path: dir})
	var se *SpaceError
	if !errors.As(err, &se) || se.Need != 60<<20 || se.Free != 64<<20 || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v, want a *SpaceError with 60 MiB and 64 MiB", err)
	}
	// What fits can be used to its last byte, and then nothing else fits: the
	// blocks are taken at Map, not at first use.
	a := mustMap(t, Options{Size: 48 << 20, Backing: File, Path: dir})
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || int64(st.Bavail)*int64(st.Bsize) > 16<<20 {
		t.Errorf("%d blocks free, %v: not reserved", st.Bavail, err)
	}
	_, err = Map(Options{Size: 32 << 20, Backing: File, Path: dir})
	if !errors.As(err, &se) || se.Free > 16<<20 {
		t.Errorf("second arena: %v", err)
	}
	b := a.Bytes(0, 48<<20)
	for i := 0; i < len(b); i += os.Getpagesize() {
		b[i] = 1
	}
}

// childHoldFile maps a file in args[0] and holds it until it is killed.
func childHoldFile(args []string) error {
	a, err := Map(Options{Name: "held", Size: 48 << 20, Backing: File, Path: args[0]})
	if err != nil {
		return err
	}
	fmt.Println(a.Placement().Path)
	_, err = bufio.NewReader(os.Stdin).ReadString('\n')
	return err
}

// startHolder runs childHoldFile and returns the path of its file and a
// function that kills it.
func startHolder(t *testing.T, path string) (file string, kill func()) {
	t.Helper()
	c := child("hold-file", path)
	in, err := c.StdinPipe() // keeps the child waiting
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	kill = func() {
		once.Do(func() {
			_ = c.Process.Kill()
			_ = c.Wait()
			_ = in.Close()
		})
	}
	t.Cleanup(kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("child: %v", err)
	}
	return strings.TrimSpace(line), kill
}

// TestKilledOwner: a file system with room for one region, whose owner is
// killed: the next start takes its place, and not before.
func TestKilledOwner(t *testing.T) {
	for _, name := range []string{"", "kvcr-pool.arena"} {
		t.Run("path="+name, func(t *testing.T) {
			dir := smallTmpfs(t, 64<<20)
			path := filepath.Join(dir, name)
			others := map[string]bool{"notes.txt": true, "kvcr-notes": true, "pool.arena": true}
			for n := range others {
				if err := os.WriteFile(filepath.Join(dir, n), []byte("mine"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			held, kill := startHolder(t, path)
			if _, err := Map(Options{Size: 48 << 20, Backing: File, Path: path}); err == nil {
				t.Fatal("a second region fits while the first is alive")
			} else if se := new(SpaceError); name == "" && !errors.As(err, &se) {
				t.Errorf("while the owner lives: %v, want a *SpaceError", err)
			} else if name != "" && !strings.Contains(err.Error(), "living process") {
				t.Errorf("while the owner lives: %v", err)
			}
			if _, err := os.Stat(held); err != nil {
				t.Fatalf("the living owner's file: %v", err)
			}
			kill()
			if _, err := os.Stat(held); err != nil {
				t.Fatalf("the test needs a file left behind: %v", err)
			}
			a := mustMap(t, Options{Size: 48 << 20, Backing: File, Path: path, Prefault: true})
			if p := a.Placement(); len(p.Removed) != 1 || p.Removed[0] != held {
				t.Errorf("removed %v, want %s", p.Removed, held)
			}
			for n := range others {
				if _, err := os.Stat(filepath.Join(dir, n)); err != nil {
					t.Errorf("a file that is not ours: %v", err)
				}
			}
		})
	}
}

// TestForeignNames: nothing but a regular file of ours is opened or removed.
func TestForeignNames(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	at := func(n string) string { return filepath.Join(dir, n) }
	if err := errors.Join(
		os.Symlink(victim, at("kvcr-link.arena")),
		os.Mkdir(at("kvcr-dir.arena"), 0o755),
		unix.Mkfifo(at("kvcr-fifo.arena"), 0o644),
	); err != nil {
		t.Fatal(err)
	}
	if removed := removeDead(dir); len(removed) > 0 {
		t.Errorf("removed %v", removed)
	}
	_, err := Map(Options{Size: 4096, Backing: File, Path: at("kvcr-link.arena")})
	var me *MapError
	if !errors.As(err, &me) {
		t.Errorf("through a link: %v", err)
	}
	if b, _ := os.ReadFile(victim); string(b) != "x" {
		t.Errorf("the link's target is %q", b)
	}
	if _, err := Map(Options{Size: 4096, Backing: File, Path: at("missing/kvcr-x.arena")}); !errors.As(err, &me) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing directory: %v", err)
	}
}

// TestFileReplaced: Close does not remove a file that took our file's name.
func TestFileReplaced(t *testing.T) {
	dir := t.TempDir()
	a, err := Map(Options{Size: 4096, Backing: File, Path: dir})
	if err != nil {
		t.Fatal(err)
	}
	path := a.Placement().Path
	if err := errors.Join(os.Remove(path), os.WriteFile(path, []byte("new"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(path); string(b) != "new" {
		t.Errorf("%q, %v", b, err)
	}
}

// TestStartersMeet: starters that create and remove at the same time end up
// with a file each that is theirs: named, locked, and in nobody else's hands.
func TestStartersMeet(t *testing.T) {
	dir := t.TempDir()
	rounds := 300
	if testing.Short() || onHeap {
		rounds = 100
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range rounds {
				f, _, _, err := createFile(&Options{Name: fmt.Sprint(g), Size: 4096, Path: dir})
				if err != nil {
					t.Errorf("createFile: %v", err)
					return
				}
				removeDead(dir)
				if !leadsTo(f.path, f.fd) {
					t.Errorf("%s was removed under its owner", f.path)
				}
				if err := f.remove(); err != nil {
					t.Errorf("remove: %v", err)
				}
			}
		}()
	}
	wg.Wait()
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
