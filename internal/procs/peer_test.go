package procs

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// Who is at the other end is found out, or the client gets no memory.
func TestPeerProcess(t *testing.T) {
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
		kernel Kernel
		want   error
	}{
		{"own", Kernel{creds(me), func(int) (int, error) { return own(0, 0) }, nil}, nil},
		{"root", Kernel{creds(root), func(int) (int, error) { return own(0, 0) }, nil}, nil},
		{"other user", Kernel{creds(other), nil, nil}, ErrOtherUser},
		{"no credentials", Kernel{func(int) (*unix.Ucred, error) { return nil, unix.EINVAL }, nil, nil}, ErrUnknown},
		{"other pid namespace", Kernel{creds(invisible), nil, nil}, ErrUnknown},
		{"reaped", Kernel{creds(me), fail(unix.ESRCH), nil}, ErrUnknown},
		{"ended", Kernel{creds(me), func(int) (int, error) { return ended(0, 0) }, nil}, ErrUnknown},
		{"old kernel", Kernel{creds(me), old, own}, nil},
		{"old kernel, reaped", Kernel{creds(me), old, func(int, int) (int, error) { return -1, unix.ESRCH }}, ErrUnknown},
		{"old kernel, no pidfd", Kernel{creds(me), old, func(int, int) (int, error) { return -1, unix.ENOSYS }}, ErrUnknown},
		{"old kernel, ended", Kernel{creds(me), old, ended}, ErrUnknown},
		{"old kernel, another process", Kernel{creds(me, reused), old, own}, ErrUnknown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := openDescriptors(t)
			pid, pidfd, err := tt.kernel.Peer(0)
			var e *PeerError
			if !errors.Is(err, tt.want) || err != nil && !errors.As(err, &e) {
				t.Errorf("%v, want %v", err, tt.want)
			}
			if err == nil {
				if pid != me.Pid || Exited(pidfd) {
					t.Errorf("process %d, ended: %t", pid, Exited(pidfd))
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
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	cmd.Wait()
	if !Exited(fd) {
		t.Fatal("a process that was waited for has not ended")
	}
	return fd
}

// The real calls name this process at the other end of its own socket.
func TestPeerOfRealSocket(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	pid, pidfd, err := System.Peer(fds[0])
	if err != nil || int(pid) != os.Getpid() {
		t.Fatalf("process %d, %v", pid, err)
	}
	unix.Close(pidfd)
	byNumber := System
	byNumber.PeerPidfd = func(int) (int, error) { return -1, unix.ENOPROTOOPT }
	pid, pidfd, err = byNumber.Peer(fds[0])
	if err != nil || int(pid) != os.Getpid() {
		t.Fatalf("by number: process %d, %v", pid, err)
	}
	unix.Close(pidfd)
}

// openDescriptors is the number of descriptors that this process has open.
func openDescriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
