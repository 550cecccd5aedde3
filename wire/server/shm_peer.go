package server

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr/wire"
)

// notShared is why a client gets no shared memory: a status for the client, a
// sentence for the log.
type notShared struct {
	status wire.Status
	why    string
}

func (e *notShared) Error() string { return e.why }

func notSupported(format string, a ...any) error {
	return &notShared{wire.StatusUnsupported, fmt.Sprintf(format, a...)}
}

// peerKernel is how the process at the other end of a socket is asked for; tests
// replace parts of it.
type peerKernel struct {
	cred      func(fd int) (*unix.Ucred, error)
	peerPidfd func(fd int) (int, error)
	open      func(pid, flags int) (int, error)
}

var realPeers = peerKernel{
	cred: func(fd int) (*unix.Ucred, error) { return unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED) },
	peerPidfd: func(fd int) (int, error) {
		return unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	},
	open: unix.PidfdOpen,
}

// process returns the process that connected a unix socket: its number and a
// pidfd, the caller's to close. Only processes of the server's own user, and
// root's, may share memory. One that cannot be watched may not either, since
// nothing would ever prove that it has stopped reading. Errors are *notShared.
func (k *peerKernel) process(fd int) (pid int32, pidfd int, err error) {
	cred, err := k.cred(fd)
	if err != nil {
		return 0, -1, notSupported("no credentials of the peer: %v", err)
	}
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return 0, -1, &notShared{wire.StatusUnauthorized, fmt.Sprintf("the client's user is %d, this one %d", cred.Uid, os.Geteuid())}
	}
	if cred.Pid <= 0 {
		return 0, -1, notSupported("the client's process is not visible from here: another pid namespace")
	}
	pidfd, err = k.peerPidfd(fd)
	if errors.Is(err, unix.ENOPROTOOPT) { // before Linux 6.5
		pidfd, err = k.openTwice(fd, cred)
	}
	if err != nil {
		return 0, -1, notSupported("no pidfd of process %d: %v", cred.Pid, err)
	}
	if exited(pidfd) {
		unix.Close(pidfd)
		return 0, -1, notSupported("process %d has ended", cred.Pid)
	}
	return cred.Pid, pidfd, nil
}

// openTwice opens a pidfd by number. Should the client have died and its number
// gone to another process before that, the claims of the dead are kept until the
// other one dies: too long, never too short.
func (k *peerKernel) openTwice(fd int, cred *unix.Ucred) (int, error) {
	pidfd, err := k.open(int(cred.Pid), 0)
	if err != nil {
		return -1, err
	}
	again, err := k.cred(fd)
	if err == nil && *again != *cred {
		err = errors.New("the peer's credentials have changed")
	}
	if err != nil {
		unix.Close(pidfd)
		return -1, err
	}
	return pidfd, nil
}

// exited reports whether the process of a pidfd has ended, with all its threads.
func exited(pidfd int) bool {
	p := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, 0)
		if err != unix.EINTR {
			return n > 0 && p[0].Revents&(unix.POLLIN|unix.POLLHUP) != 0
		}
	}
}
