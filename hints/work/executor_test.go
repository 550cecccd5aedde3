package work

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/hints"
)

// How each block ends is told once, and then that the action does.
func TestStages(t *testing.T) {
	f := newFake()
	f.resolve = func(_ context.Context, _ string, hashes []uint64) (out []Block, why string) {
		for _, h := range hashes {
			switch b := blockOf(h); h {
			case 1:
				out = append(out, Block{Hash: h, Reason: "not_found"})
			case 2:
				out = append(out, Block{Hash: h, Reason: "not_found", Here: true})
			default:
				out = append(out, b)
			}
		}
		return out, ""
	}
	f.look = func(b *Block) (Standing, string) {
		switch b.Hash {
		case 3:
			return Present, ""
		case 4:
			return Refused, "layout"
		}
		return Absent, ""
	}
	f.fetch = func(call *fetch) {
		for i, b := range call.blocks {
			switch {
			case b.Hash == 5:
				call.arrived(i, Arrival{Reason: "timeout"})
			case b.Hash == 6, b.Hash == 3:
				call.arrived(i, Arrival{Existing: true})
			default:
				call.arrived(i, Arrival{})
			}
			switch {
			case !call.move:
			case b.Hash == 7:
				call.moved(i, "no_evict")
			default:
				call.moved(i, "")
			}
		}
	}
	x := start(t, f, nil)
	all := []uint64{1, 2, 3, 4, 5, 6, 7, 8}
	copies := order(t, x, "a", false, all...)
	copies.wait()
	copies.is(1, hints.StageFailed, "not_found")
	copies.is(2, hints.StagePresent, "")
	copies.is(3, hints.StagePresent, "")
	copies.is(4, hints.StageFailed, "layout")
	copies.is(5, hints.StageFailed, "timeout")
	copies.is(6, hints.StagePresent, "")
	copies.is(7, hints.StageCopied, "")
	copies.is(8, hints.StageCopied, "")
	moves := order(t, x, "a", true, all...)
	moves.wait()
	moves.is(2, hints.StagePresent, "")
	moves.is(3, hints.StageMoved, "") // only the source's copy has gone
	moves.is(5, hints.StageFailed, "timeout")
	moves.is(6, hints.StageMoved, "")
	moves.is(7, hints.StageKept, "no_evict")
	moves.is(8, hints.StageMoved, "")
	for _, r := range []*record{copies, moves} {
		if r.reason != "" || r.bytes != 2<<10 {
			t.Errorf("it ends with %q, %d bytes", r.reason, r.bytes)
		}
	}
	if s := moves.stages[8]; len(s) != 3 || s[0] != hints.StageResolved || s[1] != hints.StageCopied {
		t.Errorf("on its way a block was %v", s)
	}
	none := order(t, x, "a", false)
	none.wait()
	lost := order(t, x, "a", false, 1, 1)
	lost.wait()
	if lost.reason != "not_found" {
		t.Errorf("an action of which all fails for one reason ends with %q", lost.reason)
	}
}

// A block that two actions name while it is queued or under way is fetched once.
func TestShared(t *testing.T) {
	for _, tt := range []struct {
		name          string
		first, second bool // move
		fetches       int
	}{
		{"copies", false, false, 1},
		{"moves", true, true, 1},
		{"a copy of what is moved", true, false, 1},
		{"a move of what is copied", false, true, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake()
			begun, goOn := make(chan struct{}, 4), make(chan struct{})
			f.fetch = func(call *fetch) {
				begun <- struct{}{}
				go func() {
					<-goOn
					f.bring(call)
				}()
			}
			x := start(t, f, nil)
			a := order(t, x, "a", tt.first, 1, 2)
			<-begun
			b := order(t, x, "a", tt.second, 2, 3)
			other := order(t, x, "b", tt.second, 9) // another source's is another block
			<-begun
			close(goOn)
			for _, r := range []*record{a, b, other} {
				r.wait()
			}
			stage := map[bool]hints.Stage{false: hints.StageCopied, true: hints.StageMoved}
			a.is(1, stage[tt.first], "")
			a.is(2, stage[tt.first], "")
			b.is(2, stage[tt.second], "")
			b.is(3, stage[tt.second], "")
			n := 0
			for _, call := range f.calls() {
				for _, b := range call.blocks {
					if b.Hash == 2 {
						n++
					}
				}
			}
			if n != tt.fetches {
				t.Errorf("fetched %d times, want %d", n, tt.fetches)
			}
		})
	}
}

// While nothing has begun, a move makes the queued copy of the same block a move.
func TestSharedBeforeItBegins(t *testing.T) {
	f := newFake()
	goOn := make(chan struct{})
	f.resolve = func(_ context.Context, _ string, hashes []uint64) (out []Block, _ string) {
		<-goOn
		for _, h := range hashes {
			out = append(out, blockOf(h))
		}
		return out, ""
	}
	x := start(t, f, func(c *Config) { c.Sources, c.BatchBlocks = 1, 1 })
	order(t, x, "a", false, 1)
	a, b := order(t, x, "a", false, 2), order(t, x, "a", true, 2)
	close(goOn)
	a.wait()
	b.wait()
	a.is(2, hints.StageCopied, "")
	b.is(2, hints.StageMoved, "")
	n := 0
	for _, call := range f.calls() {
		if call.blocks[0].Hash == 2 {
			n++
		}
	}
	if n != 1 {
		t.Errorf("fetched %d times", n)
	}
}

// An action that comes between the arrival of a block and the end of its move shares
// both.
func TestSharedAfterItArrived(t *testing.T) {
	f := newFake()
	var call *fetch
	f.fetch = func(c *fetch) {
		call = c
		c.arrived(0, Arrival{})
	}
	x := start(t, f, nil)
	first := order(t, x, "a", true, 1)
	eventually(t, "it arrives", func() bool { return first.last(1) == hints.StageCopied })
	eventually(t, "the worker has gone", func() bool { x.mu.Lock(); defer x.mu.Unlock(); return x.workers == 0 })
	again, copied := order(t, x, "a", true, 1), order(t, x, "a", false, 1)
	copied.wait()
	copied.is(1, hints.StageCopied, "")
	call.moved(0, "held")
	first.wait()
	again.wait()
	first.is(1, hints.StageKept, "held")
	again.is(1, hints.StageKept, "held")
	if n := len(f.calls()); n != 1 {
		t.Errorf("fetched %d times", n)
	}
}

// A block that somebody else fetches is waited for, and fetched if it does not come.
func TestJoins(t *testing.T) {
	for _, comes := range []bool{true, false} {
		f := newFake()
		coming := make(chan func(), 1)
		f.await = func(_ *Block, ended func()) { coming <- ended }
		var mu sync.Mutex
		standing := Coming
		f.look = func(b *Block) (Standing, string) {
			mu.Lock()
			defer mu.Unlock()
			if b.Hash == 1 {
				return standing, ""
			}
			return Absent, ""
		}
		x := start(t, f, nil)
		r := order(t, x, "a", false, 1, 2)
		ended := <-coming
		eventually(t, "the others are fetched meanwhile", func() bool { return r.last(2) == hints.StageCopied })
		mu.Lock()
		standing = Absent
		if comes {
			standing = Present
		}
		mu.Unlock()
		ended()
		r.wait()
		if comes {
			r.is(1, hints.StagePresent, "")
		} else {
			r.is(1, hints.StageCopied, "")
		}
		if n := len(f.calls()); comes && n != 1 || !comes && n != 2 {
			t.Errorf("%d fetches", n)
		}
	}
	// Not for ever.
	f := newFake()
	f.await = func(*Block, func()) {}
	f.look = func(*Block) (Standing, string) { return Coming, "" }
	x := start(t, f, func(c *Config) { c.JoinTimeout = time.Millisecond })
	r := order(t, x, "a", false, 1)
	r.wait()
	r.is(1, hints.StageCopied, "")
}

// A source without an answer costs what is queued for it, and holds up nobody.
func TestDeadSource(t *testing.T) {
	f := newFake()
	var questions atomic.Int64
	f.resolve = func(ctx context.Context, source string, hashes []uint64) (out []Block, _ string) {
		if source == "dead" {
			questions.Add(1)
			<-ctx.Done()
			return nil, "timeout"
		}
		for _, h := range hashes {
			out = append(out, blockOf(h))
		}
		return out, ""
	}
	x := start(t, f, func(c *Config) { c.ResolveTimeout, c.BatchBlocks = 50*time.Millisecond, 1 })
	var dead []*record
	for h := range uint64(100) { // each would take its time
		dead = append(dead, order(t, x, "dead", h%2 == 0, h))
	}
	live := order(t, x, "live", false, 1, 2, 3)
	live.wait()
	select {
	case <-dead[0].end:
		t.Error("the dead source came first")
	default:
	}
	for h, r := range dead {
		r.wait()
		r.is(uint64(h), hints.StageFailed, "timeout")
		if r.reason != "timeout" {
			t.Error(r.reason)
		}
	}
	if n := questions.Load(); n > 3 {
		t.Errorf("it was asked %d times", n)
	}
	// One that answers nonsense is no better.
	f.resolve = func(context.Context, string, []uint64) ([]Block, string) { return []Block{}, "" }
	r := order(t, x, "fool", false, 1)
	r.wait()
	r.is(1, hints.StageFailed, ReasonSource)
}

// A move whose end nobody tells is over after a time.
func TestMoveWithoutAnswer(t *testing.T) {
	f := newFake()
	var calls []*fetch
	f.fetch = func(c *fetch) {
		calls = append(calls, c)
		for i := range c.blocks {
			c.arrived(i, Arrival{})
		}
		c.moved(1, "")
	}
	x := start(t, f, func(c *Config) { c.MoveTimeout = 20 * time.Millisecond })
	r := order(t, x, "a", true, 1, 2, 3)
	r.wait()
	r.is(1, hints.StageKept, ReasonNoAnswer)
	r.is(2, hints.StageMoved, "")
	r.is(3, hints.StageKept, ReasonNoAnswer)
	calls[0].moved(0, "") // too late
}

// What is queued is bounded.
func TestLimits(t *testing.T) {
	f := newFake()
	goOn := make(chan struct{})
	f.resolve = func(_ context.Context, _ string, hashes []uint64) (out []Block, _ string) {
		<-goOn
		for _, h := range hashes {
			out = append(out, blockOf(h))
		}
		return out, ""
	}
	x := start(t, f, func(c *Config) { c.MaxActions, c.MaxBlocks = 3, 10 })
	var rs []*record
	rs = append(rs, order(t, x, "a", false, 1, 2, 3), order(t, x, "a", false, 1, 2, 3, 4, 5))
	submit := func(hashes ...uint64) error {
		r := newRecord(t)
		err := x.Submit(Action{Source: "a", Hashes: hashes, Report: r})
		if err == nil {
			rs = append(rs, r)
		}
		return err
	}
	if err := submit(6, 7, 8); !errors.Is(err, ErrLimit) {
		t.Errorf("blocks beyond the limit: %v", err)
	}
	if err := submit(6, 7); err != nil {
		t.Errorf("blocks up to the limit: %v", err)
	}
	if err := submit(); !errors.Is(err, ErrLimit) {
		t.Errorf("an action beyond the limit: %v", err)
	}
	close(goOn)
	for _, r := range rs {
		r.wait()
	}
	eventually(t, "there is room again", func() bool { return submit(1) == nil })
	x.Stop()
	if err := submit(1); !errors.Is(err, ErrClosed) {
		t.Errorf("after Stop: %v", err)
	}
}

// Close ends every action, whatever it waits for.
func TestClose(t *testing.T) {
	f := newFake()
	var mu sync.Mutex
	var held []*fetch
	f.fetch = func(c *fetch) {
		mu.Lock()
		defer mu.Unlock()
		if c.move {
			c.arrived(0, Arrival{}) // its move has no end
			return
		}
		held = append(held, c)
	}
	f.resolve = func(ctx context.Context, source string, hashes []uint64) (out []Block, _ string) {
		if source == "silent" {
			<-ctx.Done()
			return nil, "timeout"
		}
		for _, h := range hashes {
			out = append(out, blockOf(h))
		}
		return out, ""
	}
	x := start(t, f, func(c *Config) { c.BatchBlocks, c.Sources = 1, 3 })
	moving := order(t, x, "moving", true, 1)
	eventually(t, "it has arrived", func() bool { return moving.last(1) == hints.StageCopied })
	silent := order(t, x, "silent", false, 1)
	fetching := order(t, x, "slow", false, 1, 2)
	behind := order(t, x, "slow", true, 3)
	eventually(t, "one is being fetched", func() bool { mu.Lock(); defer mu.Unlock(); return len(held) == 1 })
	x.Stop()
	behind.wait()
	behind.is(3, hints.StageFailed, ReasonClosed)
	silent.wait()
	silent.is(1, hints.StageFailed, ReasonClosed)
	if x.Close(10 * time.Millisecond) {
		t.Error("a transfer is under way")
	}
	for _, r := range []*record{moving, fetching} {
		r.wait()
	}
	moving.is(1, hints.StageKept, ReasonNoAnswer)
	fetching.is(1, hints.StageFailed, ReasonClosed)
	fetching.is(2, hints.StageFailed, ReasonClosed)
	held[0].arrived(0, Arrival{})
}

// News that gathers is told together, each block's in its order, and the end last.
func TestNewsInOrder(t *testing.T) {
	r := newRecord(t)
	act := &action{report: r, blocks: -1}
	say := func(hash uint64, stage hints.Stage, final bool) news {
		return news{act: act, hash: hash, stage: stage, bytes: 1, final: final}
	}
	actions, blocks := tellAll([]news{
		say(1, hints.StageMoved, true), // it has arrived earlier
		say(2, hints.StageCopied, false), say(3, hints.StageResolved, false), say(2, hints.StageMoved, true), say(3, hints.StageCopied, false),
		say(3, hints.StageMoved, true), {act: act, stage: stageSubmitted, hash: 3},
	})
	if actions != 1 || blocks != 3 || r.bytes != 6 {
		t.Errorf("%d actions and %d blocks have ended, %d bytes", actions, blocks, r.bytes)
	}
	for h, want := range map[uint64][]hints.Stage{
		1: {hints.StageMoved}, 2: {hints.StageCopied, hints.StageMoved}, 3: {hints.StageResolved, hints.StageCopied, hints.StageMoved},
	} {
		if !slices.Equal(r.stages[h], want) {
			t.Errorf("%d: %v", h, r.stages[h])
		}
	}
}
