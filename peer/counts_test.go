package peer

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/kvcr-go/kvcr/wire"
)

// What a destination knows of its items without looking is what it would see, and
// nothing that could be committed waits, whatever the order in which items land, fail
// and are given up.
func TestDestCounts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(rt, "items")
		route := rapid.SampledFrom([]wire.Route{wire.RouteStream, wire.RouteShm, wire.RouteUCXPut}).Draw(rt, "route")
		dt := newDestTest(t, route)
		items := make([]wire.Wanted, n)
		m := offered(n)
		for i := range items {
			items[i].Key = []byte{'A' + byte(i)}
		}
		for i := 0; i < n; {
			parts := min(n-i, rapid.SampledFrom([]int{1, 1, 1, 2, 3}).Draw(rt, "parts"))
			for j := i; parts > 1 && j < i+parts; j++ {
				m.Items[j].Parts = uint16(parts)
				if j < i+parts-1 {
					m.Items[j].Flags |= wire.OfferMember
				}
			}
			if i > 0 && rapid.Bool().Draw(rt, "follows") {
				m.Items[i+parts-1].Parent = items[rapid.IntRange(0, i-1).Draw(rt, "parent")].Key
			}
			if rapid.IntRange(0, 9).Draw(rt, "missing") == 0 {
				m.Items[i].Status = wire.StatusMiss
			}
			i += parts
		}
		mode := rapid.SampledFrom([]wire.Transfer{wire.TransferCopy, wire.TransferMove}).Draw(rt, "mode")
		dt.d.Step(dt.now, Submit{Op: 1, Mode: mode, Items: items, Deadline: dt.now + 30*sec})
		dt.d.Step(dt.now, Frame{1, m})
		recount(rt, dt.d)
		for range rapid.IntRange(0, 300).Draw(rt, "events") {
			i := rapid.IntRange(0, n-1).Draw(rt, "item")
			var ev Event
			switch rapid.IntRange(0, 9).Draw(rt, "event") {
			case 0:
				ev = Abort{1, []int{i}}
			case 1:
				ev = Landed{1, i, wire.StatusChecksum}
			case 2:
				ev = Shut{1, i}
			case 3:
				ev = Frame{1, removed(i, wire.StatusOK)}
			case 4:
				ev = Frame{1, finished}
			case 5:
				ev = Frame{1, done(i, wire.StatusOK)}
			case 6:
				if rapid.IntRange(0, 9).Draw(rt, "how much") > 0 {
					ev = Frame{1, done(i, wire.StatusLost)}
				} else {
					dt.now += 40 * sec
					ev = Tick{}
				}
			default:
				ev = Landed{1, i, wire.StatusOK}
			}
			dt.d.Step(dt.now, ev)
			recount(rt, dt.d)
		}
		dt.d.Step(dt.now, Dead{srcInc})
		for i := range n {
			dt.d.Step(dt.now, Shut{1, i})
		}
		dt.over()
	})
}

// recount compares what is known of the items of each operation with the items.
func recount(t *rapid.T, d *Dest) {
	t.Helper()
	for _, op := range d.ops {
		left, landed, closes := 0, 0, false
		for i := range op.items {
			it := &op.items[i]
			if it.state != destEnded {
				left++
				closes = closes || it.closing && !it.quiet
			}
			if it.state == destLanded {
				landed++
			}
			if i < op.low && it.state != destEnded && it.state != destHeld {
				t.Fatalf("item %d is in state %d, though all before %d have ended or are held", i, it.state, op.low)
			}
		}
		if op.left != left || op.landed != landed || op.closes != closes || closes != (op.late != 0) {
			t.Fatalf("%d left, %d landed, closes %t by %v; there are %d, %d, %t", op.left, op.landed, op.closes, op.late, left, landed, closes)
		}
		for i := 0; op.phase == destRunning && i < len(op.items); i += max(1, op.items[i].parts) {
			if d.ready(op, i, max(1, op.items[i].parts)) {
				t.Fatalf("item %d could be committed, and is not", i)
			}
		}
	}
}

// A source that has little to do takes little memory, and keeps none of what was asked.
func TestSourceKeepsLittle(t *testing.T) {
	st := newSourceTest(t, wire.RouteStream, SourceLimits{})
	ids := func() int { return cap(st.s.ended.ids) }
	if ids() > 0 {
		t.Errorf("there is room for %d ended operations before the first", ids())
	}
	for id := range uint64(keptEnded + 10) {
		st.s.Step(st.now, Frame{id + 1, start(wire.TransferCopy, "a")})
		st.s.Step(st.now, Frame{id + 1, &wire.Finish{Source: uint64(srcInc), Dest: uint64(dstInc)}})
		if id == 0 && ids() > 8 {
			t.Errorf("one has ended, and there is room for %d", ids())
		}
	}
	e := &st.s.ended
	if len(e.ids) != keptEnded || e.has(10) || !e.has(11) || !e.has(keptEnded+10) {
		t.Errorf("of %d ended operations are known: the oldest %t, the last %t", len(e.ids), e.has(11), e.has(keptEnded+10))
	}
	st.s.Step(st.now, Tick{})
	for _, a := range st.s.out[:cap(st.s.out)] {
		if a != nil {
			t.Fatalf("an idle source keeps %v", a)
		}
	}
}
