package kvcr

import "testing"

// Done is closed with the last answer, for those who asked before and for those who
// ask afterwards.
func TestOpDone(t *testing.T) {
	is := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	for n := range 3 {
		for _, early := range []bool{true, false} {
			o := newOp(n)
			var before <-chan struct{}
			if early {
				before = o.Done()
			}
			for i := range n {
				if early && is(before) || o.Results() != nil {
					t.Fatalf("%d keys: over after %d", n, i)
				}
				if !o.settle(i, Result{Reason: ReasonMiss}) || o.settle(i, Result{}) {
					t.Fatalf("%d keys: answer %d", n, i)
				}
			}
			if early && !is(before) || !is(o.Done()) || !is(o.Done()) {
				t.Errorf("%d keys, asked early %v: not done", n, early)
			}
			r := o.Results()
			if r == nil || len(r) != n || n > 0 && r[n-1].Reason != ReasonMiss {
				t.Errorf("%d keys: answers %v", n, r)
			}
		}
	}
}

// Who is to hear of Abort hears of one that came before.
func TestAbortBeforeAnybodyHears(t *testing.T) {
	heard := 0
	hear := func() { heard++ }
	o := newOp(1)
	o.onAbort(hear)
	if !o.Abort() || heard != 1 {
		t.Fatalf("heard %d times", heard)
	}
	if o.onAbort(hear); heard != 2 {
		t.Errorf("heard %d times, want another", heard)
	}
	over := newOp(1)
	over.settle(0, Result{})
	over.Abort()
	if over.onAbort(hear); heard != 2 {
		t.Error("an Op that is over is aborted")
	}
}
