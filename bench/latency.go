package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// What latencyBesidePuts runs: small values that are read at a fixed rate, and
// large ones that are written beside them as fast as one goroutine can.
const (
	smallKeys  = 100_000
	smallValue = 64
	largeValue = 2 << 20
	getEvery   = 50 * time.Microsecond
	timerEvery = time.Millisecond
)

// latencyBesidePuts measures the p99 of a small get, and how late a timer
// wakes, alone and beside large puts.
func latencyBesidePuts(ctx context.Context, o Options, rep *Report) error {
	// Those that take 2 MiB values; an unbounded one would take all memory.
	peers := []Peer{peerKVCR}
	for _, p := range Peers() {
		if p.Bounded && p.Holds(Shape{Capacity: o.Capacity, ValueSize: largeValue}) && (!o.Quick || p.Name == "otter") {
			peers = append(peers, p)
		}
	}
	besides := []string{"none", "puts"}
	alone := &Result{}
	// A get beside large writes may wait twice as long as one alone.
	ratio := func() *Result {
		return rep.result(Result{Suite: "engine", Name: "get-p99-beside-puts-ratio", Unit: "of the p99 alone", Better: Lower, Bar: Bar{Limit: 2, HasLimit: true}})
	}
	for i, beside := range besides {
		get := rep.result(Result{Suite: "engine", Name: "get-p99-beside-puts", Params: []Param{{"beside", beside}}, Unit: "ns", Better: Lower})
		timer := rep.result(Result{Suite: "engine", Name: "timer-p99-beside-puts", Params: []Param{{"beside", beside}}, Unit: "ns", Better: Lower})
		if beside == "none" {
			alone = get
		} else {
			// Twice a timer's period would be a period lost.
			timer.Bar = Bar{Limit: 2e6, HasLimit: true}
		}
		err := o.slice(i, len(besides)).rounds(ctx, func(round int) error {
			for _, p := range peers {
				o.Progress(fmt.Sprintf("p99 beside %s, round %d of %d: %s", beside, round+1, o.Runs, p.Name))
				g, err := measureBeside(ctx, o, p, beside == "puts")
				if err != nil {
					return fmt.Errorf("%s beside %s: %w", p.Name, beside, err)
				}
				gs, ts := get.series(p.Name), timer.series(p.Name)
				gs.Rival, ts.Rival = p.Name != ours, p.Name != ours
				p99 := float64(g.get.ValueAtQuantile(99))
				gs.Runs = append(gs.Runs, p99)
				if beside == "puts" {
					if quiet := alone.find(p.Name); quiet != nil {
						rs := ratio().series(p.Name)
						rs.Runs = append(rs.Runs, p99/quiet.Median())
					}
				}
				rep.addCurve(Result{Suite: "engine", Name: "get-latency-curve", Params: []Param{{"beside", beside}}, Unit: "ns", Better: Lower}, p.Name, g.get, 1)
				ts.Runs = append(ts.Runs, g.timerP99)
				gs.Note = fmt.Sprintf("%.1f %% hits", g.hits)
				if beside == "puts" {
					gs.Note += fmt.Sprintf(", %.1f GB/s put", g.putGBs)
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

type beside struct {
	get      *hdrhistogram.Histogram // ns
	timerP99 float64                 // ns
	hits     float64                 // percent
	putGBs   float64
}

// measureBeside measures one cache: first the gets, then the timer. Not both at
// once, since the reader spins until its next get is due: with the writer that
// makes two, and on two processors a timer would wait for them and not for the
// cache.
func measureBeside(ctx context.Context, o Options, p Peer, puts bool) (out beside, err error) {
	small := o.keys(smallKeys)
	large := int(o.Capacity / largeValue) // once around: steady state
	c, err := p.open(Shape{Capacity: o.Capacity, ValueSize: largeValue, Keys: small + large})
	if err != nil {
		return out, err
	}
	defer func() {
		err = errors.Join(err, c.Close())
		runtime.GC()
	}()
	reader, err := c.Worker()
	if err != nil {
		return out, err
	}
	defer reader.Close()
	b := &bay{cache: c, size: smallValue, lanes: []*lane{{worker: reader, values: newValues(smallValue, 1)}}}
	if err := b.load(ctx, small); err != nil {
		return out, err
	}
	d := max(5*o.span(), 50*timerEvery) // or there is no timer to be late
	// beside runs what is measured, with the writer if it was asked for.
	beside := func(measured func() error) (putBytes int, err error) {
		if !puts {
			return 0, measured()
		}
		writer, err := c.Worker()
		if err != nil {
			return 0, err
		}
		stop, written := make(chan struct{}), make(chan error)
		n := 0
		go func() {
			asClient(ctx)
			var err error
			n, err = putLarge(writer, small, large, stop)
			written <- errors.Join(err, writer.Close())
		}()
		err = measured()
		close(stop)
		return n * largeValue, errors.Join(err, <-written)
	}

	l := &lane{worker: reader, walk: newWalk(NewZipf(small, 0.99, 5), o.steps(), 100)}
	putBytes, err := beside(func() (err error) {
		out.get, err = openLoop(ctx, getEvery, d, func() error { return l.views(1) })
		return err
	})
	if err != nil {
		return out, err
	}
	out.hits = 100 * float64(l.hits) / float64(max(1, l.hits+l.misses))
	out.putGBs = float64(putBytes) / float64(d.Nanoseconds())
	_, err = beside(func() error {
		stop := make(chan struct{})
		time.AfterFunc(d, func() { close(stop) })
		out.timerP99 = float64(timerLateness(timerEvery, stop).ValueAtQuantile(99))
		return nil
	})
	return out, err
}

// putLarge writes values of 2 MiB under keys from first on, in a loop over large
// of them, which is as many as fit, until stop is closed.
func putLarge(w Worker, first, large int, stop <-chan struct{}) (n int, err error) {
	numbers := make([]uint32, large)
	for i := range numbers {
		numbers[i] = uint32(first + i)
	}
	keys, v := NewKeys(numbers), newValues(largeValue, 2)
	for ; ; n++ {
		select {
		case <-stop:
			return n, nil
		default:
		}
		k := keys.At(n % large)
		if err := w.Set(k, v.of(k)); err != nil && !errors.Is(err, errRefused) {
			return n, err
		}
	}
}

// idle is long enough for an owner or goroutine to have parked.
const idle = 500 * time.Microsecond

// measureCompletion measures one Set into an idle engine, whose owners are
// parked, beside waking a parked goroutine and hearing back from it: what a
// Set would cost if it had to.
func measureCompletion(ctx context.Context, o Options, rep *Report) (err error) {
	o.Progress("completion of a set with a parked owner")
	c, err := openKVCR(Shape{Capacity: o.Capacity, ValueSize: smallValue, Keys: smallKeys})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	w, err := c.Worker()
	if err != nil {
		return err
	}
	defer w.Close()
	keys, v := sequence(1000), newValues(smallValue, 1)
	n := 0
	set := func() error {
		k := keys.At(n % keys.Len())
		n++
		return w.Set(k, v.of(k))
	}

	ask, reply := make(chan struct{}), make(chan struct{})
	defer close(ask)
	go func() {
		for range ask {
			reply <- struct{}{}
		}
	}()
	wake := func() error {
		ask <- struct{}{}
		<-reply
		return nil
	}

	r := rep.result(Result{Suite: "engine", Name: "set-completion", Params: []Param{{"stat", "p50"}}, Unit: "ns", Better: Lower, Bar: Bar{Times: 1 / 1.5}})
	return o.rounds(ctx, func(int) error {
		for _, side := range []struct {
			impl string
			op   func() error
		}{{ours, set}, {"goroutine-wake", wake}} {
			p50, err := medianAfterIdle(ctx, 200, side.op)
			if err != nil {
				return err
			}
			s := r.series(side.impl)
			s.Rival = side.impl != ours
			s.Runs = append(s.Runs, p50)
		}
		return nil
	})
}

// medianAfterIdle runs op n times, each after a pause, and returns the median
// in ns.
func medianAfterIdle(ctx context.Context, n int, op func() error) (float64, error) {
	times := make([]time.Duration, n)
	for i := range times {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		time.Sleep(idle)
		start := time.Now()
		if err := op(); err != nil {
			return 0, err
		}
		times[i] = time.Since(start)
	}
	slices.Sort(times)
	return float64(times[n/2].Nanoseconds()), nil
}
