package peer

import (
	"fmt"
	"testing"

	"github.com/kvcr-go/kvcr/wire"
)

// destTest is a destination with one operation, 1, of keys a, b, c and so on.
type destTest struct {
	*testing.T
	d   *Dest
	rec *fakeDest
	now Time
}

func newDestTest(t *testing.T, route wire.Route) *destTest {
	dt := &destTest{t, nil, newFakeDest(), sec}
	dt.d = NewDest(dstInc, dt.rec, testTiming)
	dt.step("up", Up{srcInc, route})
	return dt
}

func (dt *destTest) step(what string, ev Event, want ...string) {
	dt.Helper()
	wantActions(dt.T, what, dt.d.Step(dt.now, ev), want...)
}

func (dt *destTest) frame(what string, m wire.Message, want ...string) {
	dt.Helper()
	dt.step(what, Frame{1, m}, want...)
}

func (dt *destTest) submit(mode wire.Transfer, n int, edit ...func(*Submit)) {
	dt.Helper()
	s := Submit{Op: 1, Mode: mode, Deadline: dt.now + 30*sec}
	for i := range n {
		s.Items = append(s.Items, wire.Wanted{Key: []byte{'a' + byte(i)}})
	}
	for _, f := range edit {
		f(&s)
	}
	dt.step("submit", s, fmt.Sprintf("Start %s 30000ms", map[bool]string{true: "move", false: "copy"}[mode == wire.TransferMove && !s.Deliver && dt.rec.room < 0]))
}

// offered returns an offer of n items that are there and marked.
func offered(n int, edit ...func([]wire.Offered)) *wire.Offer {
	m := &wire.Offer{Source: uint64(srcInc), Dest: uint64(dstInc), Items: make([]wire.Offered, n)}
	for _, f := range edit {
		f(m.Items)
	}
	return m
}

func status(list ...any) (items []wire.ItemStatus) {
	for i := 0; i < len(list); i += 2 {
		items = append(items, wire.ItemStatus{Index: uint32(list[i].(int)), Status: list[i+1].(wire.Status)})
	}
	return items
}

func removed(list ...any) *wire.Removed {
	return &wire.Removed{Source: uint64(srcInc), Dest: uint64(dstInc), Items: status(list...)}
}

func done(list ...any) *wire.Done {
	return &wire.Done{Source: uint64(srcInc), Dest: uint64(dstInc), Items: status(list...)}
}

var (
	finished = &wire.Finished{Source: uint64(srcInc), Dest: uint64(dstInc)}
	ask0     = &wire.Ask{Source: uint64(srcInc), Dest: uint64(dstInc), Indices: []uint32{0}}
)

// over checks that nothing of the operation is left.
func (dt *destTest) over() {
	dt.Helper()
	if dt.d.Ops() != 0 || len(dt.rec.slots) != 0 || len(dt.rec.holds) != 0 {
		dt.Errorf("left over: %d operations, slots %v, holds %v", dt.d.Ops(), dt.rec.slots, dt.rec.holds)
	}
}

func TestDestMove(t *testing.T) {
	dt := newDestTest(t, wire.RouteStream)
	dt.submit(wire.TransferMove, 1)
	dt.frame("offer", offered(1), "Post 0", "Accept 0")
	dt.frame("offer again", offered(1))
	dt.frame("ask while on its way", ask0)
	dt.frame("refused, too late", &wire.Refused{Source: uint64(srcInc), Status: wire.StatusUnknownOp})
	dt.frame("done", done(0, wire.StatusOK))
	dt.step("landed", Landed{1, 0, wire.StatusOK}, "Settle 0 ok", "Confirm [0]")
	dt.step("landed again", Landed{1, 0, wire.StatusOK})
	dt.now += sec
	dt.step("repeat", Tick{}, "Confirm [0]")
	dt.frame("ask", ask0, "Confirm [0]")
	dt.frame("removed of another life", &wire.Removed{Source: 7, Dest: uint64(dstInc), Items: status(0, wire.StatusOK)})
	dt.frame("removed for another life of ours", &wire.Removed{Source: uint64(srcInc), Dest: 7, Items: status(0, wire.StatusOK)})
	dt.frame("removed, malformed", removed(9, wire.StatusOK))
	dt.frame("removed", removed(0, wire.StatusOK), "Outcome 0 ok", "Finish")
	dt.frame("removed again", removed(0, wire.StatusOK))
	dt.frame("ask after the end", ask0, "Decline 0:unknown_op")
	dt.now += sec
	dt.step("finish lost", Tick{}, "Finish")
	dt.frame("finished", finished, "Ended")
	dt.frame("finished again", finished)
	dt.frame("ask of a forgotten operation", ask0, "Decline 0:unknown_op")
	dt.over()
}

// What is refused before anything is moved.
func TestDestRefused(t *testing.T) {
	tests := []struct {
		name string
		mode wire.Transfer
		prep func(*destTest)
		msg  wire.Message
		want []string
	}{
		{"refused", wire.TransferMove, nil, &wire.Refused{Source: uint64(srcInc), Status: wire.StatusBusy}, []string{"Settle 0 busy", "Outcome 0 busy", "Finish"}},
		{"refused without a reason", wire.TransferCopy, nil, &wire.Refused{Source: uint64(srcInc)}, []string{"Settle 0 source", "Finish"}},
		{"refused by a stranger", wire.TransferCopy, nil, &wire.Refused{Source: 9, Status: wire.StatusBusy}, nil},
		{"miss", wire.TransferMove, nil, offered(1, func(o []wire.Offered) { o[0].Status = wire.StatusMiss }), []string{"Settle 0 miss", "Outcome 0 miss", "Finish"}},
		{"offer of too many", wire.TransferCopy, nil, offered(2), []string{"Settle 0 source", "Finish"}},
		{"offer for another life", wire.TransferCopy, nil, &wire.Offer{Source: uint64(srcInc), Dest: 9, Items: make([]wire.Offered, 1)}, nil},
		{"capacity", wire.TransferMove, func(dt *destTest) { dt.rec.reserve["a"] = wire.StatusCapacity }, offered(1), []string{"Settle 0 capacity", "Outcome 0 capacity", "Decline 0:capacity", "Finish"}},
		{"layout", wire.TransferCopy, func(dt *destTest) { dt.rec.reserve["a"] = wire.StatusBadLayout }, offered(1), []string{"Settle 0 bad_layout", "Finish"}},
		{"exists, copy", wire.TransferCopy, func(dt *destTest) { dt.rec.resident["a"] = true }, offered(1), []string{"Settle 0 ok existing", "Finish"}},
		{"exists, another block", wire.TransferMove, func(dt *destTest) { dt.rec.resident["a"], dt.rec.hold = true, wire.StatusRedeposited }, offered(1),
			[]string{"Settle 0 ok existing", "Outcome 0 redeposited", "Decline 0:redeposited", "Finish"}},
		{"exists, crossing", wire.TransferMove, func(dt *destTest) { dt.rec.resident["a"], dt.rec.hold = true, wire.StatusCrossing }, offered(1),
			[]string{"Settle 0 ok existing", "Outcome 0 crossing", "Decline 0:crossing", "Finish"}},
		{"exists, source keeps", wire.TransferMove, func(dt *destTest) { dt.rec.resident["a"] = true }, offered(1, func(o []wire.Offered) { o[0].Keep = wire.StatusNoEvict }),
			[]string{"Settle 0 ok existing", "Outcome 0 no_evict", "Finish"}},
		{"part of a group", wire.TransferMove, nil, offered(1, func(o []wire.Offered) { o[0].Parts = 2 }), []string{"Settle 0 group", "Outcome 0 group", "Decline 0:group", "Finish"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dt := newDestTest(t, wire.RouteStream)
			if tt.prep != nil {
				tt.prep(dt)
			}
			dt.submit(tt.mode, 1)
			dt.frame("answer", tt.msg, tt.want...)
			if tt.want != nil {
				dt.frame("finished", finished, map[bool][]string{true: {"Ended"}}[dt.d.Ops() > 0]...)
				dt.over()
			}
		})
	}
}

func TestDestPresentMove(t *testing.T) {
	dt := newDestTest(t, wire.RouteStream)
	dt.rec.resident["a"] = true
	dt.submit(wire.TransferMove, 1)
	dt.frame("offer", offered(1), "Settle 0 ok existing", "Confirm [0]")
	dt.frame("unknown", removed(0, wire.StatusUnknownOp), "Outcome 0 unknown_op", "Finish")
	dt.frame("finished", finished, "Ended")
	dt.over()
}

// The source's bytes left before our time was up and arrive after it: nothing is
// confirmed, so the source keeps its copy (runner.md 9.5, concerns 1 and 3).
func TestDestDeadlineBeforeLanding(t *testing.T) {
	dt := newDestTest(t, wire.RouteStream)
	dt.submit(wire.TransferMove, 1)
	dt.frame("offer", offered(1), "Post 0", "Accept 0")
	dt.frame("done", done(0, wire.StatusOK))
	dt.now += 30 * sec
	if at := dt.d.Next(); at > dt.now {
		t.Errorf("Next = %v, want by %v", at, dt.now)
	}
	dt.step("deadline", Tick{}, "Close 0", "Settle 0 timeout", "Probe [0]")
	dt.frame("ask", ask0)
	dt.step("landed late", Landed{1, 0, wire.StatusOK}, "Outcome 0 timeout", "Finish")
	dt.frame("ask", ask0, "Decline 0:unknown_op")
	dt.frame("finished", finished, "Ended")
	if dt.rec.resident["a"] {
		t.Error("committed after its time")
	}
	dt.over()

	// The other order: landed just before, so it is held and the deadline is
	// nothing to it.
	dt = newDestTest(t, wire.RouteStream)
	dt.submit(wire.TransferMove, 1)
	dt.frame("offer", offered(1), "Post 0", "Accept 0")
	dt.now += 30*sec - 1
	dt.step("landed", Landed{1, 0, wire.StatusOK}, "Settle 0 ok", "Confirm [0]")
	dt.now++
	dt.step("deadline", Tick{})
	dt.now += sec
	dt.step("repeat", Tick{}, "Confirm [0]")
	dt.frame("kept", removed(0, wire.StatusTimeout), "Outcome 0 timeout", "Finish")
}

// The connection goes and comes back in every phase, to the same process.
func TestDestDownUp(t *testing.T) {
	for _, route := range []wire.Route{wire.RouteStream, wire.RouteUCXPut, wire.RouteShm} {
		t.Run(route.String(), func(t *testing.T) {
			up := Up{srcInc, route}
			accept := []string{"Post 0", "Accept 0"}
			if route == wire.RouteShm {
				accept = accept[:1]
			}
			t.Run("starting", func(t *testing.T) {
				dt := newDestTest(t, route)
				dt.submit(wire.TransferMove, 1)
				dt.step("down", Down{})
				dt.frame("an offer of the old connection", offered(1))
				dt.now += sec
				dt.step("up", up, "Start move 29000ms")
				dt.frame("offer", offered(1), accept...)
			})
			t.Run("posted", func(t *testing.T) {
				dt := newDestTest(t, route)
				dt.submit(wire.TransferMove, 1)
				dt.frame("offer", offered(1), accept...)
				dt.step("down", Down{}, "Close 0", "Settle 0 lost")
				switch route {
				case wire.RouteUCXPut:
					dt.step("shut", Shut{1, 0})
					dt.now += 5 * sec
					dt.step("late", Tick{}, "Quarantine 0")
					dt.step("up", up, "Probe [0]")
					dt.frame("not yet", &wire.ProbeAck{Source: uint64(srcInc), Dest: uint64(dstInc), Known: true})
					dt.frame("unknown by now", &wire.ProbeAck{Source: uint64(srcInc), Dest: uint64(dstInc), Terminal: true}, "Quiesce 0", "Outcome 0 lost", "Finish")
				case wire.RouteShm:
					// Its claim lives on, so it must be told.
					dt.step("shut", Shut{1, 0}, "Outcome 0 lost")
					dt.step("up", up, "Finish")
				default:
					dt.step("shut", Shut{1, 0}, "Outcome 0 lost", "Ended")
					dt.over()
					return
				}
				dt.frame("finished", finished, "Ended")
				dt.over()
			})
			t.Run("held", func(t *testing.T) {
				dt := newDestTest(t, route)
				dt.submit(wire.TransferMove, 1)
				dt.frame("offer", offered(1), accept...)
				dt.step("landed", Landed{1, 0, wire.StatusOK}, "Settle 0 ok", "Confirm [0]")
				dt.step("down", Down{})
				dt.frame("an answer of the old connection", removed(0, wire.StatusLost))
				dt.now += 3600 * sec
				dt.step("no timer ends it", Tick{})
				dt.step("up", up, "Confirm [0]")
				dt.frame("removed", removed(0, wire.StatusUnknownOp), "Outcome 0 unknown_op", "Finish")
				dt.step("down", Down{}, map[bool][]string{false: {"Ended"}}[route == wire.RouteShm]...)
				if route == wire.RouteShm {
					dt.step("up", up, "Finish")
					dt.frame("finished", finished, "Ended")
				}
				dt.over()
			})
		})
	}
}

// Another process answers at the endpoint.
func TestDestSourceRestarts(t *testing.T) {
	dt := newDestTest(t, wire.RouteUCXPut)
	dt.submit(wire.TransferMove, 2)
	dt.frame("offer", offered(2), "Post 0", "Post 1", "Accept 0 1")
	dt.frame("done", done(0, wire.StatusOK))
	dt.step("landed", Landed{1, 0, wire.StatusOK}, "Settle 0 ok", "Confirm [0]")
	dt.step("down", Down{}, "Close 1", "Settle 1 lost")
	dt.step("shut", Shut{1, 1})
	dt.step("up", Up{srcInc + 1, wire.RouteUCXPut}, "Confirm [0]", "Probe [1]")
	dt.frame("an ask of the new process about its own operation 1", &wire.Ask{Source: uint64(srcInc) + 1, Dest: uint64(dstInc), Indices: []uint32{1}})
	dt.frame("kept of the new process's own move", &wire.Removed{Source: uint64(srcInc) + 1, Dest: uint64(dstInc), Items: status(0, wire.StatusTimeout)})
	dt.frame("unknown", &wire.ProbeAck{Source: uint64(srcInc), Dest: uint64(dstInc), Terminal: true}, "Outcome 1 lost")
	dt.frame("unknown operation", removed(0, wire.StatusUnknownOp), "Outcome 0 unknown_op", "Finish")
	dt.frame("finished", finished, "Ended")
	dt.over()

	dt = newDestTest(t, wire.RouteUCXPut)
	dt.submit(wire.TransferMove, 1)
	dt.frame("offer", offered(1), "Post 0", "Accept 0")
	dt.step("down", Down{}, "Close 0", "Settle 0 lost")
	dt.step("shut", Shut{1, 0})
	dt.step("up", Up{srcInc + 1, wire.RouteUCXPut}, "Outcome 0 lost", "Ended")
	dt.over()

	dt = newDestTest(t, wire.RouteShm)
	dt.submit(wire.TransferMove, 2)
	dt.frame("offer", offered(2), "Post 0", "Post 1")
	dt.step("landed", Landed{1, 0, wire.StatusOK}, "Settle 0 ok", "Confirm [0]")
	dt.step("dead", Dead{srcInc}, "Outcome 0 source", "Close 1", "Settle 1 source")
	dt.step("another's death", Dead{srcInc})
	dt.step("shut", Shut{1, 1}, "Outcome 1 source", "Ended")
	dt.over()
}

func TestDestAbort(t *testing.T) {
	dt := newDestTest(t, wire.RouteUCXPut)
	dt.submit(wire.TransferMove, 3)
	dt.step("before the offer", Abort{1, []int{2, 7}}, "Settle 2 aborted", "Outcome 2 aborted")
	dt.frame("offer", offered(3), "Post 0", "Post 1", "Accept 0 1")
	dt.step("one", Abort{1, []int{0}}, "Close 0", "Settle 0 aborted", "Probe [0]")
	dt.step("again", Abort{1, []int{0}}, "Probe [0]")
	dt.step("shut 0", Shut{1, 0})
	dt.step("all", Abort{Op: 1}, "Close 1", "Settle 1 aborted", "Probe [0 1]")
	dt.step("shut 1", Shut{1, 1})
	// The answer to the first probe says nothing of item 1, which is written.
	dt.frame("item 0", done(0, wire.StatusAborted), "Outcome 0 aborted")
	dt.frame("answer to the first probe", &wire.ProbeAck{Source: uint64(srcInc), Dest: uint64(dstInc), Terminal: true, Known: true})
	if len(dt.rec.slots) != 1 {
		t.Fatalf("slots %v; item 1 is still being written", dt.rec.slots)
	}
	dt.frame("item 1", done(1, wire.StatusAborted), "Outcome 1 aborted", "Finish")
	dt.frame("finished", finished, "Ended")
	dt.over()

	dt = newDestTest(t, wire.RouteStream)
	dt.submit(wire.TransferCopy, 1)
	dt.step("before the offer", Abort{Op: 1}, "Settle 0 aborted", "Finish")
	dt.step("of what is over", Abort{Op: 1})
	dt.frame("offer", offered(1))
	dt.frame("finished", finished, "Ended")
	dt.step("of none", Abort{Op: 1})
	dt.frame("offer", offered(1), "Finish")
	dt.over()
}

// On a put route, memory is freed on the source's word only, and each item that
// is late is reported once.
func TestDestQuarantine(t *testing.T) {
	dt := newDestTest(t, wire.RouteUCXPut)
	dt.submit(wire.TransferCopy, 2)
	dt.frame("offer", offered(2), "Post 0", "Post 1", "Accept 0 1")
	dt.step("the route breaks", Landed{1, 0, wire.StatusLost}, "Settle 0 lost")
	dt.now += 5 * sec
	dt.step("late", Tick{}, "Quarantine 0", "Accept 1", "Probe [0]")
	dt.step("second", Abort{1, []int{1}}, "Close 1", "Settle 1 aborted", "Probe [0 1]")
	dt.frame("item 0", done(0, wire.StatusLost), "Quiesce 0")
	dt.step("shut", Shut{1, 1})
	dt.now += 5 * sec
	dt.step("late too", Tick{}, "Quarantine 1", "Probe [1]")
	dt.step("down", Down{})
	dt.now += 3600 * sec
	dt.step("deadline", Tick{})
	if at := dt.d.Next(); at != 0 {
		t.Errorf("Next = %v when nothing is due", at)
	}
	if len(dt.rec.slots) != 1 {
		t.Errorf("slots %v, want one that waits", dt.rec.slots)
	}
	dt.step("dead", Dead{srcInc}, "Quiesce 1", "Ended")
	dt.over()
}

// The caller's own memory: it is not told that it is over before it is, or before
// it is told that it is not.
func TestDestDeliver(t *testing.T) {
	deliver := func(s *Submit) { s.Deliver = true }
	dt := newDestTest(t, wire.RouteUCXPut)
	dt.submit(wire.TransferMove, 3, deliver)
	dt.frame("offer", offered(3, func(o []wire.Offered) { o[1].Flags = wire.OfferFollows }), "Post 0", "Post 1", "Post 2", "Accept 0 1 2")
	dt.step("child first", Landed{1, 1, wire.StatusOK}, "Settle 1 ok", "Outcome 1 unsupported")
	dt.now += 30 * sec
	dt.step("deadline", Tick{}, "Close 0", "Close 2", "Probe [0 2]")
	dt.step("whole, if late", Landed{1, 0, wire.StatusOK}, "Settle 0 ok", "Outcome 0 unsupported")
	dt.step("shut", Shut{1, 2})
	dt.now += 5 * sec
	dt.step("a deadline ends the wait", Tick{}, "Quarantine 2", "Settle 2 timeout written", "Probe [2]")
	dt.frame("proof", done(2, wire.StatusAborted), "Quiesce 2", "Outcome 2 timeout", "Finish")
	dt.frame("finished", finished, "Ended")
	dt.over()

	// What landed after the caller was told that it has failed stays failed.
	dt = newDestTest(t, wire.RouteStream)
	dt.submit(wire.TransferCopy, 1, deliver)
	dt.frame("offer", offered(1), "Post 0", "Accept 0")
	dt.step("down", Down{}, "Close 0")
	dt.now += 5 * sec
	dt.step("late", Tick{}, "Quarantine 0", "Settle 0 lost written")
	dt.step("landed", Landed{1, 0, wire.StatusOK}, "Quiesce 0", "Ended")
	if len(dt.rec.resident) != 0 {
		t.Error("committed")
	}
	dt.over()
}

func TestDestGroups(t *testing.T) {
	group := func(o []wire.Offered) {
		o[0].Parts, o[0].Flags = 2, wire.OfferMember
		o[1].Parts = 2
	}
	t.Run("whole", func(t *testing.T) {
		dt := newDestTest(t, wire.RouteStream)
		dt.submit(wire.TransferMove, 3)
		dt.frame("offer", offered(3, group, func(o []wire.Offered) { o[2].Parent = []byte("b") }), "Post 0", "Post 1", "Post 2", "Accept 0 1 2")
		dt.step("child", Landed{1, 2, wire.StatusOK})
		dt.step("leader", Landed{1, 1, wire.StatusOK})
		dt.step("member", Landed{1, 0, wire.StatusOK}, "Settle 0 ok", "Settle 1 ok", "Settle 2 ok", "Confirm [0 1 2]")
		if got := fmt.Sprint(dt.rec.log); got != "[commit a+b commit c]" {
			t.Error(got)
		}
	})
	t.Run("parent before its parts' child", func(t *testing.T) {
		// The leader's parent is two items before it: a is the parent of the group b, c.
		dt := newDestTest(t, wire.RouteStream)
		dt.submit(wire.TransferCopy, 3)
		dt.frame("offer", offered(3, func(o []wire.Offered) {
			group(o[1:])
			o[2].Parent = []byte("a")
		}), "Post 0", "Post 1", "Post 2", "Accept 0 1 2")
		dt.step("member", Landed{1, 1, wire.StatusOK})
		dt.step("leader", Landed{1, 2, wire.StatusOK})
		dt.step("parent", Landed{1, 0, wire.StatusOK}, "Settle 0 ok", "Settle 1 ok", "Settle 2 ok", "Finish")
		if got := fmt.Sprint(dt.rec.log); got != "[commit a commit b+c]" {
			t.Error(got)
		}
	})
	t.Run("one part fails", func(t *testing.T) {
		dt := newDestTest(t, wire.RouteStream)
		dt.submit(wire.TransferMove, 2)
		dt.frame("offer", offered(2, group), "Post 0", "Post 1", "Accept 0 1")
		dt.step("leader", Landed{1, 1, wire.StatusOK})
		dt.step("member", Landed{1, 0, wire.StatusChecksum}, "Settle 0 checksum", "Outcome 0 checksum", "Settle 1 group", "Outcome 1 group", "Finish")
	})
	t.Run("broken, with a stranger behind it", func(t *testing.T) {
		dt := newDestTest(t, wire.RouteStream)
		dt.submit(wire.TransferCopy, 3)
		dt.frame("offer", offered(3, func(o []wire.Offered) { o[0].Parts, o[0].Flags = 2, wire.OfferMember }),
			"Settle 0 group", "Post 1", "Post 2", "Accept 1 2")
		dt.step("stranger", Landed{1, 1, wire.StatusOK}, "Settle 1 ok")
		dt.step("stranger", Landed{1, 2, wire.StatusOK}, "Settle 2 ok", "Finish")
	})
	t.Run("partly resident", func(t *testing.T) {
		dt := newDestTest(t, wire.RouteStream)
		dt.rec.resident["b"] = true
		dt.submit(wire.TransferCopy, 2)
		dt.frame("offer", offered(2, group), "Settle 0 group", "Settle 1 group", "Finish")
	})
}

// Over the cap of holds a move is carried out as a copy, whether that shows when it
// begins or when it is committed.
func TestDestHoldCap(t *testing.T) {
	dt := newDestTest(t, wire.RouteStream)
	dt.rec.room = 0
	dt.submit(wire.TransferMove, 1)
	dt.frame("offer", offered(1), "Post 0", "Accept 0")
	dt.step("landed", Landed{1, 0, wire.StatusOK}, "Settle 0 ok", "Outcome 0 capacity", "Finish")

	dt = newDestTest(t, wire.RouteStream)
	dt.submit(wire.TransferMove, 1)
	dt.rec.room = 0
	dt.frame("offer", offered(1), "Post 0", "Accept 0")
	dt.step("landed", Landed{1, 0, wire.StatusOK}, "Settle 0 ok", "Outcome 0 capacity", "Decline 0:capacity", "Finish")
	if !dt.rec.resident["a"] || len(dt.rec.holds) != 0 {
		t.Errorf("resident %v, holds %v", dt.rec.resident, dt.rec.holds)
	}
}

// A commit that fails in a move is declined with the reason.
func TestDestCommitFails(t *testing.T) {
	for _, s := range []wire.Status{wire.StatusCrossing, wire.StatusHeld, wire.StatusRedeposited, wire.StatusCapacity, wire.StatusDropped, wire.StatusBadLayout} {
		dt := newDestTest(t, wire.RouteStream)
		dt.submit(wire.TransferMove, 1)
		dt.frame("offer", offered(1), "Post 0", "Accept 0")
		dt.rec.commit = s
		settle := "Settle 0 " + s.String()
		if s == wire.StatusCrossing || s == wire.StatusHeld || s == wire.StatusRedeposited {
			settle = "Settle 0 ok existing"
		}
		dt.step("landed", Landed{1, 0, wire.StatusOK}, settle, "Outcome 0 "+s.String(), "Decline 0:"+s.String(), "Finish")
		dt.frame("finished", finished, "Ended")
		dt.over()
	}
}

// A hold that is gone is not confirmed (M4).
func TestDestHoldGone(t *testing.T) {
	dt := newDestTest(t, wire.RouteStream)
	dt.submit(wire.TransferMove, 1)
	dt.frame("offer", offered(1), "Post 0", "Accept 0")
	dt.step("landed", Landed{1, 0, wire.StatusOK}, "Settle 0 ok", "Confirm [0]")
	delete(dt.rec.holds, "a")
	dt.frame("ask", ask0, "Outcome 0 miss", "Decline 0:unknown_op", "Finish")
}

// Messages that fit nothing change nothing, and Next never stays in the past.
func TestDestNonsense(t *testing.T) {
	dt := newDestTest(t, wire.RouteStream)
	dt.step("before anything", Frame{1, removed(0, wire.StatusOK)})
	dt.step("tick", Tick{})
	dt.submit(wire.TransferMove, 1, func(s *Submit) {})
	for _, m := range []wire.Message{&wire.Ping{}, &wire.Start{}, done(0, wire.StatusOK, 99, wire.StatusOK), removed(0, wire.StatusOK, 1<<31-1, wire.StatusOK), finished,
		&wire.ProbeAck{Source: uint64(srcInc), Dest: uint64(dstInc)}, ask0} {
		dt.frame(fmt.Sprintf("%T", m), m)
	}
	dt.step("no such item", Landed{1, 3, wire.StatusOK})
	dt.step("no such operation", Shut{2, 0})
	dt.step("not posted", Landed{1, 0, wire.StatusOK})

	late := newDestTest(t, wire.RouteStream)
	late.step("past its time", Submit{Op: 1, Items: []wire.Wanted{{Key: []byte("a")}}})
	if at := late.d.Next(); at == 0 || at > late.now {
		t.Fatalf("Next = %v", at)
	}
	late.step("tick", Tick{}, "Settle 0 timeout", "Ended")
}

// An operation that ends before its Offer comes may have been begun: where claims
// outlive a connection, the source must be told, however long that takes.
func TestDestUnanswered(t *testing.T) {
	for _, route := range []wire.Route{wire.RouteStream, wire.RouteShm} {
		dt := newDestTest(t, route)
		dt.submit(wire.TransferMove, 1)
		dt.step("down", Down{})
		dt.now += 30 * sec
		if route == wire.RouteStream {
			dt.step("deadline", Tick{}, "Settle 0 timeout", "Outcome 0 timeout", "Ended")
			continue
		}
		dt.step("deadline", Tick{}, "Settle 0 timeout", "Outcome 0 timeout")
		dt.step("up", Up{srcInc, wire.RouteStream}, "Finish")
		dt.frame("finished", finished, "Ended")
		dt.over()
	}
	// Asked on shm, answered on another route: the claims are those of the first.
	dt := newDestTest(t, wire.RouteShm)
	dt.submit(wire.TransferCopy, 1)
	dt.step("down", Down{})
	dt.step("up", Up{srcInc, wire.RouteStream}, "Start copy 30000ms")
	dt.frame("offer", offered(1, func(o []wire.Offered) { o[0].Status = wire.StatusMiss }), "Settle 0 miss", "Finish")
	dt.step("down", Down{})
	dt.step("up", Up{srcInc, wire.RouteStream}, "Finish")
	dt.frame("finished", finished, "Ended")
	dt.over()

	dt = newDestTest(t, wire.RouteShm)
	dt.submit(wire.TransferCopy, 1)
	dt.step("down", Down{})
	dt.step("abort", Abort{Op: 1}, "Settle 0 aborted")
	dt.step("another process", Up{srcInc + 1, wire.RouteShm}, "Ended")
	dt.over()

	// What a dead process still had to say begins nothing.
	dt = newDestTest(t, wire.RouteShm)
	dt.submit(wire.TransferMove, 1)
	dt.step("dead", Dead{srcInc})
	dt.frame("offer", offered(1))
	dt.step("down", Down{})
	dt.step("a proof that is late", Dead{srcInc - 1})
	dt.step("a connection that was made before", Up{srcInc, wire.RouteShm})
	dt.now += 30 * sec
	dt.step("deadline", Tick{}, "Settle 0 timeout", "Outcome 0 timeout", "Ended")
}

// A connection that is refused ends the operations that no source knows, and they
// are forgotten.
func TestDestUnreachable(t *testing.T) {
	dt := &destTest{t, nil, newFakeDest(), sec}
	dt.d = NewDest(dstInc, dt.rec, testTiming)
	dt.d.Step(dt.now, Submit{Op: 1, Mode: wire.TransferMove, Items: []wire.Wanted{{Key: []byte("a")}, {Key: []byte("b")}}, Deadline: 30 * sec})
	if dt.d.Ops() != 1 {
		t.Fatal("nothing waits")
	}
	acts := dt.d.Step(dt.now, Unreachable{wire.StatusSelf})
	settled := 0
	for _, a := range acts {
		if s, ok := a.(Settle); ok && s.Status == wire.StatusSelf {
			settled++
		}
	}
	if settled != 2 {
		t.Errorf("%d of 2 items are settled: %v", settled, show(acts))
	}
	dt.over()
}
