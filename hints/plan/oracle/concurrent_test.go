package oracle

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

// Workers report at the same time, while others ask. Nobody disagrees about hashes,
// so that in the end the order does not matter; and whatever is seen on the way
// names the chain's blocks, a source that may serve, and no more than there is.
func TestConcurrent(t *testing.T) {
	const blocks, workers = 150, 12
	rounds := 300
	if testing.Short() {
		rounds = 60
	}
	c := newChain(11, blocks)
	x := plan.New(plan.Config{})
	v := NewInventory()
	var members []plan.Member
	var speakers []events.Worker
	for i := range uint64(workers) {
		s := events.Worker{ID: i / 2, Rank: uint32(i % 2)}
		speakers = append(speakers, s)
		members = append(members, plan.Member{Owner: workerOwner(s), Type: "decode", Endpoint: "tcp://s:1", Capable: i%3 > 0})
		members = append(members, plan.Member{Owner: k(byte(i)), Type: "decode", Endpoint: "tcp://c:1", HasAttached: true, Attached: s})
	}
	x.SetTopology(members)

	stop := make(chan struct{})
	var writers, readers sync.WaitGroup
	var mu sync.Mutex // guards v
	for i, s := range speakers {
		writers.Add(1)
		go func() {
			defer writers.Done()
			r := rand.New(rand.NewPCG(uint64(i), 5))
			for range rounds {
				o := workerOwner(s)
				if r.IntN(3) == 0 {
					o = k(byte(i))
				}
				e := randomEvent(r, c, o, s)
				if err := x.Apply(&e); err != nil {
					t.Errorf("Apply(%+v): %v", e, err)
				}
				mu.Lock()
				v.Apply(e)
				mu.Unlock()
			}
		}()
	}
	for i := range 2 {
		readers.Add(1)
		go func() {
			defer readers.Done()
			scratch := x.NewScratch()
			var choices []plan.Choice
			r := rand.New(rand.NewPCG(uint64(i), 6))
			for {
				select {
				case <-stop:
					return
				default:
				}
				local := c.local[:1+r.IntN(blocks)]
				choices = x.Choose(scratch, local, choices)
				if what := unsound(members, c, local, scratch, choices); what != "" {
					t.Error(what)
					return
				}
			}
		}()
	}
	readers.Add(1)
	go func() {
		defer readers.Done()
		for {
			select {
			case <-stop:
				return
			default:
			}
			x.SetTopology(members)
			x.Dump(func(e *events.RouterEvent) bool { return len(e.Blocks) == 1 })
		}
	}()
	writers.Wait()
	close(stop)
	readers.Wait()

	sub := &index{Index: x, scratch: x.NewScratch()}
	if what := sameDumps(sub.Dump(), v.Dump()); what != "" {
		t.Fatal(what)
	}
	q := v.ask(members, c.local)
	if what := q.compare(q.answer(), sub.Ask(c.local)); what != "" {
		t.Fatal(what)
	}
	if what := v.compareCounts(sub.Count()); what != "" {
		t.Fatal(what)
	}
}

func randomEvent(r *rand.Rand, c chain, o plan.Owner, s events.Worker) events.RouterEvent {
	tier := events.HostPinned
	if !o.Cache && r.IntN(3) == 0 {
		tier = events.Device
	}
	from := r.IntN(len(c.local))
	if r.IntN(3) == 0 {
		from = 0
	}
	to := from + 1 + r.IntN(len(c.local)-from)
	e := c.store(tier, o, s, from, to)
	switch r.IntN(10) {
	case 0, 1, 2, 3:
		e.Op, e.Blocks, e.Hashes = events.Removed, nil, c.ext[from:to]
	case 4:
		e = events.RouterEvent{Worker: s, Domain: e.Domain, Owner: e.Owner, Op: events.Cleared}
	}
	return e
}

// unsound says what is wrong with answers in themselves, whatever the inventory is.
func unsound(members []plan.Member, c chain, local []uint64, s *plan.Scratch, choices []plan.Choice) string {
	find := func(o plan.Owner) *member {
		i := slices.IndexFunc(members, func(m plan.Member) bool { return m.Owner == o })
		if i < 0 {
			return nil
		}
		return &member{Member: members[i]}
	}
	for _, ch := range choices {
		target := find(workerOwner(ch.Target))
		if target == nil || !target.isTarget() || ch.Frontier < 0 || ch.Frontier > len(local) {
			return fmt.Sprintf("%+v for %d blocks", ch, len(local))
		}
		_, hashes, ok := s.Hint(ch)
		if ok != (ch.Kind != plan.None) {
			return fmt.Sprintf("%+v: hint %t", ch, ok)
		}
		if !ok {
			continue
		}
		source := find(ch.Source)
		if source == nil || !eligible(source, target) || ch.End <= ch.Frontier || ch.End > len(local) {
			return fmt.Sprintf("%+v for %d blocks", ch, len(local))
		}
		if !slices.Equal(hashes, c.ext[:ch.End]) {
			return fmt.Sprintf("%+v names %v", ch, hashes)
		}
	}
	return ""
}

// Owners that are no members come and go, with blocks of the same chain in every
// tier, so that their places are used again and again. What members get does not
// change meanwhile.
func TestComingAndGoing(t *testing.T) {
	const blocks = 100
	rounds := 2000
	if testing.Short() {
		rounds = 300
	}
	c := newChain(12, blocks)
	b := newTable(blocks).targets(w(1), w(2), w(3)).attached(k(1), w(2)).sources(w(4), w(5), k(2))
	b.c = c
	b.device(w(1), 0, 30).device(w(2), 0, 10).host(w(2), 10, 50)
	b.host(w(4), 20, 60).host(w(5), 30, 45).host(w(5), 50, 90).host(k(1), 45, 100).host(k(2), 0, 25)
	x := plan.New(plan.Config{MaxOwners: 2048})
	v := NewInventory()
	var members []plan.Member
	for _, s := range b.steps {
		switch s.Kind {
		case Event:
			v.Apply(s.Event)
			if err := x.Apply(&s.Event); err != nil {
				t.Fatal(err)
			}
		case Join:
			members = s.Members
		}
	}
	x.SetTopology(members)

	stop := make(chan struct{})
	var comers, readers sync.WaitGroup
	for i := range 3 {
		comers.Add(1)
		go func() {
			defer comers.Done()
			r := rand.New(rand.NewPCG(uint64(i), 7))
			for n := range rounds {
				s := events.Worker{ID: uint64(1000 + i*rounds + n)}
				o := workerOwner(s)
				if r.IntN(3) == 0 {
					o = cacheOwner(events.OwnerKey{9, byte(i), byte(n), byte(n >> 8)})
				}
				for range 1 + r.IntN(4) {
					e := randomEvent(r, c, o, s)
					if err := x.Apply(&e); err != nil {
						t.Errorf("Apply(%+v): %v", e, err)
					}
				}
				x.RemoveOwner(o)
			}
		}()
	}
	want := v.ask(members, c.local).reply()
	for range 2 {
		readers.Add(1)
		go func() {
			defer readers.Done()
			sub := &index{Index: x, scratch: x.NewScratch()}
			for {
				select {
				case <-stop:
					return
				default:
				}
				if what := compareMembers(members, sub.Ask(c.local), want); what != "" {
					t.Error(what)
					return
				}
			}
		}()
	}
	comers.Wait()
	close(stop)
	readers.Wait()
	sub := &index{Index: x, scratch: x.NewScratch()}
	if what := sameDumps(sub.Dump(), v.Dump()); what != "" {
		t.Fatal(what)
	}
	if r := sub.Ask(c.local); !reflect.DeepEqual(r.Hints, want.Hints) || !reflect.DeepEqual(r.Multi, want.Multi) || !slices.Equal(r.Scores, want.Scores) {
		t.Errorf("in the end %+v, want %+v", r, want)
	}
}

// compareMembers compares what members get. A part of a reply may be that nothing is
// known, which the index says of a lookup beside which too many owners come and go.
func compareMembers(members []plan.Member, got, want Reply) string {
	ignorant := !slices.ContainsFunc(got.Hints, func(h Hint) bool { return h.Choice.Frontier > 0 || h.Choice.Kind != plan.None })
	if what := sameHints(got.Hints, want.Hints); what != "" && !ignorant {
		return what
	}
	ignorant = !slices.ContainsFunc(got.Multi, func(m plan.Multi) bool { return m.Frontier > 0 || len(m.Segments) > 0 })
	if !reflect.DeepEqual(got.Multi, want.Multi) && !ignorant {
		return fmt.Sprintf("several sources: %+v, want %+v", got.Multi, want.Multi)
	}
	scores := slices.DeleteFunc(got.Scores, func(s plan.Score) bool {
		return !slices.ContainsFunc(members, func(m plan.Member) bool { return m.Owner == s.Owner })
	})
	if !slices.Equal(scores, want.Scores) && len(got.Scores) > 0 {
		return fmt.Sprintf("scores %+v, want %+v", scores, want.Scores)
	}
	return ""
}
