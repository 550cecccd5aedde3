package kvcr

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrNotShareable: the payload memory of the namespace is no memfd (see
// Memory.Backing), or the system does not allow to pass it on.
var ErrNotShareable = errors.New("payload memory cannot be shared")

// sharing is done once for a namespace: what is sealed stays sealed.
type sharing struct {
	once sync.Once
	err  error
}

// Share opens the payload memory of a namespace for other processes, to which
// the caller passes the file's descriptor. They can read all values in it, also
// those that have been removed, and nothing else of the engine: neither keys nor
// records. They can neither write to it nor change its length, whatever they do
// with the descriptor, since the first Share seals the memory; the engine goes on
// writing through the mapping it has had before.
//
// size is the number of bytes to map; View.Offset counts from the first. The
// caller must Close the file. The memory outlives Close for who has mapped it.
//
// Errors: ErrNamespace, ErrClosed, ErrNotShareable.
func (e *Engine) Share(namespace string) (f *os.File, size int64, err error) {
	ns, err := e.namespace(namespace)
	if err != nil {
		return nil, 0, err
	}
	e.mu.Lock() // so that the descriptor is not closed under us
	defer e.mu.Unlock()
	if e.closed.Load() {
		return nil, 0, &OpError{Op: "share", Err: ErrClosed}
	}
	fd, ok := ns.payload.FD()
	if !ok {
		return nil, 0, &OpError{Op: "share", Err: ErrNotShareable, Detail: fmt.Sprintf("namespace %q has %v memory", namespace, ns.payload.Placement().Backing)}
	}
	ns.share.once.Do(func() { ns.share.err = ns.payload.Seal() })
	if ns.share.err != nil {
		return nil, 0, &OpError{Op: "share", Err: errors.Join(ErrNotShareable, ns.share.err)}
	}
	// Opened anew, because a duplicate would be open for writing as ours is.
	f, err = os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0, &OpError{Op: "share", Err: errors.Join(ErrNotShareable, err)}
	}
	return f, ns.payload.Size(), nil
}

// Offset is where the block lies in its namespace's payload memory, in bytes from
// the begin of what Engine.Share opens. It is not ok for a block of several
// pieces, which lie apart, and for a released View.
func (v *View) Offset() (off int64, ok bool) {
	if v.p == nil || v.p.ns.unmapped.Load() || v.p.Shard.Pieces(v.c) != 1 {
		return 0, false
	}
	if len(v.b) == 0 {
		return 0, true
	}
	return distance(v.p.ns.payload.Bytes(0, 1), v.b), true
}
