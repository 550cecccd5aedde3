package kvcr

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
)

func subscribe(t testing.TB, e *Engine, buffer int) *Subscription {
	t.Helper()
	s, err := e.Subscribe(SubscribeOptions{Buffer: buffer})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// pending returns the events that wait, and the error that ended them: nil when
// there were no more.
func pending(s *Subscription) (out []Event, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // what waits is returned before ctx is looked at
	for {
		ev, err := s.Next(ctx)
		if errors.Is(err, context.Canceled) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, ev)
	}
}

func describe(evs []Event) (out []string) {
	for _, ev := range evs {
		verb := "removed"
		if ev.Stored {
			verb = "stored"
		}
		out = append(out, verb+" "+string(ev.Key))
	}
	return out
}

// One event for each change of presence, however often a key is deposited.
func TestOneEventForEachChange(t *testing.T) {
	e := open(t, small(2, func(cfg *Config) { cfg.Namespaces[0].Policy = "fifo" }))
	h := handle(t, e)
	s := subscribe(t, e, 0)
	for range 5 {
		if err := h.Deposit([]byte("a"), stamped(1, 100)); err != nil {
			t.Fatal(err)
		}
	}
	h.Deposit([]byte("b"), stamped(2, 200))
	h.Set([]byte("c"), stamped(3, 50)) // evicts a
	h.Delete([]byte("b"))
	h.Delete([]byte("b"))
	evs, err := pending(s)
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(describe(evs))
	if want := "[stored a stored b removed a stored c removed b]"; got != want {
		t.Fatalf("events %v, want %v", got, want)
	}
	for i, ev := range evs {
		if ev.Seq != evs[0].Seq+uint64(i) || ev.Epoch != e.Epoch() || ev.Namespace != "ns" || ev.Tier != TierDRAM {
			t.Errorf("event %d: %+v", i, ev)
		}
	}
	if evs[0].Bytes != 100 || evs[1].Bytes != 200 || evs[2].Bytes != 100 || evs[3].Bytes != 50 {
		t.Errorf("bytes: %d %d %d %d", evs[0].Bytes, evs[1].Bytes, evs[2].Bytes, evs[3].Bytes)
	}
}

// A replacement where there is room changes no presence.
func TestReplacementIsNoEvent(t *testing.T) {
	for _, v := range helping {
		t.Run(v.name, func(t *testing.T) {
			e := open(t, small(8, func(cfg *Config) { v.config(&cfg.Namespaces[0]) }))
			h := handle(t, e)
			s := subscribe(t, e, 0)
			for i := range 10 {
				h.Set([]byte("a"), stamped(uint64(i), 100+i))
			}
			r, _ := h.Reserve([]byte("a"), 10)
			r.Commit()
			if evs, err := pending(s); err != nil || len(evs) != 1 || !evs[0].Stored {
				t.Errorf("%v, %v", describe(evs), err)
			}
		})
	}
}

// Chains name their parents; groups are announced part by part.
func TestEventsOfChainsAndGroups(t *testing.T) {
	e := open(t, chained(32, nil))
	h := handle(t, e)
	s := subscribe(t, e, 0)
	chain := chainOf(0, 0, 3)
	h.DepositBatch(chain, DepositOptions{})
	evs, _ := pending(s)
	if len(evs) != 3 || evs[0].Parent != nil || string(evs[1].Parent) != string(chain[0].Key) || string(evs[2].Parent) != string(chain[1].Key) {
		t.Errorf("chain: %+v", evs)
	}
	parts := group(0, "a", "b", "c")
	h.DepositGroup(parts, DepositOptions{Parent: chain[2].Key, Position: 3})
	evs, _ = pending(s)
	seen := map[string]bool{}
	for _, ev := range evs {
		seen[string(ev.Key)] = ev.Stored && string(ev.Parent) == string(chain[2].Key)
	}
	for _, p := range parts {
		if !seen[string(p.Key)] {
			t.Errorf("no event for %s with its parent: %+v", p.Key, evs)
		}
	}
	h.Delete(parts[1].Key)
	evs, _ = pending(s)
	if len(evs) != 3 {
		t.Errorf("removal of a group of 3: %v", describe(evs))
	}
	for _, ev := range evs {
		if ev.Stored {
			t.Errorf("%+v", ev)
		}
	}
	if got, err := s.Snapshot(); err != nil || len(got) != 3 {
		t.Errorf("snapshot: %v, %v", got, err)
	}
}

// A snapshot names the resident parents of chains, also where keys are long.
func TestSnapshotNamesParents(t *testing.T) {
	for _, policy := range []string{"density", "lru"} {
		t.Run(policy, func(t *testing.T) {
			e := open(t, chained(32, func(cfg *Config) { cfg.Namespaces[0].Policy = policy }))
			h := handle(t, e)
			long := strings.Repeat("long", 20)
			chain := chainOf(0, 0, 3)
			for i := range chain {
				chain[i].Key = append([]byte(long), chain[i].Key...)
			}
			allOK(t, "chain", h.DepositBatch(chain, DepositOptions{}))
			parts := group(0, "a", "b")
			allOK(t, "group", h.DepositGroup(parts, DepositOptions{Parent: chain[2].Key, Position: 3}))
			allOK(t, "orphan", h.DepositBatch(chainOf(1, 1, 2), DepositOptions{Parent: []byte("gone"), Position: 1}))
			want := map[string]string{
				string(chain[0].Key): "", string(chain[1].Key): string(chain[0].Key), string(chain[2].Key): string(chain[1].Key),
				string(parts[0].Key): string(chain[2].Key), string(parts[1].Key): string(chain[2].Key), string(chainKey(1, 1)): "",
			}
			entries, err := subscribe(t, e, 0).Snapshot()
			if err != nil || len(entries) != len(want) {
				t.Fatalf("%d entries, %v", len(entries), err)
			}
			for _, en := range entries {
				parent := want[string(en.Key)]
				if policy != "density" {
					parent = "" // it knows no chains
				}
				if string(en.Parent) != parent || (en.Parent == nil) != (parent == "") {
					t.Errorf("parent of %q is %q, want %q", en.Key, en.Parent, parent)
				}
			}
		})
	}
}

// A group that was removed is in no snapshot, though a View keeps its bytes.
func TestSnapshotOfRemovedGroup(t *testing.T) {
	e := open(t, chained(32, nil))
	h := handle(t, e)
	parts := group(0, "a", "b", "c")
	allOK(t, "group", h.DepositGroup(parts, DepositOptions{}))
	s := subscribe(t, e, 0)
	for _, at := range []int{0, 1, 2} { // the View is of any part
		v, ok := h.Get(parts[at].Key)
		if !ok {
			t.Fatalf("%s is a miss", parts[at].Key)
		}
		h.Delete(parts[0].Key)
		if entries, err := s.Snapshot(); err != nil || len(entries) != 0 {
			t.Errorf("under a View of part %d: %d entries, %v", at, len(entries), err)
		}
		v.Release()
		if entries, err := s.Snapshot(); err != nil || len(entries) != 0 {
			t.Errorf("after it: %d entries, %v", len(entries), err)
		}
		allOK(t, "group", h.DepositGroup(parts, DepositOptions{}))
	}
}

// truth is what is resident, asked from the engine itself when all is quiet.
func truth(t testing.TB, e *Engine) map[string]bool {
	t.Helper()
	s := subscribe(t, e, 0)
	defer s.Close()
	entries, err := s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, en := range entries {
		k := en.Namespace + "/" + string(en.Key)
		if out[k] {
			t.Errorf("%s is in a snapshot twice", k)
		}
		out[k] = true
	}
	return out
}

// mirror follows a subscription.
type mirror struct {
	t    *testing.T
	keys map[string]bool
	seq  uint64
}

func (m *mirror) snapshot(s *Subscription) {
	entries, err := s.Snapshot()
	if err != nil {
		m.t.Errorf("Snapshot: %v", err)
		return
	}
	m.keys, m.seq = map[string]bool{}, 0
	for _, en := range entries {
		m.keys[en.Namespace+"/"+string(en.Key)] = true
	}
}

func (m *mirror) event(ev Event) {
	k := ev.Namespace + "/" + string(ev.Key)
	if ev.Seq <= m.seq {
		m.t.Errorf("sequence %d after %d", ev.Seq, m.seq)
	}
	m.seq = ev.Seq
	if m.keys[k] == ev.Stored {
		m.t.Errorf("event %d: stored %v of %s, which is there: %v", ev.Seq, ev.Stored, k, m.keys[k])
	}
	if ev.Stored {
		m.keys[k] = true
	} else {
		delete(m.keys, k)
	}
}

func (m *mirror) equals(want map[string]bool) {
	m.t.Helper()
	for k := range want {
		if !m.keys[k] {
			m.t.Errorf("%s is resident and the mirror does not know", k)
		}
	}
	for k := range m.keys {
		if !want[k] {
			m.t.Errorf("the mirror has %s, which is not resident", k)
		}
	}
}

// churn runs writers on all namespaces until stop is closed.
func churn(t *testing.T, e *Engine, stop chan struct{}) *sync.WaitGroup {
	var wg sync.WaitGroup
	for g := range 4 {
		h := handleIn(t, e, []string{"flat", "chained"}[g%2])
		rng := rand.New(rand.NewPCG(uint64(g), 11))
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				k := keyOf(rng.IntN(200))
				switch r := rng.IntN(10); {
				case r < 4:
					h.Set(k, stamped(1, 8+rng.IntN(4000)))
				case r < 6:
					h.Delete(k)
				case g%2 == 1 && r == 6:
					p := rng.IntN(20)
					h.DepositGroup(group(p, "a", "b", "c"), DepositOptions{})
				case g%2 == 1:
					c := rng.IntN(10)
					h.DepositBatch(chainOf(c, 0, 1+rng.IntN(6)), DepositOptions{})
				default:
					h.Deposit(k, stamped(2, 100))
				}
				time.Sleep(time.Microsecond)
			}
		}()
	}
	return &wg
}

func churnEngine(t *testing.T, v variant) *Engine {
	flat := Namespace{Name: "flat", MaxValue: 8 << 10, MaxBlocks: 100}
	ch := Namespace{Name: "chained", Kind: Chained, Pools: []Pool{{Name: "kv", SlotBytes: 4096}}, MaxBlocks: 60}
	v.config(&flat)
	v.config(&ch)
	return open(t, Config{Capacity: 8 << 20, Shards: 4, Namespaces: []Namespace{flat, ch}})
}

// A snapshot under full traffic and the events after it give exactly what is
// resident at the end.
func TestSnapshotAndEventsAreExact(t *testing.T) {
	for _, v := range helping {
		t.Run(v.name, func(t *testing.T) {
			e := churnEngine(t, v)
			stop := make(chan struct{})
			wg := churn(t, e, stop)
			for range pick(3, 10) {
				s := subscribe(t, e, 1<<20)
				m := &mirror{t: t}
				time.Sleep(2 * time.Millisecond)
				m.snapshot(s)
				ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
				for {
					ev, err := s.Next(ctx)
					if err != nil {
						isErr(t, "Next", err, context.DeadlineExceeded)
						break
					}
					m.event(ev)
				}
				cancel()
				if m.seq == 0 {
					t.Error("no events under traffic")
				}
				s.Close()
			}
			s := subscribe(t, e, 1<<20)
			m := &mirror{t: t}
			m.snapshot(s)
			time.Sleep(30 * time.Millisecond)
			close(stop)
			wg.Wait()
			evs, err := pending(s)
			if err != nil {
				t.Fatal(err)
			}
			for _, ev := range evs {
				m.event(ev)
			}
			want := truth(t, e)
			if len(want) == 0 || len(evs) == 0 {
				t.Errorf("%d resident, %d events: nothing was shown", len(want), len(evs))
			}
			m.equals(want)
			st := stats(t, e)
			if int(st.Blocks) != len(want) {
				t.Errorf("Stats says %d blocks, %d are resident", st.Blocks, len(want))
			}
			if c := st.Counts; st.Blocks != c.Stored-c.Evicted-c.Deleted {
				t.Errorf("%d blocks, but %d stored, %d evicted, %d deleted", st.Blocks, c.Stored, c.Evicted, c.Deleted)
			}
		})
	}
}

// A reader that is too slow is told so, after the events that came before the
// gap; a snapshot begins anew.
func TestSlowSubscriber(t *testing.T) {
	e := open(t, Config{Capacity: 4 << 20, Namespaces: one(Namespace{MaxBlocks: 1000})})
	h := handle(t, e)
	slow, quick := subscribe(t, e, 10), subscribe(t, e, 0)
	for i := range 50 {
		h.Set(keyOf(i), nil)
	}
	evs, err := pending(slow)
	isErr(t, "the slow one", err, ErrGap)
	if len(evs) > 10 {
		t.Errorf("%d events in a buffer of 10", len(evs))
	}
	for i := 1; i < len(evs); i++ {
		if evs[i].Seq != evs[i-1].Seq+1 {
			t.Error("a gap before the gap was told")
		}
	}
	if _, err := pending(slow); !errors.Is(err, ErrGap) {
		t.Errorf("the gap is forgotten without a snapshot: %v", err)
	}
	h.Delete(keyOf(0))
	if _, err := pending(slow); !errors.Is(err, ErrGap) {
		t.Errorf("events after a gap, before a snapshot: %v", err)
	}
	m := &mirror{t: t}
	m.snapshot(slow)
	h.Set([]byte("after"), nil)
	evs, err = pending(slow)
	if err != nil || len(evs) != 1 {
		t.Errorf("after the snapshot: %v, %v", describe(evs), err)
	}
	for _, ev := range evs {
		m.event(ev)
	}
	m.equals(truth(t, e))
	if evs, err := pending(quick); err != nil || len(evs) != 52 {
		t.Errorf("the quick one has %d events, %v; one slow reader is no other's matter", len(evs), err)
	}
}

// A slow reader under traffic recovers as often as it must.
func TestSlowSubscriberUnderTraffic(t *testing.T) {
	e := churnEngine(t, helping[0])
	stop := make(chan struct{})
	wg := churn(t, e, stop)
	s := subscribe(t, e, 20)
	m := &mirror{t: t}
	m.snapshot(s)
	gaps := 0
	for end := time.Now().Add(time.Duration(pick(100, 300)) * time.Millisecond); time.Now().Before(end); {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		ev, err := s.Next(ctx)
		cancel()
		switch {
		case err == nil:
			m.event(ev)
			if ev.Seq%50 == 0 {
				time.Sleep(time.Millisecond)
			}
		case errors.Is(err, ErrGap):
			gaps++
			m.snapshot(s)
		default:
			isErr(t, "Next", err, context.DeadlineExceeded)
		}
	}
	close(stop)
	wg.Wait()
	for {
		evs, err := pending(s)
		for _, ev := range evs {
			m.event(ev)
		}
		if err == nil {
			break
		}
		isErr(t, "Next", err, ErrGap)
		m.snapshot(s)
	}
	m.equals(truth(t, e))
	if gaps == 0 {
		t.Error("no gap was ever met")
	}
}

// Next waits without taking processor time, and ends with its context, with the
// subscription and with the engine.
func TestNextWaits(t *testing.T) {
	e := open(t, Config{Capacity: 1 << 20})
	h := handle(t, e)
	s := subscribe(t, e, 0)
	type answer struct {
		ev  Event
		err error
	}
	got := make(chan answer, 1)
	next := func() {
		go func() {
			ev, err := s.Next(context.Background())
			got <- answer{ev, err}
		}()
	}
	next()
	time.Sleep(5 * time.Millisecond)
	h.Set([]byte("k"), nil)
	if a := <-got; a.err != nil || string(a.ev.Key) != "k" {
		t.Errorf("%+v", a)
	}
	next()
	time.Sleep(5 * time.Millisecond)
	if err := closeWithin(e); err != nil {
		t.Fatal(err)
	}
	select {
	case a := <-got:
		isErr(t, "Next over Close", a.err, ErrClosed)
	case <-time.After(5 * time.Second):
		t.Fatal("Next hangs over the engine's Close")
	}
}

// The last subscription's end turns the reports off; a new one turns them on.
func TestSubscribeAgain(t *testing.T) {
	e := open(t, Config{Capacity: 1 << 20})
	h := handle(t, e)
	_, err := e.Subscribe(SubscribeOptions{Buffer: -1})
	isErr(t, "Subscribe", err, ErrConfig)
	a := subscribe(t, e, 0)
	h.Set([]byte("1"), nil)
	first, _ := pending(a)
	a.Close()
	a.Close()
	if _, err := a.Next(context.Background()); !errors.Is(err, ErrClosed) {
		t.Errorf("Next after Close: %v", err)
	}
	numbered := e.hub.seq
	h.Set([]byte("2"), nil)
	if e.hub.seq != numbered {
		t.Error("changes are reported, and nobody listens")
	}
	b := subscribe(t, e, 0)
	h.Set([]byte("3"), nil)
	evs, _ := pending(b)
	if len(evs) != 1 || string(evs[0].Key) != "3" || len(first) != 1 || evs[0].Seq <= first[0].Seq {
		t.Errorf("%v then %v", first, evs)
	}
}
