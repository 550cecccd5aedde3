package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"
)

// apart is the pause before each step of a latency: both nodes are idle by then,
// and their processors as well.
const apart = 10 * time.Millisecond

// latency fetches one block of 64 KiB at a time between idle nodes, beside a plain
// ping-pong of as many bytes and round trips of a question on the control
// connection.
func (s *peerSuite) latency(ctx context.Context, o Options, rep *Report) error {
	routes := []string{routeStream, routeUCX, routeShm}
	routes = slices.DeleteFunc(routes, func(r string) bool {
		if s.lacks(r) {
			rep.absent(latencyResult(r), noUCX)
		}
		return !s.has(rep, "fetch-latency", r)
	})
	for i, route := range routes {
		r := rep.result(latencyResult(route))
		if err := s.latencyOf(ctx, o.slice(i, len(routes)), rep, r, route); err != nil {
			return fmt.Errorf("%s: %w", r.title(), err)
		}
	}
	return nil
}

func latencyResult(route string) Result {
	r := Result{Suite: "peer", Name: "fetch-latency", Params: []Param{{"size", 64 << 10}, {"route", route}}, Unit: "us", Better: Lower}
	if route != routeShm {
		r.Bar = Bar{Times: 1 / 1.5}
	}
	return r
}

func (s *peerSuite) latencyOf(ctx context.Context, o Options, rep *Report, r *Result, route string) (err error) {
	const size, blocks = 64 << 10, 16
	p, err := s.open(ctx, route, "tcp", size, blocks, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	conns, err := p.src.dialPlain(1)
	if err != nil {
		return err
	}
	defer closeAll(conns)
	buf := make([]byte, size)
	turn := 0
	timed := func(f func() error) func() (time.Duration, error) {
		return func() (time.Duration, error) {
			start := time.Now()
			err := f()
			return time.Since(start), err
		}
	}
	steps := []struct {
		once func() (time.Duration, error)
		took []time.Duration
	}{
		{once: func() (time.Duration, error) { i := turn % blocks; return p.dst.fetch(ctx, i, i+1, false) }},
		{once: timed(func() error { return pingPong(conns[0], buf) })},
		{once: timed(func() error {
			_, err := p.dst.e.Peers().Query(ctx, p.src.Endpoint, peerNamespace, p.dst.list[:1])
			return err
		})},
	}
	n := max(3, int(4*o.span()/apart))
	return o.rounds(ctx, func(round int) error {
		o.Progress(fmt.Sprintf("%s, round %d of %d", r.title(), round+1, o.Runs))
		defer asClient(ctx)()
		for i := range steps {
			steps[i].took = steps[i].took[:0]
		}
		for range n {
			for i := range steps {
				if err := ctx.Err(); err != nil {
					return err
				}
				time.Sleep(apart)
				t, err := steps[i].once()
				if err != nil {
					return err
				}
				steps[i].took = append(steps[i].took, t)
			}
			turn++
		}
		us := func(q float64, i int) float64 {
			slices.Sort(steps[i].took)
			return float64(steps[i].took[int(q*float64(len(steps[i].took)-1))].Nanoseconds()) / 1e3
		}
		fetch, transfer, control := us(0.5, 0), us(0.5, 1)/2, us(0.5, 2)
		for _, sr := range []struct {
			impl  string
			rival bool
			note  string
			value float64
		}{
			{ours, false, fmt.Sprintf("p90 %.0f", us(0.9, 0)), fetch},
			{implRoundTrips, true, "one way of a ping-pong, and two questions", transfer + 2*control},
			{implSocket, false, "half a ping-pong of as many bytes", transfer},
			{implControl, false, "one question to the peer and its answer", control},
		} {
			out := r.series(sr.impl)
			out.Rival, out.Note = sr.rival, sr.note
			out.Runs = append(out.Runs, sr.value)
		}
		h := newHistogram()
		for _, t := range steps[0].took {
			_ = h.RecordValue(max(1, t.Nanoseconds())) // within range
		}
		rep.addCurve(Result{Suite: r.Suite, Name: "fetch-latency-curve", Params: r.Params, Unit: r.Unit, Better: Lower}, ours, h, 1e3)
		return nil
	})
}

// pingPong sends buf to the plain server and reads it back.
func pingPong(nc net.Conn, buf []byte) error {
	if err := plainAsk(nc, 0, 0); err != nil {
		return err
	}
	if _, err := nc.Write(buf); err != nil {
		return err
	}
	_, err := io.ReadFull(nc, buf)
	return err
}
