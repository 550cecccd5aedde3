package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// Hashes are the numbers 0 to numHashes-1. A process binds each to a key, to several, or
// to none, and may do so anew.
const (
	numHashes = 14
	boundNone = -1
	boundTwo  = -2 // keys have the hash
)

// newBindings binds most hashes to the key of their number.
func newBindings() []int {
	b := make([]int, numHashes)
	for h := range b {
		b[h] = boundNone
		if h < ownKeys() {
			b[h] = h
		}
	}
	return b
}

// said is one answer that a source has given.
type said struct {
	at     peer.Time
	source peer.Incarnation
	hash   uint64
	status wire.Status
	key    int
	gen    uint32
	data   words
	about  string
}

// resolving is one list of hashes that a destination asks for.
type resolving struct {
	d      *destSide
	m      *peer.Resolving
	hashes []uint64
	begun  peer.Time
	armed  peer.Time
	rng    *rand.Rand
}

// sourceAdapter is the key adapter of a process, and what it has in its table.
type sourceAdapter struct{ s *srcSide }

func (a sourceAdapter) Resolve(hash uint64) (string, []byte, wire.Status) {
	switch k := a.s.n.bound[hash]; k {
	case boundNone:
		return "", nil, wire.StatusMiss
	case boundTwo:
		return "", nil, wire.StatusAmbiguous
	default:
		return "", []byte(keys[k].name), wire.StatusOK
	}
}

func (a sourceAdapter) Lookup(_ string, key []byte, r *wire.Resolved) wire.Status {
	b := a.s.tab.blocks[a.s.tab.keyOf(key)]
	if b == nil {
		return wire.StatusMiss
	}
	r.Generation, r.Size = b.gen, 8*uint64(len(words{}))
	return wire.StatusOK
}

func (a sourceAdapter) AppendDescription(dst []byte, _ int, _ string, key []byte) []byte {
	return fmt.Appendf(dst, "%s of %x, generation %d", key, uint64(a.s.n.inc), a.s.tab.blocks[a.s.tab.keyOf(key)].gen)
}

// resolve answers a request for hashes, when the source comes to it.
func (s *srcSide) resolve(c *conn, id uint64, m *wire.ResolveHashes) {
	w := s.n.w
	w.after(w.delay(), s.n, tag{kind: "resolve", a: int(s.dest), b: int(id)}, func() {
		answer, failures, fault := peer.AnswerHashes(s.n.inc, sourceAdapter{s}, sourceAdapter{s}, m)
		if failures > 0 {
			w.fail("%v cannot tell %d hashes: %s", s, failures, fault)
		}
		for i, hash := range m.Hashes {
			r := answer.Items[i]
			a := said{at: w.now, source: s.n.inc, hash: hash, status: r.Status, gen: r.Generation, about: string(r.Description)}
			if r.Status == wire.StatusOK {
				a.key = s.tab.keyOf(r.Key)
				a.data = s.tab.blocks[a.key].slot.data
			}
			w.said = append(w.said, a)
		}
		if w.broken.shuffle {
			slices.Reverse(answer.Items)
		}
		c.send(toDest, id, answer)
	})
}

func (r *resolving) step(ev peer.Event) {
	d := r.d
	for _, a := range r.m.Step(d.n.clock(), ev) {
		s := a.(peer.Send)
		if d.conn == nil {
			d.n.w.fail("%v asks for hashes without a connection", d)
			return
		}
		d.n.w.tracef("    %v: %s", d, showAction(a))
		d.conn.send(toSource, s.ID, s.Msg)
	}
	if r.m.Ops() == 0 {
		r.end()
		return
	}
	d.n.arm(d.to.id, &r.armed, r.m.Next, func(ev peer.Event) {
		if slices.Contains(d.resolves, r) {
			r.step(ev)
		}
	})
}

// end checks what came of it, and has the blocks fetched that were found.
func (r *resolving) end() {
	d, w := r.d, r.d.n.w
	at := slices.Index(d.resolves, r)
	if at < 0 {
		return
	}
	d.resolves = slices.Delete(d.resolves, at, at+1)
	all, err := r.m.Results()
	if len(all) != len(r.hashes) {
		w.fail("%v has %d answers for %d hashes", d, len(all), len(r.hashes))
		return
	}
	var items []wire.Wanted
	var expect []words
	asked := map[int]bool{}
	for i := range all {
		a := &all[i]
		w.report.Hashes++
		switch {
		case a.Hash != r.hashes[i]:
			w.fail("%v has an answer for hash %d in the place of hash %d", d, a.Hash, r.hashes[i])
		case a.Status == wire.StatusTimeout:
			w.report.Unanswered++
			if err == nil {
				w.fail("%v has no answer for hash %d, and no error", d, a.Hash)
			}
		default:
			got, ok := w.wasSaid(r, a)
			if !ok {
				w.fail("%v takes %s %q, generation %d of %x for the answer for hash %d, which nobody gave", d, a.Status, a.Key, a.Generation, uint64(a.Source), a.Hash)
				return
			}
			if a.Status == wire.StatusOK {
				w.report.Resolved++
				if !asked[got.key] {
					asked[got.key] = true
					items, expect = append(items, wire.Wanted{Key: a.Key, Generation: a.Generation}), append(expect, got.data)
				}
			}
		}
	}
	if len(items) > 0 {
		w.after(w.delay(), d.n, tag{kind: "resolved", a: d.to.id}, func() { r.fetch(items, expect) })
	}
}

// fetch asks for what was resolved.
func (r *resolving) fetch(items []wire.Wanted, expect []words) {
	d, w := r.d, r.d.n.w
	text := d.submit(wire.Transfer(min(1, r.rng.IntN(3))), slices.Clone(items), r.rng)
	w.tracef("what was resolved: %s", text)
	op := d.ops[d.n.lastOp]
	if op == nil {
		return // it was refused at once
	}
	op.expect = map[int]words{}
	for i := range items {
		if op.Items[i].Generation == items[i].Generation { // submit may ask for that of now
			op.expect[i] = expect[i]
		}
	}
}

// wasSaid finds the answer that a source has given since somebody asked.
func (w *world) wasSaid(r *resolving, a *peer.Resolution) (said, bool) {
	for _, s := range w.said {
		if s.at < r.begun || s.source != a.Source || s.hash != a.Hash || s.status != a.Status {
			continue
		}
		if s.status != wire.StatusOK || keys[s.key].name == string(a.Key) && s.gen == a.Generation && s.about == string(a.Description) && s.about != "" {
			return s, true
		}
	}
	return said{}, false
}

// checkExpected checks that what lands for an operation is the block that was resolved.
func (w *world) checkExpected(t *table, s *slot) {
	op := s.dest.ops[s.op]
	if op == nil {
		return
	}
	if want, ok := op.expect[s.index]; ok && s.data != want {
		w.fail("%v takes another block of %s than was resolved", t.n, keys[s.key].name)
	}
}

func (d *destSide) eachResolve(ev peer.Event) {
	for _, r := range slices.Clone(d.resolves) {
		r.step(ev)
	}
}

// doResolve asks another node for the keys of hashes, and then for the blocks.
func (w *world) doResolve(n *node, rng *rand.Rand) string {
	d := w.any(n, w.other(n, rng), rng)
	hashes := make([]uint64, 1+rng.IntN(9))
	for i := range hashes {
		hashes[i] = rng.Uint64N(numHashes)
		if d.to.alive && rng.IntN(3) > 0 {
			if k := d.to.bound[hashes[i]]; k >= 0 && d.to.tab.blocks[k] == nil {
				d.to.tab.deposit(k, false)
			}
		}
	}
	r := &resolving{d: d, hashes: hashes, begun: w.now, rng: rng}
	r.m = peer.NewResolving(n.inc, hashes, n.timing, peer.ResolveLimits{Part: 1 + rng.IntN(4)}, func() peer.OpID { n.lastOp++; return n.lastOp })
	d.resolves = append(d.resolves, r)
	patience := []time.Duration{30 * time.Millisecond, 300 * time.Millisecond, 4 * time.Second}[rng.IntN(3)]
	w.after(patience, n, tag{kind: "enough", a: d.to.id}, func() {
		if slices.Contains(d.resolves, r) {
			r.m.End(wire.StatusTimeout, peer.ErrLost, nil)
			r.end()
		}
	})
	if d.conn != nil {
		r.step(peer.Up{Peer: d.conn.s.n.inc, Route: d.conn.route})
	}
	d.dial()
	return fmt.Sprintf("%v from n%d", hashes, d.to.id)
}

// doRebind has a hash stand for another key, for two or for none, and at times a key
// for another block.
func (w *world) doRebind(n *node, rng *rand.Rand) string {
	h := rng.IntN(numHashes)
	switch r := rng.IntN(8); {
	case r == 0:
		n.bound[h] = boundNone
	case r == 1:
		n.bound[h] = boundTwo
	case r < 5:
		n.bound[h] = rng.IntN(ownKeys())
	default:
		if k := n.bound[h]; k >= 0 {
			n.tab.deposit(k, true)
		}
	}
	return fmt.Sprintf("hash %d to %d", h, n.bound[h])
}
