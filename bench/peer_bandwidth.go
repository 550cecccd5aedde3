package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"runtime"
	"sync"
	"time"

	"github.com/kvcr-go/kvcr/arena"
	"github.com/kvcr-go/kvcr/internal/blockcopy"
)

// peerRow is one row of fetch-bandwidth.
type peerRow struct {
	route, network string
	size           int
	bar            Bar
}

// bandwidth fetches all blocks in one operation, beside what moves as many bytes
// without an engine.
func (s *peerSuite) bandwidth(ctx context.Context, o Options, rep *Report) error {
	var rows []peerRow
	for _, route := range []string{routeShm, routeUCX} {
		if !s.has(rep, "fetch-bandwidth", route) {
			continue
		}
		for _, size := range o.Sizes {
			rows = append(rows, peerRow{route, "tcp", size, Bar{Times: 0.85}})
		}
	}
	if s.has(rep, "fetch-bandwidth", routeStream) {
		rows = append(rows, peerRow{routeStream, "tcp", 1 << 20, Bar{Times: 0.9}}, peerRow{routeStream, "unix", 1 << 20, Bar{}})
		if o.brief {
			rows[len(rows)-1].size, rows[len(rows)-2].size = o.Sizes[0], o.Sizes[0]
		}
	}
	for i, row := range rows {
		params := []Param{{"size", row.size}, {"route", row.route}}
		if row.network != "tcp" {
			params = append(params, Param{"net", row.network})
		}
		r := rep.result(Result{Suite: "peer", Name: "fetch-bandwidth", Params: params, Unit: "GB/s", Better: Higher, Bar: row.bar})
		if err := s.bandwidthOf(ctx, o.slice(i, len(rows)), rep, r, row); err != nil {
			return fmt.Errorf("%s: %w", r.title(), err)
		}
	}
	return nil
}

func (s *peerSuite) bandwidthOf(ctx context.Context, o Options, rep *Report, r *Result, row peerRow) (err error) {
	o.Progress(r.title() + ": filling")
	blocks := s.few(o, peerBlocks)
	p, err := s.open(ctx, row.route, row.network, row.size, blocks, blocks)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	fetch := func() (time.Duration, error) { return p.dst.fetch(ctx, 0, blocks, false) }
	cs := []contender{{impl: ours, once: fetch}, {impl: again, once: fetch}} // A/A first
	var plain *plainSide
	if row.route == routeShm {
		plain, err = newCopySide(row.size, blocks)
	} else {
		plain, err = newSocketSide(p.src, row.size, blocks)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plain.close()) }()
	for i := range plain.contenders {
		c := plain.contenders[i]
		c.rival = c.rival && row.route != routeUCX
		cs = append(cs, c)
	}
	test := perftests(row, blocks)
	if _, missing := exec.LookPath(implPerftest); missing != nil && len(test) > 0 {
		rep.leftOut(fmt.Sprintf("%s beside ucx_perftest: it is not installed", r.title()))
		test = nil
	}
	one := func(round int) error {
		o.Progress(fmt.Sprintf("%s, round %d of %d", r.title(), round+1, o.Runs))
		if err := r.turns(ctx, o.span(), p.src, cs, row.size*blocks); err != nil {
			return err
		}
		for _, t := range test {
			v, err := t.run(ctx, o)
			if err != nil {
				return fmt.Errorf("%s: %w", t.impl, err)
			}
			sr := r.series(t.impl)
			sr.Rival, sr.Note = t.rival, t.note
			sr.Runs = append(sr.Runs, v)
		}
		return nil
	}
	return s.profiled(p, func() error { return o.rounds(ctx, one) })
}

// plainSide moves the same blocks without an engine.
type plainSide struct {
	contenders []contender
	from, into *plainBlocks // from is nil when another process has it
	conns      []net.Conn
	keys       *Keys
	scratch    []byte
}

func (p *plainSide) close() error {
	closeAll(p.conns)
	err := p.into.mem.Close()
	if p.from != nil {
		err = errors.Join(err, p.from.mem.Close())
	}
	return err
}

// wipe clears the ends of the blocks that were moved before, so that check sees
// this move.
func (p *plainSide) wipe(blocks int) {
	for i := range blocks {
		b := p.into.at(i)
		clear(b[:8])
		clear(b[len(b)-8:])
	}
}

func (p *plainSide) timed(blocks int, move func() error) func() (time.Duration, error) {
	return func() (time.Duration, error) {
		p.wipe(blocks)
		start := time.Now()
		err := move()
		took := time.Since(start)
		for i := 0; i < blocks && err == nil; i++ {
			err = checkBlock(p.into.at(i), p.scratch, p.keys.At(i), false)
		}
		return took, err
	}
}

// newCopySide copies between two mapped memfds of this process.
func newCopySide(size, blocks int) (p *plainSide, err error) {
	p = &plainSide{keys: blockKeys(blocks), scratch: make([]byte, size)}
	if p.from, err = newPlainBlocks(size, blocks, arena.Memfd); err != nil {
		return nil, err
	}
	if p.into, err = newPlainBlocks(size, blocks, arena.Memfd); err != nil {
		return nil, errors.Join(err, p.from.mem.Close())
	}
	all := func(from, step int, f func(dst, src []byte)) {
		for i := from; i < blocks; i += step {
			f(p.into.at(i), p.from.at(i))
		}
	}
	goCopy := func(dst, src []byte) { copy(dst, src) }
	p.contenders = []contender{
		{implCopy, true, "Go's copy, one goroutine", p.timed(blocks, func() error { all(0, 1, goCopy); return nil })},
		{implStreaming, true, "past the caches, one goroutine", p.timed(blocks, func() error { all(0, 1, blockcopy.Copy); return nil })},
	}
	n := copiers()
	p.contenders = append(p.contenders, contender{implAllCopies, false, fmt.Sprintf("past the caches, %d goroutines", n), p.timed(blocks, func() error {
		var done sync.WaitGroup
		for g := range n {
			done.Add(1)
			go func() {
				defer done.Done()
				all(g, n, blockcopy.Copy)
			}()
		}
		done.Wait()
		return nil
	})})
	return p, nil
}

// newSocketSide reads blocks from the plain server of the source's process, on as
// many connections as route stream has.
func newSocketSide(src *source, size, blocks int) (p *plainSide, err error) {
	p = &plainSide{keys: blockKeys(blocks), scratch: make([]byte, size)}
	if p.into, err = newPlainBlocks(size, blocks, arena.Anonymous); err != nil {
		return nil, err
	}
	if p.conns, err = src.dialPlain(streamConns); err != nil {
		return nil, errors.Join(err, p.into.mem.Close())
	}
	read := func(nc net.Conn, from, to int) error {
		if err := plainAsk(nc, from, to-from); err != nil {
			return err
		}
		for i := from; i < to; i++ {
			if _, err := io.ReadFull(nc, p.into.at(i)); err != nil {
				return err
			}
		}
		return nil
	}
	p.contenders = []contender{{implSocket, true, fmt.Sprintf("%d connections", len(p.conns)), p.timed(blocks, func() error {
		failed := make(chan error, len(p.conns))
		for g, nc := range p.conns {
			go func() { failed <- read(nc, g*blocks/len(p.conns), (g+1)*blocks/len(p.conns)) }()
		}
		for range p.conns {
			err = errors.Join(err, <-failed)
		}
		return err
	})}}
	return p, nil
}

// streamConns is how many connections route stream has by default.
const streamConns = 2

// copiers is how many goroutines copy on route shm.
func copiers() int { return runtime.GOMAXPROCS(0) }
