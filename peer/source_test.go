package peer

import (
	"testing"

	"github.com/kvcr-go/kvcr/wire"
)

// sourceTest is a source machine over a table with the keys a, b, c and d.
type sourceTest struct {
	*testing.T
	s   *Source
	rec *fakeSource
	now Time
}

func newSourceTest(t *testing.T, route wire.Route, limits SourceLimits) *sourceTest {
	st := &sourceTest{t, nil, newFakeSource("a", "b", "c", "d"), sec}
	st.s = NewSource(srcInc, dstInc, st.rec, testTiming, limits)
	st.step("up", Up{dstInc, route})
	return st
}

func (st *sourceTest) step(what string, ev Event, want ...string) {
	st.Helper()
	wantActions(st.T, what, st.s.Step(st.now, ev), want...)
}

func (st *sourceTest) frame(what string, m wire.Message, want ...string) {
	st.Helper()
	st.step(what, Frame{1, m}, want...)
}

func (st *sourceTest) over() {
	st.Helper()
	if st.s.Ops() != 0 || len(st.rec.claims) != 0 || len(st.rec.marks) != 0 {
		st.Errorf("left over: %d operations, claims %v, marks %v", st.s.Ops(), st.rec.claims, st.rec.marks)
	}
}

func start(mode wire.Transfer, keys ...string) *wire.Start {
	m := &wire.Start{Source: uint64(srcInc), Dest: uint64(dstInc), Mode: mode, Timeout: 30_000}
	for _, k := range keys {
		m.Items = append(m.Items, wire.Wanted{Key: []byte(k)})
	}
	return m
}

func accept(at ...uint32) *wire.Accept {
	m := &wire.Accept{Source: uint64(srcInc), Dest: uint64(dstInc)}
	for _, i := range at {
		m.Items = append(m.Items, wire.Accepted{Index: i})
	}
	return m
}

func confirm(at ...uint32) *wire.Confirm {
	return &wire.Confirm{Source: uint64(srcInc), Dest: uint64(dstInc), Indices: at}
}

func probe(at ...uint32) *wire.Probe {
	return &wire.Probe{Source: uint64(srcInc), Dest: uint64(dstInc), Cancel: true, Indices: at}
}

var finish = &wire.Finish{Source: uint64(srcInc), Dest: uint64(dstInc)}

func TestSourceMove(t *testing.T) {
	st := newSourceTest(t, wire.RouteStream, SourceLimits{})
	st.rec.mark["b"] = wire.StatusNoEvict
	st.frame("start", start(wire.TransferMove, "a", "b", "z"), "Outcome 1 no_evict", "Offer ok/ok ok/no_evict miss/ok")
	st.frame("start again", start(wire.TransferMove, "a", "b", "z"), "Offer ok/ok ok/no_evict miss/ok")
	st.frame("accept", accept(0, 1, 2, 77), "Write 0", "Write 1", "Done 2:miss 77:unknown_op")
	st.frame("accept again", accept(0))
	st.step("written", Written{1, 0, wire.StatusOK})
	st.step("written", Written{1, 1, wire.StatusOK}, "Done 0:ok 1:ok")
	st.step("written again", Written{1, 1, wire.StatusOK})
	st.frame("accept of what is written", accept(0), "Done 0:ok")
	st.frame("confirm of another life", &wire.Confirm{Source: 7, Dest: uint64(dstInc), Indices: []uint32{0}}, "Removed 0:unknown_op")
	st.frame("confirm by another life", &wire.Confirm{Source: uint64(srcInc), Dest: 7, Indices: []uint32{0}}, "Removed 0:unknown_op")
	st.frame("confirm", confirm(0, 0, 1, 2, 99), "Outcome 0 ok", "Removed 0:ok 0:ok 1:no_evict 2:unknown_op 99:unknown_op")
	st.frame("confirm again", confirm(0), "Removed 0:ok")
	st.frame("finish", finish, "Finished", "Ended")
	st.frame("finish again", finish, "Finished")
	st.frame("confirm after the end", confirm(0), "Removed 0:unknown_op")
	st.frame("a start that was late", start(wire.TransferMove, "a"), "Refused unknown_op")
	st.over()
	if len(st.rec.removals) != 1 {
		t.Errorf("removed %v", st.rec.removals)
	}
}

func TestSourceRefuses(t *testing.T) {
	many := make([]string, wire.MaxItems+1)
	for i := range many {
		many[i] = string(rune(i + 300))
	}
	limits := SourceLimits{Ops: 1, Namespace: func(name string, fp [32]byte) (wire.Status, string) {
		if fp[0] != 0 {
			return wire.StatusBadLayout, "slot bytes differ"
		}
		return wire.StatusOK, ""
	}}
	edit := func(f func(*wire.Start)) *wire.Start {
		m := start(wire.TransferCopy, "a")
		f(m)
		return m
	}
	tests := []struct {
		name string
		m    *wire.Start
		want wire.Status
	}{
		{"itself", edit(func(m *wire.Start) { m.Dest = uint64(srcInc) }), wire.StatusSelf},
		{"another life", edit(func(m *wire.Start) { m.Source++ }), wire.StatusIncarnation},
		{"from another life", edit(func(m *wire.Start) { m.Dest++ }), wire.StatusIncarnation},
		{"no keys", start(wire.TransferCopy), wire.StatusBadKey},
		{"a key twice", start(wire.TransferCopy, "a", "b", "a"), wire.StatusBadKey},
		{"too many keys", start(wire.TransferCopy, many...), wire.StatusTooLarge},
		{"another layout", edit(func(m *wire.Start) { m.Fingerprint[0] = 1 }), wire.StatusBadLayout},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			st := newSourceTest(t, wire.RouteStream, limits)
			st.frame("start", tt.m, "Refused "+tt.want.String())
			st.over()
		})
	}
	t.Run("too much", func(t *testing.T) {
		st := newSourceTest(t, wire.RouteStream, limits)
		st.frame("start", start(wire.TransferCopy, "a"), "Offer ok/ok")
		st.step("second", Frame{2, start(wire.TransferCopy, "b")}, "Refused busy")
	})
	t.Run("refused connection", func(t *testing.T) {
		st := newSourceTest(t, wire.RouteStream, limits)
		st.step("down", Down{})
		st.frame("start", start(wire.TransferMove, "a"))
		st.over()
	})
}

// Requests about operations that are not there are answered all the same.
func TestSourceUnknown(t *testing.T) {
	st := newSourceTest(t, wire.RouteStream, SourceLimits{})
	st.frame("accept", accept(0), "Done 0:unknown_op")
	st.frame("confirm", confirm(0, 1), "Removed 0:unknown_op 1:unknown_op")
	st.frame("decline", &wire.Decline{Source: uint64(srcInc), Dest: uint64(dstInc), Items: status(0, wire.StatusMiss)})
	st.frame("probe", probe(0), "ProbeAck terminal=true known=false")
	st.frame("finish", finish, "Finished")
	st.frame("the start that it overtook", start(wire.TransferMove, "a"), "Refused unknown_op")
	st.frame("nonsense", &wire.Ping{})
	st.frame("an answer", done(0, wire.StatusOK))
	st.step("written", Written{1, 0, wire.StatusOK})
	st.step("tick", Tick{})
	st.over()
}

// The mark was taken by somebody: the confirmation removes nothing (M1).
func TestSourceMarkTaken(t *testing.T) {
	for _, why := range []wire.Status{wire.StatusRedeposited, wire.StatusNoEvict, wire.StatusMarked, wire.StatusMiss} {
		st := newSourceTest(t, wire.RouteStream, SourceLimits{})
		st.frame("start", start(wire.TransferMove, "a"), "Offer ok/ok")
		delete(st.rec.marks, "a")
		st.rec.whyGone = why
		st.frame("confirm", confirm(0), "Outcome 0 "+why.String(), "Removed 0:"+why.String())
		st.frame("confirm again", confirm(0), "Removed 0:"+why.String())
		if st.rec.has["a"] == nil {
			t.Error("removed")
		}
	}
}

func TestSourceDeclined(t *testing.T) {
	st := newSourceTest(t, wire.RouteStream, SourceLimits{})
	st.frame("start", start(wire.TransferMove, "a", "b"), "Offer ok/ok ok/ok")
	st.frame("decline", &wire.Decline{Source: uint64(srcInc), Dest: uint64(dstInc), Items: status(0, wire.StatusCrossing, 50, wire.StatusMiss)}, "Outcome 0 crossing")
	st.frame("decline of another life", &wire.Decline{Source: 1, Dest: uint64(dstInc), Items: status(1, wire.StatusCrossing)})
	st.frame("confirm", confirm(0), "Removed 0:crossing")
	st.frame("finish before the rest is confirmed", finish, "Outcome 1 aborted", "Finished", "Ended")
	st.over()
}

// The destination may have all bytes before the source's end of the route says so.
func TestSourceConfirmWhileWriting(t *testing.T) {
	st := newSourceTest(t, wire.RouteStream, SourceLimits{})
	st.frame("start", start(wire.TransferMove, "a"), "Offer ok/ok")
	st.frame("accept", accept(0), "Write 0")
	st.frame("confirm", confirm(0), "Outcome 0 ok", "Removed 0:ok")
	if len(st.rec.claims) != 1 {
		t.Errorf("claims %v while it is written", st.rec.claims)
	}
	st.step("written", Written{1, 0, wire.StatusOK}, "Done 0:ok")
	if len(st.rec.claims) != 0 {
		t.Errorf("claims %v when it is written and removed", st.rec.claims)
	}
}

// Finish waits for the writes.
func TestSourceFinishWhileWriting(t *testing.T) {
	st := newSourceTest(t, wire.RouteUCXPut, SourceLimits{})
	st.frame("start", start(wire.TransferCopy, "a", "b"), "Offer ok/ok ok/ok")
	st.frame("accept", accept(0, 1), "Write 0", "Write 1")
	st.step("written", Written{1, 1, wire.StatusOK})
	st.frame("finish", finish, "CancelWrite 0")
	st.frame("start again", start(wire.TransferCopy, "a", "b"))
	st.frame("accept of one that is written, and of one that is being", accept(0, 1), "Done 1:ok")
	st.frame("probe", probe(0), "CancelWrite 0", "ProbeAck terminal=false known=true")
	if len(st.rec.claims) != 1 {
		t.Errorf("claims %v while one is written", st.rec.claims)
	}
	st.step("written", Written{1, 0, wire.StatusAborted}, "Done 0:aborted 1:ok", "Finished", "Ended")
	st.over()
}

// A probe with Cancel may come before the Accept that it cancels.
func TestSourceProbeOvertakes(t *testing.T) {
	st := newSourceTest(t, wire.RouteUCXPut, SourceLimits{})
	st.frame("probe before the start", probe(0), "ProbeAck terminal=true known=false")
	st.frame("start", start(wire.TransferMove, "a", "b"), "Offer ok/ok ok/ok")
	st.frame("probe", probe(0, 66), "Outcome 0 aborted", "Done 0:aborted", "ProbeAck terminal=true known=true")
	st.frame("accept", accept(0, 1), "Write 1", "Done 0:aborted")
	st.frame("probe of all", &wire.Probe{Source: uint64(srcInc), Dest: uint64(dstInc)}, "Done 0:aborted", "ProbeAck terminal=false known=true")
	st.step("written", Written{1, 1, wire.StatusLost}, "Outcome 1 lost", "Done 1:lost")
	st.frame("confirm", confirm(0, 1), "Removed 0:aborted 1:lost")
	st.frame("finish", finish, "Finished", "Ended")
	st.over()
}

// No confirmation: ask, then keep (M6). A clock that has stepped past all of it
// changes nothing but the pace.
func TestSourceSilence(t *testing.T) {
	st := newSourceTest(t, wire.RouteStream, SourceLimits{})
	st.frame("start", start(wire.TransferMove, "a", "b"), "Offer ok/ok ok/ok")
	st.frame("accept", accept(0), "Write 0")
	for _, step := range []struct {
		after Time
		want  []string
	}{
		{30*sec - 1, nil}, {1, []string{"CancelWrite 0"}}, {5 * sec, []string{"Ask [0 1]"}},
		{5 * sec, []string{"Outcome 0 timeout", "Outcome 1 timeout"}}, {5 * sec, nil},
	} {
		st.now += step.after
		if at := st.s.Next(); step.want != nil && at != st.now {
			t.Errorf("Next = %v, want %v", at, st.now)
		}
		st.step(st.now.String(), Tick{}, step.want...)
	}
	if st.s.Next() != 0 {
		t.Errorf("Next = %v when nothing is due", st.s.Next())
	}
	st.frame("confirm, late", confirm(0), "Removed 0:timeout")
	st.step("written", Written{1, 0, wire.StatusOK}, "Done 0:ok", "Ended")
	st.frame("confirm, later", confirm(0), "Removed 0:unknown_op")
	st.frame("a start that was late", start(wire.TransferMove, "a"), "Refused unknown_op")
	st.over()

	st = newSourceTest(t, wire.RouteStream, SourceLimits{})
	st.frame("start", start(wire.TransferMove, "a"), "Offer ok/ok")
	st.now += 3600 * sec
	st.frame("events before timers", confirm(0), "Outcome 0 ok", "Removed 0:ok")
	st.step("then the timers", Tick{}, "Ended")
	st.over()
}

// The source's time is bounded by its own setting.
func TestSourceOwnTimeout(t *testing.T) {
	st := newSourceTest(t, wire.RouteStream, SourceLimits{})
	m := start(wire.TransferCopy, "a")
	m.Timeout = 1<<32 - 1
	st.frame("start", m, "Offer ok/ok")
	if at := st.s.Next(); at != st.now+60*sec {
		t.Errorf("Next = %v", at)
	}
}

// The connection goes: every copy is kept. Where the destination reads the source's
// memory, claims stay until it says that it is done, or has died.
func TestSourceDown(t *testing.T) {
	st := newSourceTest(t, wire.RouteStream, SourceLimits{})
	st.frame("start", start(wire.TransferMove, "a", "b"), "Offer ok/ok ok/ok")
	st.frame("accept", accept(0), "Write 0")
	st.step("down", Down{}, "Outcome 0 lost", "Outcome 1 lost", "CancelWrite 0")
	st.frame("a confirm of the old connection", confirm(0))
	if st.rec.has["a"] == nil || len(st.rec.marks) != 0 {
		t.Errorf("removed, or marks %v left", st.rec.marks)
	}
	st.step("up", Up{dstInc, wire.RouteStream})
	st.frame("probe", probe(0), "CancelWrite 0", "ProbeAck terminal=false known=true")
	st.step("written", Written{1, 0, wire.StatusOK}, "Done 0:ok", "Ended")
	st.frame("confirm", confirm(0), "Removed 0:unknown_op")
	st.frame("its offer was lost", start(wire.TransferMove, "a", "b"), "Offer ok/ok ok/ok")
	st.frame("finish", finish, "Outcome 0 aborted", "Outcome 1 aborted", "Finished", "Ended")
	st.over()
}

func TestSourceShm(t *testing.T) {
	st := newSourceTest(t, wire.RouteShm, SourceLimits{})
	st.frame("start", start(wire.TransferMove, "a", "b"), "Offer ok/ok ok/ok")
	st.step("down", Down{}, "Outcome 0 lost", "Outcome 1 lost")
	st.now += 3600 * sec
	st.step("no timer ends the claims", Tick{})
	if len(st.rec.claims) != 2 {
		t.Errorf("claims %v", st.rec.claims)
	}
	// Another route now; claims of the old one stay all the same.
	st.step("up", Up{dstInc, wire.RouteStream})
	st.step("down", Down{})
	if len(st.rec.claims) != 2 {
		t.Errorf("claims %v", st.rec.claims)
	}
	st.step("up", Up{dstInc, wire.RouteShm})
	if at := st.s.Next(); at != 0 {
		t.Errorf("Next = %v when nothing is due", at)
	}
	st.frame("finish", finish, "Finished", "Ended")
	st.over()

	st = newSourceTest(t, wire.RouteShm, SourceLimits{})
	st.frame("start", start(wire.TransferMove, "a"), "Offer ok/ok")
	st.frame("confirm", confirm(0), "Outcome 0 ok", "Removed 0:ok")
	st.step("dead", Dead{dstInc}, "Ended")
	st.over()

	st = newSourceTest(t, wire.RouteShm, SourceLimits{})
	st.frame("start", start(wire.TransferMove, "a"), "Offer ok/ok")
	st.step("dead", Dead{dstInc}, "Outcome 0 source", "Ended")
	st.frame("what it still said", confirm(0))
	st.step("a connection that was made before", Up{dstInc, wire.RouteShm})
	st.frame("and what came by that", start(wire.TransferMove, "a"))
	st.over()
}

func TestSourcePins(t *testing.T) {
	lent := func(st *sourceTest, key string) Claim {
		st.rec.next++
		st.rec.claims[st.rec.next] = key
		return st.rec.next
	}
	st := newSourceTest(t, wire.RouteStream, SourceLimits{Pins: true})
	st.frame("a move lends nothing", start(wire.TransferMove, "z"), "Offer miss/ok")
	st.frame("finish", finish, "Finished", "Ended")

	second := func(what string, m wire.Message, want ...string) {
		t.Helper()
		st.step(what, Frame{2, m}, want...)
	}
	second("start", start(wire.TransferCopy, "x", "a", "y"), "Pin [0 2]")
	second("start again", start(wire.TransferCopy, "x", "a", "y"))
	pinned := Pinned{Op: 2, Items: []PinnedItem{{Index: 0, Claim: lent(st, "x")}, {Index: 2}, {Index: 1, Claim: lent(st, "a")}, {Index: 9, Claim: lent(st, "q")}}}
	pinned.Items[0].Offer.Size = 8
	st.step("pinned", pinned, "Offer ok/ok ok/ok miss/ok")
	if len(st.rec.claims) != 2 {
		t.Errorf("claims %v, want x and a", st.rec.claims)
	}
	st.step("pinned again", Pinned{Op: 2, Items: []PinnedItem{{Index: 2, Claim: lent(st, "y")}}})
	second("finish", finish, "Finished", "Ended")
	st.over()

	// The framework answers after the end.
	st = newSourceTest(t, wire.RouteStream, SourceLimits{Pins: true})
	st.frame("start", start(wire.TransferCopy, "x"), "Pin [0]")
	st.step("down", Down{}, "CancelPin")
	st.step("pinned", Pinned{Op: 1, Items: []PinnedItem{{Index: 0, Claim: lent(st, "x")}}}, "Ended")
	st.over()
	m := start(wire.TransferCopy, "x")
	m.OwnedOnly = true
	st.step("up", Up{dstInc, wire.RouteStream})
	st.frame("owned only", m, "Offer miss/ok")
}

// A parent that is the item before is not spelled out.
func TestSourceFollows(t *testing.T) {
	st := newSourceTest(t, wire.RouteStream, SourceLimits{})
	st.rec.has["b"].Parent = []byte("a")
	st.rec.has["d"].Parent = []byte("b")
	st.frame("start", start(wire.TransferCopy, "a", "b", "d"), "Offer ok/ok ok/ok ok/ok")
	for i, want := range []wire.OfferFlags{0, wire.OfferFollows, wire.OfferFollows} {
		if o := &st.s.ops[0].offer.Items[i]; o.Flags != want || len(o.Parent) != 0 {
			t.Errorf("item %d: flags %b, parent %q", i, o.Flags, o.Parent)
		}
	}
	st.step("second", Frame{2, start(wire.TransferCopy, "a", "d")}, "Offer ok/ok ok/ok")
	if o := &st.s.ops[1].offer.Items[1]; o.Flags != 0 || string(o.Parent) != "b" {
		t.Errorf("flags %b, parent %q", o.Flags, o.Parent)
	}
}

// The source dies and its successor has the block again, marked for a move of the
// same number: what was confirmed to the first removes nothing of the second's.
func TestSourceRestartsWithRedeposit(t *testing.T) {
	st := &sourceTest{t, nil, newFakeSource("a"), sec}
	st.s = NewSource(srcInc+1, dstInc, st.rec, testTiming, SourceLimits{})
	st.step("up", Up{dstInc, wire.RouteStream})
	st.frame("start of the earlier life", start(wire.TransferMove, "a"), "Refused incarnation")
	again := start(wire.TransferMove, "a")
	again.Source++
	st.frame("start", again, "Offer ok/ok")
	st.frame("confirm to the earlier life", confirm(0), "Removed 0:unknown_op")
	st.frame("finish of the earlier life", finish, "Finished")
	if st.rec.has["a"] == nil || st.s.Ops() != 1 {
		t.Error("removed, or ended")
	}
	st.frame("confirm", &wire.Confirm{Source: uint64(srcInc) + 1, Dest: uint64(dstInc), Indices: []uint32{0}}, "Outcome 0 ok", "Removed 0:ok")
}
