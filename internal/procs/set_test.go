package procs

import (
	"errors"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sleeper is a process that ends when it is killed.
func sleeper(t *testing.T) (cmd *exec.Cmd, pidfd int) {
	t.Helper()
	cmd = exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Skipf("no process to watch: %v", err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	return cmd, fd
}

// The end of a process is told once; of one that was removed, never. Nothing stays
// open.
func TestSet(t *testing.T) {
	before := openDescriptors(t)
	var s Set
	ends := make(chan int, 10)
	var entries []*Entry
	var cmds []*exec.Cmd
	for i := range 3 {
		cmd, fd := sleeper(t)
		e, err := s.Add(fd, func() { ends <- i })
		if err != nil {
			t.Fatal(err)
		}
		entries, cmds = append(entries, e), append(cmds, cmd)
	}
	if !entries[1].Remove() || entries[1].Remove() {
		t.Error("an entry is removed once")
	}
	if entries[0].Exited() || !entries[1].Exited() {
		t.Error("who lives, and who is not waited for")
	}
	cmds[1].Process.Kill()
	cmds[0].Process.Kill()
	select {
	case i := <-ends:
		if i != 0 {
			t.Errorf("the end of %d", i)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("no end is told")
	}
	if entries[0].Remove() || s.Len() != 1 {
		t.Errorf("%d are waited for", s.Len())
	}
	s.Close()
	cmds[2].Process.Kill()
	_, fd := sleeper(t)
	if _, err := s.Add(fd, func() { ends <- 9 }); !errors.Is(err, ErrClosed) {
		t.Errorf("Add after Close: %v", err)
	}
	for _, cmd := range cmds {
		cmd.Wait()
	}
	select {
	case i := <-ends:
		t.Errorf("the end of %d is told", i)
	case <-time.After(20 * time.Millisecond):
	}
	if n := openDescriptors(t); n > before+2 { // what os/exec keeps of the last process
		t.Errorf("%d descriptors, %d before", n, before)
	}
}
