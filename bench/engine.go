package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
)

// Engine measures the cache beside other in-process caches, and its copies
// beside Go's copy.
func Engine(ctx context.Context, o Options) (*Report, error) {
	return runParts(ctx, o, []part{
		{[]string{"get-view", "get-copy", "mix"}, 24, compareCaches},
		{[]string{"put", "deliver"}, 6, compareCopies},
		{[]string{"allocs"}, 1, countAllocs},
		{[]string{"get-p99-beside-puts", "get-p99-beside-puts-ratio", "timer-p99-beside-puts", "get-latency-curve"}, 4, latencyBesidePuts},
		{[]string{"rss"}, 2, measureRSS},
		{[]string{"metadata"}, 1, measureMetadata},
		{[]string{"set-completion"}, 1, measureCompletion},
		{[]string{"gc-pause"}, 1, measureGCPause},
	})
}

// fill is the part of a cache's capacity that the loaded values take.
const fill = 0.75

// shapeOf is a cache of o.Capacity filled with values of one size.
func shapeOf(o Options, size int) Shape {
	keys := int(fill * float64(o.Capacity) / float64(size))
	return Shape{Capacity: o.Capacity, ValueSize: size, Keys: o.keys(keys)}
}

// walksFor draws a walk for each worker.
func walksFor(o Options, keys, readPercent int) []*walk {
	walks := make([]*walk, o.Workers)
	for i := range walks {
		walks[i] = newWalk(NewZipf(keys, 0.99, uint64(100*readPercent+i+1)), o.steps(), readPercent)
	}
	return walks
}

// question is one thing to measure on a loaded cache.
type question struct {
	name   string
	params []Param
	bar    Bar
	walks  []*walk
	byRef  bool // only caches that lend references can answer
	op     func(*lane, int) error
}

// times is how many times faster than the best bounded peer KVCR has to be, by
// size of value; 0 where nothing is asked.
type times map[int]float64

var (
	viewTimes = times{64: 1.6, 4096: 1.6, 65536: 1.2}
	copyTimes = times{64: 1.4, 4096: 1.4}
	mixTimes  = times{64: 1.5, 4096: 1.4, 65536: 1.8}
)

// questions on values of one size, those that o wants.
func questions(o Options, s Shape) []question {
	size := s.ValueSize
	reads := walksFor(o, s.Keys, 100)
	qs := []question{
		{"get-view", []Param{{"size", size}}, Bar{Times: viewTimes[size]}, reads, true, (*lane).views},
		{"get-copy", []Param{{"size", size}}, Bar{Times: copyTimes[size]}, reads, false, (*lane).copies},
	}
	if o.wants("mix") {
		for _, read := range []int{90, 50} {
			qs = append(qs, question{"mix", []Param{{"size", size}, {"read", read}}, Bar{Times: mixTimes[size]}, walksFor(o, s.Keys, read), false, (*lane).mix})
		}
	}
	return slices.DeleteFunc(qs, func(q question) bool { return !o.wants(q.name) })
}

// again is KVCR under a second name: what two equal caches differ by in this
// run is noise.
const again = "kvcr-again"

// ours reports whether p is KVCR under one of its names.
func (p Peer) ours() bool { return p.Name == ours || p.Name == poolName || p.Name == again }

func compareCaches(ctx context.Context, o Options, rep *Report) error {
	for i, size := range o.Sizes {
		s := shapeOf(o, size)
		peers := append([]Peer{peerKVCR, peerPool}, Peers()...)
		if size == 4096 {
			peers = append(peers, Peer{Name: again, Bounded: true, References: true, Open: openKVCR})
		}
		peers = slices.DeleteFunc(peers, func(p Peer) bool { return !p.Holds(s) })
		qs := questions(o, s)
		// Rows appear in the order of peers, whoever runs first in a round.
		for _, q := range qs {
			r := rep.result(Result{Suite: "engine", Name: q.name, Params: q.params, Unit: "ns/op", Better: Lower, Bar: q.bar})
			for _, p := range peers {
				if p.References || !q.byRef {
					r.series(p.Name).Rival = p.Bounded && !p.ours()
				}
			}
		}
		err := o.slice(i, len(o.Sizes)).rounds(ctx, func(round int) error {
			for i := range peers {
				// Another first one each round: the heap that one leaves behind
				// is the next one's start.
				p := peers[(i+round)%len(peers)]
				o.Progress(fmt.Sprintf("caches, %d-byte values, round %d of %d: %s", size, round+1, o.Runs, p.Name))
				if err := answer(ctx, o, rep, p, s, qs); err != nil {
					return fmt.Errorf("%s, %d-byte values: %w", p.Name, size, err)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// answer loads one cache of p and puts all questions to it.
func answer(ctx context.Context, o Options, rep *Report, p Peer, s Shape, qs []question) (err error) {
	b, err := openBay(ctx, p, s, o.Workers)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, b.close())
		b = nil
		runtime.GC() // so that the next one does not pay for this one's heap
	}()
	for _, q := range qs {
		if q.byRef && !p.References {
			continue
		}
		ns, share, err := b.measure(ctx, q.walks, o.span(), q.op)
		if err != nil {
			return fmt.Errorf("%s: %w", q.name, err)
		}
		r := rep.result(Result{Suite: "engine", Name: q.name, Params: q.params})
		sr := r.series(p.Name)
		sr.Runs = append(sr.Runs, ns)
		sr.Note = fmt.Sprintf("%.1f %% hits", 100*share)
		if !p.Bounded {
			sr.Note += ", unbounded"
		}
	}
	return nil
}
