package soak

import (
	"context"
	"time"

	"github.com/kvcr-go/kvcr/wire/client"
)

// compareBound is how long what others know of a node may take to be the truth.
const compareBound = 20 * time.Second

// compare checks a node at rest: every value that it has, and what is known of it.
func (r *run) compare(ctx context.Context, n *node, router *router, mirrors []*mirror) {
	w := &worker{run: r, node: n, name: "last look"}
	have, err := r.readAll(ctx, n, w)
	if err != nil {
		if ctx.Err() == nil {
			r.trouble.add(unexpected, w.where(), "%v", err)
		}
		return
	}
	for end := time.Now().Add(compareBound); ; pause(ctx, 20*time.Millisecond) {
		// What has a time to live goes meanwhile.
		what := ""
		have, err = n.residents(ctx)
		if err != nil {
			what = err.Error()
		}
		for _, m := range mirrors {
			if d := m.differs(have); what == "" && m.node == n && d != "" {
				if what = "a subscriber of the inventory " + d; m.slow {
					what = "a slow subscriber of the inventory " + d
				}
			}
		}
		if what == "" {
			what = router.gone(n, have)
		}
		if what == "" || ctx.Err() != nil {
			return
		}
		if time.Now().After(end) {
			r.trouble.add(wrongList, n.name(), "%v after the last change: %s", compareBound, what)
			return
		}
	}
}

// readAll reads every value of a node.
func (r *run) readAll(ctx context.Context, n *node, w *worker) (map[string]uint64, error) {
	have, err := n.residents(ctx)
	if err != nil {
		return nil, err
	}
	cl, err := client.Dial(ctx, client.Options{Addr: n.binary, Name: "soak last look"})
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	get := func(key []byte, saw func(got []byte)) error {
		ctx, cancel := context.WithTimeout(ctx, callBound)
		defer cancel()
		got, ok, err := cl.Get(ctx, key, w.buf)
		if err == nil && ok {
			saw(got)
			w.buf = got
		}
		r.ops.add("last get", 1)
		return err
	}
	known := map[string]bool{}
	for _, c := range n.cells {
		l := c.look()
		if err := get(c.key, func(got []byte) { w.sawCell("get", c, l, got) }); err != nil {
			return nil, err
		}
		known[string(c.key)] = true
	}
	for _, c := range r.chains {
		for _, b := range c.blocks {
			if _, ok := have[string(b.key)]; ok && !known[string(b.key)] {
				if err := get(b.key, func(got []byte) { w.saw("get", b, got) }); err != nil {
					return nil, err
				}
			}
			known[string(b.key)] = true
		}
	}
	for _, p := range r.pairs {
		there := 0
		for _, b := range p {
			if _, ok := have[string(b.key)]; ok {
				there++
			}
			if err := get(b.key, func(got []byte) { w.saw("get", b, got) }); err != nil {
				return nil, err
			}
			known[string(b.key)], known[waiting+string(b.key)] = true, true
		}
		if there == 1 {
			r.trouble.add(wrongList, n.name(), "it has one part alone of the pair of %s", p[0].key)
		}
	}
	for k := range have {
		if !known[k] {
			r.trouble.add(wrongList, n.name(), "it has the key %q, which nobody has written", k)
		}
	}
	return have, nil
}

// leakClaim has a client keep what it must give back: see Sabotage.
func (r *run) leakClaim(ctx context.Context) (undo func()) {
	n := r.nodes[0]
	cl, err := client.Dial(ctx, client.Options{Addr: n.binary})
	if err != nil {
		r.trouble.add(unexpected, n.name(), "%v", err)
		return func() {}
	}
	key := r.chains[0].blocks[0]
	_, err = cl.Deposit(ctx, key.key, appendValue(nil, key.id, 0))
	if err == nil {
		_, err = cl.Fetch(ctx, [][]byte{key.key})
	}
	if err != nil {
		r.trouble.add(unexpected, n.name(), "%v", err)
	}
	return func() { cl.Close() }
}
