package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/arena"
)

const (
	smallFetch   = 4 << 10 // bytes
	smallFetches = 10_000
	smallFlying  = 64
)

// rate fetches small blocks one by one, many in flight.
func (s *peerSuite) rate(ctx context.Context, o Options, rep *Report) error {
	routes := []string{routeShm, routeUCX, routeStream}
	routes = slices.DeleteFunc(routes, func(r string) bool { return !s.has(rep, "fetch-rate", r) })
	for i, route := range routes {
		r := rep.result(Result{Suite: "peer", Name: "fetch-rate", Params: []Param{{"size", smallFetch}, {"route", route}, {"in-flight", smallFlying}}, Unit: "ops/s", Better: Higher})
		if err := s.rateOf(ctx, o.slice(i, len(routes)), r, route); err != nil {
			return fmt.Errorf("%s: %w", r.title(), err)
		}
	}
	return nil
}

func (s *peerSuite) rateOf(ctx context.Context, o Options, r *Result, route string) (err error) {
	n := s.few(o, smallFetches)
	p, err := s.open(ctx, route, "tcp", smallFetch, n, n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	conns, err := p.src.dialPlain(streamConns)
	if err != nil {
		return err
	}
	defer closeAll(conns)
	one := func(int) error {
		mine := ownUse()
		theirs, err := p.src.ask("use")
		if err != nil {
			return err
		}
		took, err := p.dst.each(ctx, n, smallFlying)
		if err != nil {
			return err
		}
		after := ownUse()
		gone, err := p.src.ask("use")
		if err != nil {
			return err
		}
		each := func(a, b use) string {
			return fmt.Sprintf("%.1f us of CPU and %.1f allocations", float64((b.CPU-a.CPU).Nanoseconds())/1e3/float64(n), float64(b.Mallocs-a.Mallocs)/float64(n))
		}
		sr := r.series(ours)
		sr.Runs = append(sr.Runs, float64(n)/took.Seconds())
		sr.Note = fmt.Sprintf("each: %s; source: %s", each(mine, after), each(theirs, gone))
		if took, err = plainEach(conns, n, smallFlying); err != nil {
			return err
		}
		sr = r.series(implSocket)
		sr.Note = fmt.Sprintf("%d connections, nothing but requests and bytes", len(conns))
		sr.Runs = append(sr.Runs, float64(n)/took.Seconds())
		return nil
	}
	return o.rounds(ctx, func(round int) error {
		o.Progress(fmt.Sprintf("%s, round %d of %d", r.title(), round+1, o.Runs))
		defer asClient(ctx)()
		return one(round)
	})
}

// each fetches blocks 0 to n-1 one by one, so many in flight, and drops them
// afterwards. The time is that of the fetches.
func (f *fetcher) each(ctx context.Context, n, flying int) (time.Duration, error) {
	ops := make([]*kvcr.Op, n)
	start := time.Now()
	for i := range n + flying {
		if done := i - flying; done >= 0 {
			rs, err := ops[done].Wait(ctx)
			if err != nil {
				return 0, err
			}
			if err := f.check(done, &rs[0], false); err != nil {
				return 0, err
			}
			ops[done] = nil
		}
		if i < n {
			ops[i] = f.h.FetchFrom(f.list[i:i+1], f.opt)
		}
	}
	took := time.Since(start)
	return took, f.drop(0, n)
}

// plainEach asks the plain server for blocks one by one, so many in flight over all
// connections.
func plainEach(conns []net.Conn, n, flying int) (time.Duration, error) {
	failed := make(chan error, len(conns))
	start := time.Now()
	for g, nc := range conns {
		first, last := g*n/len(conns), (g+1)*n/len(conns)
		window := max(1, flying/len(conns))
		go func() {
			failed <- func() error {
				buf := make([]byte, smallFetch)
				for i := first; i < last+window; i++ {
					if i-window >= first {
						if _, err := io.ReadFull(nc, buf); err != nil {
							return err
						}
					}
					if i < last {
						if err := plainAsk(nc, i, 1); err != nil {
							return err
						}
					}
				}
				return nil
			}()
		}()
	}
	var err error
	for range conns {
		err = errors.Join(err, <-failed)
	}
	return time.Since(start), err
}

// idle is a node with many connected peers that want nothing.
func (s *peerSuite) idle(ctx context.Context, o Options, rep *Report) (err error) {
	const peers = 100
	if !s.has(rep, "idle", routeStream) {
		return nil
	}
	n, span := s.few(o, peers), 10*time.Second
	switch {
	case o.Smoke:
		span = 50 * time.Millisecond
	case o.Quick:
		span = 2 * time.Second
	}
	r := rep.result(Result{Suite: "peer", Name: "idle", Params: []Param{{"peers", n}}, Unit: "% of a core", Better: Lower, Bar: Bar{Limit: 1, HasLimit: true}})
	o.Progress(r.title() + ": connecting")
	src, err := startSource(ctx, s.PeerOptions, SourceSpec{Routes: engineRoutes[routeStream], Network: "tcp", Size: smallFetch, Blocks: 1, Plain: 1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.stop()) }()
	for range n {
		f, err := s.fetcher(ctx, src, routeStream, smallFetch, 1)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
	}
	time.Sleep(min(span, 1500*time.Millisecond)) // payload connections are read from for a second more
	sr := r.series(ours)
	return o.rounds(ctx, func(round int) error {
		o.Progress(fmt.Sprintf("%s, round %d of %d", r.title(), round+1, o.Runs))
		mine, start := ownUse(), time.Now()
		before, err := src.ask("use")
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(span):
		}
		after, err := src.ask("use")
		if err != nil {
			return err
		}
		share := func(d time.Duration) float64 { return 100 * d.Seconds() / time.Since(start).Seconds() }
		sr.Runs = append(sr.Runs, share(after.CPU-before.CPU))
		sr.Note = fmt.Sprintf("%d engines with this node as their one peer, in one process: %.2f %%, %d goroutines", n, share(ownUse().CPU-mine.CPU), runtime.NumGoroutine())
		return nil
	})
}

// atOnce is how soon an engine that registers its memory serves local hits, in ms,
// however large it is: a person does not notice.
const atOnce = 100

// register measures how soon a large engine serves a local block when its memory
// is registered with UCX, beside one without that route.
func (s *peerSuite) register(ctx context.Context, o Options, rep *Report) error {
	size := arenaBytes(o)
	wanted := Result{Suite: "peer", Name: "open-to-hit", Params: []Param{{"bytes", size}, {"route", routeUCX}}, Unit: "ms", Better: Lower, Bar: Bar{Limit: atOnce, HasLimit: true}}
	if !s.has(rep, "open-to-hit", routeUCX) {
		if s.lacks(routeUCX) {
			rep.absent(wanted, noUCX)
		}
		return nil
	}
	r := rep.result(wanted)
	return o.rounds(ctx, func(round int) error {
		for _, c := range []struct {
			impl   string
			routes []string
		}{{ours, engineRoutes[routeUCX]}, {"kvcr-stream", engineRoutes[routeStream]}} {
			o.Progress(fmt.Sprintf("%s, round %d of %d: %s", r.title(), round+1, o.Runs, c.impl))
			ms, err := openToHit(size, c.routes)
			if err != nil {
				return err
			}
			sr := r.series(c.impl)
			sr.Runs = append(sr.Runs, ms)
		}
		return nil
	})
}

func openToHit(size int64, routes []string) (ms float64, err error) {
	const block = 1 << 20
	start := time.Now()
	e, err := kvcr.Open(kvcr.Config{
		Capacity: size, Namespaces: []kvcr.Namespace{{Name: peerNamespace, Pools: []kvcr.Pool{{Name: "kv", SlotBytes: block}}}},
		Peers: &kvcr.Peers{Routes: routes, Listen: []string{"tcp://127.0.0.1:0"}},
	})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	if err := deposit(e, block, 1); err != nil {
		return 0, err
	}
	h, err := e.Handle()
	if err != nil {
		return 0, err
	}
	defer h.Close()
	v, ok := h.Get(blockKeys(1).At(0).Bytes)
	took := time.Since(start)
	if !ok {
		return 0, errors.New("a block that was deposited is a miss")
	}
	v.Release()
	return took.Seconds() * 1e3, nil
}

// arenaBytes is 16 GiB, or a quarter of the memory that there is.
func arenaBytes(o Options) int64 {
	switch {
	case o.Smoke:
		return 64 << 20
	case o.Quick:
		return 1 << 30
	}
	limit, _ := arena.MemoryLimit()
	return min(16<<30, limit/4&^(1<<20-1))
}
