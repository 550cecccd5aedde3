package peer

import "github.com/kvcr-go/kvcr/wire"

// frame takes a message of the source. What does not fit the present state is a
// repetition, late, or wrong, and changes nothing.
func (d *Dest) frame(now Time, f Frame) {
	if !d.up {
		return // what a closed connection still had to say
	}
	id := OpID(f.ID)
	op := d.byID[id]
	if op != nil && op.phase != destStarting {
		op.repeat.start(now, &d.timing) // it lives
	}
	switch m := f.Msg.(type) {
	case *wire.Offer:
		if !d.meant(m.Source, m.Dest) {
			return
		}
		switch {
		case op == nil:
			d.do(Send{f.ID, &wire.Finish{Source: m.Source, Dest: m.Dest}})
		case op.phase == destStarting:
			d.offered(now, op, m)
		}
	case *wire.Refused:
		if op != nil && op.phase == destStarting && m.Source == uint64(d.peer) {
			why := m.Status
			if why == wire.StatusOK {
				why = wire.StatusSource
			}
			for i := range op.items {
				d.fail(op, i, why)
			}
		}
	case *wire.Done:
		if op != nil && d.from(op, m.Source, m.Dest) {
			for _, s := range m.Items {
				d.done(op, int(s.Index), s.Status)
			}
		}
	case *wire.Removed:
		if op != nil && d.from(op, m.Source, m.Dest) {
			for _, s := range m.Items {
				if i := int(s.Index); i < len(op.items) && op.items[i].state == destHeld {
					d.unhold(op, i, s.Status)
				}
			}
		}
	case *wire.Ask:
		if d.meant(m.Source, m.Dest) {
			d.asked(f.ID, op, m)
		}
	case *wire.ProbeAck:
		// Of a known operation the items are named by Done: this answer may be to
		// an earlier probe, of other items.
		if op != nil && d.from(op, m.Source, m.Dest) && !m.Known {
			d.provenClosing(op)
		}
	case *wire.Finished:
		if op != nil && op.phase == destFinishing && d.from(op, m.Source, m.Dest) {
			op.forget()
		}
	}
}

// meant reports whether a message of this connection names its two ends.
func (d *Dest) meant(source, dest uint64) bool {
	return source == uint64(d.peer) && dest == uint64(d.self)
}

// from reports whether a message names the two processes of an operation: an
// answer about an earlier life of the source still names that (M5).
func (d *Dest) from(op *destOp, source, dest uint64) bool {
	return op.source != 0 && source == uint64(op.source) && dest == uint64(d.self)
}

// offered takes the answer to Start: what is resident here is not moved, the rest
// is reserved and asked for.
func (d *Dest) offered(now Time, op *destOp, m *wire.Offer) {
	op.phase, op.source, op.route = destRunning, Incarnation(m.Source), d.route
	op.repeat.start(now, &d.timing)
	if len(m.Items) != len(op.items) {
		for i := range op.items {
			d.fail(op, i, wire.StatusSource)
		}
		return
	}
	var decline []wire.ItemStatus
	for i := range op.items {
		o := &m.Items[i]
		it := &op.items[i]
		if it.state != destAsked {
			continue
		}
		if o.Status != wire.StatusOK {
			d.end(op, i, o.Status)
			continue
		}
		if o.Flags&wire.OfferFollows != 0 && i > 0 {
			o.Parent = op.Items[i-1].Key
		}
		it.offer, it.keep = o, op.keep
		if op.Mode == wire.TransferMove {
			it.keep = o.Keep
		}
	}
	for i := 0; i < len(op.items); {
		n := d.groupLen(op, i)
		switch why := d.reserve(op, i, n); why {
		case wire.StatusOK:
			op.items[i].parts, op.items[i].after = n, op.parent(i, n)
			for j := i; j < i+n; j++ {
				op.set(j, destPosted)
				d.do(Post{op.Op, j, op.items[j].slot, op.items[j].offer})
			}
		case wire.StatusExists:
			for j := i; j < i+n; j++ {
				decline = d.present(op, j, decline)
			}
		default: // they have ended; the source need not keep them for us
			for j := i; j < i+n; j++ {
				if it := &op.items[j]; it.offer != nil && op.Mode == wire.TransferMove && it.keep == wire.StatusOK {
					decline = append(decline, wire.ItemStatus{Index: uint32(j), Status: why})
				}
			}
		}
		i += n
	}
	d.accept(op, func(it *destItem) bool { return it.state == destPosted })
	if len(decline) > 0 {
		d.send(op, &wire.Decline{Source: m.Source, Dest: m.Dest, Items: decline})
	}
	d.confirm(op)
}

// parent finds the item with the parent of n items from i, so that the parent is
// committed first: 1 + its index, 0 when it is not of this operation, or where the
// order does not matter.
func (op *destOp) parent(i, n int) (after int) {
	for j := i; j < i+n && !op.Deliver; j++ {
		p := op.items[j].offer.Parent
		for k := j - 1; k >= 0 && len(p) > 0; k-- {
			if string(op.Items[k].Key) == string(p) {
				if k < i {
					after = max(after, k+1)
				}
				break
			}
		}
	}
	return after
}

// groupLen is the number of items from i that are committed together: 1, or the
// parts of the group that begins there. A group that is not whole fails.
func (d *Dest) groupLen(op *destOp, i int) int {
	o := op.items[i].offer
	if op.Deliver || op.items[i].state != destAsked || o == nil || o.Parts <= 1 {
		return 1
	}
	n := 0
	for i+n < len(op.items) {
		it := &op.items[i+n]
		if it.state != destAsked || it.offer.Parts != o.Parts {
			break
		}
		n++
		if it.offer.Flags&wire.OfferMember == 0 {
			break // the leader
		}
	}
	if n != int(o.Parts) || op.items[i+n-1].offer.Flags&wire.OfferMember != 0 {
		for j := range max(n, 1) {
			d.end(op, i+j, wire.StatusGroup)
		}
	}
	return max(n, 1)
}

// reserve takes memory for n items together, or for none. What is resident is
// settled; what finds no memory has ended, and so has a group of which only some
// parts are resident.
func (d *Dest) reserve(op *destOp, i, n int) wire.Status {
	if op.items[i].state != destAsked {
		return wire.StatusGroup
	}
	why, resident := wire.StatusOK, 0
	for j := i; j < i+n; j++ {
		slot, s := d.rec.Reserve(op.Op, j, op.Namespace, op.Items[j].Key, op.items[j].offer)
		op.items[j].slot = slot
		if s == wire.StatusExists {
			resident++
		}
		if s != wire.StatusOK {
			why = s
		}
	}
	if why == wire.StatusOK {
		return why
	}
	if resident > 0 && resident < n {
		why = wire.StatusGroup
	}
	for j := i; j < i+n; j++ {
		it := &op.items[j]
		if it.slot != 0 {
			d.rec.Free(it.slot)
			it.slot = 0
		}
		if why == wire.StatusExists {
			d.answer(op, j, wire.StatusOK, true)
		} else {
			d.end(op, j, why)
		}
	}
	return why
}

// present ends an item that was resident before. In a move it takes the hold, so that
// the block is confirmed without a transfer; or says why not.
func (d *Dest) present(op *destOp, i int, decline []wire.ItemStatus) []wire.ItemStatus {
	it := &op.items[i]
	if op.Mode != wire.TransferMove || it.keep != wire.StatusOK {
		d.end(op, i, wire.StatusOK) // the source does not wait for us
		return decline
	}
	why := d.rec.TakeHold(op.Namespace, op.Items[i].Key, HoldID{op.source, op.Op})
	if why == wire.StatusOK {
		op.set(i, destHeld)
		return decline
	}
	d.end(op, i, why)
	return append(decline, wire.ItemStatus{Index: uint32(i), Status: why})
}

// done takes the source's word for one item.
func (d *Dest) done(op *destOp, i int, s wire.Status) {
	if i >= len(op.items) || op.items[i].state != destPosted {
		return
	}
	it := &op.items[i]
	it.proven, it.written = true, true
	if s != wire.StatusOK {
		d.fail(op, i, s)
	}
	d.release(op, i)
}

func (d *Dest) provenClosing(op *destOp) {
	for i := range op.items {
		if it := &op.items[i]; it.closing {
			it.proven = true
			d.release(op, i)
		}
	}
}

// asked answers Ask from what is held now (M4).
func (d *Dest) asked(id uint64, op *destOp, m *wire.Ask) {
	yes := &wire.Confirm{Source: m.Source, Dest: m.Dest}
	no := &wire.Decline{Source: m.Source, Dest: m.Dest}
	for _, i := range m.Indices {
		switch {
		case op != nil && int(i) < len(op.items) && d.held(op, int(i)):
			yes.Indices = append(yes.Indices, i)
		case op != nil && int(i) < len(op.items) && op.items[i].state != destEnded:
			// Still on its way: Confirm will come, or the operation's end.
		default:
			no.Items = append(no.Items, wire.ItemStatus{Index: i, Status: wire.StatusUnknownOp})
		}
	}
	if len(yes.Indices) > 0 {
		d.do(Send{id, yes})
	}
	if len(no.Items) > 0 {
		d.do(Send{id, no})
	}
}

// landed takes an item's bytes, or the reason why they did not come.
func (d *Dest) landed(op *destOp, i int, s wire.Status) {
	it := &op.items[i]
	it.shut, it.proven = true, it.proven || op.route != wire.RouteUCXPut || s == wire.StatusOK
	switch {
	case it.closing && op.Deliver && s == wire.StatusOK && it.why != wire.StatusAborted && !it.settled:
		// The caller's time was up, but the bytes are there and whole.
		s = d.rec.Commit([]Slot{it.slot}, HoldID{})
		it.slot = 0
		d.end(op, i, s)
	case it.closing:
		d.release(op, i)
	case s != wire.StatusOK:
		it.closing, it.why, op.closes = true, s, true
		d.refuse(op, i, s)
		d.release(op, i)
	default:
		op.set(i, destLanded)
	}
}

// commit makes landed items resident: parts of a group together, a block of a
// chain after its parent's item has been committed or has failed.
func (d *Dest) commit(now Time, op *destOp) {
	if op.phase != destRunning || op.landed == 0 {
		return
	}
	var held []uint32
	var decline []wire.ItemStatus
	for op.low < len(op.items) && op.past(op.low) {
		op.low += max(1, op.items[op.low].parts)
	}
	passed := 0 // landed items that must wait: behind the last one there is nothing to do
	for i := op.low; passed < op.landed; {
		n := max(1, op.items[i].parts)
		if d.ready(op, i, n) {
			held, decline = d.commitGroup(op, i, n, held, decline)
		}
		for end := i + n; i < end; i++ {
			if op.items[i].state == destLanded {
				passed++
			}
		}
	}
	if len(held) > 0 {
		d.send(op, &wire.Confirm{Source: uint64(op.source), Dest: uint64(d.self), Indices: held})
		op.repeat.start(now, &d.timing)
	}
	if len(decline) > 0 {
		d.send(op, &wire.Decline{Source: uint64(op.source), Dest: uint64(d.self), Items: decline})
	}
}

// past reports whether nothing is left to commit of the items that are committed
// together with item i, the first of them.
func (op *destOp) past(i int) bool {
	for _, it := range op.items[i : i+max(1, op.items[i].parts)] {
		if it.state != destEnded && it.state != destHeld {
			return false
		}
	}
	return true
}

// ready reports whether n items from i have all landed and may be committed. When
// one of a group has failed, the others do.
func (d *Dest) ready(op *destOp, i, n int) bool {
	landed, failed := 0, wire.StatusOK
	for j := i; j < i+n; j++ {
		switch it := &op.items[j]; {
		case it.state == destLanded:
			landed++
		case it.state == destEnded || it.closing:
			failed = wire.StatusGroup
		}
	}
	if landed == 0 {
		return false
	}
	if failed != wire.StatusOK {
		for j := i; j < i+n; j++ {
			d.fail(op, j, failed)
		}
		return false
	}
	if k := op.items[i].after; k > 0 && (op.items[k-1].state == destPosted || op.items[k-1].state == destLanded) {
		return false
	}
	return landed == n
}

// commitGroup commits n items from i, with the hold in a move that the source waits
// for. When there is no room for more holds they are copied.
func (d *Dest) commitGroup(op *destOp, i, n int, held []uint32, decline []wire.ItemStatus) ([]uint32, []wire.ItemStatus) {
	d.slots = d.slots[:0]
	marked := false
	for j := i; j < i+n; j++ {
		it := &op.items[j]
		d.slots = append(d.slots, it.slot)
		it.slot = 0
		marked = marked || op.Mode == wire.TransferMove && it.keep == wire.StatusOK
	}
	var hold HoldID
	why := wire.StatusOK // for which nothing is confirmed
	if marked && d.rec.HoldRoom(n) {
		hold = HoldID{op.source, op.Op}
	} else if marked {
		why = wire.StatusCapacity
	}
	s := d.rec.Commit(d.slots, hold)
	if s != wire.StatusOK {
		why = s
	}
	for j := i; j < i+n; j++ {
		it := &op.items[j]
		if s == wire.StatusOK && hold != (HoldID{}) {
			d.answer(op, j, s, false)
			op.set(j, destHeld)
			held = append(held, uint32(j))
			continue
		}
		if s == wire.StatusCrossing || s == wire.StatusHeld || s == wire.StatusRedeposited {
			// Resident by another road, and not ours to confirm.
			d.answer(op, j, wire.StatusOK, true)
		}
		if it.keep == wire.StatusOK {
			it.keep = why
		}
		d.end(op, j, s)
		if marked {
			decline = append(decline, wire.ItemStatus{Index: uint32(j), Status: why})
		}
	}
	return held, decline
}
