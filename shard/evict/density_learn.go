package evict

// observe notes that a sampled block became resident again or for the first time.
func (d *density) observe(hash uint64, id ID, c class, turn uint8, now uint32) {
	if i := d.recs.find(hash); i != 0 {
		r := &d.recs.recs[i]
		d.haz.hit(r.class, now-r.last, r.weight())
		d.recs.drop(i)
	}
	r := &d.recs.recs[d.recs.put(hash)]
	r.class, r.turn, r.last, r.slot = c, turn, now, id
	d.makeRoom(now)
}

// makeRoom passes the oldest records of full levels on. It ends: every step
// drops a record, moves one up, or counts an access that is then known.
func (d *density) makeRoom(now uint32) {
	for lv := 0; lv < levels; {
		l := &d.recs.level[lv]
		if l.n <= d.recs.room {
			lv++
			continue
		}
		i := l.oldest
		r := &d.recs.recs[i]
		switch {
		case d.poll(i):
			lv = 0
		case lv == levels-1:
			d.haz.drop(r.class, now-r.last, r.weight())
			d.recs.drop(i)
		case d.recs.survives(r, lv):
			d.recs.move(i, uint8(lv+1))
		default:
			d.recs.drop(i)
		}
	}
}

// poll reports whether the block of record i was used since the record knew,
// counts that, and moves the record to level 0. The caller must make room.
func (d *density) poll(i uint32) bool {
	r := &d.recs.recs[i]
	if r.slot == 0 {
		return false
	}
	n := &d.nodes[r.slot]
	if !n.resident() {
		r.slot = 0
		return false
	}
	last := d.b.Last(r.slot)
	if int32(last-r.last) <= 0 {
		return false
	}
	if d.b.Hash(r.slot) != r.hash {
		r.slot = 0 // another block lives there
		return false
	}
	d.haz.hit(r.class, last-r.last, r.weight())
	r.last = last
	r.turn = min(r.turn+1, turns-1)
	switch {
	case n.class() == classHub:
		r.class = classHub
	case r.class.chained():
		r.class = chainClass(r.turn, r.class.length())
	}
	d.recs.move(i, 0)
	return true
}

// progress does the share of learning that is due: records are polled in small
// steps, since each may cost a cache miss, and then the index is computed.
func (d *density) progress(now uint32) {
	if d.dirty || d.sweeping {
		d.sweep(now)
	}
	elapsed := now - d.learned
	n := len(d.recs.recs) - 1
	due := n
	if elapsed < d.period {
		due = int(uint64(n) * uint64(elapsed) / uint64(d.period))
	}
	for end := min(due, d.polled+pollStep); d.polled < end; {
		d.polled++
		if d.recs.recs[d.polled].level < levels && d.poll(uint32(d.polled)) {
			d.makeRoom(now)
		}
	}
	if elapsed < d.period || d.polled < n {
		return
	}
	d.learned, d.polled = now, 0
	d.live = ageTable{}
	for i := range d.recs.recs[1:] {
		if r := &d.recs.recs[1+i]; r.level < levels {
			d.live[r.class][bucket(now-r.last)] += r.weight()
		}
	}
	d.haz.learn(&d.live)
	d.again.class = classNone
}
