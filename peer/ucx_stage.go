package peer

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr/internal/cells"
	"github.com/kvcr-go/kvcr/ucx"
)

// stageUnit is what staging is cut into; a chunk is one or more of them.
const stageUnit = 64 << 10

// staging is registered memory for what lies elsewhere on its way. Whoever finds
// none is pumped when some has come free.
type staging struct {
	u     *UCX
	bytes []byte
	mem   *ucx.Memory

	mu      sync.Mutex
	units   *cells.Cells
	waiting map[pumper]struct{}
}

// chunk is a part of a ring.
type chunk struct {
	s     *staging
	share *stageShare
	at, n int // units
	bytes []byte
}

// stageShare is how much of a ring one session has. Guarded by staging.mu.
type stageShare struct{ used, limit int }

// mapStaging reserves memory outside of the Go heap.
func mapStaging(n int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err == nil {
		_ = unix.Madvise(b, unix.MADV_DONTFORK) // children must not share what devices write to
	}
	return b, err
}

func unmapStaging(b *[]byte) {
	if *b != nil {
		_ = unix.Munmap(*b) // mapped whole
		*b = nil
	}
}

func (u *UCX) newStaging(n int) (*staging, error) {
	n = n / stageUnit * stageUnit
	b, err := mapStaging(n)
	if err != nil {
		return nil, err
	}
	s := &staging{u: u, bytes: b, units: cells.New(n / stageUnit), waiting: map[pumper]struct{}{}}
	if s.mem, err = u.ctx.Register(b, nil); err != nil {
		unmapStaging(&s.bytes)
		return nil, err
	}
	return s, nil
}

// take returns a chunk of n bytes, or nil: then p is pumped when it may be tried
// again.
func (s *staging) take(n int, share *stageShare, p pumper) *chunk {
	units := (n + stageUnit - 1) / stageUnit
	s.mu.Lock()
	defer s.mu.Unlock()
	if share.used+units*stageUnit <= share.limit {
		if at, ok := s.units.Take(units); ok {
			share.used += units * stageUnit
			return &chunk{s, share, at, units, s.bytes[at*stageUnit:][:n:n]}
		}
	}
	s.waiting[p] = struct{}{}
	return nil
}

// off is where the chunk lies in the ring's registration.
func (c *chunk) off() uint64 { return uint64(c.at * stageUnit) }

// give gives a chunk back.
func (c *chunk) give() {
	s := c.s
	s.mu.Lock()
	s.units.Give(c.at, c.n)
	c.share.used -= c.n * stageUnit
	wake := s.waiting
	if len(wake) > 0 {
		s.waiting = map[pumper]struct{}{}
	}
	s.mu.Unlock()
	for p := range wake {
		s.u.crew.push(p.pump)
	}
}
