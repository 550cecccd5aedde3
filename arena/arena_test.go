package arena

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// children maps the value of KVCR_ARENA_CHILD to what this binary does when a
// test starts it again.
var children = map[string]func(args []string) error{
	"nothing-inherited": childNothingInherited,
	"hold-file":         childHoldFile,
	"lock-limit":        childLockLimit,
}

func TestMain(m *testing.M) {
	if name := os.Getenv("KVCR_ARENA_CHILD"); name != "" {
		if err := children[name](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	warmUp()
	fds := len(openFDs())
	code := m.Run()
	if left := ourMappings(); code == 0 && len(left) > 0 {
		fmt.Println("still mapped after all tests:", left)
		code = 1
	}
	if now := openFDs(); code == 0 && len(now) > fds {
		fmt.Println("still open after all tests:", now)
		code = 1
	}
	os.Exit(code)
}

// warmUp makes the runtime open the descriptors of its poller.
func warmUp() {
	if r, w, err := os.Pipe(); err == nil {
		_, _ = w.Write([]byte{1})
		_, _ = r.Read(make([]byte, 1))
		r.Close()
		w.Close()
	}
}

func child(name string, args ...string) *exec.Cmd {
	c := exec.Command("/proc/self/exe", args...)
	c.Env = append(os.Environ(), "KVCR_ARENA_CHILD="+name, "GORACE=atexit_sleep_ms=0")
	return c
}

// openFDs returns what this process's descriptors lead to.
func openFDs() (targets []string) {
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		if t, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			targets = append(targets, t)
		}
	}
	return targets
}

// ourMappings returns the mappings of memfds and files of this package.
func ourMappings() (lines []string) {
	maps, _ := os.ReadFile("/proc/self/maps")
	for _, l := range strings.Split(string(maps), "\n") {
		if strings.Contains(l, "memfd:kvcr-") || strings.Contains(l, FileSuffix) {
			lines = append(lines, l)
		}
	}
	return lines
}

// mapped reports whether exactly the size bytes at an address, a multiple of the
// page size, are one mapping of this process. (That something is mapped there
// would prove nothing: other threads map memory, too.)
func mapped(at uintptr, size int64) bool {
	maps, _ := os.ReadFile("/proc/self/maps")
	return strings.Contains("\n"+string(maps), fmt.Sprintf("\n%x-%x ", at, at+uintptr(size)))
}

// mustMap maps an arena and closes it when the test ends.
func mustMap(t testing.TB, o Options) *Arena {
	t.Helper()
	a, err := Map(o)
	if err != nil {
		t.Fatalf("Map(%+v): %v", o, err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return a
}

// panics returns what f panics with, "" when it does not.
func panics(f func()) (msg string) {
	defer func() {
		if r := recover(); r != nil {
			msg = fmt.Sprint(r)
		}
	}()
	f()
	return ""
}

func TestMap(t *testing.T) {
	dir := t.TempDir()
	for _, size := range []int64{1, 4096, 100_000, 5<<20 + 1} {
		for _, o := range []Options{
			{Backing: Anonymous},
			{Backing: Memfd, Name: "a/b"},
			{Backing: File, Path: dir},
			{Backing: File, Path: filepath.Join(dir, "kvcr-x.arena")},
			{Backing: Anonymous, Pages: PagesBase, Prefault: true},
			{Backing: Anonymous, Pages: PagesTHP, Prefault: true, PrefaultThreads: 3},
			{Backing: Memfd, Pages: PagesHuge1G, Prefault: true},
		} {
			o.Size = size
			t.Run(fmt.Sprintf("%v/%v/%d", o.Backing, o.Pages, size), func(t *testing.T) {
				a, err := Map(o)
				if err != nil {
					t.Fatal(err)
				}
				defer a.Close()
				p := a.Placement()
				if a.Size() != size || p.Size != size || p.Mapped < size || p.Mapped%int64(os.Getpagesize()) != 0 {
					t.Errorf("Size %d, placement %+v", a.Size(), p)
				}
				if p.Pages == PagesAuto || p.PageBytes <= 0 || p.Backing != o.Backing {
					t.Errorf("placement %+v", p)
				}
				if o.Prefault && p.Prefaulted != p.Mapped {
					t.Errorf("prefaulted %d of %d", p.Prefaulted, p.Mapped)
				}
				all := a.Bytes(0, int(size))
				for _, b := range all {
					if b != 0 {
						t.Fatal("fresh memory is not zero")
					}
				}
				for i := range all {
					all[i] = byte(i * 7)
				}
				fd, ok := a.FD()
				if ok != (o.Backing != Anonymous) {
					t.Fatalf("FD() = %d, %t", fd, ok)
				}
				if ok { // what we wrote is what another opener of the object reads
					got := make([]byte, size)
					if n, err := unix.Pread(fd, got, 0); err != nil || n != int(size) || !bytes.Equal(got, all) {
						t.Errorf("pread: %d bytes, %v, equal %t", n, err, bytes.Equal(got, all))
					}
					flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
					if err != nil || flags&unix.FD_CLOEXEC == 0 {
						t.Errorf("descriptor flags %#x, %v: not close-on-exec", flags, err)
					}
				}
				if o.Backing == File {
					if _, err := os.Stat(p.Path); err != nil {
						t.Errorf("file: %v", err)
					}
				}
				at := addressOf(all)
				if !p.GoHeap && !mapped(at, p.Mapped) {
					t.Errorf("no mapping of %d bytes at %#x", p.Mapped, at)
				}
				if err := a.Close(); err != nil {
					t.Fatal(err)
				}
				if mapped(at, p.Mapped) || len(ourMappings()) > 0 {
					t.Error("still mapped after Close")
				}
				if o.Backing == File {
					if _, err := os.Stat(p.Path); !errors.Is(err, os.ErrNotExist) {
						t.Errorf("file after Close: %v", err)
					}
				}
			})
		}
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestMapOptions(t *testing.T) {
	for _, o := range []Options{
		{},
		{Size: -1},
		{Size: math.MaxInt64},
		{Size: 1, Pages: pagesEnd},
		{Size: 1, Pages: -1},
		{Size: 1, Backing: backingEnd},
		{Size: 1, Backing: File},
		{Size: 1, Path: "/dev/shm"},
		{Size: 1, NUMA: NUMA{Mode: numaEnd}},
		{Size: 1, NUMA: NUMA{Nodes: []int{0}}},
		{Size: 1, NUMA: NUMA{Mode: NUMABind, Nodes: []int{-1}}},
		{Size: 1, NUMA: NUMA{Mode: NUMABind, Nodes: []int{maxNode + 1}}},
		{Size: 1, PrefaultThreads: -1},
		{Size: 1, Backing: File, Path: filepath.Join(t.TempDir(), "data.db")},
	} {
		a, err := Map(o)
		var oe *OptionError
		if !errors.As(err, &oe) || oe.Field == "" || oe.Fix == "" {
			t.Errorf("Map(%+v) = %v, %v, want an *OptionError", o, a, err)
		}
	}
	// Every problem at once.
	_, err := Map(Options{Size: 0, PrefaultThreads: -1})
	for _, want := range []string{"Size", "PrefaultThreads"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
}

// TestMapTooLarge shows a small machine to Map: were the check missing, only a
// few pages would be taken of the real one.
func TestMapTooLarge(t *testing.T) {
	const mib = 1 << 20
	k := tree(t, map[string]string{
		"proc/meminfo":             "MemTotal: 65536 kB\nMemAvailable: 16384 kB\n",
		"proc/self/mountinfo":      v2Mount,
		"proc/self/cgroup":         "0::/\n",
		"sys/fs/cgroup/memory.max": "33554432\n",
	})
	for _, tt := range []struct {
		o      Options
		limit  int64 // 0: it fits
		source string
	}{
		{Options{Size: 32*mib + 1}, 32 * mib, "memory.max"},
		{Options{Size: 32*mib + 1, Backing: Memfd}, 32 * mib, "memory.max"},
		{Options{Size: 32 * mib}, 0, ""},
		// What is taken at once must be there at once.
		{Options{Size: 16*mib + 1, Backing: Memfd}, 16 * mib, "available"},
		{Options{Size: 16*mib + 1, Prefault: true}, 16 * mib, "available"},
		{Options{Size: 16*mib + 1, Lock: true}, 16 * mib, "available"},
		{Options{Size: 16 * mib, Backing: Memfd}, 0, ""},
	} {
		a, err := k.mapArena(tt.o)
		var se *SizeError
		switch {
		case tt.limit == 0 && err == nil:
		case tt.limit == 0 || !errors.As(err, &se) || se.Size != tt.o.Size || se.Limit != tt.limit || !strings.Contains(se.Source, tt.source):
			t.Errorf("%+v: %v, want limit %d from %s", tt.o, err, tt.limit, tt.source)
		}
		if err == nil {
			a.Close()
		}
	}
}

func TestBytes(t *testing.T) {
	a := mustMap(t, Options{Size: 100})
	b := a.Bytes(10, 20)
	if len(b) != 20 || cap(b) != 20 {
		t.Errorf("len %d cap %d, want 20 and 20", len(b), cap(b))
	}
	_ = append(b, 1)
	if a.Bytes(30, 1)[0] != 0 {
		t.Error("an append ran into the next byte")
	}
	if len(a.Bytes(100, 0)) != 0 {
		t.Error("the empty slice at the end")
	}
	for _, c := range []struct {
		off Off
		n   int
	}{{0, 101}, {100, 1}, {101, 0}, {1, 100}, {0, -1}, {math.MaxUint64, 1}, {math.MaxUint64, 2}, {1 << 63, 1}, {50, math.MaxInt}} {
		if msg := panics(func() { a.Bytes(c.off, c.n) }); !strings.Contains(msg, "outside") {
			t.Errorf("Bytes(%d, %d): panic %q", c.off, c.n, msg)
		}
	}
}

func TestWord(t *testing.T) {
	a := mustMap(t, Options{Size: 64})
	a.Word64(8).Store(0x1122334455667788)
	if got := a.Word64(8).Load(); got != 0x1122334455667788 {
		t.Errorf("Word64 = %#x", got)
	}
	a.Word32(16).Add(3)
	if got := Cast[uint32](a, 16, 1)[0]; got != 3 {
		t.Errorf("Word32 = %d", got)
	}
	for name, f := range map[string]func(){
		"unaligned 64":    func() { a.Word64(4) },
		"unaligned 32":    func() { a.Word32(2) },
		"past the end 64": func() { a.Word64(64) },
		"past the end 32": func() { a.Word32(64) },
	} {
		if panics(f) == "" {
			t.Errorf("%s: no panic", name)
		}
	}
	if n := testing.AllocsPerRun(100, func() { a.Word64(8).Add(1) }); n != 0 {
		t.Errorf("Word64 allocates %v times", n)
	}
}

func TestWordAcrossGoroutines(t *testing.T) {
	a := mustMap(t, Options{Size: 4096})
	var wg sync.WaitGroup
	for range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 1000 {
				a.Word64(64).Add(1)
			}
		}()
	}
	wg.Wait()
	if got := a.Word64(64).Load(); got != 4000 {
		t.Errorf("count %d, want 4000", got)
	}
}

func TestCast(t *testing.T) {
	type rec struct {
		A uint64
		B [3]uint32
		C atomic.Uint32
	}
	a := mustMap(t, Options{Size: 1000})
	rs := Cast[rec](a, 40, 40)
	if len(rs) != 40 || cap(rs) != 40 {
		t.Fatalf("len %d cap %d", len(rs), cap(rs))
	}
	rs[39].B[2] = 7
	if got := a.Word32(40 + 39*24 + 16).Load(); got != 7 {
		t.Errorf("word under the last record is %d", got)
	}
	if len(Cast[rec](a, 1000, 0)) != 0 || len(Cast[struct{}](a, 3, 5)) != 5 {
		t.Error("empty views")
	}
	for name, f := range map[string]func(){
		"too many":     func() { Cast[rec](a, 40, 41) },
		"negative":     func() { Cast[uint8](a, 0, -1) },
		"overflow":     func() { Cast[uint64](a, 0, 1<<61+1) }, // 8 bytes, modulo 2^64
		"unaligned":    func() { Cast[uint64](a, 4, 1) },
		"past the end": func() { Cast[uint64](a, 1008, 0) },
		"pointer":      func() { Cast[*int](a, 0, 1) },
		"string":       func() { Cast[string](a, 0, 1) },
		"slice":        func() { Cast[[]byte](a, 0, 1) },
		"inside":       func() { Cast[struct{ M [2]map[int]int }](a, 0, 1) },
		"interface":    func() { Cast[any](a, 0, 1) },
		"func":         func() { Cast[func()](a, 0, 1) },
		"uintptr":      func() { Cast[uintptr](a, 0, 1) },
	} {
		if panics(f) == "" {
			t.Errorf("%s: no panic", name)
		}
	}
	// Ours must notice it, not the runtime by luck.
	if msg := panics(func() { Cast[uint64](a, 0, 1<<61+1) }); !strings.Contains(msg, "outside an arena") {
		t.Errorf("overflow: panic %q", msg)
	}
	if n := testing.AllocsPerRun(100, func() { Cast[rec](a, 0, 1) }); n != 0 {
		t.Errorf("Cast allocates %v times", n)
	}
}

func TestClose(t *testing.T) {
	a, err := Map(Options{Size: 1 << 20, Backing: Memfd})
	if err != nil {
		t.Fatal(err)
	}
	fd, _ := a.FD()
	var wg sync.WaitGroup
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := a.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}()
	}
	wg.Wait()
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != unix.EBADF {
		t.Errorf("descriptor after Close: %v", err)
	}
	if _, ok := a.FD(); ok || a.Size() != 0 {
		t.Error("FD or Size after Close")
	}
	if msg := panics(func() { a.Bytes(0, 1) }); !strings.Contains(msg, "outside") {
		t.Errorf("Bytes after Close: panic %q", msg)
	}
	if err := a.Seal(); err != ErrClosed {
		t.Errorf("Seal after Close: %v", err)
	}
	if _, err := a.HugeBytes(); err != ErrClosed {
		t.Errorf("HugeBytes after Close: %v", err)
	}
	if p := a.Placement(); p.Size != 1<<20 {
		t.Errorf("Placement after Close: %+v", p)
	}
}

// TestGuards: what lies next to a region faults, so that a stray write of C
// code dies at its cause.
func TestGuards(t *testing.T) {
	for _, b := range []Backing{Anonymous, Memfd} {
		if b == Anonymous && onHeap {
			continue
		}
		a := mustMap(t, Options{Size: 3 << 20, Backing: b, Pages: PagesBase})
		maps, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Skip("no /proc/self/maps")
		}
		at := uint64(addressOf(a.Bytes(0, 1)))
		want := fmt.Sprintf("%x-%x rw-", at, at+3<<20)
		lines := strings.Split(string(maps), "\n")
		i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, want) })
		if i < 0 {
			t.Fatalf("%v: no mapping %s", b, want)
		}
		for _, n := range []struct{ line, edge string }{
			{lines[i-1], fmt.Sprintf("-%x ---", at)},
			{lines[i+1], fmt.Sprintf("%x-", at+3<<20)},
		} {
			if !strings.Contains(n.line, n.edge) || !strings.Contains(n.line, " ---") {
				t.Errorf("%v: beside the region lies %q, want a guard at %q", b, n.line, n.edge)
			}
		}
	}
}

func TestSeal(t *testing.T) {
	a := mustMap(t, Options{Size: 1 << 20, Backing: Memfd})
	fd, _ := a.FD()
	if err := unix.Ftruncate(fd, 4096); err != unix.EPERM {
		t.Errorf("truncate: %v, want EPERM", err)
	}
	if err := unix.Ftruncate(fd, 2<<20); err != unix.EPERM {
		t.Errorf("grow: %v, want EPERM", err)
	}
	again, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(again)
	if _, err := unix.Pwrite(again, []byte{1}, 0); err != nil {
		t.Errorf("write before Seal: %v", err)
	}
	if err := a.Seal(); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Pwrite(again, []byte{2}, 0); err != unix.EPERM {
		t.Errorf("write after Seal: %v, want EPERM", err)
	}
	if m, err := unix.Mmap(again, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != unix.EPERM {
		t.Errorf("writable mapping after Seal: %v, want EPERM", err)
		_ = unix.Munmap(m)
	}
	m, err := unix.Mmap(again, 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatalf("readable mapping after Seal: %v", err)
	}
	a.Bytes(0, 1)[0] = 77
	if m[0] != 77 {
		t.Errorf("reader sees %d, want 77", m[0])
	}
	_ = unix.Munmap(m)
	var oe *OptionError
	if err := mustMap(t, Options{Size: 1}).Seal(); !errors.As(err, &oe) {
		t.Errorf("Seal of anonymous memory: %v", err)
	}
}

func childNothingInherited([]string) error {
	for _, t := range openFDs() {
		if strings.Contains(t, "kvcr-") {
			return fmt.Errorf("inherited %s", t)
		}
	}
	if m := ourMappings(); len(m) > 0 {
		return fmt.Errorf("inherited %v", m)
	}
	return nil
}

// TestExec starts children from a process with large regions. It fails when a
// descriptor lacks close-on-exec, or when starting needs memory of their size.
func TestExec(t *testing.T) {
	limit, _ := MemoryLimit()
	big := limit / 10 * 8
	if onHeap {
		big = 64 << 20 // Go memory has to be cleared, and shadowed
	}
	a := mustMap(t, Options{Name: "exec", Size: big, Pages: PagesTHP})
	mustMap(t, Options{Name: "exec", Size: 16 << 20, Backing: Memfd, Prefault: true})
	mustMap(t, Options{Name: "exec", Size: 1 << 20, Backing: File, Path: t.TempDir()})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Add(1)
	go func() { // the memory stays usable while children start
		defer wg.Done()
		for i := uint64(0); ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			w := a.Word64(Off(i%64) << 15)
			if got := w.Load(); got != i/64 {
				t.Errorf("word %d is %d, want %d", i%64, got, i/64)
				return
			}
			w.Store(i/64 + 1)
		}
	}()
	n := 100
	if testing.Short() || onHeap {
		n = 20
	}
	for range n {
		if out, err := child("nothing-inherited").CombinedOutput(); err != nil {
			t.Fatalf("child: %v: %s", err, out)
		}
	}
	close(stop)
	wg.Wait()
}

// TestDontFork: a raw fork, as a C library makes it, does not copy the region.
func TestDontFork(t *testing.T) {
	a := mustMap(t, Options{Size: 4 << 20, Backing: Memfd})
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Skip("no /proc/self/smaps")
	}
	at := strconv.FormatUint(uint64(addressOf(a.Bytes(0, 1))), 16) + "-"
	_, rest, ok := strings.Cut(string(smaps), at)
	if !ok {
		t.Fatal("the region is not in smaps")
	}
	_, flags, _ := strings.Cut(rest, "VmFlags:")
	flags, _, _ = strings.Cut(flags, "\n")
	if !strings.Contains(flags+" ", " dc ") {
		t.Errorf("VmFlags %q lack dc (do not copy on fork)", flags)
	}
}

func TestNames(t *testing.T) {
	for p := Pages(0); p < pagesEnd; p++ {
		if got, err := ParsePages(strings.ToUpper(p.String())); got != p || err != nil {
			t.Errorf("ParsePages(%v) = %v, %v", p, got, err)
		}
	}
	for b := Backing(0); b < backingEnd; b++ {
		if got, err := ParseBacking(" " + b.String()); got != b || err != nil {
			t.Errorf("ParseBacking(%v) = %v, %v", b, got, err)
		}
	}
	for m := NUMAMode(0); m < numaEnd; m++ {
		if got, err := ParseNUMAMode(m.String()); got != m || err != nil {
			t.Errorf("ParseNUMAMode(%v) = %v, %v", m, got, err)
		}
	}
	var oe *OptionError
	if _, err := ParsePages("4M"); !errors.As(err, &oe) || !strings.Contains(err.Error(), "thp") {
		t.Errorf("ParsePages(4M): %v does not list what is allowed", err)
	}
	if got := Pages(99).String(); got != "Pages(99)" {
		t.Errorf("Pages(99) = %q", got)
	}
}

func TestPlacementJSON(t *testing.T) {
	p := Placement{Name: "x", Size: 5, Mapped: 4096, Backing: Memfd, Pages: PagesTHP, PageBytes: 2 << 20,
		NUMA: NUMAInterleave, Nodes: []int{0, 3}, Locked: true, Reasons: []string{"because"}}
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"pages":"thp"`, `"backing":"memfd"`, `"numa":"interleave"`, `"page_bytes":2097152`} {
		if !strings.Contains(string(b), want) {
			t.Errorf("%s lacks %s", b, want)
		}
	}
	var back Placement
	if err := json.Unmarshal(b, &back); err != nil || !reflect.DeepEqual(back, p) {
		t.Errorf("came back as %+v, %v", back, err)
	}
	s := p.String()
	for _, want := range []string{"x: 5 B memfd", "thp pages of 2 MiB", "interleave nodes [0 3]", "locked", "because"} {
		if !strings.Contains(s, want) || strings.Contains(s, "\n") {
			t.Errorf("%q lacks %q", s, want)
		}
	}
	// A caller cannot reach into the arena's own copy.
	a := mustMap(t, Options{Size: 1})
	a.place.Reasons = []string{"one"}
	a.Placement().Reasons[0] = "two"
	if a.place.Reasons[0] != "one" {
		t.Error("Placement shares its slices")
	}
}

func TestByteString(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB (1536 B)", 1 << 30: "1 GiB",
		1<<30 + 1: "1.0 GiB (1073741825 B)", 3 << 50: "3 PiB", 2048 << 50: "2048 PiB",
	} {
		if got := byteString(n); got != want {
			t.Errorf("byteString(%d) = %q, want %q", n, got, want)
		}
	}
}

// BenchmarkMap maps, touches and unmaps 256 MiB.
func BenchmarkMap(b *testing.B) {
	for _, o := range []Options{{Pages: PagesTHP}, {Pages: PagesBase}, {Backing: Memfd}} {
		for _, threads := range []int{1, 2} {
			o.Size, o.Prefault, o.PrefaultThreads = 256<<20, true, threads
			b.Run(fmt.Sprintf("backing=%v/pages=%v/threads=%d", o.Backing, o.Pages, threads), func(b *testing.B) {
				b.SetBytes(o.Size)
				for range b.N {
					a, err := Map(o)
					if err != nil {
						b.Fatal(err)
					}
					a.Close()
				}
			})
		}
	}
}
