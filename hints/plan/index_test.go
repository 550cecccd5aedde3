package plan_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

func TestMeaninglessEvents(t *testing.T) {
	x := plan.New(plan.Config{})
	for _, ev := range []events.RouterEvent{
		{Op: events.Cleared + 1},
		{Domain: events.DomainCacheOwner + 1},
		{Tier: events.External + 1},
		{Op: events.Removed, Domain: events.DomainCacheOwner, Tier: events.Device},
	} {
		if err := x.Apply(&ev); !errors.Is(err, plan.ErrEvent) {
			t.Errorf("%+v: %v", ev, err)
		}
	}
	if err := x.Apply(&events.RouterEvent{Op: events.Cleared, Domain: events.DomainCacheOwner, Tier: 9}); err != nil {
		t.Errorf("Cleared is about all tiers: %v", err)
	}
	if st := x.Stats(); st.Owners != 0 || st.Pairs != [4]int{} {
		t.Errorf("%+v", st)
	}
}

// What Cleared is about, by its domain.
func TestCleared(t *testing.T) {
	w, other := events.Worker{ID: 1, Rank: 1}, events.Worker{ID: 1}
	for _, tt := range []struct {
		domain events.Domain
		pairs  [4]int
	}{
		{events.DomainLegacy, [4]int{1, 2, 1, 1}}, // other's, and the owner of its events
		{events.DomainWorker, [4]int{1, 3, 2, 2}},
		{events.DomainCacheOwner, [4]int{2, 4, 2, 2}}, // the one that the event names
	} {
		x := plan.New(plan.Config{})
		cache := func(by events.Worker, key byte, tier events.Tier) *events.RouterEvent {
			ev := stored(by, tier, 0, 5)
			ev.Domain, ev.Owner = events.DomainCacheOwner, events.OwnerKey{key}
			return ev
		}
		for tier := events.Device; tier <= events.External; tier++ {
			apply(t, x, stored(w, tier, 0, 5), stored(other, tier, 0, 5))
		}
		apply(t, x, cache(other, 1, events.HostPinned), cache(w, 1, events.Disk), cache(w, 1, events.External)) // now of w
		apply(t, x, cache(w, 2, events.HostPinned), cache(other, 2, events.HostPinned))                         // now of other
		apply(t, x, cache(w, 1, events.HostPinned), stored(w, events.HostPinned, 5, 6))
		if st := x.Stats(); st.Pairs != [4]int{2, 5, 3, 3} || st.Blocks != [4]int{1, 2, 1, 1} {
			t.Fatalf("%+v", st)
		}
		apply(t, x, &events.RouterEvent{Worker: w, Op: events.Cleared, Domain: tt.domain, Owner: events.OwnerKey{1}})
		if st := x.Stats(); st.Pairs != tt.pairs {
			t.Errorf("domain %d: %v are left, want %v", tt.domain, st.Pairs, tt.pairs)
		}
	}
}

func TestLimits(t *testing.T) {
	x := plan.New(plan.Config{MaxBlocks: 3, MaxOwners: 2})
	a, b, c := events.Worker{ID: 1}, events.Worker{ID: 2}, events.Worker{ID: 3}
	apply(t, x, stored(a, events.HostPinned, 0, 1, 2, 3, 4, 5), stored(b, events.HostPinned, 0, 1, 2))
	if st := x.Stats(); st.Refused != 2 || st.Pairs[1] != 5 || st.Blocks[1] != 3 {
		t.Errorf("%+v", st)
	}
	apply(t, x, stored(c, events.HostPinned, 0, 1))
	if st := x.Stats(); st.Refused != 3 || st.Owners != 2 {
		t.Errorf("%+v", st)
	}
	// What is given back can be had again, by others too.
	apply(t, x, &events.RouterEvent{Worker: a, Tier: events.HostPinned, Op: events.Removed, Hashes: []uint64{3, 2, 1}})
	apply(t, x, stored(c, events.HostPinned, 0, 1))
	if st := x.Stats(); st.Refused != 3 || st.Owners != 2 || st.Pairs[1] != 3 {
		t.Errorf("%+v", st)
	}
	// Members count as owners; the first in their order stay.
	x.SetTopology([]plan.Member{{Owner: plan.Owner{Worker: a}, Capable: true}, {Owner: plan.Owner{Worker: b}}, {Owner: plan.Owner{Worker: c}}})
	if st := x.Stats(); st.Refused != 4 || st.Owners != 2 || st.Targets != 0 {
		t.Errorf("%+v", st)
	}
	if err := x.Check(); err != nil {
		t.Error(err)
	}
}

// The index stays bounded under an engine that gives one hash, or one place, to more
// and more blocks.
func TestTwinsAreLimited(t *testing.T) {
	x := plan.New(plan.Config{})
	for i := range 300 {
		w := events.Worker{ID: uint64(i)}
		ev := stored(w, events.HostPinned, uint64(1000+i), 7)
		ev.Blocks[0].Local = uint64(i)
		apply(t, x, ev)
	}
	if st := x.Stats(); st.Blocks[1] < 10 || st.Blocks[1] > 100 || st.Conflicts == 0 {
		t.Errorf("one hash under many parents: %+v", st)
	}
	x = plan.New(plan.Config{})
	w := events.Worker{ID: 1}
	for i := range uint64(300) {
		// The first block goes, the second keeps its chunk.
		ev := stored(w, events.HostPinned, 0, 1000+2*i, 1001+2*i)
		ev.Blocks[0].Local = 5
		apply(t, x, ev, &events.RouterEvent{Worker: w, Tier: events.HostPinned, Op: events.Removed, Hashes: []uint64{1000 + 2*i}})
	}
	if st := x.Stats(); st.Blocks[1] < 10 || st.Blocks[1] > 100 || st.Conflicts == 0 {
		t.Errorf("one place after the other: %+v", st)
	}
}

// A block that goes and comes back among others takes no more room than it had.
func TestStoredAgain(t *testing.T) {
	x := plan.New(plan.Config{})
	w := events.Worker{ID: 1}
	apply(t, x, stored(w, events.HostPinned, 0, 1, 2, 3, 4, 5))
	var was plan.Stats
	for i := range 1000 {
		if i == 200 {
			was = x.Stats()
		}
		apply(t, x, &events.RouterEvent{Worker: w, Tier: events.HostPinned, Op: events.Removed, Hashes: []uint64{3}},
			stored(w, events.HostPinned, 2, 3))
	}
	if st := x.Stats(); st.Pairs != was.Pairs || st.Conflicts != 0 || st.Bytes > was.Bytes+1024 {
		t.Errorf("%+v, was %+v", st, was)
	}
	if err := x.Check(); err != nil {
		t.Error(err)
	}
}

// Memory follows what is held: an index that was emptied, or that holds little of
// what it held, does not grow as it is used on.
func TestMemoryIsUsedAgain(t *testing.T) {
	x := plan.New(plan.Config{})
	var c chains
	var most int64
	var kept []uint64
	for round := range 20 {
		for i := range 12 {
			w := events.Worker{ID: uint64(i % 4)}
			s, r := cut(w, c.next(100+7*i), 50)
			for j := range s {
				apply(t, x, &s[j])
			}
			for j := range r {
				// One block of a hundred stays until the next round.
				h := r[j].Hashes
				apply(t, x, &events.RouterEvent{Worker: w, Tier: r[j].Tier, Op: events.Removed, Hashes: slices.Clone(h[1:])})
				kept = append(kept, h[0])
			}
		}
		if st := x.Stats(); round == 10 {
			most = st.Bytes
		} else if round > 10 && st.Bytes > most+most/4 {
			t.Fatalf("round %d: %d bytes, were %d", round, st.Bytes, most)
		}
		for i := range 4 {
			apply(t, x, &events.RouterEvent{Worker: events.Worker{ID: uint64(i)}, Tier: events.HostPinned, Op: events.Removed, Hashes: kept})
		}
		kept = kept[:0]
	}
	if err := x.Check(); err != nil {
		t.Error(err)
	}
}

func TestTopology(t *testing.T) {
	x := plan.New(plan.Config{})
	a, b, c := events.Worker{ID: 1}, events.Worker{ID: 2}, events.Worker{ID: 3}
	apply(t, x, stored(b, events.HostPinned, 0, 1, 2), stored(c, events.HostPinned, 0, 1))
	member := func(w events.Worker, endpoint string, capable bool) plan.Member {
		return plan.Member{Owner: plan.Owner{Worker: w}, Type: "prefill", Endpoint: endpoint, Capable: capable}
	}
	s := x.NewScratch()
	x.SetTopology([]plan.Member{member(c, "tcp://c:1", true), member(b, "tcp://old:1", false), member(a, "", true), member(b, "tcp://b:1", false)})
	m := x.Match(s, []uint64{101, 102})
	x.SetTopology(nil) // the lookup has its snapshot already
	got := x.Plan(s, m, nil)
	want := []plan.Choice{
		{Target: a, Kind: plan.RootPrefix, Source: plan.Owner{Worker: b}, End: 2},
		{Target: c, Frontier: 1, Kind: plan.RootPrefix, Source: plan.Owner{Worker: b}, End: 2},
	}
	if !slices.Equal(got, want) {
		t.Errorf("choices %+v", got)
	}
	if endpoint, _, _ := s.Hint(got[0]); endpoint != "tcp://b:1" {
		t.Errorf("the last of two members should count; endpoint %q", endpoint)
	}
	if got := x.Choose(s, []uint64{101, 102}, got); len(got) != 0 {
		t.Errorf("choices without a topology: %+v", got)
	}
	if got := x.Choose(s, nil, nil); len(got) != 0 {
		t.Errorf("choices for no prompt: %+v", got)
	}
}

// Lookups with a Scratch that has been used allocate nothing.
func TestLookupsAllocateNothing(t *testing.T) {
	x := plan.New(plan.Config{})
	var members []plan.Member
	for i := range 20 {
		members = append(members, plan.Member{Owner: plan.Owner{Worker: events.Worker{ID: uint64(i)}}, Type: "decode", Capable: i%2 == 0, Endpoint: fmt.Sprint("tcp://h:", i+1)})
	}
	x.SetTopology(members)
	var c chains
	chain := c.next(1000)
	var locals []uint64
	for _, b := range chain {
		locals = append(locals, b.Local)
	}
	for i := range 20 {
		s, _ := cut(events.Worker{ID: uint64(i)}, chain[:100+40*i], 30)
		for j := range s {
			s[j].Tier = events.Tier(i % 2)
			if j != i {
				apply(t, x, &s[j])
			}
		}
	}
	s := x.NewScratch()
	var choices []plan.Choice
	var multis []plan.Multi
	var scores []plan.Score
	var envelope []byte
	if n := testing.AllocsPerRun(100, func() {
		choices = x.Choose(s, locals, choices)
		envelope = s.AppendEnvelope(envelope[:0], "id", choices[0])
		multis = x.PlanMulti(s, x.Match(s, locals), multis)
		scores = x.Scores(s, x.Match(s, locals), scores)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if choices[0].Kind == plan.None || len(multis[0].Segments) == 0 || len(scores) == 0 {
		t.Errorf("%+v %+v %+v", choices[0], multis[0], scores)
	}
}

// A target whose own blocks leave the chain gets nothing that would go on from them.
func TestStrayTarget(t *testing.T) {
	x := plan.New(plan.Config{})
	stray, plain, source := events.Worker{ID: 1}, events.Worker{ID: 2}, events.Worker{ID: 3}
	x.SetTopology([]plan.Member{
		{Owner: plan.Owner{Worker: stray}, Type: "decode", Capable: true},
		{Owner: plan.Owner{Worker: plain}, Type: "decode", Capable: true},
		{Owner: plan.Owner{Worker: source}, Type: "decode", Endpoint: "tcp://h:1"},
	})
	bent := stored(stray, events.HostPinned, 0, 1, 2, 777, 778)
	bent.Blocks[2].Local, bent.Blocks[3].Local = 103, 104
	apply(t, x, bent, stored(plain, events.Device, 0, 1, 2, 3, 4), stored(source, events.HostPinned, 4, 5, 6))
	s := x.NewScratch()
	locals := []uint64{101, 102, 103, 104, 105, 106, 107}
	m := x.Match(s, locals)
	want := []plan.Choice{
		{Target: stray, Frontier: 4},
		{Target: plain, Frontier: 4, Kind: plan.Continuation, Source: plan.Owner{Worker: source}, End: 6},
	}
	if got := x.Plan(s, m, nil); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	got := x.PlanMulti(s, m, nil)
	if len(got[0].Segments) != 0 || len(got[1].Segments) != 1 {
		t.Errorf("of several sources: %+v", got)
	}
	// What a source has from the root on it may have.
	apply(t, x, stored(source, events.Device, 0, 1, 2, 3, 4))
	m = x.Match(s, locals)
	if got := x.Plan(s, m, nil); got[0].Kind != plan.RootPrefix || got[0].End != 6 {
		t.Errorf("%+v", got)
	}
	if got := x.PlanMulti(s, m, nil); !slices.Equal(got[0].Segments, []plan.Segment{{Source: plan.Owner{Worker: source}, From: 4, To: 6}}) {
		t.Errorf("of several sources: %+v", got)
	}
}
