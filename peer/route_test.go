package peer

import (
	"context"
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// putRoute stands for a route over which the source writes into memory that the
// destination describes, as UCX does: within one process, by a table of memory.
type putRoute struct {
	fabric *fabric
	fail   bool // Dest does not come about
}

// fabric is the memory that may be written remotely, by key.
type fabric struct {
	mu   sync.Mutex
	last uint64
	mem  map[uint64][]byte
	hold sync.RWMutex // writers wait while it is held
}

func (*putRoute) Kind() wire.Route                { return wire.RouteUCXPut }
func (*putRoute) Announce(i *wire.PeerInfo)       { i.UCX = []byte("worker") }
func (*putRoute) Usable(peer *wire.PeerInfo) bool { return len(peer.UCX) > 0 }
func (*putRoute) Close() error                    { return nil }

type putDest struct {
	f *fabric
	s *Session

	mu    sync.Mutex
	posts map[item]*putPost
	down  bool
}

type putPost struct {
	Post
	key uint64
}

func (r *putRoute) Dest(_ context.Context, s *Session) (DestRoute, error) {
	if r.fail {
		return nil, context.DeadlineExceeded
	}
	return &putDest{f: r.fabric, s: s, posts: map[item]*putPost{}}, nil
}

func (d *putDest) Describe(dst []byte, op OpID, i int) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.posts[item{op, i}]; p != nil {
		dst = binary.LittleEndian.AppendUint64(dst, p.key)
	}
	return dst
}

func (d *putDest) Post(p Post, _ string) {
	d.f.mu.Lock()
	d.f.last++
	key := d.f.last
	d.f.mem[key] = d.s.Memory.SlotBytes(p.Slot)[0]
	d.f.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.posts[item{p.Op, p.Index}] = &putPost{p, key}
}

// take ends a post and makes its memory unreachable.
func (d *putDest) take(op OpID, i int) *putPost {
	d.mu.Lock()
	p := d.posts[item{op, i}]
	delete(d.posts, item{op, i})
	d.mu.Unlock()
	if p != nil {
		d.f.mu.Lock()
		delete(d.f.mem, p.key)
		d.f.mu.Unlock()
	}
	return p
}

func (d *putDest) Done(op OpID, i int) {
	if p := d.take(op, i); p != nil {
		status := wire.StatusOK
		if p.Offer.Flags&wire.OfferSum != 0 && d.s.Memory.SlotSum(p.Slot) != p.Offer.Sum {
			status = wire.StatusChecksum
		}
		d.s.Event(Landed{op, i, status})
	}
}

func (d *putDest) Close(op OpID, i int) {
	if d.take(op, i) != nil {
		d.s.Event(Shut{op, i})
	}
}

func (d *putDest) Down() {
	d.mu.Lock()
	var all []item
	for id := range d.posts {
		all = append(all, id)
	}
	d.mu.Unlock()
	for _, id := range all {
		if d.take(id.op, id.index) != nil {
			d.s.Event(Landed{id.op, id.index, wire.StatusLost})
		}
	}
}

type putSource struct {
	f  *fabric
	s  *Session
	wg sync.WaitGroup
}

func (r *putRoute) Source(_ context.Context, s *Session) (SourceRoute, error) {
	return &putSource{f: r.fabric, s: s}, nil
}

func (r *putSource) Write(w Write) {
	src := r.s.Memory.ClaimBytes(w.Claim)[0]
	go func() {
		r.f.hold.RLock()
		defer r.f.hold.RUnlock()
		status := wire.StatusOK
		r.f.mu.Lock()
		if len(w.Desc) != 8 {
			status = wire.StatusSource
		} else if dst := r.f.mem[binary.LittleEndian.Uint64(w.Desc)]; len(dst) != len(src) {
			status = wire.StatusLost
		} else {
			copy(dst, src)
		}
		r.f.mu.Unlock()
		r.s.Event(Written{w.Op, w.Index, status})
	}()
}

func (*putSource) Flush()                {}
func (*putSource) CancelWrite(OpID, int) {}
func (*putSource) Down()                 {}

// A route of another package takes part without the node knowing it: it is agreed
// on, describes memory, carries payload, is closed late, and is passed over where
// it fails.
func TestProvidedRoute(t *testing.T) {
	const n, size = 32, 64 << 10
	f := &fabric{mem: map[uint64][]byte{}}
	with := func(fail bool) nodeOption {
		return func(c *Config) {
			c.UCX = &putRoute{f, fail}
			c.Routes = []wire.Route{wire.RouteUCXPut, wire.RouteStream}
		}
	}
	var troubles []Trouble
	var mu sync.Mutex
	hear := func(c *Config) {
		c.OnTrouble = func(tr Trouble) { mu.Lock(); troubles = append(troubles, tr); mu.Unlock() }
	}
	src, dst := newTable(t, n, size, false), newTable(t, 2*n, size, false)
	for i := range n {
		src.put(t, keyOf(i), size)
	}
	a, b := openNode(t, src, with(false)), openNode(t, dst, with(false), hear)
	mustFetch(t, b, a.Endpoints()[0], 0, n)
	for i := range n {
		if err := dst.check(keyOf(i), size); err != nil {
			t.Error(err)
		}
	}
	if s, _ := b.Known(a.Endpoints()[0]); s.Route != wire.RouteUCXPut {
		t.Errorf("route %v", s.Route)
	}
	dst.quiet(t)
	dst.drop()

	// The source does not get round to it, and does not say that it will not: the
	// caller has an answer in time, the memory is reported and kept, until it does.
	f.hold.Lock()
	for i, s := range fetch(t, b, a.Endpoints()[0], Submit{Namespace: "ns", Items: wanted(0, 2)}, 100*time.Millisecond) {
		if s.Status != wire.StatusTimeout {
			t.Errorf("item %d: %v", i, s.Status)
		}
	}
	within(t, 5*time.Second, func() bool { return b.Stats().Quarantined == 2*size }, func() string { return "nothing is in quarantine" })
	if _, slots, _, _ := dst.use(); slots != 2 {
		t.Errorf("%d slots are kept, want 2", slots)
	}
	f.hold.Unlock()
	dst.quiet(t)
	within(t, 5*time.Second, func() bool { return b.Stats().Quarantined == 0 }, func() string { return "still in quarantine" })
	mu.Lock()
	if len(troubles) != 4 || troubles[0].Quiesced || !troubles[3].Quiesced || troubles[0].Bytes != size {
		t.Errorf("reports %+v", troubles)
	}
	mu.Unlock()
	src.quiet(t)

	c := openNode(t, newTable(t, n, size, false), with(true))
	mustFetch(t, c, a.Endpoints()[0], 0, n)
	if s, _ := c.Known(a.Endpoints()[0]); s.Route != wire.RouteStream {
		t.Errorf("route %v", s.Route)
	}
}
