package soak

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kvcr-go/kvcr/wire"
	"github.com/kvcr-go/kvcr/wire/client"
)

// binaryWorker uses a node through the client of the binary protocol.
type binaryWorker struct {
	worker
	cl *client.Client
}

func (w *binaryWorker) work(ctx context.Context) {
	defer w.hangUp()
	type op struct {
		weight int
		do     func()
	}
	ops := []op{
		{14, w.get}, {4, w.getInto}, {12, w.set}, {3, w.delete}, {8, w.deposit}, {12, w.getBlock}, {2, w.deleteBlock},
		{4, w.exists}, {4, w.query}, {10, w.claim}, {1, w.stats}, {1, w.hangUp},
	}
	sum := 0
	for _, o := range ops {
		sum += o.weight
	}
	for w.rest(ctx) {
		if w.cl == nil && !w.dial() {
			continue
		}
		x := w.rng.IntN(sum)
		for _, o := range ops {
			if x -= o.weight; x < 0 {
				o.do()
				break
			}
		}
	}
}

// dial connects by one of the node's addresses, most often through the relay.
func (w *binaryWorker) dial() bool {
	addr := w.node.viaBinary.addr()
	switch w.rng.IntN(6) {
	case 0:
		addr = w.node.binary
	case 1:
		addr = "unix:" + w.node.socket
	}
	w.direct = addr != w.node.viaBinary.addr()
	return w.calm("dial", func(ctx context.Context) (err error) {
		w.cl, err = client.Dial(ctx, client.Options{Addr: addr, Name: "soak " + w.name, Conns: 1 + w.rng.IntN(3)})
		return err
	}) == nil
}

// hangUp leaves whatever is claimed or under way to the node.
func (w *binaryWorker) hangUp() {
	if w.cl != nil {
		w.cl.Close()
		w.cl = nil
	}
}

func (w *binaryWorker) get() {
	c := w.any()
	l := c.look()
	_ = w.call("get", func(ctx context.Context) error {
		got, ok, err := w.cl.Get(ctx, c.key, w.buf)
		if err == nil && ok {
			w.sawCell("get", c, l, got)
			w.buf = got
		}
		return err
	})
}

func (w *binaryWorker) getInto() {
	c := w.any()
	l := c.look()
	dst := make([]byte, 32<<10)
	_ = w.call("get into", func(ctx context.Context) error {
		n, ok, err := w.cl.GetInto(ctx, c.key, dst)
		if errors.Is(err, client.ErrShortBuffer) {
			return nil
		}
		if err == nil && ok {
			w.sawCell("get into", c, l, dst[:n])
		}
		return err
	})
}

// set writes a version in one of the ways there are.
func (w *binaryWorker) set() {
	c := w.own()
	version := c.begin()
	w.buf = appendValue(w.buf[:0], c.id, version)
	how := w.rng.IntN(6)
	ttl := time.Duration(1+w.rng.IntN(3000)) * time.Millisecond
	kind := []string{"set", "set", "set", "set", "set ttl", "set absent"}[how]
	existing := false
	err := w.call(kind, func(ctx context.Context) (err error) {
		switch kind {
		case "set ttl":
			return w.cl.SetTTL(ctx, c.key, w.buf, ttl)
		case "set absent":
			existing, err = w.cl.SetAbsent(ctx, c.key, w.buf)
			return err
		}
		return w.cl.Set(ctx, c.key, w.buf)
	})
	if kind != "set ttl" {
		ttl = 0
	}
	w.wrote(c, version, existing, ttl, err)
}

// wrote ends a write as its answer says.
func (w *worker) wrote(c *cell, version uint32, existing bool, ttl time.Duration, err error) {
	var e *client.Error
	switch {
	case err == nil && !existing:
		c.stored(version, ttl)
	case err == nil, errors.As(err, &e) && !e.MayHaveRun:
		c.refused(version)
	}
}

func (w *binaryWorker) delete() {
	c := w.own()
	err := w.call("delete", func(ctx context.Context) error {
		st, err := w.cl.Delete(ctx, c.key)
		w.statuses("delete", 1, st, err)
		return err
	})
	if err == nil {
		c.deleted()
	}
}

// statuses checks the answer to a request about n keys.
func (w *worker) statuses(kind string, n int, st []wire.Status, err error) {
	if err != nil {
		return
	}
	if len(st) != n || slices.ContainsFunc(st, func(s wire.Status) bool {
		return s != wire.StatusOK && s != wire.StatusMiss && s != wire.StatusReleased
	}) {
		w.run.trouble.add(wrongAnswer, w.where(), "%s of %d keys is answered with %v", kind, n, st)
	}
}

// deposit does as an inference engine does: it says what blocks are, and stores them.
func (w *binaryWorker) deposit() {
	blocks := w.blocks(6)
	if w.rng.IntN(4) > 0 {
		_ = w.call("describe", func(ctx context.Context) error {
			st, err := w.cl.Describe(ctx, describe(blocks))
			w.statuses("describe", len(blocks), st, err)
			return err
		})
	}
	for _, b := range blocks {
		w.buf = appendValue(w.buf[:0], b.id, 0)
		if w.call("deposit", func(ctx context.Context) error {
			_, err := w.cl.Deposit(ctx, b.key, w.buf)
			return err
		}) != nil {
			return
		}
	}
}

func (w *binaryWorker) getBlock() {
	for _, b := range w.blocks(3) {
		_ = w.call("get block", func(ctx context.Context) error {
			got, ok, err := w.cl.Get(ctx, b.key, w.buf)
			if err == nil && ok {
				w.saw("get", b, got)
				w.buf = got
			}
			return err
		})
	}
}

func (w *binaryWorker) deleteBlock() {
	blocks := w.blocks(3)
	_ = w.call("delete blocks", func(ctx context.Context) error {
		st, err := w.cl.Delete(ctx, keysOf(blocks)...)
		w.statuses("delete", len(blocks), st, err)
		return err
	})
}

func (w *binaryWorker) exists() {
	blocks := w.chain().blocks
	_ = w.call("exists", func(ctx context.Context) error {
		if w.rng.IntN(2) == 0 {
			n, err := w.cl.Prefix(ctx, keysOf(blocks))
			if err == nil && (n < 0 || n > len(blocks)) {
				w.run.trouble.add(wrongAnswer, w.where(), "%d of %d keys are said to be a prefix", n, len(blocks))
			}
			return err
		}
		found, err := w.cl.Exists(ctx, keysOf(blocks)...)
		if err == nil && len(found) != len(blocks) {
			w.run.trouble.add(wrongAnswer, w.where(), "exists of %d keys has %d answers", len(blocks), len(found))
		}
		return err
	})
}

// query compares sizes, which follow from keys.
func (w *binaryWorker) query() {
	blocks := w.blocks(chainBlocks)
	_ = w.call("query", func(ctx context.Context) error {
		rs, err := w.cl.Query(ctx, keysOf(blocks))
		if err != nil {
			return err
		}
		if len(rs) != len(blocks) {
			w.run.trouble.add(wrongAnswer, w.where(), "query of %d keys has %d answers", len(blocks), len(rs))
			return nil
		}
		for i, r := range rs {
			if want := uint64(sizeOf(blocks[i].id, 0)); r.Status == wire.StatusOK && r.Size != want {
				w.run.trouble.add(wrongAnswer, w.where(), "block %x has %d bytes by query, not %d", blocks[i].hash, r.Size, want)
			}
		}
		return nil
	})
}

// claim takes claims, reads through them, and releases them, or leaves them to the
// end of the connection.
func (w *binaryWorker) claim() {
	blocks := w.blocks(6)
	w.since = w.excuse()
	defer func() { w.since = nil }()
	var claims []wire.Claim
	if w.call("fetch", func(ctx context.Context) (err error) {
		claims, err = w.cl.Fetch(ctx, keysOf(blocks))
		return err
	}) != nil {
		return
	}
	w.claimed("fetch", w.cl, blocks, claims)
}

// claimed reads through claims and ends them.
func (w *worker) claimed(how string, cl *client.Client, blocks []*block, claims []wire.Claim) {
	if len(claims) != len(blocks) {
		w.run.trouble.add(wrongAnswer, w.where(), "%s of %d keys has %d answers", how, len(blocks), len(claims))
		return
	}
	if w.rng.IntN(4) == 0 { // claims protect: what follows must not be seen
		victim := blocks[w.rng.IntN(len(blocks))]
		_ = w.calm("delete claimed", func(ctx context.Context) error {
			_, err := cl.Delete(ctx, victim.key)
			return err
		})
	}
	if w.rng.IntN(10) == 0 {
		time.Sleep(time.Duration(w.rng.IntN(500)) * time.Millisecond)
	}
	for i, c := range claims {
		if c.Status != wire.StatusOK {
			continue
		}
		if want := uint64(sizeOf(blocks[i].id, 0)); c.Size != want {
			w.run.trouble.add(wrongAnswer, w.where(), "block %x is claimed with %d bytes, not %d", blocks[i].hash, c.Size, want)
		}
		_ = w.call("deliver", func(ctx context.Context) error {
			got, err := cl.Deliver(ctx, c, w.buf)
			if err == nil {
				w.saw(how+" and deliver", blocks[i], got)
				w.buf = got
			}
			return err
		})
	}
	if w.rng.IntN(12) > 0 {
		_ = w.calm("release", func(ctx context.Context) error { return cl.Release(ctx, claims...) })
	}
}

func (w *binaryWorker) stats() {
	_ = w.call("ping", func(ctx context.Context) error {
		_, err := w.cl.Ping(ctx)
		return err
	})
	_ = w.call("stats", func(ctx context.Context) error {
		_, err := w.cl.Stats(ctx)
		return err
	})
}
