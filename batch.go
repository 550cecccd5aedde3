package kvcr

import (
	"github.com/kvcr-go/kvcr/internal/blockcopy"
	"github.com/kvcr-go/kvcr/internal/own"
	"github.com/kvcr-go/kvcr/shard"
	"github.com/kvcr-go/kvcr/wire"
)

// Item is one block of a batch.
type Item struct {
	Key []byte
	// Value is the block of one piece, in the first pool or in size classes.
	// Pieces, when set, is a block of several, one for each of Pools in order;
	// each fills its slot.
	Value  []byte
	Pieces [][]byte
	Pools  []string
}

// Result is the answer for one key of a batch.
type Result struct {
	Reason Reason
	// Existing: the key was resident; nothing was written.
	Existing bool
	// View is the claim that a successful Fetch, or a deposit with NoEvict,
	// gives the caller. Release it.
	View View

	written bool        // a source may still write the caller's memory; see DeliverFrom
	why     wire.Status // of a block that a source has not given
}

// OK reports success.
func (r *Result) OK() bool { return r.Reason == ReasonOK }

// Err returns the condition, nil for success.
func (r *Result) Err() error { return conditions[r.Reason] }

// DepositOptions say how the blocks of one deposit hang together.
type DepositOptions struct {
	// NoEvict keeps each block until its Result's View is released: the policy
	// never takes it.
	NoEvict bool
	// Parent is the key that the first block follows, nil for a root. A parent
	// that is not resident makes the blocks unreachable: they are stored, and
	// leave first. Chained namespaces only.
	Parent []byte
	// Position of the first block in its chain, 0 for a root.
	Position int
}

// GetBatch claims what is resident of keys: views[i] is keys[i]'s View, zero
// for a miss. It returns the hits. Keys beyond the length of views are not
// looked up.
func (h *Handle) GetBatch(keys [][]byte, views []View) (hits int) {
	if h.enter() != nil {
		return 0
	}
	defer h.exit()
	keys = keys[:min(len(keys), len(views))]
	for i, key := range keys {
		if i%warmAhead == 0 {
			h.warm(keys[i:])
		}
		views[i] = View{}
		if h.find(&views[i], key) {
			hits++
		}
	}
	return hits
}

// warmAhead is how many lookups are prepared together: about as many cache misses
// as a processor keeps under way, and some.
const warmAhead = 16

// Prefetch begins to load what lookups of the first 16 keys will touch, for
// callers that know several and look them up one by one; GetBatch does it itself.
// It is a hint and changes nothing.
func (h *Handle) Prefetch(keys [][]byte) {
	if h.enter() != nil {
		return
	}
	h.warm(keys)
	h.exit()
}

func (h *Handle) warm(keys [][]byte) {
	if len(keys) < 2 {
		return
	}
	var hashes [warmAhead]uint64
	var ids [warmAhead]uint32
	n := min(len(keys), warmAhead)
	for i, key := range keys[:n] {
		hashes[i] = h.e.hash(key)
		h.ns.part(hashes[i]).WarmIndex(hashes[i])
	}
	for i, hash := range hashes[:n] {
		ids[i] = h.ns.part(hash).WarmRecord(hash)
	}
	for i, hash := range hashes[:n] {
		if ids[i] != 0 {
			h.ns.part(hash).WarmPayload(ids[i])
		}
	}
}

// Prefix claims the leading keys that are resident, up to the first miss, and
// returns how many: what of a chain is usable. Keys beyond the length of views
// are not looked up.
func (h *Handle) Prefix(keys [][]byte, views []View) (n int) {
	if h.enter() != nil {
		return 0
	}
	defer h.exit()
	for n < min(len(keys), len(views)) {
		var v View
		if !h.find(&v, keys[n]) {
			break
		}
		views[n] = v
		n++
	}
	return n
}

// Release ends the claims of views; it returns how many were held.
func (h *Handle) Release(views []View) (released int) {
	for i := range views {
		if views[i].Release() == nil {
			released++
		}
	}
	return released
}

// SetBatch stores each item as Set does; items are independent.
func (h *Handle) SetBatch(items []Item) []Result {
	out := make([]Result, len(items))
	for i := range items {
		if items[i].Pieces != nil {
			out[i].Reason = ReasonLayout
			continue
		}
		out[i].Reason = reasonOf(h.Set(items[i].Key, items[i].Value))
	}
	return out
}

// DeleteBatch removes keys; a key that was not there answers ReasonMiss.
func (h *Handle) DeleteBatch(keys [][]byte) []Result {
	out := make([]Result, len(keys))
	for i, k := range keys {
		switch ok, err := h.Delete(k); {
		case err != nil:
			out[i].Reason = reasonOf(err)
		case !ok:
			out[i].Reason = ReasonMiss
		}
	}
	return out
}

// reasonOf turns the error of a single call into a batch's answer.
func reasonOf(err error) Reason {
	if err == nil {
		return ReasonOK
	}
	if e, ok := err.(*OpError); ok {
		err = e.Err
	}
	for why, c := range conditions {
		if c == err {
			return why
		}
	}
	return ReasonAborted
}

// DepositBatch deposits blocks. In a chained namespace they are a chain: each
// follows the one before, the first follows opt.Parent. In a flat one they are
// independent. The answers are in order of items; when memory runs out the
// first blocks of a chain stay and the rest is refused.
func (h *Handle) DepositBatch(items []Item, opt DepositOptions) []Result {
	return h.deposit(items, opt, false)
}

// DepositGroup deposits parts that live and die together, such as the parts of
// one page: none can be read before all are stored, a claim on one protects
// all, eviction and Delete take all. Parts resident from another deposit are
// replaced. Chained namespaces only; the parts are at one place of the chain.
func (h *Handle) DepositGroup(parts []Item, opt DepositOptions) []Result {
	return h.deposit(parts, opt, true)
}

func (h *Handle) deposit(items []Item, opt DepositOptions, group bool) []Result {
	out := make([]Result, len(items))
	fail := func(why Reason) []Result {
		for i := range out {
			out[i].Reason = why
		}
		return out
	}
	if len(items) == 0 {
		return out
	}
	chained := h.ns.cfg.Kind == Chained
	if !chained && (group || opt.Parent != nil || opt.Position != 0) || opt.Position < 0 {
		return fail(ReasonLayout)
	}
	if err := h.enter(); err != nil {
		return fail(reasonOf(err))
	}
	defer h.exit()
	own.Add64(&h.hs.counts.deposits, uint64(len(items)))

	h.puts = h.puts[:0]
	for i := range items {
		p, why := h.putOf(&items[i])
		if why != ReasonOK {
			if group {
				return fail(why)
			}
			out[i].Reason = why
			if chained { // ends before its first bad block; the good part is stored
				for j := range out[i:] {
					out[i+j].Reason = why
				}
				break
			}
			p.Hash, p.Key = 0, nil
		}
		p.NoEvict = opt.NoEvict
		h.puts = append(h.puts, p)
	}
	if chained {
		h.depositRun(opt, group, out)
	} else {
		h.depositEach(out)
	}
	clear(h.puts) // lets go of the caller's memory
	return out
}

// putOf checks one item and translates it.
func (h *Handle) putOf(it *Item) (shard.Put, Reason) {
	p := shard.Put{Key: it.Key, Value: it.Value, Sum: h.ns.sums}
	if !validKey(it.Key) {
		return p, ReasonKey
	}
	p.Hash = h.e.hash(it.Key)
	if it.Pieces == nil {
		if it.Pools != nil {
			return p, ReasonLayout
		}
		if err := h.checkPut("deposit", it.Key, len(it.Value)); err != nil {
			return p, ReasonTooLarge
		}
		p.Shape.Size = len(it.Value)
		return p, ReasonOK
	}
	layout, size, ok := h.layout(it, p.Hash)
	if !ok {
		return p, ReasonLayout
	}
	p.Pieces = it.Pieces
	p.Shape = shard.Shape{Size: size, Layout: layout}
	return p, ReasonOK
}

// layout finds the number of an item's piece list and checks each size.
func (h *Handle) layout(it *Item, hash uint64) (n uint16, size int, ok bool) {
	if len(it.Pieces) != len(it.Pools) || len(it.Pieces) == 0 || len(it.Pieces) > shard.MaxPieces {
		return 0, 0, false
	}
	var buf [shard.MaxPieces]uint8
	pools := buf[:0]
	for i, name := range it.Pools {
		at := -1
		for k := range h.ns.cfg.Pools {
			if h.ns.cfg.Pools[k].Name == name {
				at = k
			}
		}
		if at < 0 || len(it.Pieces[i]) != h.ns.cfg.Pools[at].SlotBytes {
			return 0, 0, false
		}
		pools = append(pools, uint8(at))
	}
	// Shards number their lists themselves; the last answer usually serves.
	p := h.ns.part(hash)
	if last := &h.lastLayout; last.p != p || string(last.pools) != string(pools) {
		if n, ok = p.Layout(pools); !ok {
			return 0, 0, false
		}
		*last = layoutNumber{p, append([]uint8(nil), pools...), n}
	}
	return h.lastLayout.n, len(it.Pieces[0]), true
}

// layoutNumber is a shard's number for a piece list.
type layoutNumber struct {
	p     *part
	pools []uint8
	n     uint16
}

// depositRun writes a chain, or one group, to the namespace's only shard.
func (h *Handle) depositRun(opt DepositOptions, group bool, out []Result) {
	n := len(h.puts)
	if n == 0 {
		return
	}
	p := h.ns.parts[0]
	l, err := h.lane(p)
	if err != nil {
		for i := range out {
			out[i].Reason = ReasonCapacity
		}
		return
	}
	var parent shard.Claim
	missing := false
	if opt.Parent != nil {
		var ok bool
		if parent, ok = h.peek(p, opt.Parent); ok {
			defer p.Release(parent)
		}
		missing = !ok
	}
	length := uint32(opt.Position + n)
	if group {
		length = uint32(opt.Position + 1)
	}
	for i := range h.puts {
		put := &h.puts[i]
		put.ChainLen = length
		put.Follows = !group && i > 0
		put.Member = group && i < n-1
		if group || i == 0 {
			put.Parent, put.Unreachable = parent, missing
		}
		put.Tail = !group && i == n-1 && length > 1
		put.NoEvict = put.NoEvict && !put.Member
	}
	if cap(h.outs) < n {
		h.outs = make([]shard.Outcome, n)
	}
	outs := h.outs[:n]
	clear(outs)
	l.PutRun(h.puts, outs, h.takeReads(p))
	for i := range outs {
		h.answer(p, &out[i], &outs[i])
	}
	if group { // the leader, which came last, answers for all
		for i := range n {
			out[i].Reason, out[i].Existing = outs[n-1].Reason, outs[n-1].Old
		}
	}
}

func (h *Handle) depositEach(out []Result) {
	for i := range h.puts {
		put := &h.puts[i]
		if out[i].Reason != ReasonOK {
			continue
		}
		p := h.ns.part(put.Hash)
		l, err := h.lane(p)
		if err != nil {
			out[i].Reason = ReasonCapacity
			continue
		}
		o := l.Put(put, h.takeReads(p))
		h.answer(p, &out[i], &o)
	}
}

func (h *Handle) answer(p *part, r *Result, o *shard.Outcome) {
	r.Reason, r.Existing = o.Reason, o.Old
	if o.Claim != (shard.Claim{}) {
		r.View = View{p: p, c: o.Claim, b: p.Bytes(o.Claim), hold: true}
	}
}

// copyTo copies all pieces of a claimed block; dst must be long enough.
func (v *View) copyTo(dst []byte) {
	if v.Pieces() == 1 {
		blockcopy.CopyOut(dst, v.b)
		return
	}
	for i := range v.Pieces() {
		b, _ := v.p.Shard.Piece(v.c, i)
		blockcopy.CopyOut(dst, b)
		dst = dst[len(b):]
	}
}

func grow(b []byte, n int) []byte {
	if cap(b)-len(b) >= n {
		return b[:len(b)+n]
	}
	return append(b, make([]byte, n)...)
}
