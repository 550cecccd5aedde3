package kvcr

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
)

// fakeSource is a remote source that does what a test says.
type fakeSource struct {
	query func(keys [][]byte) []bool
	fetch func(ctx context.Context, keys [][]byte, sink Sink) error
	calls atomic.Int32
}

func (s *fakeSource) Query(_ string, keys [][]byte) []bool {
	if s.query != nil {
		return s.query(keys)
	}
	out := make([]bool, len(keys))
	for i := range out {
		out[i] = true
	}
	return out
}

func (s *fakeSource) Fetch(ctx context.Context, _ string, keys [][]byte, sink Sink) error {
	s.calls.Add(1)
	return s.fetch(ctx, keys, sink)
}

// remoteValue is what a good source brings for a key.
func remoteValue(key []byte) []byte { return stamped(hash64(key), 4096) }

func hash64(key []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, b := range key {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return h
}

// bring delivers key i as a good source does.
func bring(sink Sink, i int, key []byte) error {
	v := remoteValue(key)
	b, err := sink.Reserve(i, len(v))
	if err != nil {
		return err
	}
	copy(b, v)
	return sink.Commit(i)
}

func bringAll(_ context.Context, keys [][]byte, sink Sink) error {
	for i, k := range keys {
		if err := bring(sink, i, k); err != nil {
			return err
		}
	}
	return nil
}

func remoteEngine(t *testing.T, blocks int, src *fakeSource, edit func(*Config)) (*Engine, *Handle) {
	cfg := small(blocks, func(cfg *Config) {
		cfg.Capacity = max(cfg.Capacity, int64(blocks)*4096)
		cfg.Remote = src
		cfg.OperationTimeout = 300 * time.Millisecond
		if edit != nil {
			edit(cfg)
		}
	})
	e := open(t, cfg)
	return e, handle(t, e)
}

func farKeys(n int) (keys [][]byte) {
	for i := range n {
		keys = append(keys, fmt.Appendf(nil, "far-%d", i))
	}
	return keys
}

func wait(t testing.TB, op *Op) []Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), closeBound)
	defer cancel()
	rs, err := op.Wait(ctx)
	if err != nil {
		t.Fatalf("the operation does not end: %v", err)
	}
	return rs
}

func releaseAll(t testing.TB, rs []Result) {
	t.Helper()
	for i := range rs {
		if rs[i].View.p != nil {
			if err := rs[i].View.Release(); err != nil {
				t.Errorf("Release of result %d: %v", i, err)
			}
		}
	}
}

// Without a source what is here is answered and the rest misses.
func TestFetchLocalOnly(t *testing.T) {
	e := open(t, Config{Capacity: 1 << 20})
	h := handle(t, e)
	h.Set(keyOf(0), stamped(1, 100))
	op := h.Fetch([][]byte{keyOf(0), keyOf(1)})
	rs := op.Results()
	if rs == nil || !rs[0].OK() || rs[1].Reason != ReasonMiss || op.Prefix() != 1 || op.Abort() {
		t.Fatalf("%+v", rs)
	}
	if seed, _ := seedOf(rs[0].View.Bytes()); seed != 1 || e.Claims() != 1 {
		t.Errorf("seed %d, %d claims", seed, e.Claims())
	}
	releaseAll(t, rs)
	dst := [][]byte{make([]byte, 100), make([]byte, 100), make([]byte, 99)}
	rs = h.Deliver([]Target{{keyOf(0), dst[0]}, {keyOf(1), dst[1]}, {keyOf(0), dst[2]}}).Results()
	if !rs[0].OK() || rs[1].Reason != ReasonMiss || rs[2].Reason != ReasonLayout {
		t.Errorf("%+v", rs)
	}
	if seed, ok := seedOf(dst[0]); !ok || seed != 1 {
		t.Error("delivered bytes differ")
	}
	if !bytes.Equal(dst[2], make([]byte, 99)) || !bytes.Equal(dst[1], make([]byte, 100)) {
		t.Error("Dst of a refused key was written")
	}
	if e.Claims() != 0 {
		t.Error("Deliver leaves claims")
	}
}

func TestQueryTiers(t *testing.T) {
	src := &fakeSource{query: func(keys [][]byte) []bool {
		out := make([]bool, len(keys))
		for i := range keys {
			out[i] = bytes.HasPrefix(keys[i], []byte("far"))
		}
		return out
	}}
	_, h := remoteEngine(t, 8, src, nil)
	h.Set([]byte("here"), nil)
	q := h.Query([][]byte{[]byte("far-1"), []byte("here"), []byte("nowhere"), []byte("far-2")})
	want := []QueryResult{{Status: StatusFetchable, Tier: TierRemote}, {Status: StatusHit, Tier: TierDRAM}, {}, {Status: StatusFetchable, Tier: TierRemote}}
	for i := range want {
		if q[i] != want[i] {
			t.Errorf("key %d: %v %v, want %v %v", i, q[i].Status, q[i].Tier, want[i].Status, want[i].Tier)
		}
	}
	// A source that answers short or long is no reason to fail.
	src.query = func([][]byte) []bool { return nil }
	h.Query([][]byte{[]byte("x")})
	src.query = func([][]byte) []bool { return make([]bool, 10) }
	h.Query([][]byte{[]byte("x")})
}

// What is missing comes from the source and stays.
func TestFetchBringsBlocks(t *testing.T) {
	src := &fakeSource{fetch: bringAll}
	e, h := remoteEngine(t, 64, src, nil)
	keys := farKeys(20)
	h.Deposit(keys[3], remoteValue(keys[3]))
	op := h.Fetch(keys)
	rs := wait(t, op)
	if op.Prefix() != 20 {
		t.Fatalf("Prefix = %d", op.Prefix())
	}
	for i := range rs {
		if !bytes.Equal(rs[i].View.Bytes(), remoteValue(keys[i])) {
			t.Errorf("block %d differs", i)
		}
	}
	if n := e.Claims(); n != 20 {
		t.Errorf("%d claims for 20 results", n)
	}
	releaseAll(t, rs)
	releaseAll(t, wait(t, h.Fetch(keys)))
	if n := src.calls.Load(); n != 1 {
		t.Errorf("the source was asked %d times", n)
	}
	// Deliver goes straight to the caller's memory and keeps nothing here.
	more := [][]byte{[]byte("far-a"), keys[0], []byte("far-b")}
	ts := make([]Target, 3)
	for i := range ts {
		ts[i] = Target{more[i], make([]byte, 4096)}
	}
	for i, r := range wait(t, h.Deliver(ts)) {
		if !r.OK() || !bytes.Equal(ts[i].Dst, remoteValue(more[i])) {
			t.Errorf("delivered block %d: %v", i, r.Err())
		}
	}
	if e.Claims() != 0 {
		t.Error("claims are left")
	}
}

// 7 of 100 fail: each key has its answer, the usable part is the run before
// the first failure, and what failed is not there.
func TestFetchPartialFailure(t *testing.T) {
	bad := func(i int) bool { return i%13 == 12 } // 12, 25, ... 90: seven of 100
	src := &fakeSource{fetch: func(ctx context.Context, keys [][]byte, sink Sink) error {
		for i, k := range keys {
			switch {
			case !bad(i):
				if err := bring(sink, i, k); err != nil {
					return err
				}
			case i%2 == 0:
				sink.Fail(i, ReasonMiss)
			default: // half written, then given up
				b, err := sink.Reserve(i, 4096)
				if err != nil {
					return err
				}
				copy(b, "half")
				sink.Fail(i, ReasonSource)
			}
		}
		return errors.New("some failed")
	}}
	e, h := remoteEngine(t, 256, src, nil)
	keys := farKeys(100)
	op := h.Fetch(keys)
	rs := wait(t, op)
	failed := 0
	for i := range rs {
		if !bad(i) {
			if !rs[i].OK() || !bytes.Equal(rs[i].View.Bytes(), remoteValue(keys[i])) {
				t.Errorf("key %d: %v", i, rs[i].Reason)
			}
			continue
		}
		failed++
		if want := []Reason{ReasonMiss, ReasonSource}[i%2]; rs[i].Reason != want || rs[i].View.Bytes() != nil {
			t.Errorf("key %d: %v, want %v", i, rs[i].Reason, want)
		}
		if h.Has(keys[i]) {
			t.Errorf("failed key %d is resident", i)
		}
	}
	if failed != 7 || op.Prefix() != 12 {
		t.Errorf("%d failed, Prefix = %d", failed, op.Prefix())
	}
	releaseAll(t, rs)
	if n, m := e.Claims(), reserved(e); n != 0 || m != 0 {
		t.Errorf("%d claims and %d reservations are left", n, m)
	}
}

// A source that breaks the rules costs its own keys.
func TestFetchFaultySource(t *testing.T) {
	for _, tc := range []struct {
		name  string
		fetch func(t *testing.T, keys [][]byte, sink Sink) error
		want  []Reason
	}{
		{"nothing committed", func(*testing.T, [][]byte, Sink) error { return nil }, []Reason{ReasonSource, ReasonSource}},
		{"error", func(*testing.T, [][]byte, Sink) error { return errors.New("down") }, []Reason{ReasonSource, ReasonSource}},
		{"reserved and forgotten", func(t *testing.T, keys [][]byte, sink Sink) error {
			if _, err := sink.Reserve(0, 4096); err != nil {
				t.Error(err)
			}
			return bring(sink, 1, keys[1])
		}, []Reason{ReasonSource, ReasonOK}},
		{"out of range", func(t *testing.T, keys [][]byte, sink Sink) error {
			for _, i := range []int{-1, 2, 1 << 40} {
				if _, err := sink.Reserve(i, 4096); err == nil {
					t.Errorf("Reserve(%d) succeeds", i)
				}
				if err := sink.Commit(i); err == nil {
					t.Errorf("Commit(%d) succeeds", i)
				}
				sink.Fail(i, ReasonMiss)
			}
			return bringAll(nil, keys, sink)
		}, []Reason{ReasonOK, ReasonOK}},
		{"commit without memory", func(t *testing.T, keys [][]byte, sink Sink) error {
			isErr(t, "Commit", sink.Commit(0), ErrReleased)
			return bring(sink, 1, keys[1])
		}, []Reason{ReasonSource, ReasonOK}},
		{"everything twice", func(t *testing.T, keys [][]byte, sink Sink) error {
			if _, err := sink.Reserve(0, 4096); err != nil {
				t.Error(err)
			}
			_, err := sink.Reserve(0, 4096)
			isErr(t, "second Reserve", err, ErrReleased)
			sink.Fail(0, ReasonMiss)
			sink.Fail(0, ReasonSource)
			isErr(t, "Commit after Fail", sink.Commit(0), ErrReleased)
			if err := bring(sink, 1, keys[1]); err != nil {
				t.Error(err)
			}
			isErr(t, "second Commit", sink.Commit(1), ErrReleased)
			sink.Fail(1, ReasonSource)
			_, err = sink.Reserve(1, 4096)
			isErr(t, "Reserve after Commit", err, ErrReleased)
			return nil
		}, []Reason{ReasonMiss, ReasonOK}},
		{"too large", func(t *testing.T, keys [][]byte, sink Sink) error {
			_, err := sink.Reserve(0, 4097)
			isErr(t, "Reserve", err, ErrTooLarge)
			if _, err := sink.Reserve(1, -1); err == nil {
				t.Error("Reserve of -1 bytes succeeds")
			}
			return nil
		}, []Reason{ReasonTooLarge, 255}},
		{"failed with success", func(t *testing.T, keys [][]byte, sink Sink) error {
			sink.Fail(0, ReasonOK)
			return bring(sink, 1, keys[1])
		}, []Reason{255, ReasonOK}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			src := &fakeSource{fetch: func(_ context.Context, keys [][]byte, sink Sink) error { return tc.fetch(t, keys, sink) }}
			e, h := remoteEngine(t, 32, src, nil)
			keys := farKeys(2)
			rs := wait(t, h.Fetch(keys))
			for i, want := range tc.want {
				if rs[i].Reason != want && !(want == 255 && !rs[i].OK()) {
					t.Errorf("key %d: %v, want %v", i, rs[i].Reason, want)
				}
				if ok := h.Has(keys[i]); ok != (want == ReasonOK) {
					t.Errorf("key %d: resident %v after %v", i, ok, rs[i].Reason)
				}
			}
			releaseAll(t, rs)
			if n, m := e.Claims(), reserved(e); n != 0 || m != 0 {
				t.Errorf("%d claims and %d reservations are left", n, m)
			}
		})
	}
}

// The sink outlives nothing: used after Fetch has returned it refuses.
func TestSinkAfterFetch(t *testing.T) {
	var kept Sink
	src := &fakeSource{fetch: func(_ context.Context, keys [][]byte, sink Sink) error { kept = sink; return nil }}
	e, h := remoteEngine(t, 32, src, nil)
	wait(t, h.Fetch(farKeys(2)))
	_, err := kept.Reserve(0, 10)
	if err == nil {
		t.Error("Reserve succeeds after the end")
	}
	if kept.Commit(0) == nil {
		t.Error("Commit succeeds after the end")
	}
	kept.Fail(0, ReasonMiss)
	if reserved(e) != 0 {
		t.Error("memory is reserved by nobody")
	}
}

func address(b []byte) (lo, hi uintptr) {
	lo = uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return lo, lo + uintptr(len(b))
}

// Time is up, or the caller aborts, while the source still writes: the caller
// has its answer in time, and the memory is nobody else's until the source has
// let go. A late block is still a block.
func TestLateSourceKeepsItsMemory(t *testing.T) {
	for _, how := range []struct {
		name  string
		abort bool
		want  Reason
	}{{"timeout", false, ReasonTimeout}, {"abort", true, ReasonAborted}} {
		for _, commits := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/commits %v", how.name, commits), func(t *testing.T) {
				writing, finish := make(chan []byte, 1), make(chan struct{})
				src := &fakeSource{fetch: func(ctx context.Context, keys [][]byte, sink Sink) error {
					b, err := sink.Reserve(0, 4096)
					if err != nil {
						t.Errorf("Reserve: %v", err)
						return err
					}
					writing <- b
					<-ctx.Done()
					if _, err := sink.Reserve(1, 4096); err == nil {
						t.Error("memory was given out after the end")
					}
					<-finish
					copy(b, remoteValue(keys[0]))
					if commits {
						return sink.Commit(0)
					}
					return ctx.Err()
				}}
				e, h := remoteEngine(t, 16, src, func(cfg *Config) { cfg.OperationTimeout = 100 * time.Millisecond })
				keys := farKeys(2)
				began := time.Now()
				op := h.Fetch(keys)
				b := <-writing
				if how.abort {
					if !op.Abort() {
						t.Error("nothing was open")
					}
				}
				rs := wait(t, op)
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("answered after %v", took)
				}
				for i := range rs {
					if rs[i].Reason != how.want {
						t.Errorf("key %d: %v, want %v", i, rs[i].Reason, how.want)
					}
				}
				if h.Has(keys[0]) {
					t.Error("a block that is being written is resident")
				}
				lo, hi := address(b)
				for i := range 500 {
					if err := h.Set(keyOf(i), stamped(uint64(i), 4000)); err != nil {
						t.Fatalf("Set: %v", err)
					}
					v, ok := h.Get(keyOf(i))
					if !ok {
						t.Fatal("miss")
					}
					if l, r := address(v.Bytes()); l < hi && lo < r {
						t.Fatalf("block at %#x lies in memory that the source still writes, %#x to %#x", l, lo, hi)
					}
					v.Release()
					b[i%len(b)]++
				}
				close(finish)
				deadline := time.Now().Add(5 * time.Second)
				for reserved(e) != 0 {
					if time.Now().After(deadline) {
						t.Fatal("memory stays reserved after the source has returned")
					}
					time.Sleep(time.Millisecond)
				}
				if v, ok := h.Get(keys[0]); ok != commits {
					t.Errorf("resident %v, the source committed: %v", ok, commits)
				} else if ok {
					if !bytes.Equal(v.Bytes(), remoteValue(keys[0])) {
						t.Error("the late block has other bytes")
					}
					v.Release()
				}
				if e.Claims() != 0 {
					t.Error("a claim is left that nobody has")
				}
			})
		}
	}
}

// The caller's memory is the source's until its key is answered.
func TestDeliverLateSource(t *testing.T) {
	writing, finish := make(chan []byte, 1), make(chan struct{})
	src := &fakeSource{fetch: func(ctx context.Context, keys [][]byte, sink Sink) error {
		b, err := sink.Reserve(0, 4096)
		if err != nil {
			return err
		}
		if _, err := sink.Reserve(2, 4096); !errors.Is(err, ErrLayout) {
			t.Errorf("Reserve of more than Dst: %v", err)
		}
		writing <- b
		<-finish
		b[0] = 7
		return nil
	}}
	_, h := remoteEngine(t, 16, src, func(cfg *Config) { cfg.OperationTimeout = 30 * time.Millisecond })
	keys := farKeys(3)
	ts := []Target{{keys[0], make([]byte, 4096)}, {keys[1], make([]byte, 4096)}, {keys[2], make([]byte, 10)}}
	op := h.Deliver(ts)
	if b := <-writing; &b[0] != &ts[0].Dst[0] {
		t.Error("the source was not given Dst itself")
	}
	time.Sleep(100 * time.Millisecond)
	if op.Results() != nil {
		t.Error("answered while the source writes to Dst")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if _, err := op.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait: %v", err)
	}
	close(finish)
	rs := wait(t, op)
	if rs[0].Reason != ReasonTimeout || rs[1].Reason != ReasonTimeout || rs[2].Reason != ReasonLayout {
		t.Errorf("%v %v %v", rs[0].Reason, rs[1].Reason, rs[2].Reason)
	}
}

// Close ends fetches under way; one whose source never returns is reported and
// keeps its memory until it does.
func TestCloseWithFetchUnderWay(t *testing.T) {
	t.Run("source obeys", func(t *testing.T) {
		started := make(chan struct{})
		src := &fakeSource{fetch: func(ctx context.Context, keys [][]byte, sink Sink) error {
			sink.Reserve(0, 4096)
			close(started)
			<-ctx.Done()
			time.Sleep(30 * time.Millisecond) // what it has under way takes a while to stop
			return ctx.Err()
		}}
		e, h := remoteEngine(t, 16, src, func(cfg *Config) { cfg.OperationTimeout = 10 * time.Second })
		op := h.Fetch(farKeys(2))
		<-started
		began := time.Now()
		if err := closeWithin(e); err != nil {
			t.Errorf("Close: %v", err)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("Close took %v", took)
		}
		for i, r := range wait(t, op) {
			if r.Reason != ReasonClosed {
				t.Errorf("key %d: %v", i, r.Reason)
			}
		}
	})
	for _, commits := range []bool{true, false} {
		t.Run(fmt.Sprintf("source deaf, commits %v", commits), func(t *testing.T) {
			started, finish, ended := make(chan []byte, 1), make(chan struct{}), make(chan error, 1)
			src := &fakeSource{fetch: func(ctx context.Context, keys [][]byte, sink Sink) error {
				b, err := sink.Reserve(0, 4096)
				if err != nil {
					t.Error(err)
				}
				started <- b
				<-finish
				b[0]++ // still mapped, still ours
				if commits {
					ended <- sink.Commit(0)
				} else {
					ended <- nil
				}
				return nil
			}}
			before := memfdRegions(t)
			e, h := remoteEngine(t, 16, src, func(cfg *Config) {
				*cfg = memfd(*cfg)
				cfg.OperationTimeout = 50 * time.Millisecond
			})
			op := h.Fetch(farKeys(2))
			b := <-started
			began := time.Now()
			err := closeWithin(e)
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("Close took %v", took)
			}
			var busy *BusyError
			if !errors.As(err, &busy) || busy.Reservations != 1 || busy.Views != 0 {
				t.Errorf("Close: %v, want one reservation", err)
			}
			for i, r := range wait(t, op) {
				if r.OK() {
					t.Errorf("key %d succeeded", i)
				}
			}
			if memfdRegions(t) == before {
				t.Error("unmapped under the source")
			}
			b[1]++
			close(finish)
			if err := <-ended; commits && err == nil {
				t.Error("a commit after Close succeeded")
			}
			deadline := time.Now().Add(3 * time.Second)
			for lives(e) {
				if time.Now().After(deadline) {
					t.Fatal("memory stays mapped after the source has returned")
				}
				time.Sleep(time.Millisecond)
			}
			if memfdRegions(t) != before {
				t.Error("still mapped")
			}
		})
	}
}

// Silent for ever, with and without memory: the answers come in time, and so
// does Close.
func TestSilentSource(t *testing.T) {
	finish := make(chan struct{})
	var running sync.WaitGroup
	src := &fakeSource{fetch: func(ctx context.Context, keys [][]byte, sink Sink) error {
		defer running.Done()
		<-finish
		if _, err := sink.Reserve(0, 10); err == nil {
			t.Error("memory of a closed engine was given out")
		}
		return nil
	}}
	e, h := remoteEngine(t, 16, src, func(cfg *Config) { cfg.OperationTimeout = 50 * time.Millisecond })
	for range 10 {
		running.Add(1)
		for i, r := range wait(t, h.Fetch(farKeys(3))) {
			if r.Reason != ReasonTimeout {
				t.Errorf("key %d: %v", i, r.Reason)
			}
		}
	}
	if err := closeWithin(e); err != nil {
		t.Errorf("Close: %v", err)
	}
	if lives(e) {
		t.Error("memory that nobody has is mapped")
	}
	close(finish)
	running.Wait()
}

// More fetches than handles: refused for that reason, not as "closed".
func TestFetchWithoutHandles(t *testing.T) {
	src := &fakeSource{fetch: bringAll}
	_, h := remoteEngine(t, 16, src, func(cfg *Config) { cfg.MaxHandles = 1 })
	for i, r := range wait(t, h.Fetch(farKeys(2))) {
		if r.Reason == ReasonClosed {
			t.Errorf("key %d: %v, and the engine is open", i, r.Reason)
		}
		r.View.Release()
	}
}

// The deadline of an operation does not depend on the caller's next call.
func TestFetchManyAtOnce(t *testing.T) {
	src := &fakeSource{fetch: func(ctx context.Context, keys [][]byte, sink Sink) error {
		runtime.Gosched()
		return bringAll(ctx, keys, sink)
	}}
	e, h := remoteEngine(t, 64, src, func(cfg *Config) { cfg.OperationTimeout = 5 * time.Second })
	keys := farKeys(40)
	for range 20 {
		var ops []*Op
		for i := range 4 {
			ops = append(ops, h.Fetch(keys[i*5:i*5+20]))
		}
		for i, op := range ops {
			rs := wait(t, op)
			for j := range rs {
				if rs[j].OK() && !bytes.Equal(rs[j].View.Bytes(), remoteValue(keys[i*5+j])) {
					t.Error("another block's bytes")
				} else if !rs[j].OK() {
					t.Errorf("%v", rs[j].Err())
				}
			}
			releaseAll(t, rs)
		}
		for _, k := range keys {
			h.Delete(k)
		}
	}
	if n, m := e.Claims(), reserved(e); n != 0 || m != 0 {
		t.Errorf("%d claims and %d reservations are left", n, m)
	}
}

// Many fetch at once what they cannot all hold: each ends, with all it asked
// for or with what there was, and nobody waits for another's memory.
func TestFetchesOnTooSmallAPool(t *testing.T) {
	const fetchers, each, slots = 8, 12, 40 // 96 wanted
	src := &fakeSource{fetch: func(ctx context.Context, keys [][]byte, sink Sink) error {
		for i, k := range keys {
			if err := bring(sink, i, k); err != nil {
				continue
			}
			runtime.Gosched()
		}
		return nil
	}}
	e, h0 := remoteEngine(t, slots, src, func(cfg *Config) { cfg.OperationTimeout = 5 * time.Second })
	h0.Close()
	var full, short atomic.Int32
	var wg sync.WaitGroup
	for g := range fetchers {
		h := handle(t, e)
		wg.Add(1)
		go func() {
			defer wg.Done()
			for round := range 20 {
				var keys [][]byte
				for i := range each {
					keys = append(keys, fmt.Appendf(nil, "%d/%d/%d", g, round, i))
				}
				rs := wait(t, h.Fetch(keys))
				good := 0
				for i := range rs {
					switch rs[i].Reason {
					case ReasonOK:
						good++
						if !bytes.Equal(rs[i].View.Bytes(), remoteValue(keys[i])) {
							t.Error("another block's bytes")
						}
					case ReasonCapacity:
					default:
						t.Errorf("%v", rs[i].Reason)
					}
				}
				if good == each {
					full.Add(1)
				} else {
					short.Add(1)
				}
				releaseAll(t, rs)
			}
		}()
	}
	within(30*time.Second, "the fetches", wg.Wait)
	t.Logf("%d fetches got all, %d a part", full.Load(), short.Load())
	if full.Load() == 0 {
		t.Error("nobody ever got all")
	}
	if n, m := e.Claims(), reserved(e); n != 0 || m != 0 {
		t.Errorf("%d claims and %d reservations are left", n, m)
	}
}

// A source that panics fails its keys, gives its memory back and leaves the
// process and other operations alone.
func TestSourceThatPanics(t *testing.T) {
	src := &fakeSource{fetch: func(_ context.Context, keys [][]byte, sink Sink) error {
		if _, err := sink.Reserve(0, 4096); err != nil {
			return err
		}
		panic("bad source")
	}}
	e := open(t, small(4, func(c *Config) { c.Remote = src }))
	h := handle(t, e)
	rs, err := h.Fetch([][]byte{keyOf(1), keyOf(2)}).Wait(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range rs {
		if r.Reason != ReasonSource {
			t.Errorf("key %d: %v, want %v", i, r.Reason, ReasonSource)
		}
	}
	for i := range 4 { // all slots are free again
		if err := h.Set(keyOf(10+i), stamped(1, 4096)); err != nil {
			t.Error(err)
		}
	}
	st := stats(t, e)
	if st.SourceFaults != 1 || st.Counts.Evicted != 0 {
		t.Errorf("%d faults, %d evicted; want 1, 0", st.SourceFaults, st.Counts.Evicted)
	}
}
