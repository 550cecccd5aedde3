package soak

import (
	"context"
	"time"

	"github.com/kvcr-go/kvcr/wire"
	"github.com/kvcr-go/kvcr/wire/client"
)

// sharedWorker reads and writes a node's memory in place.
type sharedWorker struct {
	worker
	cl *client.Client
	s  *client.Shared
	// held are views that stay out for a while: their bytes must stay, also when the
	// node has died.
	held []heldView
}

type heldView struct {
	view  client.View
	block *block
	until time.Time
}

const stagingBytes = 4 << 20

func (w *sharedWorker) work(ctx context.Context) {
	defer w.leave()
	for w.rest(ctx) {
		if w.s == nil && !w.attach() {
			continue
		}
		select {
		case <-w.s.Lost():
			w.leave()
			continue
		default:
		}
		switch x := w.rng.IntN(100); {
		case x < 50:
			w.views()
		case x < 80:
			w.put()
		case x < 98:
			w.reserve()
		default:
			w.leave()
		}
		for len(w.held) > 0 && time.Now().After(w.held[0].until) {
			w.end(&w.held[0])
			w.held = w.held[1:]
		}
	}
}

func (w *sharedWorker) attach() bool {
	w.direct = true
	since := w.excuse() // the connection is not made again
	if w.calm("dial", func(ctx context.Context) (err error) {
		w.cl, err = client.Dial(ctx, client.Options{Addr: "unix:" + w.node.socket, Name: "soak " + w.name})
		return err
	}) != nil {
		return false
	}
	err := w.calm("attach", func(ctx context.Context) (err error) {
		w.s, err = w.cl.Attach(ctx, stagingBytes)
		return err
	})
	if err != nil {
		w.cl.Close()
		return false
	}
	w.since = since
	return true
}

// end looks at a view a last time and releases it.
func (w *sharedWorker) end(h *heldView) {
	w.saw("a view that was held", h.block, h.view.Bytes())
	w.failed("release of a view", h.view.Release())
}

func (w *sharedWorker) failed(what string, err error) {
	if err != nil {
		w.run.judge(w.name+": "+what, w.node, err, w.since())
	}
}

// leave gives everything back.
func (w *sharedWorker) leave() {
	for i := range w.held {
		w.end(&w.held[i])
	}
	w.held = nil
	if w.s != nil {
		_ = w.calm("shared close", func(context.Context) error { return w.s.Close() })
		w.cl.Close()
		w.s, w.cl, w.since = nil, nil, nil
	}
}

func (w *sharedWorker) views() {
	blocks := w.blocks(6)
	_ = w.call("views", func(ctx context.Context) error {
		views, err := w.s.Views(ctx, keysOf(blocks)...)
		if err != nil {
			return err
		}
		if len(views) != len(blocks) {
			w.run.trouble.add(wrongAnswer, w.where(), "views of %d keys have %d answers", len(blocks), len(views))
		}
		for i := range views {
			if !views[i].OK() {
				continue
			}
			w.saw("view", blocks[i], views[i].Bytes())
			if w.rng.IntN(8) == 0 && len(w.held) < 16 {
				d := time.Duration(w.rng.IntN(1500)) * time.Millisecond
				w.held = append(w.held, heldView{views[i], blocks[i], time.Now().Add(d)})
				views[i] = client.View{}
			}
		}
		client.ReleaseViews(views)
		return nil
	})
	if w.rng.IntN(4) > 0 {
		return
	}
	c := w.any()
	l := c.look()
	_ = w.call("view", func(ctx context.Context) error {
		v, err := w.s.View(ctx, c.key)
		if err == nil && v.OK() {
			w.sawCell("view", c, l, v.Bytes())
			err = v.Release()
		}
		return err
	})
}

func (w *sharedWorker) put() {
	if w.rng.IntN(2) == 0 {
		b := w.blocks(1)[0]
		w.buf = appendValue(w.buf[:0], b.id, 0)
		_ = w.call("shared deposit", func(ctx context.Context) error {
			_, err := w.s.Put(ctx, b.key, w.buf, wire.VerbDeposit)
			return err
		})
		return
	}
	c := w.own()
	version := c.begin()
	w.buf = appendValue(w.buf[:0], c.id, version)
	err := w.call("shared set", func(ctx context.Context) error {
		_, err := w.s.Put(ctx, c.key, w.buf, wire.VerbSet)
		return err
	})
	w.wrote(c, version, false, 0, err)
}

// reserve writes in place, and stores that or not.
func (w *sharedWorker) reserve() {
	c := w.own()
	version := c.begin()
	value := appendValue(w.buf[:0], c.id, version)
	w.buf = value
	var r *client.Reservation
	err := w.call("reserve", func(ctx context.Context) (err error) {
		r, err = w.s.Reserve(ctx, c.key, len(value), wire.VerbSet)
		return err
	})
	if err != nil {
		c.refused(version)
		return
	}
	copy(r.Bytes(), value)
	if w.rng.IntN(4) == 0 {
		w.failed("abort", r.Abort())
		c.refused(version)
		return
	}
	err = w.calm("commit", func(ctx context.Context) error {
		_, err := r.Commit(ctx)
		return err
	})
	w.wrote(c, version, false, 0, err)
}
