package hints

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func newOutcomes(t testing.TB, cfg OutcomesConfig) *Outcomes {
	h, err := NewOutcomes(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// soon bounds waits that a bug would make endless.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// Random publications and reads against a plain list.
func TestOutcomesModel(t *testing.T) {
	ctx := soon(t)
	rapid.Check(t, func(t *rapid.T) {
		kept, keptHashes := rapid.IntRange(1, 40).Draw(t, "kept"), rapid.IntRange(1, 30).Draw(t, "hashes")
		h, err := NewOutcomes(OutcomesConfig{Kept: kept, KeptHashes: keptHashes, Subscriptions: 3})
		if err != nil {
			t.Fatal(err)
		}
		var all []int // hashes of each outcome
		oldest := func() int {
			n, hashes, i := 0, 0, len(all)
			for i > 0 && n < kept && (n == 0 || hashes+all[i-1] <= keptHashes) {
				i--
				n++
				hashes += all[i]
			}
			return i + 1
		}
		type reader struct {
			*OutcomeReader
			next int
		}
		var readers []*reader
		lost := 0
		// Outcomes go when the next one comes: with many hashes those before it, too.
		gone := 1
		t.Repeat(map[string]func(*rapid.T){
			"publish": func(t *rapid.T) {
				n := rapid.IntRange(0, 12).Draw(t, "n")
				hashes := make([]uint64, n)
				for i := range hashes {
					hashes[i] = uint64(len(all))
				}
				all = append(all, n)
				if seq := h.Publish(Outcome{Index: len(all), Hashes: hashes}); seq != uint64(len(all)) {
					t.Fatalf("outcome %d has number %d", len(all), seq)
				}
				clear(hashes)
				gone = max(gone, oldest())
			},
			"subscribe": func(t *rapid.T) {
				from := rapid.IntRange(0, len(all)+2).Draw(t, "from")
				r, err := h.SubscribeFrom(uint64(from))
				if len(readers) == 3 {
					if !errors.Is(err, ErrLimit) {
						t.Fatalf("a fourth subscription: %v", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if from == 0 {
					from = gone
				}
				readers = append(readers, &reader{r, from})
			},
			"close": func(t *rapid.T) {
				if len(readers) == 0 {
					return
				}
				readers[0].Close()
				if _, err := readers[0].Next(ctx); !errors.Is(err, ErrClosed) {
					t.Fatalf("closed: %v", err)
				}
				readers = readers[1:]
			},
			"read": func(t *rapid.T) {
				for _, r := range readers {
					if r.next > len(all) {
						continue
					}
					o, err := r.Next(ctx)
					if r.next < gone {
						var gap *GapError
						if !errors.Is(err, ErrGap) || !errors.As(err, &gap) || gap.Lost != uint64(gone-r.next) {
							t.Fatalf("next %d, oldest %d: %v %v", r.next, gone, o, err)
						}
						lost += gone - r.next
						r.next = gone
						continue
					}
					if err != nil || o.Seq != uint64(r.next) || o.Index != r.next || len(o.Hashes) != all[r.next-1] || o.Time.IsZero() {
						t.Fatalf("next %d: %+v %v", r.next, o, err)
					}
					for _, x := range o.Hashes {
						if x != uint64(r.next-1) {
							t.Fatalf("outcome %d has hashes %v", r.next, o.Hashes)
						}
					}
					r.next++
				}
			},
			"": func(t *rapid.T) {
				c := h.Counts()
				if c.Published != uint64(len(all)) || c.Lost != uint64(lost) || c.Subscriptions != len(readers) {
					t.Fatalf("%+v", c)
				}
				if len(h.ring) > kept || h.hashes > max(keptHashes, 12) {
					t.Fatalf("%d outcomes, %d hashes are kept", len(h.ring), h.hashes)
				}
			},
		})
	})
}

// Readers wait for what is published by many, and get all of it in one order.
func TestOutcomesConcurrent(t *testing.T) {
	h := newOutcomes(t, OutcomesConfig{})
	ctx := soon(t)
	const writers, each, readers = 4, 200, 3
	got := make([][]uint64, readers)
	var wg sync.WaitGroup
	for i := range readers {
		r, err := h.Subscribe()
		if err != nil {
			t.Fatal(err)
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				o, err := r.Next(ctx)
				if errors.Is(err, ErrClosed) {
					return
				}
				if err != nil || o.Seq != uint64(len(got[i])+1) {
					t.Errorf("after %d: %+v %v", len(got[i]), o, err)
					return
				}
				got[i] = append(got[i], o.Hashes[0])
			}
		}()
	}
	var writing sync.WaitGroup
	for w := range writers {
		writing.Add(1)
		go func() {
			defer writing.Done()
			for k := range each {
				h.Publish(Outcome{Hashes: []uint64{uint64(w*1000 + k)}})
			}
		}()
	}
	writing.Wait()
	h.Close() // what was published can still be read
	wg.Wait()
	if len(got[0]) != writers*each || !slices.Equal(got[0], got[1]) || !slices.Equal(got[0], got[2]) {
		t.Errorf("%d, %d, %d outcomes were read", len(got[0]), len(got[1]), len(got[2]))
	}
	if h.Publish(Outcome{}) != 0 {
		t.Error("published after Close")
	}
	if _, err := h.Subscribe(); !errors.Is(err, ErrClosed) {
		t.Errorf("subscribed after Close: %v", err)
	}
}

// A Next that waits ends with an outcome, its context, and Close of its reader or of
// the stream.
func TestOutcomesWaitEnds(t *testing.T) {
	h := newOutcomes(t, OutcomesConfig{})
	ctx, cancel := context.WithCancel(soon(t))
	for _, tt := range []struct {
		name string
		end  func(*OutcomeReader)
		want error
	}{
		{"outcome", func(*OutcomeReader) { h.Publish(Outcome{}) }, nil},
		{"reader", func(r *OutcomeReader) { r.Close(); r.Close() }, ErrClosed},
		{"context", func(*OutcomeReader) { cancel() }, context.Canceled},
		{"stream", func(*OutcomeReader) { h.Close() }, ErrClosed},
	} {
		r, err := h.Subscribe()
		if err != nil {
			t.Fatal(err)
		}
		wait := soon(t)
		if tt.name == "context" {
			wait = ctx
		}
		h.waiting = false
		done := make(chan error)
		go func() {
			_, err := r.Next(wait)
			done <- err
		}()
		for waiting := false; !waiting; runtime.Gosched() {
			h.mu.Lock()
			waiting = h.waiting
			h.mu.Unlock()
		}
		tt.end(r)
		if err := <-done; !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	for _, bad := range []OutcomesConfig{{Kept: -1}, {KeptHashes: -1}, {Subscriptions: -1}} {
		if _, err := NewOutcomes(bad); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestClipID(t *testing.T) {
	for _, in := range []string{"", "x", strings.Repeat("x", MaxIDBytes), strings.Repeat("x", 5000), strings.Repeat("é", 400), "x" + strings.Repeat("é", 400), strings.Repeat("\U0001F600", 200), "xy" + strings.Repeat("\U0001F600", 200)} {
		got := clipID(in)
		if len(got) > MaxIDBytes || !strings.HasPrefix(in, got) || !utf8.ValidString(got) || len(in) > MaxIDBytes && len(got) < MaxIDBytes-3 || len(in) <= MaxIDBytes && got != in {
			t.Errorf("%d bytes of %.8q become %d", len(in), in, len(got))
		}
	}
	h := newOutcomes(t, OutcomesConfig{})
	long := strings.Repeat("x", 5000)
	h.Publish(Outcome{MessageID: long, ActionID: long, RequestID: long, Type: long, Reason: long})
	r, _ := h.SubscribeFrom(1)
	if o, _ := r.Next(soon(t)); len(o.MessageID+o.ActionID+o.RequestID+o.Type+o.Reason) != 5*MaxIDBytes {
		t.Error("an outcome keeps long texts")
	}
}

func newTracker(t testing.TB, cfg TrackerConfig) (*Tracker, *OutcomeReader) {
	h := newOutcomes(t, OutcomesConfig{Kept: 1 << 16})
	r, err := h.Subscribe()
	if err != nil {
		t.Fatal(err)
	}
	tr, err := NewTracker(h, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return tr, r
}

// published returns all outcomes so far, in short.
func published(t testing.TB, r *OutcomeReader) (got []string) {
	t.Helper()
	for r.next <= r.h.Newest() {
		o, err := r.Next(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		s := fmt.Sprintf("%v %v %q", o.Stage, o.Hashes, o.Reason)
		if o.Stage == StageEnd {
			s = fmt.Sprintf("end c%d m%d k%d r%d p%d f%d %dB %q", o.Copied, o.Moved, o.Kept, o.Removed, o.Present, o.Failed, o.Bytes, o.Reason)
		}
		if o.MessageID != "m" || o.ActionID != "a" || o.RequestID != "r" || o.Type != TypeMove || o.Index != 3 || o.Rank != 5 {
			t.Errorf("%s: ids are wrong: %+v", s, o)
		}
		got = append(got, s)
	}
	return got
}

var trackedCall = Call{RequestID: "r", MessageID: "m", ActionID: "a", Index: 3, Type: TypeMove}

func TestTracker(t *testing.T) {
	tr, r := newTracker(t, TrackerConfig{Rank: 5, Open: 2, Hashes: 20})
	hashes := []uint64{7, 1, 7, 2, 3, 4, 5, 6}
	a, err := tr.Accept(&trackedCall, hashes)
	if err != nil {
		t.Fatal(err)
	}
	clear(hashes)
	for _, tt := range []struct {
		stage  Stage
		hashes []uint64
		want   int
	}{
		{StageResolved, []uint64{1, 2, 3, 99}, 3},
		{StageResolved, []uint64{1}, 0},
		{StageAccepted, []uint64{1, 4}, 0},
		{StageEnd, []uint64{1, 4}, 0},
		{StageCopied, []uint64{1, 2, 1}, 2},
		{StageMoved, []uint64{1, 3}, 2},
		{StageKept, []uint64{1, 2}, 1},
		{StageFailed, []uint64{1, 2, 3, 4}, 1},
		{StagePresent, []uint64{5, 4}, 1},
		{StageRemoved, []uint64{6}, 1},
	} {
		if got := a.Report(tt.stage, "why", tt.hashes...); got != tt.want {
			t.Errorf("%v %v: %d reported, want %d", tt.stage, tt.hashes, got, tt.want)
		}
	}
	a.AddBytes(40)
	a.AddBytes(2)
	if tr.Open() != 1 {
		t.Errorf("%d open", tr.Open())
	}
	if !a.End("") || a.End("again") || a.Report(StageMoved, "", 7) != 0 || tr.Open() != 0 {
		t.Error("the end is not the end")
	}
	want := []string{
		`accepted [7 1 2 3 4 5 6] ""`, `resolved [1 2 3] "why"`, `copied [1 2] "why"`, `moved [1 3] "why"`, `kept [2] "why"`, `failed [4] "why"`,
		`present [5] "why"`, `removed [6] "why"`, `failed [7] "not_finished"`, `end c0 m2 k1 r1 p1 f2 42B ""`,
	}
	if got := published(t, r); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}

	// Bounds, and Close.
	b, _ := tr.Accept(&trackedCall, []uint64{1})
	var rej *Rejection
	if _, err := tr.Accept(&trackedCall, make20()); !errors.As(err, &rej) || rej.Reason != LimitExceeded {
		t.Errorf("too many hashes: %v", err)
	}
	c, err := tr.Accept(&trackedCall, make20()[1:])
	if err != nil {
		t.Error(err)
	}
	if _, err := tr.Accept(&trackedCall, []uint64{1}); !errors.As(err, &rej) || rej.Reason != LimitExceeded {
		t.Errorf("too many actions: %v", err)
	}
	b.Report(StageCopied, "", 1)
	published(t, r)
	c.End("busy")
	tr.Close("closed")
	if _, err := tr.Accept(&trackedCall, []uint64{1}); !errors.As(err, &rej) || rej.Reason != HandlerError {
		t.Errorf("closed: %v", err)
	}
	want = []string{`failed [1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19] "busy"`, `end c0 m0 k0 r0 p0 f19 0B "busy"`, `end c1 m0 k0 r0 p0 f0 0B "closed"`}
	if got := published(t, r); !slices.Equal(got, want) || tr.Open() != 0 || tr.hashes != 0 {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	for _, bad := range []TrackerConfig{{Open: -1}, {Hashes: -1}} {
		if _, err := NewTracker(r.h, bad); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func make20() []uint64 {
	h := make([]uint64, 20)
	for i := range h {
		h[i] = uint64(i)
	}
	return h
}

// Reports, ends and Close race; each action has one end, which is its last outcome, and
// each hash one final stage before it.
func TestTrackerConcurrent(t *testing.T) {
	tr, r := newTracker(t, TrackerConfig{Rank: 5})
	var wg sync.WaitGroup
	ends := make(chan string, 1000)
	const actions = 40
	for i := range actions {
		c := trackedCall
		c.Index = i
		a, err := tr.Accept(&c, make20())
		if err != nil {
			t.Fatal(err)
		}
		for g := range 3 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for k := range uint64(20) {
					a.Report(StageCopied+Stage(uint64(g)+k)%3, "", k)
					if k == 15 && a.End(fmt.Sprint(g)) {
						ends <- "end"
					}
				}
			}()
		}
	}
	wg.Add(1)
	go func() {
		defer wg.Done()
		tr.Close("closed")
	}()
	wg.Wait()
	if tr.Open() != 0 || tr.hashes != 0 {
		t.Errorf("%d actions, %d hashes are open", tr.Open(), tr.hashes)
	}
	final := map[int]map[uint64]Stage{}
	ended := map[int]bool{}
	for r.next <= r.h.Newest() {
		o, err := r.Next(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		if ended[o.Index] {
			t.Fatalf("action %d goes on after its end: %+v", o.Index, o)
		}
		if final[o.Index] == nil {
			final[o.Index] = map[uint64]Stage{}
		}
		for _, h := range o.Hashes {
			if was, ok := final[o.Index][h]; ok && !advances(was, o.Stage) {
				t.Errorf("action %d: hash %d went from %v to %v", o.Index, h, was, o.Stage)
			}
			final[o.Index][h] = o.Stage
		}
		if o.Stage == StageEnd {
			ended[o.Index] = true
			if n := o.Copied + o.Moved + o.Kept + o.Removed + o.Present + o.Failed; n != 20 || len(final[o.Index]) != 20 {
				t.Errorf("action %d: %d of 20 hashes ended", o.Index, n)
			}
		}
	}
	if len(ended) != actions || len(ends) > actions {
		t.Errorf("%d of %d actions ended, %d calls of End say so", len(ended), actions, len(ends))
	}
}
