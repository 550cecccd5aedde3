package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/arena"
)

// goCopy is the name of the rival of puts and delivers: Go's copy between the
// same buffers and memory of the same kind, without a cache.
const goCopy = "go-copy"

// copySide is one implementation of a put or deliver: move moves n blocks as
// worker i.
type copySide interface {
	// prepare starts a round.
	prepare()
	move(worker, n int) error
	Close() error
}

// compareCopies measures how near puts and delivers come to a bare copy.
func compareCopies(ctx context.Context, o Options, rep *Report) error {
	sizes, sums := []int{64 << 10, 2 << 20}, []string{"off", "on"}
	if !o.Quick { // for the curve, without bars
		sizes = []int{64 << 10, 256 << 10, 1 << 20, 2 << 20}
	}
	for i, size := range sizes {
		for j, checksum := range sums {
			part := o.slice(i*len(sums)+j, len(sizes)*len(sums))
			for k, c := range []struct {
				name         string
				bar          Bar
				mine, theirs func(Options, int, string) (copySide, error)
			}{
				{"put", Bar{Times: map[string]float64{"off": 1.3, "on": 0.9}[checksum]}, newPuts, newGoPuts},
				// A checksum on the way out is a second pass over cached bytes:
				// no bar, the price is what the row is for.
				{"deliver", Bar{Times: map[string]float64{"off": 0.95}[checksum]}, newDelivers, newGoDelivers},
			} {
				if !o.wants(c.name) {
					continue
				}
				if size != sizes[0] && size != sizes[len(sizes)-1] {
					c.bar = Bar{}
				}
				r := rep.result(Result{Suite: "engine", Name: c.name, Params: []Param{{"size", size}, {"checksum", checksum}},
					Unit: "ns/op", Better: Lower, Bar: c.bar})
				o.Progress(r.title())
				if err := r.duel(ctx, part.slice(k, 2), size, checksum, c.mine, c.theirs); err != nil {
					return fmt.Errorf("%s: %w", r.title(), err)
				}
			}
		}
	}
	return nil
}

// duel measures both sides in turn, both open at once so that neither has the
// memory to itself.
func (r *Result) duel(ctx context.Context, o Options, size int, checksum string, mine, theirs func(Options, int, string) (copySide, error)) (err error) {
	us, err := mine(o, size, checksum)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, us.Close()) }()
	them, err := theirs(o, size, checksum)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, them.Close()) }()
	return o.rounds(ctx, func(int) error {
		for _, side := range []struct {
			impl string
			copySide
		}{{ours, us}, {goCopy, them}} {
			side.prepare()
			ns, err := closedLoop(ctx, o.Workers, o.span(), chunkFor(size), side.move)
			if err != nil {
				return err
			}
			s := r.series(side.impl)
			s.Rival = side.impl == goCopy
			s.Runs = append(s.Runs, ns)
			s.Note = fmt.Sprintf("%.1f GB/s", float64(size*o.Workers)/s.Median())
		}
		return nil
	})
}

// openPool opens an engine as it is for KV blocks: a chained namespace, which
// has one owner, whose one pool has slots of size bytes.
func openPool(o Options, size int, checksum string) (*kvcr.Engine, error) {
	sums := kvcr.ChecksumOff
	if checksum == "on" {
		sums = kvcr.ChecksumOn
	}
	return kvcr.Open(kvcr.Config{
		Capacity: o.Capacity,
		Namespaces: []kvcr.Namespace{{
			Name:        "blocks",
			Kind:        kvcr.Chained,
			Pools:       []kvcr.Pool{{Name: "kv", SlotBytes: size}},
			Checksums:   sums,
			VerifyReads: checksum == "on",
		}},
	})
}

// fresh are keys that were never used before, in a walk for each worker.
type fresh struct {
	next  uint32
	walks []*Keys
	at    []int
	vals  []*values
}

func newFresh(workers, size int) *fresh {
	f := &fresh{walks: make([]*Keys, workers), at: make([]int, workers)}
	for i := range workers {
		f.vals = append(f.vals, newValues(size, uint64(i)))
	}
	return f
}

func (f *fresh) prepare() {
	const lot = 512 << 10 // more than a round uses of large blocks
	for i := range f.walks {
		numbers := make([]uint32, lot)
		for j := range numbers {
			numbers[j] = f.next
			f.next++
		}
		f.walks[i], f.at[i] = NewKeys(numbers), 0
	}
}

func (f *fresh) key(worker int) (Key, error) {
	i := f.at[worker]
	if i == f.walks[worker].Len() {
		return Key{}, errors.New("a round used all its fresh keys")
	}
	f.at[worker]++
	return f.walks[worker].At(i), nil
}

// puts deposits fresh blocks into a full cache: each evicts another.
type puts struct {
	*fresh
	e       *kvcr.Engine
	handles []*kvcr.Handle
}

func newPuts(o Options, size int, checksum string) (copySide, error) {
	e, err := openPool(o, size, checksum)
	if err != nil {
		return nil, err
	}
	p := &puts{fresh: newFresh(o.Workers, size), e: e}
	for range o.Workers {
		h, err := e.Handle()
		if err != nil {
			return nil, errors.Join(err, e.Close())
		}
		p.handles = append(p.handles, h)
	}
	p.prepare()
	if err := p.move(0, int(o.Capacity/int64(size))); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return p, nil
}

func (p *puts) move(worker, n int) error {
	for range n {
		k, err := p.key(worker)
		if err != nil {
			return err
		}
		if err := p.handles[worker].Deposit(k.Bytes, p.vals[worker].of(k)); err != nil {
			return err
		}
	}
	return nil
}

func (p *puts) Close() error { return p.e.Close() }

// goPuts copies blocks into an arena, one slot after the other.
type goPuts struct {
	*fresh
	a    *arena.Arena
	size int
	slot []int // of each worker, in its own part of the arena
	part int   // slots of a worker
}

func mapArena(o Options) (*arena.Arena, error) {
	return arena.Map(arena.Options{Name: "go-copy", Size: o.Capacity, Prefault: true})
}

func newGoPuts(o Options, size int, _ string) (copySide, error) {
	a, err := mapArena(o)
	if err != nil {
		return nil, err
	}
	return &goPuts{fresh: newFresh(o.Workers, size), a: a, size: size,
		slot: make([]int, o.Workers), part: int(o.Capacity/int64(size)) / o.Workers}, nil
}

func (p *goPuts) move(worker, n int) error {
	for range n {
		k, err := p.key(worker)
		if err != nil {
			return err
		}
		slot := worker*p.part + p.slot[worker]
		p.slot[worker] = (p.slot[worker] + 1) % p.part
		copy(p.a.Bytes(arena.Off(slot*p.size), p.size), p.vals[worker].of(k))
	}
	return nil
}

func (p *goPuts) Close() error { return p.a.Close() }

// reads is what delivers share: zipf walks over loaded keys, and for each
// worker a few destination buffers, as an engine that fills its own blocks
// has them.
type reads struct {
	walks []*walk
	at    []int
	dst   [][][]byte
}

// destinations for each worker: a mebibyte and at least four, so that no
// destination stays in the nearest cache level.
func newReads(o Options, size, keys int) *reads {
	r := &reads{walks: walksFor(o, keys, 100), at: make([]int, o.Workers), dst: make([][][]byte, o.Workers)}
	for i := range r.dst {
		for range max(4, 1<<20/size) {
			r.dst[i] = append(r.dst[i], make([]byte, size))
		}
	}
	return r
}

func (r *reads) prepare() {} // nothing is used up

func (r *reads) next(worker int) Key {
	w := r.walks[worker]
	k := w.keys.At(r.at[worker])
	r.at[worker] = (r.at[worker] + 1) % w.keys.Len()
	return k
}

type delivers struct {
	*reads
	e       *kvcr.Engine
	handles []*kvcr.Handle
	targets [][]kvcr.Target
}

// loadedKeys is how many blocks of size bytes fill a cache as far as the suite
// fills caches.
func loadedKeys(o Options, size int) int { return int(fill * float64(o.Capacity) / float64(size)) }

// sequence renders keys 0..n-1.
func sequence(n int) *Keys {
	numbers := make([]uint32, n)
	for i := range numbers {
		numbers[i] = uint32(i)
	}
	return NewKeys(numbers)
}

func newDelivers(o Options, size int, checksum string) (copySide, error) {
	e, err := openPool(o, size, checksum)
	if err != nil {
		return nil, err
	}
	keys := sequence(loadedKeys(o, size))
	d := &delivers{reads: newReads(o, size, keys.Len()), e: e}
	for i := range o.Workers {
		h, err := e.Handle()
		if err != nil {
			return nil, errors.Join(err, e.Close())
		}
		d.handles = append(d.handles, h)
		d.targets = append(d.targets, make([]kvcr.Target, len(d.dst[i])))
	}
	v := newValues(size, 1)
	for i := range keys.Len() {
		k := keys.At(i)
		if err := d.handles[0].Deposit(k.Bytes, v.of(k)); err != nil {
			return nil, errors.Join(err, e.Close())
		}
	}
	return d, nil
}

func (d *delivers) move(worker, n int) error {
	for n > 0 {
		lot := min(n, len(d.targets[worker]))
		targets := d.targets[worker][:lot]
		for i := range targets {
			targets[i] = kvcr.Target{Key: d.next(worker).Bytes, Dst: d.dst[worker][i]}
		}
		for i, res := range d.handles[worker].Deliver(targets).Results() {
			if err := res.Err(); err != nil {
				return err
			}
			if k := (Key{Bytes: targets[i].Key}); !stamped(targets[i].Dst, k) {
				return &WrongBytesError{k.Bytes, k.stamp()}
			}
		}
		n -= lot
	}
	return nil
}

func (d *delivers) Close() error { return d.e.Close() }

// goDelivers copies blocks out of an arena in which block n lies in slot n.
type goDelivers struct {
	*reads
	a    *arena.Arena
	size int
}

func newGoDelivers(o Options, size int, _ string) (copySide, error) {
	a, err := mapArena(o)
	if err != nil {
		return nil, err
	}
	keys := sequence(loadedKeys(o, size))
	d := &goDelivers{reads: newReads(o, size, keys.Len()), a: a, size: size}
	v := newValues(size, 1)
	for i := range keys.Len() {
		copy(a.Bytes(arena.Off(i*size), size), v.of(keys.At(i)))
	}
	return d, nil
}

func (d *goDelivers) move(worker, n int) error {
	for i := range n {
		k := d.next(worker)
		dst := d.dst[worker][i%len(d.dst[worker])]
		copy(dst, d.a.Bytes(arena.Off(k.number()*uint64(d.size)), d.size))
		if !stamped(dst, k) {
			return &WrongBytesError{k.Bytes, k.stamp()}
		}
	}
	return nil
}

func (d *goDelivers) Close() error { return d.a.Close() }
