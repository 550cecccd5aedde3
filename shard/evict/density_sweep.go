package evict

// sweep looks at the nodes that are due, and begins anew when orphans appeared
// meanwhile. It costs sweepRate nodes for each access, while there is a reason.
func (d *density) sweep(now uint32) {
	if !d.sweeping {
		d.beginSweep()
		d.stepped = now
	}
	due := min(sweepRate*uint64(now-d.stepped), sweepStep)
	d.stepped = now
	d.sweepNodes(int(due), now)
}

func (d *density) beginSweep() {
	d.dirty, d.sweeping = false, true
	d.color ^= flagColor
	d.cursor = 1
	d.epoch++
	d.again.class = classNone
}

func (d *density) sweepNodes(count int, now uint32) {
	for ; count > 0; count-- {
		if int(d.cursor) == len(d.nodes) {
			d.endSweep(now)
			return
		}
		if d.nodes[d.cursor].resident() {
			d.resolve(d.cursor, now)
		}
		d.cursor++
	}
}

// sweepAll sweeps until no orphan is left.
func (d *density) sweepAll(now uint32) {
	for d.sweeping || d.dirty {
		if !d.sweeping {
			d.beginSweep()
		}
		d.sweepNodes(len(d.nodes), now)
	}
}

// endSweep lets go of forwards that every child has heard of: those made before
// the sweep began.
func (d *density) endSweep(now uint32) {
	d.sweeping = false
	for ref, f := range d.forward {
		if f.epoch == d.epoch {
			continue
		}
		delete(d.forward, ref)
		if p := f.to.slot(); d.dropChild(p) {
			d.becomeLeaf(p, now)
		}
	}
}

// resolve finds out whether id is reachable, and marks it and what is above it
// accordingly: up to the first node this sweep has seen, so that a sweep looks
// at no node more than a few times.
func (d *density) resolve(id ID, now uint32) {
	dead := false
	top := id
	for at := id; at != 0; {
		n := &d.nodes[at]
		dead = n.class() == classDead
		if n.Prev&flagColor == d.color {
			break
		}
		top = at
		if d.orphan(n) {
			to, ok := d.heir(n.ref())
			if ok && d.above(at, to) && d.postpone(n.ref()) {
				break
			}
			d.cut(at, now)
			if ok && !d.above(at, to) {
				d.addChild(to)
				n.Parent = d.parent(to)
			} else {
				dead = true
			}
		}
		at = n.ref().slot()
	}
	for at := id; ; {
		n := &d.nodes[at]
		if n.Prev&flagColor != d.color {
			n.Prev ^= flagColor
			switch {
			case dead && n.class() != classDead:
				d.kill(at, now)
			case !dead && n.class() == classDead:
				d.revive(at, now)
			}
		}
		if at == top {
			return
		}
		at = n.ref().slot()
	}
}

// postpone leaves the children of ref for the next sweep, because an orphan not
// yet cut, of an earlier block in the child's own slot, is above the heir. It
// says no after maxTries, so that sweeps end whatever the links are.
func (d *density) postpone(ref parentRef) bool {
	const maxTries = 8
	f := d.forward[ref]
	if f.tries == maxTries {
		return false
	}
	if f.epoch != d.epoch {
		f.tries++
		f.epoch = d.epoch
		d.forward[ref] = f
	}
	d.dirty = true
	return true
}

// heir follows forwards from a parent that is gone to the block in its place.
func (d *density) heir(ref parentRef) (ID, bool) {
	for range maxForwards {
		f, ok := d.forward[ref]
		if !ok {
			return 0, false
		}
		ref = f.to
		if n := &d.nodes[ref.slot()]; n.resident() && n.gen() == ref.gen() {
			return ref.slot(), true
		}
	}
	return 0, false
}

// above reports whether id is at or one of the blocks over it, as slots name
// each other: gens do not matter, so orphans in between count.
func (d *density) above(id, at ID) bool {
	for ; at != 0; at = d.nodes[at].ref().slot() {
		if at == id {
			return true
		}
	}
	return false
}

// keepAcyclic prepares for a block in slot id to be put at or below at. If
// orphans of an earlier block in slot id are above that place, both would have
// children and never be leaves: the orphans must be cut loose now.
func (d *density) keepAcyclic(id, at ID, now uint32) {
	if d.nodes[id].inner() && d.above(id, at) {
		d.sweepAll(now)
	}
}

// cut takes an orphan from the slot it counts for.
func (d *density) cut(id ID, now uint32) {
	n := &d.nodes[id]
	p := n.ref().slot()
	n.Parent = 0
	if d.dropChild(p) {
		d.becomeLeaf(p, now)
	}
}

// kill marks a block unreachable.
func (d *density) kill(id ID, now uint32) {
	n := &d.nodes[id]
	if !n.inner() {
		d.unlink(&d.lists[n.class()], id)
	}
	n.setClass(classDead)
	if !n.inner() {
		d.listNew(id, now)
	}
	d.again.class = classNone
}

// revive makes an unreachable block an ordinary one. Its length is forgotten:
// the middle class stands in.
func (d *density) revive(id ID, now uint32) {
	n := &d.nodes[id]
	if n.class() != classDead {
		return
	}
	if !n.inner() {
		d.unlink(&d.lists[classDead], id)
	}
	if n.ever() == hubAt {
		n.setClass(classHub)
	} else {
		n.setClass(chainClass(n.turn(), 1))
	}
	if !n.inner() {
		d.list(id, d.b.Last(id), now)
	}
	d.again.class = classNone
}
