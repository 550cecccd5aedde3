package peer

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr/internal/procs"
	"github.com/kvcr-go/kvcr/wire"
)

// shmSource is the source's side of route shm: it passes memory, and watches the
// process that reads it. Nothing is offered before that process is known, since
// its claims could never end.
type shmSource struct {
	*streamSource // for blocks outside of shared memory

	mu    sync.Mutex
	ready func() // nil once called
}

func (r *shmRoute) Source(_ context.Context, s *Session) (SourceRoute, error) {
	return &shmSource{streamSource: newStreamSource(s)}, nil
}

func (r *shmSource) whenReady(up func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ready = up
}

// attach answers on a payload connection. The first one carries blocks afterwards,
// others are closed by the destination.
func (r *shmSource) attach(nc net.Conn, index int, namespace string) {
	err := r.share(nc, namespace)
	if err != nil {
		r.s.node.log.Info("a peer gets no shared memory", "namespace", namespace, "err", err)
		status := wire.StatusUnsupported
		if errors.Is(err, procs.ErrOtherUser) {
			status = wire.StatusUnauthorized
		}
		_, _ = nc.Write((&wire.StatusReply{Status: status}).Append(nil, 1)) // it sees the end otherwise
		nc.Close()
		return
	}
	nc.SetDeadline(time.Time{})
	if index == 0 {
		r.streamSource.attach(nc, index, namespace)
		return
	}
	nc.Close()
}

// share sends the memory of a namespace.
func (r *shmSource) share(nc net.Conn, namespace string) error {
	uc, ok := nc.(*net.UnixConn)
	if !ok {
		return errors.New("shared memory needs a unix socket")
	}
	nc.SetDeadline(time.Now().Add(r.s.node.cfg.HandshakeTimeout))
	_, id, err := readOne(nc, wire.TypeShmAttach)
	if err != nil {
		return err
	}
	mem, size, err := r.s.Memory.Share(namespace)
	if err != nil {
		return err
	}
	defer mem.Close()
	// Each connection is looked at: the process must be the one that is watched.
	if err := r.s.watch(nc); err != nil {
		return err
	}
	r.mu.Lock()
	up := r.ready
	r.ready = nil
	r.mu.Unlock()
	if up != nil {
		up() // before the destination knows that it may begin
	}
	m := wire.ShmPools{Pools: []wire.Pool{{Bytes: uint64(size)}}}
	frame := m.Append(nil, id)
	n, _, err := uc.WriteMsgUnix(frame, unix.UnixRights(int(mem.Fd())), nil)
	if err == nil && n < len(frame) {
		_, err = uc.Write(frame[n:])
	}
	return err
}
