package peer

import (
	"fmt"
	"slices"

	"github.com/kvcr-go/kvcr/wire"
)

// frame takes a message of the destination. Every request is answered, from
// present state.
func (s *Source) frame(now Time, f Frame) {
	if !s.up {
		return // what a closed connection still had to say (M5)
	}
	id := OpID(f.ID)
	op := s.byID[id]
	switch m := f.Msg.(type) {
	case *wire.Start:
		s.started(now, id, op, m)
	case *wire.Accept:
		if s.meant(m.Source, m.Dest) {
			s.accepted(f.ID, op, m)
		}
	case *wire.Confirm:
		s.confirmed(f.ID, op, m)
	case *wire.Decline:
		if op == nil || !s.meant(m.Source, m.Dest) {
			return
		}
		for _, d := range m.Items {
			if int(d.Index) < len(op.items) {
				s.keep(op, int(d.Index), d.Status)
			}
		}
	case *wire.Probe:
		s.probed(f.ID, op, m)
	case *wire.Finish:
		if op == nil || !s.meant(m.Source, m.Dest) {
			if op == nil {
				s.ended.add(id) // its Start may be under way
			}
			s.send(f.ID, &wire.Finished{Source: m.Source, Dest: m.Dest})
			return
		}
		op.ending, op.finish = true, true
		s.cancelAll(op)
	}
}

// meant reports whether a message names the two processes that this machine is
// for.
func (s *Source) meant(source, dest uint64) bool {
	return source == uint64(s.self) && dest == uint64(s.dest)
}

func (s *Source) refuse(id OpID, why wire.Status, text string) {
	s.send(uint64(id), &wire.Refused{Source: uint64(s.self), Status: why, Text: text})
}

func (s *Source) started(now Time, id OpID, op *srcOp, m *wire.Start) {
	switch {
	case op != nil: // a repetition
		if s.route == wire.RouteShm {
			op.route = s.route
		}
		if !op.pinning && !op.ending {
			s.send(uint64(id), op.offer)
		}
		return
	case m.Dest == uint64(s.self):
		s.refuse(id, wire.StatusSelf, "source and destination are the same process")
		return
	case m.Source != uint64(s.self) || m.Dest != uint64(s.dest):
		s.refuse(id, wire.StatusIncarnation, "meant for another life of this process")
		return
	case s.ended.has(id):
		s.refuse(id, wire.StatusUnknownOp, "the operation has ended")
		return
	case len(s.ops) >= s.limits.Ops:
		s.refuse(id, wire.StatusBusy, "too many operations of this destination")
		return
	case len(m.Items) > wire.MaxItems:
		s.refuse(id, wire.StatusTooLarge, fmt.Sprintf("%d items; an operation has at most %d", len(m.Items), wire.MaxItems))
		return
	case len(m.Items) == 0 || repeated(m.Items):
		s.refuse(id, wire.StatusBadKey, "no keys, or one of them twice")
		return
	}
	if s.limits.Namespace != nil {
		if why, text := s.limits.Namespace(m.Namespace, m.Fingerprint); why != wire.StatusOK {
			s.refuse(id, why, text)
			return
		}
	}
	op = &srcOp{id: id, start: m, route: s.route, items: make([]srcItem, len(m.Items))}
	op.expire = now + min(Time(m.Timeout)*1e6, s.timing.Operation)
	op.offer = &wire.Offer{Source: uint64(s.self), Dest: uint64(s.dest), Items: make([]wire.Offered, len(m.Items))}
	s.ops = append(s.ops, op)
	s.byID[id] = op
	for i := range m.Items {
		s.claim(op, i)
	}
	if s.limits.Pins && m.Mode == wire.TransferCopy && !m.OwnedOnly && s.pin(op) {
		return
	}
	s.send(uint64(id), op.offer)
}

func repeated(items []wire.Wanted) bool {
	if len(items) == 1 {
		return false
	}
	seen := make(map[string]bool, len(items))
	for _, w := range items {
		if seen[string(w.Key)] {
			return true
		}
		seen[string(w.Key)] = true
	}
	return false
}

// claim offers an item if the records have it, and marks it in a move.
func (s *Source) claim(op *srcOp, i int) {
	it, o := &op.items[i], &op.offer.Items[i]
	it.claim, o.Status = s.rec.Claim(op.start.Namespace, &op.start.Items[i], o)
	if o.Status != wire.StatusOK {
		it.claim = 0
		return
	}
	if i > 0 && len(o.Parent) > 0 && string(o.Parent) == string(op.start.Items[i-1].Key) && op.offer.Items[i-1].Status == wire.StatusOK {
		o.Flags |= wire.OfferFollows
		o.Parent = nil
	}
	if op.start.Mode != wire.TransferMove {
		return
	}
	o.Keep = s.rec.Mark(it.claim, MoveID{s.dest, op.id})
	it.marked = o.Keep == wire.StatusOK
	if !it.marked {
		s.decide(op, i, o.Keep)
	}
}

// pin asks the framework for what is missing, and reports whether anything is.
func (s *Source) pin(op *srcOp) bool {
	p := Pin{Op: op.id, Namespace: op.start.Namespace}
	for i := range op.items {
		if op.offer.Items[i].Status == wire.StatusMiss && op.start.Items[i].Generation == 0 {
			p.Items = append(p.Items, i)
			p.Keys = append(p.Keys, op.start.Items[i].Key)
		}
	}
	if len(p.Items) == 0 {
		return false
	}
	op.pinning = true
	s.do(p)
	return true
}

func (s *Source) pinned(p Pinned) {
	op := s.byID[p.Op]
	if op != nil && !op.pinning {
		op = nil
	}
	for _, lent := range p.Items {
		switch {
		case lent.Claim == 0:
		case op == nil || lent.Index < 0 || lent.Index >= len(op.items) || op.items[lent.Index].claim != 0:
			s.rec.Unclaim(lent.Claim) // nobody asked
		default:
			op.items[lent.Index].claim = lent.Claim
			op.offer.Items[lent.Index] = lent.Offer
		}
	}
	if op == nil {
		return
	}
	op.pinning = false
	if !op.ending {
		s.send(uint64(op.id), op.offer)
	}
}

// accepted begins the writes of a list of items, and answers at once for those
// that are over.
func (s *Source) accepted(id uint64, op *srcOp, m *wire.Accept) {
	var over []wire.ItemStatus
	for _, a := range m.Items {
		i := int(a.Index)
		switch {
		case op == nil || i >= len(op.items):
			over = append(over, wire.ItemStatus{Index: a.Index, Status: wire.StatusUnknownOp})
		case op.items[i].state == srcWriting: // Done will name it; before, nothing is proven
		case op.items[i].state == srcWritten:
			over = append(over, wire.ItemStatus{Index: a.Index, Status: op.items[i].result})
		case op.ending || op.stage > stageRunning:
			over = append(over, wire.ItemStatus{Index: a.Index, Status: wire.StatusUnknownOp})
		case op.items[i].claim != 0:
			op.items[i].state = srcWriting
			op.writes++
			s.do(Write{op.id, i, op.items[i].claim, &op.offer.Items[i], a.Desc})
		default:
			over = append(over, wire.ItemStatus{Index: a.Index, Status: wire.StatusMiss})
		}
	}
	if len(over) > 0 {
		s.send(id, &wire.Done{Source: m.Source, Dest: m.Dest, Items: over})
	}
}

// confirmed removes what the destination has confirmed and the operation has
// still marked, and answers for every item named.
func (s *Source) confirmed(id uint64, op *srcOp, m *wire.Confirm) {
	if !s.meant(m.Source, m.Dest) {
		op = nil // the confirmation of an earlier life, or of another process
	}
	var at []int
	var cs []Claim
	for _, i := range m.Indices {
		if op != nil && int(i) < len(op.items) && op.items[i].marked && !op.items[i].decided && !slices.Contains(at, int(i)) {
			at = append(at, int(i))
			cs = append(cs, op.items[i].claim)
		}
	}
	if len(cs) > 0 {
		what := make([]wire.Status, len(cs))
		s.rec.Remove(cs, MoveID{s.dest, op.id}, what)
		for k, i := range at {
			s.decide(op, i, what[k])
			if op.items[i].state != srcWriting {
				s.unclaim(op, i)
			}
		}
	}
	reply := &wire.Removed{Source: m.Source, Dest: m.Dest}
	for _, i := range m.Indices {
		why := wire.StatusUnknownOp
		if op != nil && int(i) < len(op.items) {
			switch it := &op.items[i]; {
			case it.decided:
				why = it.outcome
			case op.offer.Items[i].Keep != wire.StatusOK:
				why = op.offer.Items[i].Keep
			}
		}
		reply.Items = append(reply.Items, wire.ItemStatus{Index: i, Status: why})
	}
	s.send(id, reply)
}

// probed says whether a write may still touch the destination's memory. The items
// of which that is ruled out are named by Done.
func (s *Source) probed(id uint64, op *srcOp, m *wire.Probe) {
	ack := &wire.ProbeAck{Source: m.Source, Dest: m.Dest, Terminal: true}
	if op == nil || !s.meant(m.Source, m.Dest) {
		s.send(id, ack)
		return
	}
	ack.Known = true
	at := m.Indices
	if len(at) == 0 {
		for i := range op.items {
			at = append(at, uint32(i))
		}
	}
	over := &wire.Done{Source: m.Source, Dest: m.Dest}
	for _, i := range at {
		if int(i) >= len(op.items) {
			continue
		}
		it := &op.items[i]
		if it.state == srcOffered && m.Cancel {
			// An Accept that is under way must not begin it after this answer.
			it.state, it.result, it.told = srcWritten, wire.StatusAborted, true
			s.keep(op, int(i), wire.StatusAborted)
		}
		switch it.state {
		case srcWriting:
			ack.Terminal = false
			if m.Cancel {
				s.do(CancelWrite{op.id, int(i)})
			}
		case srcWritten:
			over.Items = append(over.Items, wire.ItemStatus{Index: i, Status: it.result})
		}
	}
	if len(over.Items) > 0 {
		s.send(id, over)
	}
	s.send(id, ack)
}
