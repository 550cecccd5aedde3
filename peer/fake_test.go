package peer

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

const (
	srcInc = Incarnation(0x50)
	dstInc = Incarnation(0xd0)
	sec    = time.Second
)

// testTiming is short and even, so that tests can name moments.
var testTiming = Timing{Repeat: sec, RepeatMax: 2 * sec, Operation: 60 * sec, Allowance: 5 * sec}

// fakeDest is a block table as a destination sees it, with what it was asked for.
type fakeDest struct {
	resident map[string]bool
	holds    map[string]HoldID
	slots    map[Slot]string
	nextSlot Slot
	room     int // more holds than this are over the cap; -1: no cap
	reserve  map[string]wire.Status
	commit   wire.Status
	hold     wire.Status
	log      []string
}

func newFakeDest() *fakeDest {
	return &fakeDest{resident: map[string]bool{}, holds: map[string]HoldID{}, slots: map[Slot]string{}, room: -1, reserve: map[string]wire.Status{}}
}

func (f *fakeDest) note(format string, args ...any) {
	f.log = append(f.log, fmt.Sprintf(format, args...))
}

func (f *fakeDest) Reserve(_ OpID, _ int, _ string, key []byte, _ *wire.Offered) (Slot, wire.Status) {
	if s := f.reserve[string(key)]; s != wire.StatusOK {
		return 0, s
	}
	if f.resident[string(key)] {
		return 0, wire.StatusExists
	}
	f.nextSlot++
	f.slots[f.nextSlot] = string(key)
	return f.nextSlot, wire.StatusOK
}

func (f *fakeDest) Commit(slots []Slot, hold HoldID) wire.Status {
	var keys []string
	for _, s := range slots {
		if f.slots[s] == "" {
			panic("commit of a slot that is not reserved")
		}
		keys = append(keys, f.slots[s])
		delete(f.slots, s)
	}
	if f.commit != wire.StatusOK {
		f.note("refuse %s", strings.Join(keys, "+"))
		return f.commit
	}
	f.note("commit %s", strings.Join(keys, "+"))
	for _, k := range keys {
		f.resident[k] = true
		if hold != (HoldID{}) {
			f.holds[k] = hold
		}
	}
	return wire.StatusOK
}

func (f *fakeDest) Free(s Slot) {
	if f.slots[s] == "" {
		panic("free of a slot that is not reserved")
	}
	f.note("free %s", f.slots[s])
	delete(f.slots, s)
}

func (f *fakeDest) TakeHold(_ string, key []byte, h HoldID) wire.Status {
	if f.hold != wire.StatusOK {
		return f.hold
	}
	f.holds[string(key)] = h
	return wire.StatusOK
}

func (f *fakeDest) Holds(_ string, key []byte, h HoldID) bool { return f.holds[string(key)] == h }

func (f *fakeDest) DropHold(_ string, key []byte, h HoldID) {
	if f.holds[string(key)] == h {
		delete(f.holds, string(key))
	}
}

func (f *fakeDest) HoldRoom(n int) bool { return f.room < 0 || len(f.holds)+n <= f.room }

// fakeSource is a block table as a source sees it. Marks are kept by claim.
type fakeSource struct {
	has      map[string]*wire.Offered
	claims   map[Claim]string
	next     Claim
	marks    map[string]MoveID
	mark     map[string]wire.Status // why Mark fails
	whyGone  wire.Status            // of a mark that has been taken
	removals []string
}

func newFakeSource(keys ...string) *fakeSource {
	f := &fakeSource{has: map[string]*wire.Offered{}, claims: map[Claim]string{}, marks: map[string]MoveID{}, mark: map[string]wire.Status{}, whyGone: wire.StatusRedeposited}
	for _, k := range keys {
		f.has[k] = &wire.Offered{Size: 64}
	}
	return f
}

func (f *fakeSource) Claim(_ string, w *wire.Wanted, o *wire.Offered) (Claim, wire.Status) {
	b := f.has[string(w.Key)]
	if b == nil {
		return 0, wire.StatusMiss
	}
	*o = *b
	f.next++
	f.claims[f.next] = string(w.Key)
	return f.next, wire.StatusOK
}

func (f *fakeSource) Unclaim(c Claim) {
	if f.claims[c] == "" {
		panic("unclaim of no claim")
	}
	delete(f.claims, c)
}

func (f *fakeSource) key(c Claim) string {
	if f.claims[c] == "" {
		panic("a claim that has ended")
	}
	return f.claims[c]
}

func (f *fakeSource) Mark(c Claim, m MoveID) wire.Status {
	k := f.key(c)
	if s := f.mark[k]; s != wire.StatusOK {
		return s
	}
	if _, ok := f.marks[k]; ok {
		return wire.StatusMarked
	}
	f.marks[k] = m
	return wire.StatusOK
}

func (f *fakeSource) Unmark(c Claim, m MoveID) {
	if k := f.key(c); f.marks[k] == m {
		delete(f.marks, k)
	}
}

func (f *fakeSource) Remove(cs []Claim, m MoveID, what []wire.Status) {
	for i, c := range cs {
		if k := f.key(c); f.marks[k] == m {
			delete(f.marks, k)
			delete(f.has, k)
			f.removals = append(f.removals, k)
		} else {
			what[i] = f.whyGone
		}
	}
}

func (f *fakeSource) Invalidate(string, *wire.Wanted) wire.Status { return wire.StatusUnsupported }

// show writes actions as one line each, in the order given.
func show(actions []Action) (lines []string) {
	for _, a := range actions {
		lines = append(lines, showOne(a))
	}
	return lines
}

func showOne(a Action) string {
	statuses := func(items []wire.ItemStatus) (s string) {
		for _, it := range items {
			s += fmt.Sprintf(" %d:%s", it.Index, it.Status)
		}
		return s
	}
	switch a := a.(type) {
	case Send:
		switch m := a.Msg.(type) {
		case *wire.Start:
			return fmt.Sprintf("Start %s %dms", m.Mode, m.Timeout)
		case *wire.Offer:
			s := "Offer"
			for _, o := range m.Items {
				s += fmt.Sprintf(" %s/%s", o.Status, o.Keep)
			}
			return s
		case *wire.Accept:
			s := "Accept"
			for _, it := range m.Items {
				s += fmt.Sprintf(" %d", it.Index)
			}
			return s
		case *wire.Confirm:
			return fmt.Sprintf("Confirm %v", m.Indices)
		case *wire.Ask:
			return fmt.Sprintf("Ask %v", m.Indices)
		case *wire.Probe:
			return fmt.Sprintf("Probe %v", m.Indices)
		case *wire.ProbeAck:
			return fmt.Sprintf("ProbeAck terminal=%t known=%t", m.Terminal, m.Known)
		case *wire.Removed:
			return "Removed" + statuses(m.Items)
		case *wire.Decline:
			return "Decline" + statuses(m.Items)
		case *wire.Done:
			return "Done" + statuses(m.Items)
		case *wire.Refused:
			return "Refused " + m.Status.String()
		}
		return reflect.TypeOf(a.Msg).Elem().Name()
	case Settle:
		return fmt.Sprintf("Settle %d %s%s", a.Index, a.Status, map[bool]string{true: " existing"}[a.Existing]+map[bool]string{true: " written"}[a.Written])
	case Outcome:
		return fmt.Sprintf("Outcome %d %s", a.Index, a.Status)
	case Post:
		return fmt.Sprintf("Post %d", a.Index)
	case Close:
		return fmt.Sprintf("Close %d", a.Index)
	case Quarantine:
		return fmt.Sprintf("Quarantine %d", a.Index)
	case Quiesce:
		return fmt.Sprintf("Quiesce %d", a.Index)
	case Write:
		return fmt.Sprintf("Write %d", a.Index)
	case CancelWrite:
		return fmt.Sprintf("CancelWrite %d", a.Index)
	case Pin:
		return fmt.Sprintf("Pin %v", a.Items)
	}
	return reflect.TypeOf(a).Name()
}

// wantActions compares actions with lines.
func wantActions(t *testing.T, what string, got []Action, want ...string) {
	t.Helper()
	if lines := show(got); strings.Join(lines, "; ") != strings.Join(want, "; ") {
		t.Errorf("%s:\n got %s\nwant %s", what, strings.Join(lines, "; "), strings.Join(want, "; "))
	}
}
