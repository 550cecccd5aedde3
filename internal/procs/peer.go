package procs

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Conditions of a PeerError.
var (
	// ErrOtherUser: the process runs as another user, who is not root.
	ErrOtherUser = errors.New("another user")
	// ErrUnknown: the process cannot be known or watched from here.
	ErrUnknown = errors.New("process cannot be watched")
)

// PeerError says why the process behind a socket is not dealt with. Unwrap gives
// the condition.
type PeerError struct {
	Err error
	Why string
}

func (e *PeerError) Error() string { return e.Why }
func (e *PeerError) Unwrap() error { return e.Err }

func unknown(format string, a ...any) error { return &PeerError{ErrUnknown, fmt.Sprintf(format, a...)} }

// Kernel is how the process at the other end of a socket is asked for; tests
// replace parts of it.
type Kernel struct {
	Cred      func(fd int) (*unix.Ucred, error)
	PeerPidfd func(fd int) (int, error)
	Open      func(pid, flags int) (int, error)
}

// System asks the kernel that runs us.
var System = Kernel{
	Cred: func(fd int) (*unix.Ucred, error) { return unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED) },
	PeerPidfd: func(fd int) (int, error) {
		return unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	},
	Open: unix.PidfdOpen,
}

// Peer returns the process at the other end of a unix socket (that has connected
// it, or listens): its number and a pidfd, the caller's to close. Only processes
// of our own user, and root's, may share memory. One that cannot be watched may
// not either, since nothing would ever prove that it has stopped. Errors are
// *PeerError.
func (k *Kernel) Peer(fd int) (pid int32, pidfd int, err error) {
	cred, err := k.Cred(fd)
	if err != nil {
		return 0, -1, unknown("no credentials of the peer: %v", err)
	}
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return 0, -1, &PeerError{ErrOtherUser, fmt.Sprintf("the peer's user is %d, this one %d", cred.Uid, os.Geteuid())}
	}
	if cred.Pid <= 0 {
		return 0, -1, unknown("the peer's process is not visible from here: another pid namespace")
	}
	pidfd, err = k.PeerPidfd(fd)
	if errors.Is(err, unix.ENOPROTOOPT) { // before Linux 6.5
		pidfd, err = k.openTwice(fd, cred)
	}
	if err != nil {
		return 0, -1, unknown("no pidfd of process %d: %v", cred.Pid, err)
	}
	if Exited(pidfd) {
		unix.Close(pidfd)
		return 0, -1, unknown("process %d has ended", cred.Pid)
	}
	return cred.Pid, pidfd, nil
}

// openTwice opens a pidfd by number. Should the peer have died and its number
// gone to another process before that, what waits for the end of the dead waits
// until the other one dies: too long, never too short.
func (k *Kernel) openTwice(fd int, cred *unix.Ucred) (int, error) {
	pidfd, err := k.Open(int(cred.Pid), 0)
	if err != nil {
		return -1, err
	}
	again, err := k.Cred(fd)
	if err == nil && *again != *cred {
		err = errors.New("the peer's credentials have changed")
	}
	if err != nil {
		unix.Close(pidfd)
		return -1, err
	}
	return pidfd, nil
}

// Exited reports whether the process of a pidfd has ended, with all its threads.
func Exited(pidfd int) bool {
	p := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, 0)
		if err != unix.EINTR {
			return n > 0 && p[0].Revents&(unix.POLLIN|unix.POLLHUP) != 0
		}
	}
}
