package plan

import (
	"math/bits"

	"github.com/kvcr-go/kvcr/hints/events"
)

// openChunk is the chunk that an event is working on. What the event changes of its
// owner's edges is gathered in mine, and written when it comes to another chunk.
type openChunk struct {
	id     uint32 // 0: none
	c      *chunk
	len    int
	locals []uint64 // as many as it has room for
	hashes []uint64
	live   uint64 // edges that live, with those of mine
	mine   uint64 // edges of the event's owner
	was    uint64 // mine as it is written
}

// maxTwins is how many edges may lead to one hash, and how many dead ones may have one
// parent and local hash. In a hash domain without faults it is one each; all of them
// cost every lookup that comes by.
const maxTwins = 64

// outcome says how far a Stored event came.
type outcome uint8

const (
	applied    outcome = iota
	conflicted         // it stopped at a conflict
	refused            // it stopped at a limit
)

// store applies a Stored event of the owner in a slot. It returns how many blocks were
// left when it stopped.
func (t *tier) store(slot uint32, ev *events.RouterEvent) (end outcome, left int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.knowSlot(slot)
	root, parent := !ev.HasParent, ev.Parent
	var last edge // that leads to parent
	if root {
		parent = 0
	} else {
		if len(ev.Blocks) > 0 {
			// These three are waited for together, as in touch.
			b := &ev.Blocks[0]
			t.touched = t.nodes.touch(t.nodeHash(parent)) + t.nodes.touch(t.nodeHash(b.Hash)) +
				t.heads.touch(t.headHash(false, parent, b.Local))
		}
		last = t.node(parent)
	}
	t.untouched = len(ev.Blocks)
	o := &t.cur
	for i := range ev.Blocks {
		b := &ev.Blocks[i]
		next := last.at() + 1
		if last.chunk() == o.id && last != 0 && next < o.len && o.locals[next] == b.Local &&
			o.hashes[next] == b.Hash && o.live>>next&1 != 0 && t.twins.Load() == 0 {
			// The live edge that follows in the open chunk, to the only node of its hash.
			o.mine |= 1 << next
			last = edgeOf(o.id, next)
		} else {
			last, end = t.storeOne(slot, root, parent, last, ev.Blocks[i:])
			if end != applied {
				t.close(slot)
				return end, len(ev.Blocks) - i
			}
		}
		root, parent = false, b.Hash
	}
	t.close(slot)
	return applied, 0
}

// storeOne makes the owner of slot own the edge from parent of the first of rest, what
// is left of its event. last is an edge that leads to parent, or 0.
func (t *tier) storeOne(slot uint32, root bool, parent uint64, last edge, rest []events.Block) (edge, outcome) {
	b := &rest[0]
	e, dead, others := t.find(root, parent, b.Local, b.Hash, last)
	if e != 0 && t.hash(e) != b.Hash {
		return 0, conflicted // the first mapping stays
	}
	if e == 0 {
		e = dead
		if len(rest) <= t.untouched {
			t.touch(rest)
		}
	}
	known, twins := t.ownsOther(slot, b.Hash, e)
	if known {
		return 0, conflicted
	}
	if e == 0 {
		if twins >= maxTwins || others >= maxTwins {
			return 0, conflicted
		}
		if e = t.add(slot, root, parent, last, rest); e == 0 {
			return 0, refused
		}
		if twins > 0 {
			t.twins.Add(1)
		}
	}
	t.open(slot, e.chunk())
	t.cur.live |= 1 << e.at()
	t.cur.mine |= 1 << e.at()
	return e, applied
}

// touchAhead is how many blocks of an event are looked up at once. Where one is new
// the further ones mostly are, and a look at a table of some hundred MB waits for
// memory; 16 waits fit into one another.
const touchAhead = 16

func (t *tier) touch(rest []events.Block) {
	n := min(touchAhead, len(rest))
	t.untouched = len(rest) - n
	sum := uint64(0)
	for i := 1; i < n; i++ { // the first is being waited for
		sum += t.nodes.touch(t.nodeHash(rest[i].Hash))
		sum += t.heads.touch(t.headHash(false, rest[i-1].Hash, rest[i].Local))
	}
	t.touched = sum
}

// find returns the live edge (parent, local), or 0 with a dead one that leads to hash,
// if there is one, and the number of dead ones that do not.
func (t *tier) find(root bool, parent, local, hash uint64, last edge) (live, dead edge, others int) {
	look := func(e edge) bool {
		id, at := e.chunk(), e.at()
		if t.liveNow(id)>>at&1 != 0 {
			live = e
			return true
		}
		if t.hash(e) == hash {
			dead = e
		} else {
			others++
		}
		return false
	}
	// after looks at the edge that follows e in its chunk.
	after := func(e edge) bool {
		c, at := t.chunk(e.chunk()), e.at()+1
		if at >= c.len() {
			return false
		}
		locals, _ := t.blocks.of(c.base, at+1)
		return locals[at] == local && look(edgeOf(e.chunk(), at))
	}
	if last != 0 {
		if after(last) {
			return live, 0, 0
		}
		if next := t.chunk(last.chunk()).next.Load(); next != 0 && last.at()+1 == t.chunk(last.chunk()).len() {
			if t.isHead(t.chunk(next), false, parent, local) && look(edgeOf(next, 0)) {
				return live, 0, 0
			}
		}
	}
	p := t.heads.probe(t.headHash(root, parent, local))
	for n := p.next(); n != 0; n = p.next() {
		if t.isHead(t.chunk(n), root, parent, local) && look(edgeOf(n, 0)) {
			return live, 0, 0
		}
	}
	if last != 0 && t.twins.Load() > 0 {
		p := t.nodes.probe(t.nodeHash(parent))
		for n := p.next(); n != 0; n = p.next() {
			if e := edge(n); e != last && t.hash(e) == parent && after(e) {
				return live, 0, 0
			}
		}
	}
	return 0, dead, others
}

// liveNow returns the edges of a chunk that live, with those of the event in hand.
func (t *tier) liveNow(id uint32) uint64 {
	if id == t.cur.id {
		return t.cur.live
	}
	return t.recs.live(owned(t.chunk(id).owned.Load()))
}

// ownsOther reports whether a slot owns an edge to a hash other than e, and how many
// edges lead to it, without e.
func (t *tier) ownsOther(slot uint32, hash uint64, e edge) (owns bool, twins int) {
	if e != 0 && t.twins.Load() == 0 {
		return false, 0
	}
	p := t.nodes.probe(t.nodeHash(hash))
	for n := p.next(); n != 0; n = p.next() {
		other := edge(n)
		if other == e || t.hash(other) != hash {
			continue
		}
		twins++
		if t.mineNow(slot, other.chunk())>>other.at()&1 != 0 {
			return true, twins
		}
	}
	return false, twins
}

// mineNow returns the edges of a chunk that a slot owns, with what the event in hand
// changes.
func (t *tier) mineNow(slot, id uint32) uint64 {
	if id == t.cur.id {
		return t.cur.mine
	}
	return t.recs.of(owned(t.chunk(id).owned.Load()), slot)
}

// add makes a new edge, dead as yet: at the end of last's chunk, if last is the end
// and there is room, otherwise in a new chunk with room for the event's further
// blocks. It returns 0 at a limit.
func (t *tier) add(slot uint32, root bool, parent uint64, last edge, rest []events.Block) edge {
	b, more := &rest[0], len(rest)
	if t.nodes.len >= t.maxEdges {
		return 0
	}
	id, at := last.chunk(), last.at()+1
	if last != 0 && at == t.chunk(id).len() && at < t.chunk(id).cap() {
		t.open(slot, id)
		o := &t.cur
		o.locals[at], o.hashes[at] = b.Local, b.Hash
		o.len++
		o.c.shape.Add(1) // (A)
		t.nodes.add(t.nodeHash(b.Hash), uint32(edgeOf(id, at)))
		return edgeOf(id, at)
	}
	want := (min(more, chunkBlocks) + unitBlocks - 1) / unitBlocks
	if last != 0 && more == 1 {
		// A chain that grows block by block: its pieces double.
		want = min(2*t.chunk(id).units(), chunkBlocks/unitBlocks)
		if at < t.chunk(id).len() {
			want = 1
		}
	}
	n := t.newChunk(root, parent, want)
	if n == 0 {
		return 0
	}
	c := t.chunk(n)
	locals, hashes := t.blocks.of(c.base, 1)
	locals[0], hashes[0] = b.Local, b.Hash
	c.shape.Add(1)
	t.nodes.add(t.nodeHash(b.Hash), uint32(edgeOf(n, 0)))
	t.heads.add(t.headHash(root, parent, b.Local), n)
	if last != 0 && at == t.chunk(id).len() && t.chunk(id).next.Load() == 0 {
		t.link(id, n)
	}
	return edgeOf(n, 0)
}

// link makes chunk n the one that follows chunk id.
func (t *tier) link(id, n uint32) {
	t.chunk(n).prev = id
	t.chunk(id).next.Store(n) // (A)
}

// newChunk returns a chunk without edges, that nothing leads to, or 0 if there can be
// no more.
func (t *tier) newChunk(root bool, parent uint64, units int) uint32 {
	if len(t.spare) == 0 {
		first := uint32(t.chunks.len()) * chunkSlabLen
		if first >= maxChunks {
			return 0
		}
		t.chunks.add(new(chunkSlab))
		for n := first + chunkSlabLen - 1; n >= first && n > 0; n-- {
			t.spare = append(t.spare, n)
		}
	}
	id := t.spare[len(t.spare)-1]
	t.spare = t.spare[:len(t.spare)-1]
	base, units := t.blocks.take(units)
	c := t.chunk(id)
	c.parent, c.base, c.prev = parent, base, 0
	c.next.Store(0)
	shape := uint32(units) << 8
	if root {
		shape |= shapeRoot
	}
	c.shape.Store(shape)
	return id
}

// open makes a chunk the one that the event works on.
func (t *tier) open(slot, id uint32) {
	if t.cur.id == id {
		return
	}
	t.close(slot)
	c := t.chunk(id)
	o := &t.cur
	o.id, o.c, o.len = id, c, c.len()
	o.locals, o.hashes = t.blocks.of(c.base, c.cap())
	own := owned(c.owned.Load())
	if own&ownedKind == ownedOne && own.slot() == slot {
		o.mine = own.mask()
		o.live = o.mine
	} else {
		o.live, o.mine = t.recs.live(own), t.recs.of(own, slot)
	}
	o.was = o.mine
}

// close writes what the event changed of the open chunk.
func (t *tier) close(slot uint32) {
	o := &t.cur
	if o.id == 0 {
		return
	}
	id := o.id
	o.id = 0
	if o.mine != o.was {
		t.setOwner(slot, id, o.was, o.mine)
	}
}

// setOwner makes mask the edges of a chunk that a slot owns. A chunk that nobody owns
// any more dies.
func (t *tier) setOwner(slot, id uint32, was, mask uint64) {
	c := t.chunk(id)
	old := owned(c.owned.Load())
	now := t.recs.with(old, slot, mask)
	lived, lives := t.recs.live(old), t.recs.live(now)
	c.owned.Store(uint64(now)) // (A)
	if old&ownedKind == ownedMany {
		t.retire(goneThing{record: uint32(old)})
	}
	n := bits.OnesCount64(mask) - bits.OnesCount64(was)
	t.pairs[slot] += n
	t.allPairs += n
	t.live += bits.OnesCount64(lives) - bits.OnesCount64(lived)
	switch {
	case lives == 0:
		t.kill(id)
	case n < 0 && t.worthRewriting(c, lives):
		t.rewrite(id, lives)
	}
}

// kill takes a chunk out that nobody owns.
func (t *tier) kill(id uint32) {
	c := t.chunk(id)
	n := c.len()
	locals, hashes := t.blocks.of(c.base, n)
	t.heads.remove(t.headHash(c.root(), c.parent, locals[0]), id)
	sum := uint64(0)
	for _, hash := range hashes {
		sum += t.nodes.touch(t.nodeHash(hash)) // as touch
	}
	t.touched = sum
	for at := range n {
		t.nodes.remove(t.nodeHash(hashes[at]), uint32(edgeOf(id, at)))
		if t.twins.Load() > 0 && t.node(hashes[at]) != 0 {
			t.twins.Add(-1)
		}
	}
	if c.prev != 0 {
		t.chunk(c.prev).next.Store(0)
	}
	if next := c.next.Load(); next != 0 {
		t.chunk(next).prev = 0
	}
	t.retire(goneThing{id: id})
}

func (t *tier) retire(g goneThing) { t.gone.retire(t.epochs, g, t.reuse) }

func (t *tier) reuse(g goneThing) {
	if g.id == 0 {
		t.recs.giveBack(g.record)
		return
	}
	c := t.chunk(g.id)
	t.blocks.giveBack(c.base, c.units())
	c.shape.Store(0)
	t.spare = append(t.spare, g.id)
}

// knowSlot makes room for a slot's counts.
func (t *tier) knowSlot(slot uint32) {
	for int(slot) >= len(t.pairs) {
		t.pairs = append(t.pairs, 0)
	}
}
