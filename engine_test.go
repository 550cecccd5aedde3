package kvcr

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr/arena"
)

// lives reports whether an engine's memory is still mapped.
func lives(e *Engine) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.state != gone
}

// memfdRegions counts the mappings of payload memory backed by memfd; those
// are real in race builds, too.
func memfdRegions(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(b), "memfd:kvcr-payload")
}

func memfd(cfg Config) Config {
	cfg.Memory.Backing = arena.Memfd
	return cfg
}

// 64 goroutines are in all calls while Close runs, twice: every call ends, with
// ErrClosed from then on, and nothing panics.
func TestCloseWhileAllCallsRun(t *testing.T) {
	for round := range pick(3, 10) {
		for _, v := range helping {
			t.Run(fmt.Sprintf("%s/%d", v.name, round), func(t *testing.T) { closeWhileAllCallsRun(t, v, uint64(round)) })
		}
	}
}

func closeWhileAllCallsRun(t *testing.T, v variant, seed uint64) {
	flat := Namespace{Name: "flat", MaxValue: 64 << 10}
	chained := Namespace{Name: "chained", Kind: Chained, Pools: []Pool{{Name: "kv", SlotBytes: 4096}}}
	v.config(&flat)
	v.config(&chained)
	src := &fakeSource{fetch: func(ctx context.Context, keys [][]byte, sink Sink) error {
		for i := range keys {
			b, err := sink.Reserve(i, 4096)
			if err != nil {
				continue
			}
			stamp(b, 1)
			if i%3 != 2 {
				sink.Commit(i)
			}
		}
		return nil
	}}
	e := open(t, Config{
		Capacity: 8 << 20, Shards: 4, Namespaces: []Namespace{flat, chained}, Remote: src,
		OperationTimeout: 200 * time.Millisecond, MaxHandles: 500,
	})
	const callers = 64
	var wg sync.WaitGroup
	var started sync.WaitGroup
	started.Add(callers)
	release := func(rs []Result) {
		for i := range rs {
			if rs[i].View.p != nil {
				if err := rs[i].View.Release(); err != nil {
					t.Errorf("Release of a result: %v", err)
				}
			}
		}
	}
	whole := func(what string, v *View) {
		if _, ok := seedOf(v.Bytes()); !ok {
			t.Errorf("%s: broken bytes", what)
		}
		if err := v.Release(); err != nil {
			t.Errorf("%s: Release: %v", what, err)
		}
	}
	// Each call returns what it ended with; ErrClosed ends the caller.
	type call func(h *Handle, rng *rand.Rand) error
	reasons := func(rs []Result) error {
		defer release(rs)
		for i := range rs {
			if rs[i].Reason == ReasonClosed {
				return rs[i].Err()
			}
		}
		return nil
	}
	calls := map[string]call{
		"Get": func(h *Handle, rng *rand.Rand) error {
			if v, ok := h.Get(keyOf(rng.IntN(50))); ok {
				whole("Get", &v)
			}
			return nil
		},
		"CopyTo": func(h *Handle, rng *rand.Rand) error {
			var buf [8192]byte
			if n, ok := h.CopyTo(buf[:], keyOf(rng.IntN(50))); ok {
				if _, ok := seedOf(buf[:n]); !ok {
					t.Error("CopyTo: broken bytes")
				}
			}
			return nil
		},
		"Set": func(h *Handle, rng *rand.Rand) error {
			return h.Set(keyOf(rng.IntN(50)), stamped(rng.Uint64(), 8+rng.IntN(4000)))
		},
		"Deposit": func(h *Handle, rng *rand.Rand) error {
			k := rng.IntN(50)
			if err := h.Deposit(fmt.Appendf(nil, "dep-%d", k), stamped(uint64(k), 64+k)); !errors.Is(err, ErrLayout) {
				return err
			}
			return nil
		},
		"Delete": func(h *Handle, rng *rand.Rand) error { _, err := h.Delete(keyOf(rng.IntN(50))); return err },
		"Reserve": func(h *Handle, rng *rand.Rand) error {
			r, err := h.Reserve(keyOf(rng.IntN(50)), 1000)
			if err != nil {
				return err
			}
			stamp(r.Bytes(), rng.Uint64())
			if rng.IntN(3) == 0 {
				return r.Abort()
			}
			return r.Commit()
		},
		"Batches": func(h *Handle, rng *rand.Rand) error {
			keys := make([][]byte, 8)
			items := make([]Item, 8)
			views := make([]View, 8)
			for i := range keys {
				keys[i] = keyOf(rng.IntN(50))
				items[i] = Item{Key: keys[i], Value: stamped(rng.Uint64(), 100)}
			}
			h.GetBatch(keys, views)
			h.Release(views)
			n := h.Prefix(keys, views)
			h.Release(views[:n])
			h.Query(keys)
			if err := reasons(h.SetBatch(items)); err != nil {
				return err
			}
			return reasons(h.DepositBatch(items, DepositOptions{NoEvict: rng.IntN(2) == 0}))
		},
		"Fetch": func(h *Handle, rng *rand.Rand) error {
			keys := make([][]byte, 6)
			for i := range keys {
				keys[i] = fmt.Appendf(nil, "far-%d", rng.IntN(1000))
			}
			op := h.Fetch(keys)
			if rng.IntN(4) == 0 {
				op.Abort()
			}
			rs, err := op.Wait(context.Background())
			if err != nil {
				return err
			}
			return reasons(rs)
		},
		"Deliver": func(h *Handle, rng *rand.Rand) error {
			ts := make([]Target, 4)
			for i := range ts {
				ts[i] = Target{Key: fmt.Appendf(nil, "away-%d", rng.IntN(1000)), Dst: make([]byte, 4096)}
			}
			rs, err := h.Deliver(ts).Wait(context.Background())
			if err != nil {
				return err
			}
			return reasons(rs)
		},
		"Engine.Get": func(h *Handle, rng *rand.Rand) error {
			if v, ok := e.Get(keyOf(rng.IntN(50))); ok {
				whole("Engine.Get", &v)
			}
			return nil
		},
		"Engine.Set":    func(h *Handle, rng *rand.Rand) error { return e.Set(keyOf(rng.IntN(50)), stamped(1, 100)) },
		"Engine.Delete": func(h *Handle, rng *rand.Rand) error { _, err := e.Delete(keyOf(rng.IntN(50))); return err },
		"Stats":         func(h *Handle, rng *rand.Rand) error { e.Claims(); e.MemoryPlan(); _, err := e.Stats(); return err },
		"Handle": func(*Handle, *rand.Rand) error {
			h, err := e.HandleIn("chained")
			if err != nil {
				return err
			}
			h.Set([]byte("k"), stamped(1, 64))
			return h.Close()
		},
		"Subscribe": func(*Handle, *rand.Rand) error {
			s, err := e.Subscribe(SubscribeOptions{Buffer: 100})
			if err != nil {
				return err
			}
			defer s.Close()
			if _, err := s.Snapshot(); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			defer cancel()
			for {
				switch _, err := s.Next(ctx); {
				case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrGap):
					return nil
				case err != nil:
					return err
				}
			}
		},
	}
	var names []string
	for name := range calls {
		names = append(names, name)
	}
	var closed atomic.Bool
	for i := range callers {
		name := names[i%len(names)]
		f := calls[name]
		ns := []string{"flat", "chained"}[i%2]
		h, err := e.HandleIn(ns)
		if err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		wg.Add(1)
		go func() {
			defer wg.Done()
			for n := 0; ; n++ {
				if n == 3 {
					started.Done()
				}
				// Looked at before the call: a call that began after Close's
				// return must say ErrClosed; the readers cannot, they miss.
				late := closed.Load()
				err := f(h, rng)
				switch {
				case errors.Is(err, ErrClosed):
					if n < 3 {
						t.Errorf("%s: closed before Close", name)
						for ; n <= 3; n++ {
							if n == 3 {
								started.Done()
							}
						}
					}
					return
				case err != nil && !errors.Is(err, ErrFull) && !errors.Is(err, ErrHandles):
					t.Errorf("%s: %v", name, err)
				}
				if late {
					if err := h.Set([]byte("k"), nil); !errors.Is(err, ErrClosed) {
						t.Errorf("%s: Set after Close: %v", name, err)
					}
					if name != "Get" && name != "CopyTo" && name != "Engine.Get" {
						t.Errorf("%s does not say ErrClosed after Close: %v", name, err)
					}
					return
				}
				runtime.Gosched()
			}
		}()
	}
	started.Wait()
	time.Sleep(time.Duration(seed%4) * 3 * time.Millisecond)
	errs := make([]error, 2)
	var closers sync.WaitGroup
	for i := range errs {
		closers.Add(1)
		go func() {
			defer closers.Done()
			errs[i] = closeWithin(e)
			closed.Store(true)
		}()
	}
	closers.Wait()
	within(closeBound, "the callers", wg.Wait)
	for _, err := range errs {
		// Views that callers held for a moment make an honest ErrBusy.
		if err != nil && !errors.Is(err, ErrBusy) {
			t.Errorf("Close: %v", err)
		}
	}
	if lives(e) {
		t.Errorf("memory stays mapped after the last View: %d claims, %d reserved", e.Claims(), reserved(e))
	}
}

// After Close every call answers so, with the error where it has one.
func TestCallsAfterClose(t *testing.T) {
	e := open(t, Config{Capacity: 2 << 20})
	h := handle(t, e)
	h.Set([]byte("k"), []byte("v"))
	plan := e.MemoryPlan()
	s, err := e.Subscribe(SubscribeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatalf("second Close: %v", err)
	}
	k := []byte("k")
	if _, ok := h.Get(k); ok {
		t.Error("Get hits")
	}
	if n, ok := h.CopyTo(make([]byte, 10), k); n != 0 || ok {
		t.Error("CopyTo hits")
	}
	if n, v, ok := h.GetOrCopy(make([]byte, 10), k); n != 0 || v.Pieces() != 0 || ok {
		t.Error("GetOrCopy hits")
	}
	if h.Has(k) {
		t.Error("Has hits")
	}
	isErr(t, "Set", h.Set(k, k), ErrClosed)
	isErr(t, "Deposit", h.Deposit(k, k), ErrClosed)
	_, err = h.Delete(k)
	isErr(t, "Delete", err, ErrClosed)
	_, err = h.Reserve(k, 1)
	isErr(t, "Reserve", err, ErrClosed)
	_, err = e.Handle()
	isErr(t, "Handle", err, ErrClosed)
	_, err = e.Stats()
	isErr(t, "Stats", err, ErrClosed)
	_, err = e.Subscribe(SubscribeOptions{})
	isErr(t, "Subscribe", err, ErrClosed)
	_, err = s.Snapshot()
	isErr(t, "Snapshot", err, ErrClosed)
	isErr(t, "Engine.Set", e.Set(k, k), ErrClosed)
	_, err = e.Delete(k)
	isErr(t, "Engine.Delete", err, ErrClosed)
	for name, rs := range map[string][]Result{
		"SetBatch": h.SetBatch([]Item{{Key: k, Value: k}}), "DepositBatch": h.DepositBatch([]Item{{Key: k, Value: k}}, DepositOptions{}),
		"DeleteBatch": h.DeleteBatch([][]byte{k}), "Fetch": h.Fetch([][]byte{k}).Results(), "Deliver": h.Deliver([]Target{{Key: k}}).Results(),
	} {
		if len(rs) != 1 || rs[0].Reason != ReasonClosed {
			t.Errorf("%s after Close: %+v", name, rs)
		}
	}
	for err := error(nil); ; {
		if _, err = s.Next(context.Background()); err != nil {
			isErr(t, "Next", err, ErrClosed)
			break
		}
	}
	if err := s.Close(); err != nil {
		t.Errorf("Subscription.Close: %v", err)
	}
	if err := h.Close(); err != nil {
		t.Errorf("Handle.Close: %v", err)
	}
	if e.Claims() != 0 {
		t.Error("claims on a closed engine")
	}
	if after := e.MemoryPlan(); after.PayloadBytes != plan.PayloadBytes || after.MetadataBytes != plan.MetadataBytes || plan.PayloadBytes == 0 {
		t.Errorf("plan after Close: %+v, was %+v", after, plan)
	}
}

// While something is out Close says how much, its bytes stay, and its end
// unmaps the memory.
func TestCloseWhileInUse(t *testing.T) {
	for _, v := range helping {
		t.Run(v.name, func(t *testing.T) {
			ns := Namespace{Pools: []Pool{{Name: "p", SlotBytes: 4096}}}
			v.config(&ns)
			regionsBefore := memfdRegions(t)
			e := open(t, memfd(Config{Capacity: 2 << 20, Shards: 2, Namespaces: one(ns)}))
			h := handle(t, e)
			var views []View
			for i := range 10 {
				if err := h.Set(keyOf(i), stamped(uint64(i), 3000)); err != nil {
					t.Fatal(err)
				}
				v, ok := h.Get(keyOf(i))
				if !ok {
					t.Fatal("miss")
				}
				views = append(views, v)
			}
			h.Delete(keyOf(3))
			h.Set(keyOf(4), stamped(99, 100)) // replaced: the View has the old bytes
			hold := h.DepositBatch([]Item{{Key: []byte("held"), Value: stamped(100, 500)}}, DepositOptions{NoEvict: true})
			if !hold[0].OK() {
				t.Fatal(hold[0].Err())
			}
			views = append(views, hold[0].View)
			commit, err := h.Reserve([]byte("r1"), 100)
			if err != nil {
				t.Fatal(err)
			}
			abort, err := h.ReserveDeposit([]byte("r2"), 100)
			if err != nil {
				t.Fatal(err)
			}

			err = closeWithin(e)
			isErr(t, "Close", err, ErrBusy)
			var busy *BusyError
			if !errors.As(err, &busy) || busy.Views != 11 || busy.Reservations != 2 {
				t.Errorf("Close: %v; 11 views and 2 reservations are out", err)
			}
			if got := closeWithin(e); !errors.Is(got, ErrBusy) {
				t.Errorf("second Close: %v", got)
			}
			if n := memfdRegions(t); n == regionsBefore {
				t.Fatal("memory in use was unmapped")
			}
			stamp(commit.Bytes(), 5) // still ours to write
			isErr(t, "Commit after Close", commit.Commit(), ErrClosed)
			isErr(t, "second Commit", commit.Commit(), ErrReleased)
			if err := abort.Abort(); err != nil {
				t.Errorf("Abort after Close: %v", err)
			}
			isErr(t, "second Abort", abort.Abort(), ErrReleased)
			// Released on other goroutines, one after the other; the bytes of
			// those that are left are read each time.
			for len(views) > 0 {
				for i := range views {
					if _, ok := seedOf(views[i].Bytes()); !ok {
						t.Fatal("bytes changed after Close")
					}
					if !views[i].Verify() {
						t.Error("checksum does not match after Close")
					}
				}
				if memfdRegions(t) == regionsBefore {
					t.Fatal("unmapped under a View")
				}
				last := &views[len(views)-1]
				done := make(chan error)
				go func() { done <- last.Release() }()
				if err := <-done; err != nil {
					t.Errorf("Release after Close: %v", err)
				}
				isErr(t, "second Release", last.Release(), ErrReleased)
				views = views[:len(views)-1]
			}
			if n := memfdRegions(t); n != regionsBefore {
				t.Errorf("%d payload regions are mapped after the last release, %d were", n, regionsBefore)
			}
			if err := closeWithin(e); err != nil {
				t.Errorf("Close when all is released: %v", err)
			}
		})
	}
}

// The last ends may come at once, from many goroutines, while Close runs.
func TestLastReleasesRaceWithClose(t *testing.T) {
	for round := range pick(20, 100) {
		e := open(t, Config{Capacity: 1 << 20, Shards: 1})
		h := handle(t, e)
		const n = 16
		views := make([]View, 0, n)
		h.Set([]byte("k"), stamped(1, 100))
		for range n {
			v, ok := h.Get([]byte("k"))
			if !ok {
				t.Fatal("miss")
			}
			views = append(views, v)
		}
		r, err := h.Reserve([]byte("r"), 10)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		start := make(chan struct{})
		for i := range views {
			wg.Add(1)
			go func() {
				defer wg.Done()
				<-start
				if _, ok := seedOf(views[i].Bytes()); !ok {
					t.Error("broken bytes")
				}
				if err := views[i].Release(); err != nil {
					t.Errorf("Release: %v", err)
				}
			}()
		}
		wg.Add(2)
		go func() { defer wg.Done(); <-start; closeWithin(e) }()
		go func() {
			defer wg.Done()
			<-start
			if round%2 == 0 {
				if err := r.Commit(); err != nil && !errors.Is(err, ErrClosed) {
					t.Errorf("Commit: %v", err)
				}
			} else if err := r.Abort(); err != nil {
				t.Errorf("Abort: %v", err)
			}
		}()
		close(start)
		wg.Wait()
		if lives(e) {
			t.Fatalf("round %d: memory stays mapped: %d claims, %d reserved", round, e.Claims(), reserved(e))
		}
	}
}

// Handles are capped; one that is closed makes room, and so does one that was
// forgotten, with what it had reserved.
func TestHandlesAreCapped(t *testing.T) {
	e := open(t, Config{Capacity: 4 << 20, MaxHandles: 4, Namespaces: one(Namespace{Name: "ns", NewPolicy: wrapPolicy("lru", nil)})})
	var hs []*Handle
	for range 4 {
		h, err := e.Handle()
		if err != nil {
			t.Fatal(err)
		}
		hs = append(hs, h)
	}
	_, err := e.Handle()
	isErr(t, "fifth Handle", err, ErrHandles)
	_, err = e.HandleIn("nowhere")
	isErr(t, "HandleIn", err, ErrNamespace)
	if err == nil || !strings.Contains(err.Error(), "nowhere") || !strings.Contains(err.Error(), "ns") {
		t.Errorf("%v does not name what was asked for and what there is", err)
	}
	if err := hs[0].Close(); err != nil {
		t.Fatal(err)
	}
	if err := hs[0].Close(); err != nil {
		t.Errorf("second Close of a handle: %v", err)
	}
	isErr(t, "Set on a closed handle", hs[0].Set([]byte("k"), nil), ErrClosed)
	h, err := e.Handle()
	if err != nil {
		t.Fatalf("after one was closed: %v", err)
	}
	hs[0] = h
	// Forgotten with lanes, counts and, since the shard works through rings,
	// perhaps records in its magazines.
	for _, h := range hs {
		for i := range 20 {
			h.Set(keyOf(i), stamped(1, 100))
			h.Has(keyOf(i))
		}
	}
	before := stats(t, e)
	hs, h = nil, nil
	_ = h
	deadline := time.Now().Add(5 * time.Second)
	for stats(t, e).Handles != 0 {
		if time.Now().After(deadline) {
			t.Fatalf("%d forgotten handles are open", stats(t, e).Handles)
		}
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	if n := reserved(e); n != 0 {
		t.Errorf("forgotten handles left %d records reserved", n)
	}
	after := stats(t, e)
	if after.Counts.Hits != before.Counts.Hits || after.Counts.Sets != before.Counts.Sets || before.Counts.Sets != 80 {
		t.Errorf("counts went with the handles: %+v, were %+v", after.Counts, before.Counts)
	}
	if _, err := e.Handle(); err != nil {
		t.Error(err)
	}
}

// A View does not depend on its handle.
func TestViewOutlivesHandle(t *testing.T) {
	e := open(t, Config{Capacity: 1 << 20})
	h := handle(t, e)
	h.Set([]byte("k"), stamped(1, 100))
	v, _ := h.Get([]byte("k"))
	r, err := h.Reserve([]byte("r"), 100)
	if err != nil {
		t.Fatal(err)
	}
	h.Close()
	if _, ok := seedOf(v.Bytes()); !ok {
		t.Error("broken bytes")
	}
	if err := v.Release(); err != nil {
		t.Error(err)
	}
	isErr(t, "Commit through a closed handle", r.Commit(), ErrClosed)
	if n := reserved(e); n != 0 {
		t.Errorf("%d records stay reserved", n)
	}
}

// Two goroutines on one handle are found in checking builds.
func TestHandleUsedTwice(t *testing.T) {
	inside, leave := make(chan struct{}), make(chan struct{})
	var once sync.Once
	e := open(t, Config{Capacity: 1 << 20, Shards: 1, Hash: func(key []byte) uint64 {
		if string(key) == "slow" {
			once.Do(func() { close(inside); <-leave })
		}
		return 1
	}})
	h := handle(t, e)
	done := make(chan error)
	go func() { done <- h.Set([]byte("slow"), nil) }()
	<-inside
	if checking() {
		isErr(t, "Set", h.Set([]byte("k"), nil), ErrConcurrent)
		if _, ok := h.Get([]byte("k")); ok {
			t.Error("Get by a second goroutine hits")
		}
		if rs := h.SetBatch([]Item{{Key: []byte("k")}}); rs[0].OK() {
			t.Error("SetBatch by a second goroutine succeeds")
		}
	}
	isErr(t, "Close of a handle in use", h.Close(), ErrConcurrent)
	close(leave)
	if err := <-done; err != nil {
		t.Errorf("the first goroutine's call: %v", err)
	}
	if err := h.Set([]byte("k"), nil); err != nil {
		t.Errorf("after the call: %v", err)
	}
}

// Close waits for calls that are inside, however long they take.
func TestCloseWaitsForCalls(t *testing.T) {
	inside, leave := make(chan struct{}), make(chan struct{})
	var once sync.Once
	e := open(t, Config{Capacity: 1 << 20, Shards: 1, Hash: func(key []byte) uint64 {
		if string(key) == "slow" {
			once.Do(func() { close(inside); <-leave })
		}
		return 1
	}})
	h := handle(t, e)
	done := make(chan error, 1)
	go func() { done <- h.Set([]byte("slow"), stamped(1, 100)) }()
	<-inside
	closing := make(chan error, 1)
	go func() { closing <- e.Close() }()
	select {
	case err := <-closing:
		t.Fatalf("Close returned %v under a running call", err)
	case <-time.After(20 * time.Millisecond):
	}
	close(leave)
	if err := <-done; err != nil && !errors.Is(err, ErrClosed) {
		t.Errorf("call: %v", err)
	}
	if err := <-closing; err != nil {
		t.Errorf("Close: %v", err)
	}
}

// Engine-level calls borrow handles and give them back.
func TestBorrowedHandles(t *testing.T) {
	e := open(t, Config{Capacity: 4 << 20, MaxHandles: 100})
	var wg sync.WaitGroup
	for g := range 80 { // more than are kept idle
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range 20 {
				k := keyOf(g)
				if err := e.Set(k, stamped(uint64(g), 64+i)); err != nil {
					t.Errorf("Set: %v", err)
					return
				}
				v, ok := e.Get(k)
				if !ok || len(v.Bytes()) != 64+i {
					t.Errorf("Get after Set: %v", ok)
				}
				v.Release()
				if ok, err := e.Delete(k); !ok || err != nil {
					t.Errorf("Delete: %v, %v", ok, err)
				}
			}
		}()
	}
	wg.Wait()
	if n := stats(t, e).Handles; n > 64 {
		t.Errorf("%d handles are open when nobody calls", n)
	}
}

// An engine that nobody calls takes no processor time.
func TestIdleEngineSleeps(t *testing.T) {
	e := open(t, Config{Capacity: 64 << 20, Shards: 16, Namespaces: one(Namespace{MaxValue: 1 << 20})})
	h := handle(t, e)
	for i := range 100 {
		h.Set(keyOf(i), stamped(1, 100))
	}
	runtime.GC()
	time.Sleep(50 * time.Millisecond)
	used := func() time.Duration {
		var r unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
			t.Fatal(err)
		}
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	// The runtime's own background work may fall into one window; of three the
	// quietest counts.
	best := time.Hour
	for range 3 {
		at := used()
		time.Sleep(300 * time.Millisecond)
		best = min(best, used()-at)
		if best < 5*time.Millisecond {
			return
		}
	}
	t.Errorf("an idle engine took %v of processor time in 300 ms", best)
}

// Children started during traffic start, hold nothing of ours, and disturb
// nothing.
func TestChildrenDuringTraffic(t *testing.T) {
	if _, err := os.Stat("/bin/ls"); err != nil {
		t.Skip("/bin/ls is not there to be started")
	}
	e := open(t, memfd(Config{Capacity: 256 << 20, Shards: 2, Memory: Memory{Prefault: !testing.Short()}}))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for g := range 2 {
		h := handle(t, e)
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				k := keyOf(g*1000 + i%100)
				if err := h.Set(k, stamped(uint64(i), 20000)); err != nil {
					t.Errorf("Set: %v", err)
				}
				if v, ok := h.Get(k); !ok {
					t.Error("miss right after a Set")
				} else {
					if _, ok := seedOf(v.Bytes()); !ok {
						t.Error("broken bytes")
					}
					v.Release()
				}
				runtime.Gosched()
			}
		}()
	}
	var slowest time.Duration
	for i := range 100 {
		at := time.Now()
		out, err := exec.Command("/bin/ls", "-l", "/proc/self/fd").CombinedOutput()
		if err != nil {
			t.Fatalf("child %d: %v: %s", i, err, out)
		}
		slowest = max(slowest, time.Since(at))
		if bytes.Contains(out, []byte("kvcr")) {
			t.Fatalf("child %d holds our memory:\n%s", i, out)
		}
	}
	close(stop)
	wg.Wait()
	t.Logf("slowest of 100 children: %v", slowest)
}

// Open and Close leave nothing, in whatever backing, any number of times.
func TestOpenAndCloseRepeatedly(t *testing.T) {
	for _, m := range []Memory{{}, {Backing: arena.Memfd}, {Backing: arena.File, Path: t.TempDir()}, {Prefault: true, Pages: arena.PagesBase}} {
		t.Run(m.Backing.String(), func(t *testing.T) {
			if m.Backing == arena.File {
				m.Path = "/dev/shm"
				if _, err := os.Stat(m.Path); err != nil {
					t.Skip("/dev/shm is not there")
				}
			}
			before := takeStock()
			for range 5 {
				e, err := Open(Config{Capacity: 4 << 20, Memory: m})
				if err != nil {
					t.Fatal(err)
				}
				e.Set([]byte("k"), stamped(1, 1000))
				if v, ok := e.Get([]byte("k")); !ok {
					t.Error("miss")
				} else {
					v.Release()
				}
				if p := e.MemoryPlan().Placements["default"]; p.Backing != m.Backing {
					t.Errorf("placed on %v", p)
				}
				if err := e.Close(); err != nil {
					t.Error(err)
				}
			}
			if err := before.check(2 * time.Second); err != nil {
				t.Error(err)
			}
		})
	}
}

// Engines side by side share nothing.
func TestTwoEngines(t *testing.T) {
	a, b := open(t, Config{Capacity: 1 << 20}), open(t, Config{Capacity: 1 << 20})
	if a.Epoch() == b.Epoch() || a.Epoch() == "" {
		t.Errorf("epochs %q and %q", a.Epoch(), b.Epoch())
	}
	a.Set([]byte("k"), []byte("a"))
	if _, ok := b.Get([]byte("k")); ok {
		t.Error("a key of one engine is in the other")
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.Set([]byte("k"), []byte("b")); err != nil {
		t.Errorf("closing one engine closed the other: %v", err)
	}
}

// Namespaces separate keys and memory.
func TestNamespacesAreSeparate(t *testing.T) {
	e := open(t, Config{Capacity: 8 << 20, Namespaces: []Namespace{
		{Name: "a", MaxValue: 1 << 20}, {Name: "b", Kind: Chained, Pools: []Pool{{SlotBytes: 4096}}}, {Name: "c", Share: 0.25, MaxValue: 100 << 10},
	}})
	ha, hb, hc := handleIn(t, e, "a"), handleIn(t, e, "b"), handleIn(t, e, "c")
	k := []byte("k")
	ha.Set(k, stamped(1, 100))
	hb.Set(k, stamped(2, 100))
	if hc.Has(k) {
		t.Error("a key of one namespace is in another")
	}
	hc.Set(k, stamped(3, 100))
	ha.Delete(k)
	for i, h := range []*Handle{hb, hc} {
		v, ok := h.Get(k)
		if !ok {
			t.Fatal("a Delete in one namespace reached another")
		}
		if seed, ok := seedOf(v.Bytes()); !ok || seed != uint64(i+2) {
			t.Errorf("seed %d", seed)
		}
		v.Release()
	}
	for i := range 2000 { // fills c several times over
		if err := hc.Set(keyOf(i), stamped(1, 4000)); err != nil {
			t.Fatal(err)
		}
	}
	if !hb.Has(k) {
		t.Error("pressure in one namespace evicted from another")
	}
	if st := stats(t, e); len(st.Namespaces) != 3 || st.Namespaces[1].Counts.Evicted != 0 || st.Namespaces[2].Counts.Evicted == 0 {
		t.Errorf("%+v", st.Namespaces)
	}
}

// A conditional delete takes the block it was told of and no newer one.
func TestDeleteGeneration(t *testing.T) {
	e := open(t, Config{Capacity: 1 << 20})
	h := handle(t, e)
	key := []byte("k")
	generation := func() uint32 {
		v, ok := h.Get(key)
		if !ok {
			t.Fatal("the key is not there")
		}
		defer v.Release()
		return v.Generation()
	}
	for _, size := range []int{100, 5000} { // written in place, and anew
		if err := h.Set(key, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		old := generation()
		if err := h.Set(key, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		if ok, err := h.DeleteGeneration(key, old); ok || err != nil {
			t.Errorf("size %d: an older generation was deleted: %t, %v", size, ok, err)
		}
		if ok, err := h.DeleteGeneration(key, generation()); !ok || err != nil || h.Has(key) {
			t.Errorf("size %d: %t, %v, still there: %t", size, ok, err, h.Has(key))
		}
		if ok, err := h.DeleteGeneration(key, 1); ok || err != nil {
			t.Errorf("absent key: %t, %v", ok, err)
		}
	}
}

func TestCommitAbsent(t *testing.T) {
	e := open(t, Config{Capacity: 1 << 20})
	h := handle(t, e)
	put := func(fill byte, size int) bool {
		r, err := h.Reserve([]byte("k"), size)
		if err != nil {
			t.Fatal(err)
		}
		for i := range r.Bytes() {
			r.Bytes()[i] = fill
		}
		stored, err := r.CommitAbsent()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.CommitAbsent(); !errors.Is(err, ErrReleased) {
			t.Errorf("second commit: %v", err)
		}
		return stored
	}
	if !put('a', 100) || put('b', 100) || put('c', 6000) {
		t.Error("stored over a resident key, or not at all")
	}
	if b, ok := h.AppendTo(nil, []byte("k")); !ok || string(b) != strings.Repeat("a", 100) {
		t.Errorf("%q, %t", b, ok)
	}
}

// A reservation handed on belongs to the other handle.
func TestReservationAttach(t *testing.T) {
	e := open(t, Config{Capacity: 4 << 20, Shards: 1, Namespaces: []Namespace{{Name: "a", MaxBlocks: 64}, {Name: "b", MaxBlocks: 64}}})
	first, second, foreign := handleIn(t, e, "a"), handleIn(t, e, "a"), handleIn(t, e, "b")
	r, err := first.Reserve([]byte("k"), 5)
	if err != nil {
		t.Fatal(err)
	}
	isErr(t, "another namespace's handle", r.Attach(foreign), ErrNamespace)
	if err := r.Attach(second); err != nil {
		t.Fatal(err)
	}
	first.Close()
	copy(r.Bytes(), "hello")
	if err := r.Commit(); err != nil {
		t.Fatal(err)
	}
	if b, ok := second.AppendTo(nil, []byte("k")); !ok || string(b) != "hello" {
		t.Errorf("%q, %t", b, ok)
	}
}

// Reservations counts what is being written, and not what handles keep ahead for
// writes to come.
func TestReservations(t *testing.T) {
	for _, v := range helping {
		t.Run(v.name, func(t *testing.T) {
			ns := Namespace{Name: "a"}
			v.config(&ns)
			e := open(t, Config{Capacity: 16 << 20, Namespaces: []Namespace{ns}})
			h, err := e.Handle()
			if err != nil {
				t.Fatal(err)
			}
			for i := range 50 {
				if err := h.Set([]byte(fmt.Sprint("key ", i)), []byte("value")); err != nil {
					t.Fatal(err)
				}
			}
			if n := e.Reservations(); n != 0 {
				t.Errorf("%d reservations with nothing under way", n)
			}
			a, err := h.Reserve([]byte("a"), 100)
			if err != nil {
				t.Fatal(err)
			}
			b, err := h.Reserve([]byte("b"), 100)
			if err != nil {
				t.Fatal(err)
			}
			if n := e.Reservations(); n != 2 {
				t.Errorf("%d reservations, want 2", n)
			}
			if err := errors.Join(a.Abort(), b.Commit()); err != nil {
				t.Fatal(err)
			}
			if n := e.Reservations(); n != 0 {
				t.Errorf("%d reservations after all have ended", n)
			}
			c, err := h.ReserveDeposit([]byte("c"), 100)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Commit(); err != nil {
				t.Fatal(err)
			}
			st, err := e.Stats()
			if err != nil {
				t.Fatal(err)
			}
			if st.Counts.Sets != 51 || st.Counts.Deposits != 1 { // those that were committed
				t.Errorf("%d sets and %d deposits, want 51 and 1", st.Counts.Sets, st.Counts.Deposits)
			}
			if err := errors.Join(h.Close(), e.Close()); err != nil {
				t.Fatal(err)
			}
			if n := e.Reservations(); n != 0 {
				t.Errorf("%d reservations of a closed engine", n)
			}
		})
	}
}
