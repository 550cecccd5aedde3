package faults

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
)

// openHere opens an engine in this process.
func openHere(t testing.TB, s settings) (*kvcr.Engine, *kvcr.Handle) {
	t.Helper()
	e, err := s.open(nil)
	if err != nil {
		t.Fatal(err)
	}
	h, err := e.Handle()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("%s: %v", s.Name, err)
		}
	})
	return e, h
}

func waitOp(t testing.TB, op *kvcr.Op) []kvcr.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	rs, err := op.Wait(ctx)
	if err != nil {
		t.Fatalf("the operation has no end: %v", err)
	}
	return rs
}

func restHere(t testing.TB, e *kvcr.Engine) {
	t.Helper()
	var b base
	var err error
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if b, err = baseOf(e); err != nil {
			t.Fatal(err)
		}
		if b.rest() {
			return
		}
	}
	t.Errorf("never at rest: %+v", b)
}

// A fetch is given up in the midst of a block, and its memory is used again while
// the rest of the block is still to come: nothing of that may be written over what
// lies there by then.
func TestAbortWhileRefilled(t *testing.T) {
	const slots, bytesBefore = 8, bigBytes + bigBytes/2
	a := start(t, settings{Name: "source", Listen: address(t), Routes: []string{"stream"}})
	keys := names("b", 4)
	a.must(request{Verb: "deposit", Keys: keys})
	for _, how := range []string{"abort", "deadline"} {
		t.Run(how, func(t *testing.T) {
			relay := newRelay(t, strings.TrimPrefix(a.endpoint, "tcp://"))
			relay.open(t)
			e, h := openHere(t, settings{Name: "destination", Routes: []string{"stream"}, Slots: slots})
			opt := kvcr.FetchOptions{Sources: []string{relay.endpoint()}, Timeout: 10 * time.Second}
			if how == "deadline" {
				opt.Timeout = 300 * time.Millisecond
			}
			relay.hold(bytesBefore)
			op := h.FetchFrom(bytesOf(keys), opt)
			relay.held(t)
			if b, _ := baseOf(e); b.Posted == 0 {
				t.Fatalf("nothing is on its way: %+v", b)
			}
			if how == "abort" {
				op.Abort()
			}
			left := 0
			for i, r := range waitOp(t, op) {
				switch {
				case r.OK():
					if !bytes.Equal(r.View.Bytes(), payload(keys[i])) {
						t.Errorf("%s has wrong bytes", keys[i])
					}
					r.View.Release()
				case r.Reason == kvcr.ReasonAborted && how == "abort", r.Reason == kvcr.ReasonTimeout && how == "deadline":
					left++
				default:
					t.Errorf("%s: %v", keys[i], r.Reason)
				}
			}
			if left < 2 {
				t.Fatalf("only %d were in the midst", left)
			}
			// All memory is filled anew: nothing is kept for what does not come.
			fill := names("b-fill", slots)
			for _, k := range fill {
				if err := h.Deposit([]byte(k), payload(k)); err != nil {
					t.Fatalf("the pool is refilled: %v", err)
				}
			}
			relay.hold(-1)
			// What is fetched next, on the same connection, comes behind the rest.
			late := []string{"b-3"}
			reasons, _, err := fetchInto(e, late, kvcr.FetchOptions{Sources: []string{relay.endpoint()}, Timeout: 5 * time.Second})
			if err != nil || !all(reasons, "ok") {
				t.Fatalf("%v, %v", reasons, err)
			}
			there := 0
			for _, k := range fill {
				v, ok := h.Get([]byte(k))
				if !ok {
					continue
				}
				there++
				if !bytes.Equal(v.Bytes(), payload(k)) {
					t.Errorf("%s was written over", k)
				}
				v.Release()
			}
			if there != slots-1 {
				t.Errorf("%d of %d blocks are there: one had to make room", there, slots)
			}
			if n := relay.accepted(); n != 2 {
				t.Errorf("%d connections: what is given up ends none", n)
			}
			restHere(t, e)
		})
	}
}

// A delivery that is given up answers when nobody writes to the caller's memory any
// more, and nobody does from then on.
func TestAbortedDelivery(t *testing.T) {
	a := start(t, settings{Name: "source", Listen: address(t), Routes: []string{"stream"}})
	keys := names("b", 2)
	a.must(request{Verb: "deposit", Keys: keys})
	relay := newRelay(t, strings.TrimPrefix(a.endpoint, "tcp://"))
	relay.open(t)
	e, h := openHere(t, settings{Name: "destination", Routes: []string{"stream"}})
	relay.hold(bigBytes / 2)
	var targets []kvcr.Target
	for _, k := range keys {
		targets = append(targets, kvcr.Target{Key: []byte(k), Dst: make([]byte, bigBytes)})
	}
	op := h.DeliverFrom(targets, kvcr.FetchOptions{Sources: []string{relay.endpoint()}, Timeout: 10 * time.Second})
	relay.held(t)
	op.Abort()
	for i, r := range waitOp(t, op) {
		if r.Reason != kvcr.ReasonAborted {
			t.Errorf("%d: %v", i, r.Reason)
		}
	}
	mine := payload("b-mine")
	for _, target := range targets {
		copy(target.Dst, mine)
	}
	relay.hold(-1)
	reasons, _, err := fetchInto(e, keys, kvcr.FetchOptions{Sources: []string{relay.endpoint()}, Timeout: 5 * time.Second})
	if err != nil || !all(reasons, "ok") {
		t.Fatal(reasons, err)
	}
	for i, target := range targets {
		if !bytes.Equal(target.Dst, mine) {
			t.Errorf("target %d was written after its answer", i)
		}
	}
	restHere(t, e)
}

// A transfer that goes on with a stranger: references that are out of range, not
// known or used up leave the destination as it was.
func TestUnknownReferences(t *testing.T) {
	a := start(t, settings{Name: "source", Listen: address(t), Routes: []string{"stream"}})
	a.must(request{Verb: "deposit", Keys: []string{"b-0"}})
	e, h := openHere(t, settings{Name: "destination", Routes: []string{"stream"}})
	opt := kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 5 * time.Second}
	short, long, right := make([]byte, 16), make([]byte, bigBytes+16), make([]byte, bigBytes)
	mark := func(b []byte) []byte {
		for i := range b {
			b[i] = 0xA5
		}
		return b
	}
	for i, r := range waitOp(t, h.DeliverFrom([]kvcr.Target{
		{Key: []byte("b-0"), Dst: mark(short)}, {Key: []byte("nobody has it"), Dst: mark(long)}, {Key: []byte{}, Dst: mark(right)},
	}, opt)) {
		want := []kvcr.Reason{kvcr.ReasonLayout, kvcr.ReasonMiss, kvcr.ReasonKey}[i]
		if r.Reason != want {
			t.Errorf("target %d: %v, want %v", i, r.Reason, want)
		}
	}
	for i, b := range [][]byte{short, long, right} {
		if !bytes.Equal(b, mark(make([]byte, len(b)))) {
			t.Errorf("target %d has been written to", i)
		}
	}
	// Gone between one fetch and the next: what was known of it is used up.
	a.must(request{Verb: "drop", Keys: []string{"b-0"}})
	for i := range 2 {
		r := waitOp(t, h.DeliverFrom([]kvcr.Target{{Key: []byte("b-0"), Dst: mark(right)}}, opt))[0]
		if r.Reason != kvcr.ReasonMiss || !bytes.Equal(right, mark(make([]byte, len(right)))) {
			t.Errorf("round %d: %v", i, r.Reason)
		}
	}
	restHere(t, e)
	a.rest(t)
}

// Partial failure: each key of a batch has its own answer, and the good prefix is
// what it says.
func TestPartialBatch(t *testing.T) {
	a := start(t, settings{Name: "source", Listen: address(t), Routes: []string{"stream"}, Slots: 128})
	_, h := openHere(t, settings{Name: "destination", Routes: []string{"stream"}, Slots: 128})
	keys := names("s", 100)
	bad := map[int]bool{13: true, 14: true, 40: true, 41: true, 77: true, 98: true, 99: true}
	var there []string
	for i, k := range keys {
		if !bad[i] {
			there = append(there, k)
		}
	}
	a.must(request{Verb: "deposit", Keys: there})
	op := h.FetchFrom(bytesOf(keys), kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 5 * time.Second})
	for i, r := range waitOp(t, op) {
		if bad[i] != (r.Reason == kvcr.ReasonMiss) || bad[i] == r.OK() {
			t.Errorf("%s: %v", keys[i], r.Reason)
		}
		if r.OK() {
			if !bytes.Equal(r.View.Bytes(), payload(keys[i])) {
				t.Errorf("%s has wrong bytes", keys[i])
			}
			r.View.Release()
		}
	}
	if n := op.Prefix(); n != 13 {
		t.Errorf("a good prefix of %d", n)
	}
	for i, k := range keys {
		if h.Has([]byte(k)) == bad[i] {
			t.Error(fmt.Sprintf("%s: resident is %t", k, !bad[i]))
		}
	}
}

// held is caller's memory as hosts of this library have it: inside of a Go object
// that has pointers as well.
type held struct {
	next *held
	buf  [bigBytes + 64]byte
	name *string
}

// Delivery goes into the midst of Go objects with pointers, by any route, and
// touches nothing beside its target.
func TestDeliverIntoObjects(t *testing.T) {
	for _, routes := range [][]string{{"stream"}, {"shm", "stream"}} {
		t.Run(routes[0], func(t *testing.T) {
			a := start(t, settings{Name: "source", Listen: address(t), Routes: routes})
			keys := names("b", 4)
			a.must(request{Verb: "deposit", Keys: keys})
			e, h := openHere(t, settings{Name: "destination", Routes: routes})
			name := "unchanged"
			var objects []*held
			var targets []kvcr.Target
			for i, k := range keys {
				o := &held{name: &name}
				o.next = o
				objects = append(objects, o)
				targets = append(targets, kvcr.Target{Key: []byte(k), Dst: o.buf[i*8 : i*8+bigBytes : i*8+bigBytes]})
			}
			for i, r := range waitOp(t, h.DeliverFrom(targets, kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 5 * time.Second})) {
				o := objects[i]
				if !r.OK() || !bytes.Equal(targets[i].Dst, payload(keys[i])) {
					t.Errorf("%s: %v", keys[i], r.Reason)
				}
				if o.next != o || o.name != &name || !bytes.Equal(o.buf[:i*8], make([]byte, i*8)) || !bytes.Equal(o.buf[i*8+bigBytes:], make([]byte, 64-i*8)) {
					t.Errorf("%s: written beside its target", keys[i])
				}
			}
			restHere(t, e)
		})
	}
}
