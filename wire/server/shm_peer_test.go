package server

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr/wire"
)

// Who is at the other end is found out, or the client gets no memory.
func TestPeerProcess(t *testing.T) {
	needSharing(t)
	me := unix.Ucred{Pid: int32(os.Getpid()), Uid: uint32(os.Geteuid()), Gid: uint32(os.Getegid())}
	other, invisible, root := me, me, me
	other.Uid, invisible.Pid, root.Uid = 77777, 0, 0
	creds := func(list ...unix.Ucred) func(int) (*unix.Ucred, error) {
		return func(int) (*unix.Ucred, error) {
			c := list[0]
			if len(list) > 1 {
				list = list[1:]
			}
			return &c, nil
		}
	}
	fail := func(err error) func(int) (int, error) { return func(int) (int, error) { return -1, err } }
	old := fail(unix.ENOPROTOOPT)
	own := func(int, int) (int, error) { return unix.PidfdOpen(os.Getpid(), 0) }
	ended := func(int, int) (int, error) { return unix.Dup(endedProcess(t)) }
	reused := me
	reused.Pid++
	for _, tt := range []struct {
		name   string
		kernel peerKernel
		status wire.Status
	}{
		{"own", peerKernel{creds(me), func(int) (int, error) { return own(0, 0) }, nil}, wire.StatusOK},
		{"root", peerKernel{creds(root), func(int) (int, error) { return own(0, 0) }, nil}, wire.StatusOK},
		{"other user", peerKernel{creds(other), nil, nil}, wire.StatusUnauthorized},
		{"no credentials", peerKernel{func(int) (*unix.Ucred, error) { return nil, unix.EINVAL }, nil, nil}, wire.StatusUnsupported},
		{"other pid namespace", peerKernel{creds(invisible), nil, nil}, wire.StatusUnsupported},
		{"reaped", peerKernel{creds(me), fail(unix.ESRCH), nil}, wire.StatusUnsupported},
		{"ended", peerKernel{creds(me), func(int) (int, error) { return ended(0, 0) }, nil}, wire.StatusUnsupported},
		{"old kernel", peerKernel{creds(me), old, own}, wire.StatusOK},
		{"old kernel, reaped", peerKernel{creds(me), old, func(int, int) (int, error) { return -1, unix.ESRCH }}, wire.StatusUnsupported},
		{"old kernel, no pidfd", peerKernel{creds(me), old, func(int, int) (int, error) { return -1, unix.ENOSYS }}, wire.StatusUnsupported},
		{"old kernel, ended", peerKernel{creds(me), old, ended}, wire.StatusUnsupported},
		{"old kernel, another process", peerKernel{creds(me, reused), old, own}, wire.StatusUnsupported},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := openDescriptors(t)
			pid, pidfd, err := tt.kernel.process(0)
			got := wire.StatusOK
			var no *notShared
			if errors.As(err, &no) {
				got = no.status
			} else if err != nil {
				t.Fatalf("an error of another kind: %v", err)
			}
			if got != tt.status {
				t.Errorf("status %v, want %v: %v", got, tt.status, err)
			}
			if err == nil {
				if pid != me.Pid || exited(pidfd) {
					t.Errorf("process %d, ended: %t", pid, exited(pidfd))
				}
				unix.Close(pidfd)
			}
			if n := openDescriptors(t); n != before && tt.name != "ended" && tt.name != "old kernel, ended" {
				t.Errorf("%d descriptors, %d before", n, before)
			}
		})
	}
}

// endedProcess is the pidfd of a process that has ended and waits for its parent.
func endedProcess(t *testing.T) int {
	t.Helper()
	cmd := exec.Command(self(t), "-test.run=^$")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	cmd.Wait()
	eventually(t, "the process has ended", func() bool { return exited(fd) })
	return fd
}

// The real calls name this process at the other end of its own socket.
func TestPeerOfRealSocket(t *testing.T) {
	needSharing(t)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	pid, pidfd, err := realPeers.process(fds[0])
	if err != nil || int(pid) != os.Getpid() {
		t.Fatalf("process %d, %v", pid, err)
	}
	unix.Close(pidfd)
	byNumber := realPeers
	byNumber.peerPidfd = func(int) (int, error) { return -1, unix.ENOPROTOOPT }
	pid, pidfd, err = byNumber.process(fds[0])
	if err != nil || int(pid) != os.Getpid() {
		t.Fatalf("by number: process %d, %v", pid, err)
	}
	unix.Close(pidfd)
}

// FuzzExtents: whatever is taken and given, no two places share a byte, a take
// fails only where no gap is long enough, and in the end all is one again.
func FuzzExtents(f *testing.F) {
	f.Add([]byte{10, 20, 0x81, 30, 0x80, 0x80})
	f.Add([]byte{1, 1, 1, 1, 0x80, 0x82, 0x81, 0x80, 64, 64})
	f.Add([]byte{0, 127, 127, 127, 127, 0x80, 127})
	f.Fuzz(func(t *testing.T, ops []byte) {
		const units = 256
		const size = units * stagingUnit
		free := extents{{0, size}}
		type taken struct{ off, n int64 }
		var out []taken
		var used [units]bool
		mark := func(x taken, v bool) {
			for u := x.off / stagingUnit; u < (x.off+x.n+stagingUnit-1)/stagingUnit; u++ {
				if used[u] == v {
					t.Fatalf("unit %d of the place of %d bytes at %d: used is %t already", u, x.n, x.off, v)
				}
				used[u] = v
			}
		}
		for _, op := range ops {
			if op&0x80 != 0 {
				if len(out) > 0 {
					i := int(op&0x7f) % len(out)
					mark(out[i], false)
					free.give(out[i].off, out[i].n)
					out = slices.Delete(out, i, i+1)
				}
				continue
			}
			n := int64(op) * 97 // not a multiple of the unit
			off, ok := free.take(n)
			gap, longest := 0, 0
			for _, u := range used {
				if gap++; u {
					gap = 0
				}
				longest = max(longest, gap)
			}
			if ok != (roundUp(n) <= int64(longest)*stagingUnit) {
				t.Fatalf("take(%d) is %t, the longest gap is %d", n, ok, longest*stagingUnit)
			}
			if ok {
				if off < 0 || off+n > size || off%stagingUnit != 0 {
					t.Fatalf("%d bytes at %d of %d", n, off, size)
				}
				mark(taken{off, n}, true)
				out = append(out, taken{off, n})
			}
		}
		for _, x := range out {
			free.give(x.off, x.n)
		}
		if !slices.Equal(free, extents{{0, size}}) {
			t.Fatalf("at the end %v is free", free)
		}
	})
}
