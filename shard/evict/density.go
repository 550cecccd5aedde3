package evict

import (
	"fmt"
	"math/bits"
)

// density evicts, among blocks without resident children, the one with the
// fewest expected hits for each access of residence, under the horizon that is
// best for it. What to expect is learned from a small sample of blocks
// (records.go, hazard.go), by class: turn and length of the chain, hub, tail.
//
// A node's fields:
//
//	Word    31       10 9  8 7    4 3     0
//	       +-----------+----+------+-------+
//	       |  listed   |turn| ever | class |
//	       +-----------+----+------+-------+
//	Prev    inner | color | newer neighbour (30)     leaf: its list
//	Next    gen (2)       | older neighbour (30)     leaf
//	                      | resident children (30)   inner
//	Parent  parent's gen (2) | parent (30)
//
//	listed  tick under which a leaf is listed, in units of 1<<shift accesses.
//	        It differs from the block's last access: a reader touched it.
//	ever    children deposited since the block became resident; 15 makes a hub
//	inner   the slot has children and is on no list
//	gen     counts, modulo 4, how often a block with children was removed by hand
//	        from this slot. A child whose copy differs is an orphan: its parent
//	        is gone, even if another block lives in the slot.
//	color   the sweep that last looked at the block
//
// Orphans still count as children of the slot, so the count is always the number
// of nodes that name the slot, and no list of children is needed. A block put
// into such a slot is inner until the orphans are gone. The sweep, a few nodes
// for each access, finds orphans, cuts them loose and marks them and all below
// them unreachable. If a slot goes round all 4 gens between two sweeps, orphans
// pass for children of the fourth block: they are then evicted in their turn
// instead of first.
//
// Invariants, beside those of the package:
//
//	D1  children of a slot == nodes that name it as parent, plus holds on it
//	D2  a resident block is inner, or on the list of its class
//	D3  class hub iff ever == 15, unless unreachable
type density struct {
	links
	b     Blocks
	lists [classes]list
	shift uint

	recs records
	haz  hazards
	live ageTable // scratch of learn

	learned uint32 // tick of the last learn
	period  uint32 // accesses between two
	polled  int    // records polled since then

	// The end that gave the last victim, good for the next while nothing better
	// can have appeared: the common case of a chain that leaves block by block.
	again struct {
		class  class // classNone: not valid
		newest bool
		listed uint32
		bucket int
	}

	color    uint32 // flagColor or 0: of nodes the current or last sweep has seen
	dirty    bool   // orphans appeared since the sweep began
	sweeping bool
	cursor   ID     // next node to look at
	stepped  uint32 // tick of the last step
	epoch    uint32 // sweeps begun

	// forward says which block took over the children of a replaced one, until
	// a sweep has told the children. Each entry holds one child of its target.
	forward map[parentRef]forwarded
}

// parentRef is a Parent field: slot and gen.
type parentRef uint32

func (p parentRef) slot() ID    { return ID(p & idMask) }
func (p parentRef) gen() uint32 { return uint32(p) >> idBits }

type forwarded struct {
	to    parentRef
	epoch uint32 // sweeps begun when it was made or last put off
	tries uint32 // sweeps that put it off
}

const (
	classMask   = 0xf
	everShift   = 4
	everMask    = 0xf << everShift
	turnShift   = 8
	turnMask    = 3 << turnShift
	listedShift = 10
	listedBits  = 32 - listedShift
	listedRange = 1<<listedBits - 1

	flagInner = 1 << 31 // in Prev
	flagColor = 1 << 30
	genOne    = 1 << idBits // in Next and Parent

	placeSteps  = 32   // of the search for a place in a list
	sweepRate   = 8    // nodes for each access: a sweep takes N/8 accesses
	sweepStep   = 1024 // nodes in one call
	pollStep    = 256  // records in one call
	busyEnd     = 8    // busy blocks passed at the new end of a list
	maxForwards = 1024
)

func newDensity(nodes []Node, b Blocks, seed uint64) *density {
	n := len(nodes) - 1
	d := &density{
		links:   links{nodes: nodes},
		b:       b,
		shift:   uint(max(0, bits.Len(uint(n))+4-listedBits)), // listed covers 16 turnovers
		period:  uint32(max(1000, n/8)),
		forward: make(map[parentRef]forwarded),
	}
	d.recs.init(n, seed)
	d.haz.learn(&d.live)
	return d
}

func (d *density) Name() string        { return "density" }
func (d *density) Admit([]Insert) bool { return true }
func (d *density) Decide(ID) Decision  { return Drop }

func (d *density) Clear() {
	clear(d.nodes)
	clear(d.forward)
	d.lists = [classes]list{}
	d.recs.reset()
	d.haz = hazards{}
	d.live = ageTable{}
	d.haz.learn(&d.live)
	d.again.class = classNone
	d.color, d.dirty, d.sweeping, d.polled = 0, false, false, 0
}

// Fields of a node.

func (n *Node) class() class     { return class(n.Word & classMask) }
func (n *Node) ever() uint32     { return n.Word & everMask >> everShift }
func (n *Node) turn() uint8      { return uint8(n.Word & turnMask >> turnShift) }
func (n *Node) listed() uint32   { return n.Word >> listedShift }
func (n *Node) inner() bool      { return n.Prev&flagInner != 0 }
func (n *Node) resident() bool   { return n.class() != classNone }
func (n *Node) gen() uint32      { return n.Next >> idBits }
func (n *Node) ref() parentRef   { return parentRef(n.Parent) }
func (n *Node) setClass(c class) { n.Word = n.Word&^classMask | uint32(c) }
func (n *Node) setTurn(t uint8)  { n.Word = n.Word&^turnMask | uint32(t)<<turnShift }
func (n *Node) setListed(l uint32) {
	n.Word = n.Word&(1<<listedShift-1) | l<<listedShift
}

// children is the number of children of a slot, orphans and holds included.
func (n *Node) children() uint32 {
	if !n.inner() {
		return 0
	}
	return n.Next & idMask
}

func (d *density) coarse(tick uint32) uint32 { return tick >> d.shift & listedRange }

// parent is the Parent field of a child of id.
func (d *density) parent(id ID) uint32 { return d.nodes[id].Next&^idMask | uint32(id) }

// orphan reports that the block n names as its parent is gone.
func (d *density) orphan(n *Node) bool {
	p := n.ref()
	if p.slot() == 0 {
		return false
	}
	pn := &d.nodes[p.slot()]
	return !pn.resident() || pn.gen() != p.gen()
}

func (d *density) mustResident(op string, id ID) {
	d.mustRange(op, id)
	if !d.nodes[id].resident() {
		panic(fmt.Sprintf("evict: %s of block %d, which is not resident", op, id))
	}
}

func (d *density) mustAbsent(op string, id ID) {
	d.mustRange(op, id)
	if d.nodes[id].resident() {
		panic(fmt.Sprintf("evict: %s of block %d, which is resident already", op, id))
	}
}

// Lists.

// listNew puts a leaf listed now at the head of its class.
func (d *density) listNew(id ID, now uint32) {
	n := &d.nodes[id]
	n.setListed(d.coarse(now))
	d.push(&d.lists[n.class()], id)
}

// list puts a leaf where its last access belongs in its class: at the tail if
// none is older, else behind those that are younger as far as the search goes.
func (d *density) list(id ID, last, now uint32) {
	n := &d.nodes[id]
	n.setListed(d.coarse(last))
	l := &d.lists[n.class()]
	here := d.coarse(now)
	age := (here - n.listed()) & listedRange
	if l.tail == 0 || age >= (here-d.nodes[l.tail].listed())&listedRange {
		d.append(l, id)
		return
	}
	var at ID
	next := l.head
	for range placeSteps {
		if next == 0 || (here-d.nodes[next].listed())&listedRange >= age {
			break
		}
		at, next = next, d.older(next)
	}
	d.insertOlder(l, at, id)
}

// relist moves a touched leaf to the place its last access deserves.
func (d *density) relist(id ID, now uint32) {
	n := &d.nodes[id]
	last := d.b.Last(id)
	d.unlink(&d.lists[n.class()], id)
	d.bump(n)
	d.list(id, last, now)
}

// bump makes n one turn older.
func (d *density) bump(n *Node) {
	c := n.class()
	t := min(n.turn()+1, turns-1)
	n.setTurn(t)
	if c.chained() {
		n.setClass(chainClass(t, c.length()))
	}
}

func (d *density) touched(id ID) bool {
	return d.coarse(d.b.Last(id)) != d.nodes[id].listed()
}

// becomeLeaf lists a resident block whose last child left.
func (d *density) becomeLeaf(id ID, now uint32) {
	n := &d.nodes[id]
	if n.class() == classDead {
		d.listNew(id, now)
		return
	}
	d.list(id, d.b.Last(id), now)
}

// Children.

// addChild counts a child of the slot p. A block that gains its first leaves
// its list.
func (d *density) addChild(p ID) {
	n := &d.nodes[p]
	if n.resident() && !n.inner() {
		d.unlink(&d.lists[n.class()], p)
	}
	d.count(n)
}

// count makes a node that is on no list inner, or counts one more child.
func (d *density) count(n *Node) {
	n.Prev |= flagInner
	n.Next++
}

// deposited counts a child ever deposited under p.
func (d *density) deposited(p ID) {
	n := &d.nodes[p]
	if n.ever() == hubAt {
		return
	}
	n.Word += 1 << everShift
	if n.ever() == hubAt && n.class() != classDead {
		n.setClass(classHub)
	}
}

// dropChild is the reverse of addChild. It reports whether p is resident and
// lost its last child: then the caller must list it.
func (d *density) dropChild(p ID) bool {
	n := &d.nodes[p]
	if n.children() == 0 {
		panic(fmt.Sprintf("evict: block %d loses a child it does not have: %+v", p, *n))
	}
	n.Next--
	if n.Next&idMask != 0 {
		return false
	}
	n.Prev &^= flagInner
	return n.resident()
}

func (d *density) Insert(run []Insert, now uint32) {
	d.progress(now)
	for len(run) > 0 {
		n := 1
		for n < len(run) && run[n].Parent == run[n-1].ID {
			n++
		}
		d.insertChain(run[:n], now)
		run = run[n:]
	}
	d.again.class = classNone
}

// insertChain inserts blocks of which each is the parent of the next.
func (d *density) insertChain(run []Insert, now uint32) {
	dead := false
	if p := run[0].Parent; p != 0 {
		d.mustResident("insert under", p)
		if d.sweeping {
			d.resolve(p, now) // the sweep may be past the slots of the run already
		}
		for i := range run {
			d.mustAbsent("insert", run[i].ID)
			d.keepAcyclic(run[i].ID, p, now)
		}
		dead = d.nodes[p].class() == classDead || d.orphan(&d.nodes[p])
	} else {
		dead = run[0].Unreachable
	}
	turn := d.turnOf(run)
	for i := range run {
		in := &run[i]
		d.mustAbsent("insert", in.ID)
		d.b.SetLast(in.ID, now)
		if i == 0 && in.Parent != 0 {
			d.addChild(in.Parent)
			d.deposited(in.Parent)
		}
		c := chainClass(turn, lengthOf(in.ChainLen))
		switch {
		case dead:
			c = classDead
		case in.Tail:
			c = classTail
		}
		n := &d.nodes[in.ID]
		n.Word = uint32(c) | uint32(turn)<<turnShift
		n.Parent = 0
		if in.Parent != 0 {
			n.Parent = d.parent(in.Parent)
		}
		n.Prev = n.Prev&flagInner | d.color
		if !dead && d.recs.sampled(in.Hash) {
			d.observe(in.Hash, in.ID, c, turn, now)
		}
		if i+1 < len(run) {
			d.count(n)
			d.deposited(in.ID)
		} else if !n.inner() {
			d.listNew(in.ID, now)
		}
	}
}

// turnOf is one more than the turn of the deepest block of the chain that is
// resident or has a record; 0 if there is none, or if it is a hub: what follows
// a hub is a new conversation.
func (d *density) turnOf(run []Insert) uint8 {
	for i := len(run) - 1; i >= 0; i-- {
		if !d.recs.sampled(run[i].Hash) {
			continue
		}
		if r := d.recs.find(run[i].Hash); r != 0 {
			return nextTurn(d.recs.recs[r].class, d.recs.recs[r].turn)
		}
	}
	if p := run[0].Parent; p != 0 {
		return nextTurn(d.nodes[p].class(), d.nodes[p].turn())
	}
	return 0
}

func nextTurn(c class, turn uint8) uint8 {
	if c == classHub {
		return 0
	}
	return min(turn+1, turns-1)
}

// Replace gives new the place of old in the chain.
func (d *density) Replace(old, new ID, now uint32) {
	d.mustResident("replace", old)
	d.mustAbsent("replace", new)
	d.progress(now)
	d.again.class = classNone
	d.b.SetLast(new, now)
	o, n := &d.nodes[old], &d.nodes[new]
	ref := parentRef(d.parent(old))
	if o.inner() {
		if _, taken := d.forward[ref]; taken || len(d.forward) >= maxForwards {
			d.sweepAll(now)
		}
	}
	if d.sweeping {
		d.resolve(old, now) // the sweep may be past new's slot already
	}
	d.keepAcyclic(new, old, now)
	n.Word, n.Parent = o.Word, o.Parent // old's parent keeps its count
	n.Prev = n.Prev&flagInner | o.Prev&flagColor
	if n.class() != classDead {
		d.bump(n)
	}
	if o.inner() {
		// The children name ref; hold new as if it had one child until they know.
		o.Next += genOne
		o.Prev = flagInner
		d.count(n)
		d.forward[ref] = forwarded{to: parentRef(d.parent(new)), epoch: d.epoch}
		d.dirty = true
	} else {
		d.unlink(&d.lists[o.class()], old)
		o.Prev = 0
	}
	o.Word, o.Parent = 0, 0
	if !n.inner() {
		d.listNew(new, now)
	}
	if hash := d.b.Hash(new); d.recs.sampled(hash) {
		if r := d.recs.find(hash); r != 0 {
			d.recs.recs[r].slot = new
			if d.poll(r) {
				d.makeRoom(now)
			}
		}
	}
}

func (d *density) Remove(id ID, why Reason, now uint32) {
	d.mustResident("remove", id)
	n := &d.nodes[id]
	c, turn := n.class(), n.turn()
	if n.inner() {
		n.Next += genOne // its children are orphans
		d.dirty = true
	} else {
		d.unlink(&d.lists[c], id)
	}
	p, orphan := n.ref().slot(), d.orphan(n)
	n.Word, n.Parent = 0, 0
	n.Prev &= flagInner
	if p == 0 || !d.dropChild(p) {
		return
	}
	pn := &d.nodes[p]
	if pc := pn.class(); !orphan && pc.chained() && d.b.Last(p) == d.b.Last(id) {
		// One fate: one request used both last. A tail knows the turn only.
		switch {
		case c.chained():
			pn.setClass(c)
			pn.setTurn(turn)
		case c == classTail:
			pn.setClass(chainClass(turn, pc.length()))
			pn.setTurn(turn)
		}
	}
	if pn.class() != d.again.class || d.coarse(d.b.Last(p)) != d.again.listed {
		d.again.class = classNone
	}
	d.becomeLeaf(p, now)
}

// Relink names the parent of an unreachable block again.
func (d *density) Relink(id, parent ID, now uint32) {
	d.mustResident("relink", id)
	d.mustResident("relink under", parent)
	n := &d.nodes[id]
	lost := func() bool { return d.orphan(n) || n.class() == classDead && n.ref().slot() == 0 }
	if !lost() {
		return // reachable, or below an unreachable block
	}
	// Keys of a chain cannot name each other in a circle, parents given by a
	// faulty client can. Orphans would feign one and forwards hide one; and a
	// forward may know the parent.
	if (d.dirty || d.sweeping) && (len(d.forward) > 0 || d.above(id, parent)) {
		d.sweepAll(now)
	}
	if !lost() || d.above(id, parent) {
		return
	}
	if d.orphan(n) {
		d.cut(id, now)
	}
	d.addChild(parent)
	n.Parent = d.parent(parent)
	d.again.class = classNone
	d.dirty = true // blocks below id are reachable again
	if d.nodes[parent].class() != classDead && !d.orphan(&d.nodes[parent]) {
		d.revive(id, now)
	}
}

// Victim looks at both ends of every class: what is learned rises to one peak
// with age and falls, so the least value of a class is at an end.
func (d *density) Victim(now uint32) ID {
	if d.dirty || d.sweeping {
		d.sweep(now)
	}
	if id := d.deadVictim(now); id != 0 {
		return id
	}
	if id := d.sameEnd(now); id != 0 {
		return id
	}
	moves := victimSteps
	var best ID
	var bestValue float64
	var bestAge uint32
	var bestNewest bool
	consider := func(id ID, c class, newest bool) {
		age := now - d.b.Last(id)
		v := d.haz.index[c][bucket(age)]
		// Without events the halves of an octave are worth the same but for
		// rounding: then the older goes, as in LRU.
		if best == 0 || v < bestValue*(1-1e-9) || v < bestValue*(1+1e-9) && age > bestAge {
			best, bestValue, bestAge, bestNewest = id, v, age, newest
		}
	}
	for c := class(1); c <= classTail; c++ {
		l := &d.lists[c]
		// The oldest. Busy ones go to the head and are listed now, so that they
		// will look touched when they come back.
		for range l.n {
			id := l.tail
			if id == 0 {
				break // all were touched and are in other classes now
			}
			if d.b.Busy(id) {
				if moves--; moves < 0 {
					break
				}
				d.unlink(l, id)
				d.listNew(id, now)
				continue
			}
			if d.touched(id) {
				if moves--; moves >= 0 {
					d.relist(id, now)
					continue
				}
			}
			consider(id, c, false)
			break
		}
		// The newest, past some that are busy.
		for id, passed := l.head, 0; id != 0 && passed < busyEnd; {
			if d.b.Busy(id) {
				passed++
				id = d.older(id)
				continue
			}
			if d.touched(id) {
				if moves--; moves >= 0 {
					d.relist(id, now)
					id, passed = l.head, 0
					continue
				}
			}
			consider(id, c, true)
			break
		}
	}
	if best != 0 {
		n := &d.nodes[best]
		d.again.class, d.again.newest = n.class(), bestNewest
		d.again.listed, d.again.bucket = n.listed(), bucket(bestAge)
		return best
	}
	if id := d.firstFree(); id != 0 {
		return id
	}
	if d.dirty || d.sweeping { // orphans may keep the block in their parent's slot
		d.sweepAll(now)
		return d.firstFree()
	}
	return 0
}

// sameEnd returns the block at the end of the last victim if it is its equal.
func (d *density) sameEnd(now uint32) ID {
	if d.again.class == classNone {
		return 0
	}
	l := &d.lists[d.again.class]
	id := l.tail
	if d.again.newest {
		id = l.head
	}
	if id == 0 || d.nodes[id].listed() != d.again.listed || d.b.Busy(id) || d.touched(id) ||
		bucket(now-d.b.Last(id)) != d.again.bucket {
		d.again.class = classNone
		return 0
	}
	return id
}

// deadVictim returns an unreachable leaf: nothing can hit it.
func (d *density) deadVictim(now uint32) ID {
	l := &d.lists[classDead]
	for range min(l.n, busyEnd) {
		id := l.tail
		if !d.b.Busy(id) {
			return id
		}
		d.unlink(l, id)
		d.listNew(id, now)
	}
	return 0
}

// firstFree is the slow road: any leaf that is not busy.
func (d *density) firstFree() ID {
	for _, c := range [...]class{classDead, classTail, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, classHub} {
		for id := d.lists[c].tail; id != 0; id = d.newer(id) {
			if !d.b.Busy(id) {
				return id
			}
		}
	}
	return 0
}
