package plan

import (
	"runtime"
	"testing"
	"time"
)

// What is retired comes back when the lookups are over that were under way, and not
// before.
func TestLimbo(t *testing.T) {
	x := New(Config{})
	a, b := x.NewScratch(), x.NewScratch()
	var back []int
	l := limbo[int]{again: 1}
	reuse := func(n int) { back = append(back, n) }
	expect := func(n int) {
		t.Helper()
		if len(back) != n {
			t.Fatalf("%d came back, want %d: %v", len(back), n, back)
		}
		for i := range back {
			if back[i] != i {
				t.Fatalf("came back out of order: %v", back)
			}
		}
	}
	l.retire(&x.epochs, 0, reuse)
	expect(1)
	x.epochs.enter(a.reader)
	l.retire(&x.epochs, 1, reuse)
	l.collect(&x.epochs, reuse)
	expect(1)
	x.epochs.enter(b.reader) // b began after 1 was gone
	x.epochs.leave(a.reader)
	l.collect(&x.epochs, reuse)
	expect(2)
	l.retire(&x.epochs, 2, reuse)
	x.epochs.leave(b.reader)
	l.collect(&x.epochs, reuse)
	expect(3)
	runtime.KeepAlive(a)
	runtime.KeepAlive(b)
}

// A Scratch that was dropped leaves its announcement to another.
func TestDroppedScratch(t *testing.T) {
	x := New(Config{})
	x.NewScratch()
	idle := func() int {
		x.epochs.mu.Lock()
		defer x.epochs.mu.Unlock()
		return len(x.epochs.idle)
	}
	for end := time.Now().Add(10 * time.Second); idle() == 0; {
		if time.Now().After(end) {
			t.Fatal("the announcement did not come back")
		}
		runtime.GC()
		runtime.Gosched()
	}
	s := x.NewScratch()
	if n := len(*x.epochs.readers.Load()); n != 1 {
		t.Errorf("%d announcements, want 1", n)
	}
	runtime.KeepAlive(s)
}
