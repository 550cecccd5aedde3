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

// streamSize is the block size at which route stream has its bar.
const streamSize = 1 << 20

// bandwidth fetches all blocks in one operation, beside what moves as many bytes
// without an engine.
func (s *peerSuite) bandwidth(ctx context.Context, o Options, rep *Report) error {
	var rows []peerRow
	for _, route := range []string{routeShm, routeUCX} {
		var of []peerRow
		for _, size := range o.Sizes {
			of = append(of, peerRow{route, "tcp", size, Bar{Times: 0.85}})
		}
		if s.has(rep, "fetch-bandwidth", route) {
			rows = append(rows, of...)
		} else if s.lacks(route) {
			for _, r := range of {
				rep.absent(r.result(), noUCX)
			}
		}
	}
	if s.has(rep, "fetch-bandwidth", routeStream) {
		rows = append(rows, peerRow{routeStream, "tcp", streamSize, Bar{Times: 0.9}}, peerRow{routeStream, "unix", streamSize, Bar{}})
		if o.Smoke {
			rows[len(rows)-1].size, rows[len(rows)-2].size = o.Sizes[0], o.Sizes[0]
		}
		if !o.Quick { // for the curve
			for _, size := range o.Sizes {
				if size != streamSize {
					rows = append(rows, peerRow{routeStream, "tcp", size, Bar{}})
				}
			}
		}
	}
	for i, row := range rows {
		r := rep.result(row.result())
		if err := s.bandwidthOf(ctx, o.slice(i, len(rows)), rep, r, row); err != nil {
			return fmt.Errorf("%s: %w", r.title(), err)
		}
	}
	return nil
}

func (r *peerRow) result() Result {
	params := []Param{{"size", r.size}, {"route", r.route}}
	if r.network != "tcp" {
		params = append(params, Param{"net", r.network})
	}
	return Result{Suite: "peer", Name: "fetch-bandwidth", Params: params, Unit: "GB/s", Better: Higher, Bar: r.bar}
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
	var plain []*plainSide
	if row.route == routeShm {
		plain, err = copySides(row.size, blocks)
	} else {
		plain, err = socketSides(p.src, row.size, blocks)
	}
	defer func() {
		for _, side := range plain {
			err = errors.Join(err, side.close())
		}
	}()
	if err != nil {
		return err
	}
	// A/A, with others between that leave nothing in the caches.
	cs := []contender{{impl: ours, once: fetch}}
	for i, side := range plain {
		side.rival = side.rival && row.route != routeUCX
		cs = append(cs, side.contender)
		if i == len(plain)/2 {
			cs = append(cs, contender{impl: again, once: fetch})
		}
	}
	test := perftests(row, blocks)
	if o.Smoke {
		test = nil
	} else if _, missing := exec.LookPath(implPerftest); missing != nil && len(test) > 0 {
		rep.leftOut(fmt.Sprintf("%s beside ucx_perftest: it is not installed", r.title()))
		r.without = "ucx_perftest is not installed"
		test = nil
	}
	return o.rounds(ctx, func(round int) error {
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
	})
}

// plainSide moves the same blocks without an engine. Each has its own memory: what
// another one has just read is not in the caches for it.
type plainSide struct {
	contender
	from, into *plainBlocks // from is nil when another process has it
	conns      []net.Conn
}

func (p *plainSide) close() error {
	closeAll(p.conns)
	err := p.into.mem.Close()
	if p.from != nil {
		err = errors.Join(err, p.from.mem.Close())
	}
	return err
}

// times sets what the side does. Stamps are wiped before, so that the look at them
// afterwards sees this move.
func (p *plainSide) times(blocks int, move func() error) {
	keys, scratch := blockKeys(blocks), make([]byte, p.into.size)
	p.once = func() (time.Duration, error) {
		for i := range blocks {
			b := p.into.at(i)
			clear(b[:8])
			clear(b[len(b)-8:])
		}
		start := time.Now()
		err := move()
		took := time.Since(start)
		for i := 0; i < blocks && err == nil; i++ {
			err = checkBlock(p.into.at(i), scratch, keys.At(i), false)
		}
		return took, err
	}
}

// copySides copy between two mapped memfds of this process.
func copySides(size, blocks int) (sides []*plainSide, err error) {
	for _, c := range []struct {
		impl, note string
		rival      bool
		copiers    int
		copy       func(dst, src []byte)
	}{
		{implCopy, "Go's copy, one goroutine", true, 1, func(dst, src []byte) { copy(dst, src) }},
		{implStreaming, "past the caches, one goroutine", true, 1, blockcopy.Copy},
		{implAllCopies, "past the caches, as many goroutines as kvcr has", false, runtime.GOMAXPROCS(0), blockcopy.Copy},
	} {
		p := &plainSide{contender: contender{impl: c.impl, note: c.note, rival: c.rival}}
		if p.from, err = newPlainBlocks(size, blocks, arena.Memfd); err != nil {
			return sides, err
		}
		if p.into, err = newPlainBlocks(size, blocks, arena.Memfd); err != nil {
			return sides, errors.Join(err, p.from.mem.Close())
		}
		p.times(blocks, func() error {
			var done sync.WaitGroup
			for g := range c.copiers - 1 {
				done.Add(1)
				go func() {
					defer done.Done()
					p.copyBlocks(g+1, blocks, c.copiers, c.copy)
				}()
			}
			p.copyBlocks(0, blocks, c.copiers, c.copy)
			done.Wait()
			return nil
		})
		sides = append(sides, p)
	}
	return sides, nil
}

func (p *plainSide) copyBlocks(from, to, step int, f func(dst, src []byte)) {
	for i := from; i < to; i += step {
		f(p.into.at(i), p.from.at(i))
	}
}

// socketSides read blocks from the plain server of the source's process, on as many
// connections as route stream has. There are two of them: the reference has its A/A
// as well.
func socketSides(src *source, size, blocks int) (sides []*plainSide, err error) {
	for _, impl := range []string{implSocket, implSocket + "-again"} {
		p := &plainSide{contender: contender{impl: impl, rival: impl == implSocket, note: fmt.Sprintf("%d connections", streamConns)}}
		if p.into, err = newPlainBlocks(size, blocks, arena.Anonymous); err != nil {
			return sides, err
		}
		sides = append(sides, p)
		if p.conns, err = src.dialPlain(streamConns); err != nil {
			return sides, err
		}
		p.times(blocks, func() (err error) {
			failed := make(chan error, len(p.conns))
			for g, nc := range p.conns {
				go func() { failed <- p.readBlocks(nc, g*blocks/len(p.conns), (g+1)*blocks/len(p.conns)) }()
			}
			for range p.conns {
				err = errors.Join(err, <-failed)
			}
			return err
		})
	}
	return sides, nil
}

func (p *plainSide) readBlocks(nc net.Conn, from, to int) error {
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

// streamConns is how many connections route stream has by default.
const streamConns = 2
