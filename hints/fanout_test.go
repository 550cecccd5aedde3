package hints

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func newFanOut(t testing.TB, cfg FanOutConfig) *FanOut {
	f, err := NewFanOut(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func complete(j *Join) bool {
	select {
	case <-j.Done():
		return true
	default:
		return false
	}
}

func outcome(rank int, stage Stage, hashes ...uint64) Outcome {
	return Outcome{MessageID: "m", ActionID: "a", Rank: rank, Stage: stage, Hashes: hashes}
}

func TestFanOut(t *testing.T) {
	f := newFanOut(t, FanOutConfig{})
	j, err := f.Expect("m", "a", []int{0, 1, 1}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Expect("m", "a", []int{0}, time.Minute); !errors.Is(err, ErrExpected) {
		t.Errorf("expected twice: %v", err)
	}
	f.Observe(outcome(0, StageAccepted, 1, 2, 3, 4, 5, 6, 7))
	f.Observe(outcome(0, StageCopied, 1, 2, 3))
	f.Observe(outcome(0, StageMoved, 1, 2))
	f.Observe(outcome(0, StagePresent, 4))
	f.Observe(outcome(0, StageRemoved, 5))
	f.Observe(outcome(0, StageMoved, 6))
	f.Observe(outcome(0, StageEnd))
	f.Observe(outcome(0, StageMoved, 3, 7)) // it has ended
	f.Observe(outcome(2, StageMoved, 1))    // no rank of it
	f.Observe(Outcome{MessageID: "m", ActionID: "b", Stage: StageEnd})
	if complete(j) || !reflect.DeepEqual(j.Result(), Joined{}) {
		t.Fatal("complete after one of two ranks")
	}
	f.Observe(outcome(1, StageMoved, 1, 3))
	f.Observe(outcome(1, StageKept, 2))
	f.Observe(outcome(1, StagePresent, 4))
	f.Observe(outcome(1, StageRemoved, 5))
	f.Observe(outcome(1, StageMoved, 7))
	f.Observe(outcome(1, StageEnd))
	if !complete(j) {
		t.Fatal("not complete after all ranks")
	}
	got := j.Result()
	want := map[uint64]Stage{1: StageMoved, 2: StageKept, 3: StageCopied, 4: StagePresent, 5: StageRemoved, 6: StageFailed, 7: StageFailed}
	if !got.Complete || got.Reason != "" || !reflect.DeepEqual(got.Blocks, want) || len(got.Ranks) != 2 {
		t.Errorf("%+v", got)
	}
	if f.hashes != 0 || f.Open() != 0 {
		t.Errorf("%d hashes, %d joins are left", f.hashes, f.Open())
	}
	// The ids may be used again.
	j, err = f.Expect("m", "a", []int{0}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	j.Cancel()
	if !complete(j) || j.Result().Reason != "cancelled" || j.Result().Complete {
		t.Errorf("%+v", j.Result())
	}
	j.Cancel()
}

// A join ends without some of its ranks: they are lost, late, or too much.
func TestFanOutEnds(t *testing.T) {
	f := newFanOut(t, FanOutConfig{Hashes: 5, Joins: 2, Ranks: 3})
	blocks := func(j *Join, reason string, want map[uint64]Stage) {
		t.Helper()
		select {
		case <-j.Done():
		case <-soon(t).Done():
			t.Fatal("not complete")
		}
		got := j.Result()
		if got.Complete || got.Reason != reason || !reflect.DeepEqual(got.Blocks, want) {
			t.Errorf("%+v, want %s %v", got, reason, want)
		}
		if f.Open() != 0 || f.hashes != 0 {
			t.Errorf("%d joins, %d hashes are left", f.Open(), f.hashes)
		}
	}
	expect := func(timeout time.Duration) *Join {
		t.Helper()
		j, err := f.Expect("m", "a", []int{0, 1}, timeout)
		if err != nil {
			t.Fatal(err)
		}
		f.Observe(outcome(0, StageMoved, 1, 2))
		f.Observe(outcome(1, StageMoved, 1))
		f.Observe(outcome(1, StageResolved, 2))
		return j
	}
	j := expect(time.Minute)
	f.Observe(outcome(0, StageEnd))
	f.RankLost(7)
	if complete(j) {
		t.Error("complete for the loss of another rank")
	}
	f.RankLost(1)
	blocks(j, "rank_lost", map[uint64]Stage{1: StageMoved, 2: StageFailed})
	j = expect(time.Minute)
	f.RankLost(1)
	f.Observe(outcome(0, StageEnd))
	blocks(j, "rank_lost", map[uint64]Stage{1: StageMoved, 2: StageFailed})
	j = expect(time.Millisecond)
	blocks(j, "timeout", map[uint64]Stage{1: StageMoved, 2: StageFailed})
	j = expect(time.Minute)
	f.Observe(outcome(0, StageMoved, 3, 4, 5))
	blocks(j, "limit_exceeded", map[uint64]Stage{1: StageMoved, 2: StageFailed, 3: StageFailed})

	if _, err := f.Expect("m", "a", nil, time.Minute); !errors.Is(err, ErrConfig) {
		t.Errorf("no ranks: %v", err)
	}
	if _, err := f.Expect("m", "a", []int{1}, 0); !errors.Is(err, ErrConfig) {
		t.Errorf("no timeout: %v", err)
	}
	if _, err := f.Expect("m", "a", []int{1, 2, 3, 4}, time.Minute); !errors.Is(err, ErrLimit) {
		t.Errorf("four ranks: %v", err)
	}
	long := strings.Repeat("x", 1000)
	j, err := f.Expect(long, "a", []int{1}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	f.Observe(Outcome{MessageID: clipID(long), ActionID: "a", Rank: 1, Stage: StageEnd})
	if !complete(j) || !j.Result().Complete {
		t.Error("a long id is not found by what outcomes have of it")
	}
	j = expect(time.Minute)
	k, _ := f.Expect("m", "b", []int{0}, time.Minute)
	if _, err := f.Expect("m", "c", []int{1}, time.Minute); !errors.Is(err, ErrLimit) {
		t.Errorf("three joins: %v", err)
	}
	f.Close()
	blocks(j, "closed", map[uint64]Stage{1: StageMoved, 2: StageFailed})
	blocks(k, "closed", map[uint64]Stage{})
	if _, err := f.Expect("m", "c", []int{1}, time.Minute); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	for _, bad := range []FanOutConfig{{Joins: -1}, {Ranks: -1}, {Hashes: -1}} {
		if _, err := NewFanOut(bad); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// Random reports of ranks in any order, against the rule spelled out: moved if all
// moved, failed if any did not get there.
func TestFanOutModel(t *testing.T) {
	finals := []Stage{StageCopied, StageMoved, StageKept, StageRemoved, StagePresent, StageFailed, StageAccepted, StageResolved}
	rapid.Check(t, func(t *rapid.T) {
		f, _ := NewFanOut(FanOutConfig{})
		ranks := rapid.IntRange(1, 4).Draw(t, "ranks")
		var list []int
		for r := range ranks {
			list = append(list, r)
		}
		j, err := f.Expect("m", "a", list, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		said := map[uint64]map[int]Stage{}
		lost := false
		for _, r := range rapid.Permutation(list).Draw(t, "order") {
			for range rapid.IntRange(0, 6).Draw(t, "reports") {
				s := rapid.SampledFrom(finals).Draw(t, "stage")
				h := rapid.Uint64Range(0, 3).Draw(t, "hash")
				f.Observe(outcome(r, s, h))
				if said[h] == nil {
					said[h] = map[int]Stage{}
				}
				said[h][r] = s
			}
			if rapid.IntRange(0, 4).Draw(t, "lost") == 0 {
				lost = true
				f.RankLost(r)
			} else {
				f.Observe(outcome(r, StageEnd))
			}
		}
		if !complete(j) {
			t.Fatal("not complete")
		}
		want := map[uint64]Stage{}
		for h, by := range said {
			has := func(s Stage) bool {
				for _, got := range by {
					if got == s {
						return true
					}
				}
				return false
			}
			switch {
			case len(by) < ranks || has(StageFailed) || has(StageAccepted) || has(StageResolved):
				want[h] = StageFailed
			case has(StageKept):
				want[h] = StageKept
			case has(StageCopied):
				want[h] = StageCopied
			case has(StagePresent):
				want[h] = StagePresent
			case has(StageRemoved):
				want[h] = StageRemoved
			default:
				want[h] = StageMoved
			}
		}
		got := j.Result()
		if !reflect.DeepEqual(got.Blocks, want) || got.Complete == lost || f.hashes != 0 {
			t.Fatalf("%v said\ngot  %+v\nwant %v", said, got, want)
		}
	})
}

// Ranks with a tracker each, joined while they run.
func TestFanOutOfTrackers(t *testing.T) {
	f := newFanOut(t, FanOutConfig{})
	defer f.Close()
	const ranks, actions = 3, 20
	var joins []*Join
	for i := range actions {
		j, err := f.Expect("m", fmt.Sprint(i), []int{0, 1, 2}, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		joins = append(joins, j)
	}
	var wg sync.WaitGroup
	for rank := range ranks {
		h := newOutcomes(t, OutcomesConfig{})
		tr, err := NewTracker(h, TrackerConfig{Rank: rank})
		if err != nil {
			t.Fatal(err)
		}
		r, err := h.Subscribe()
		if err != nil {
			t.Fatal(err)
		}
		ctx := soon(t)
		wg.Add(2)
		go func() {
			defer wg.Done()
			for {
				o, err := r.Next(ctx)
				if err != nil {
					return
				}
				f.Observe(o)
			}
		}()
		go func() {
			defer wg.Done()
			for i := range actions {
				a, err := tr.Accept(&Call{MessageID: "m", ActionID: fmt.Sprint(i), Type: TypeMove}, []uint64{1, 2})
				if err != nil {
					t.Error(err)
					continue
				}
				a.Report(StageMoved, "", 1)
				if rank != i%(ranks+1) {
					a.Report(StageMoved, "", 2)
				}
				a.End("")
			}
			h.Close()
		}()
	}
	for i, j := range joins {
		<-j.Done()
		got, want := j.Result(), StageMoved
		if i%(ranks+1) < ranks {
			want = StageFailed
		}
		if !got.Complete || got.Blocks[1] != StageMoved || got.Blocks[2] != want || len(got.Ranks) != ranks {
			t.Errorf("action %d: %+v", i, got)
		}
	}
	wg.Wait()
}
