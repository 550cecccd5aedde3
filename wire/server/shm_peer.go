package server

import (
	"errors"
	"fmt"

	"github.com/kvcr-go/kvcr/internal/procs"
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

// processOf returns the process that connected a unix socket: its number and a
// pidfd, the caller's to close. Errors are *notShared.
func processOf(k *procs.Kernel, fd int) (pid int32, pidfd int, err error) {
	pid, pidfd, err = k.Peer(fd)
	if errors.Is(err, procs.ErrOtherUser) {
		return 0, -1, &notShared{wire.StatusUnauthorized, err.Error()}
	}
	if err != nil {
		return 0, -1, notSupported("%v", err)
	}
	return pid, pidfd, nil
}
