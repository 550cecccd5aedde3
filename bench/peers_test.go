package bench

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func allPeers() []Peer { return append([]Peer{peerKVCR}, Peers()...) }

func TestPeersKeepWhatFits(t *testing.T) {
	for _, p := range allPeers() {
		for _, size := range []int{64, 4096, 65536} {
			s := Shape{Capacity: 256 << 20, ValueSize: size, Keys: 200}
			if !p.Holds(s) {
				continue
			}
			b, err := openBay(context.Background(), p, s, 1)
			if err != nil {
				t.Errorf("%s, size %d: %v", p.Name, size, err)
				continue
			}
			l := b.lanes[0]
			l.walk = &walk{sequence(s.Keys), make([]bool, s.Keys)}
			if err := errors.Join(l.views(s.Keys), l.copies(s.Keys)); err != nil {
				t.Errorf("%s, size %d: %v", p.Name, size, err)
			}
			if l.hits != 2*s.Keys {
				t.Errorf("%s, size %d: %d of %d reads hit a cache that is nearly empty", p.Name, size, l.hits, 2*s.Keys)
			}
			absent := NewKeys([]uint32{1 << 20}).At(0)
			if _, ok := l.worker.View(absent); ok {
				t.Errorf("%s: a key never written is there", p.Name)
			}
			if err := b.close(); err != nil {
				t.Errorf("%s: close: %v", p.Name, err)
			}
		}
	}
}

// TestBoundedPeersEvict writes three times the capacity.
func TestBoundedPeersEvict(t *testing.T) {
	s := Shape{Capacity: 64 << 20, ValueSize: 4096, Keys: 3 << 14}
	for _, p := range allPeers() {
		b, err := openBay(context.Background(), p, s, 1)
		if err != nil {
			t.Errorf("%s: %v", p.Name, err)
			continue
		}
		l := b.lanes[0]
		l.walk = &walk{sequence(s.Keys), make([]bool, s.Keys)}
		if err := l.copies(s.Keys); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
		// A cache that counts its overhead was given room for that of all keys.
		if kept := int64(l.hits * (s.ValueSize + p.Overhead)); p.Bounded != (kept <= s.Capacity+int64(s.Keys*p.Overhead)) {
			t.Errorf("%s: bounded is %t, %d bytes kept of a capacity of %d", p.Name, p.Bounded, kept, s.Capacity)
		}
		if err := b.close(); err != nil {
			t.Errorf("%s: close: %v", p.Name, err)
		}
	}
}

// liar answers every read with the value of another key.
type liar struct{ Worker }

func (w liar) View(k Key) (uint64, bool) { return k.stamp() + 1, true }
func (w liar) Copy(dst []byte, k Key) (int, bool) {
	copy(dst, newValues(len(dst), 1).of(NewKeys([]uint32{9999}).At(0)))
	return len(dst), true
}

func TestWrongBytesStopASuite(t *testing.T) {
	b, err := openBay(context.Background(), Peers()[0], Shape{Capacity: 16 << 20, ValueSize: 64, Keys: 100}, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	b.lanes[1].worker = liar{b.lanes[1].worker}
	walks := walksFor(Options{Workers: 2}, 100, 100)
	for name, op := range map[string]func(*lane, int) error{"views": (*lane).views, "copies": (*lane).copies, "mix": (*lane).mix} {
		_, _, err := b.measure(context.Background(), walks, time.Millisecond, op)
		var wrong *WrongBytesError
		if !errors.As(err, &wrong) {
			t.Errorf("%s: error %v, want a WrongBytesError", name, err)
		}
	}
}

// refuser refuses a write twice before it takes it.
type refuser struct {
	Worker
	n int
}

func (w *refuser) Set(k Key, v []byte) error {
	if w.n++; w.n%3 != 0 {
		return errRefused
	}
	return w.Worker.Set(k, v)
}

func TestLoadRepeatsRefusedWrites(t *testing.T) {
	b, err := openBay(context.Background(), Peers()[0], Shape{Capacity: 16 << 20, ValueSize: 64}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	l := b.lanes[0]
	l.worker = &refuser{Worker: l.worker}
	if err := b.load(context.Background(), 100); err != nil {
		t.Fatal(err)
	}
	l.walk = &walk{sequence(100), make([]bool, 100)}
	if err := l.views(100); err != nil || l.hits != 100 {
		t.Errorf("%d of 100 keys loaded, %v", l.hits, err)
	}
}

// wall refuses every write.
type wall struct{ Worker }

func (wall) Set(Key, []byte) error { return errRefused }

func TestLoadGivesUp(t *testing.T) {
	b, err := openBay(context.Background(), Peers()[0], Shape{Capacity: 16 << 20, ValueSize: 64}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	b.lanes[0].worker = wall{b.lanes[0].worker}
	if err := b.load(context.Background(), 1); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("error %v does not say that the cache refuses", err)
	}
}

func TestClosedLoopCountsAndStops(t *testing.T) {
	var ops [2]int
	ns, err := closedLoop(context.Background(), 2, 20*time.Millisecond, 4, func(w, n int) error {
		ops[w] += n
		time.Sleep(time.Millisecond)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if ns < 0.25e6 || ns > 5e6 {
		t.Errorf("%.0f ns an operation, four of which take a millisecond or little more", ns)
	}
	if ops[0] == 0 || ops[1] == 0 {
		t.Errorf("operations of the workers: %v", ops)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := closedLoop(ctx, 2, time.Hour, 1, func(int, int) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: error %v", err)
	}
	boom := errors.New("boom")
	if _, err := closedLoop(context.Background(), 2, time.Hour, 1, func(int, int) error { return boom }); !errors.Is(err, boom) {
		t.Errorf("failed: error %v", err)
	}
}
