package plan_test

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
	"github.com/kvcr-go/kvcr/hints/plan/fixture"
)

// Writers store and remove at random while lookups run. Each worker only ever holds
// its own ranges of a prompt; whatever moment a lookup sees, its answers must come from
// those, and what nobody touches must be seen all the time.
func TestLookupsBesideWriters(t *testing.T) {
	const (
		prompts, blocks = 6, 400
		workers         = 8
		fixed           = 100 // worker of the last number always holds [0, fixed) of every prompt
	)
	x := plan.New(plan.Config{})
	var locals, hashes [prompts][]uint64
	for i := range locals {
		locals[i], hashes[i] = fixture.Prompt(uint64(i/2), blocks) // pairs share a head
		if i%2 == 1 {
			l, _ := fixture.Prompt(uint64(i), blocks)
			for p := 150; p < blocks; p++ {
				locals[i][p] = l[p]
				hashes[i][p] = fixture.Chain(hashes[i][p-1], l[p])
			}
		}
	}
	worker := func(i int) events.Worker { return events.Worker{ID: uint64(i + 1)} }
	members := make([]plan.Member, workers)
	for i := range members {
		members[i] = plan.Member{Owner: plan.Owner{Worker: worker(i)}, Type: "decode", Capable: true, Endpoint: "tcp://host:1"}
	}
	x.SetTopology(members)
	store := func(i, prompt int, tier events.Tier, from, to int) {
		ev := events.RouterEvent{Worker: worker(i), Tier: tier, Op: events.Stored}
		if from > 0 {
			ev.HasParent, ev.Parent = true, hashes[prompt][from-1]
		}
		for p := from; p < to; p++ {
			ev.Blocks = append(ev.Blocks, events.Block{Hash: hashes[prompt][p], Local: locals[prompt][p]})
		}
		if err := x.Apply(&ev); err != nil {
			t.Error(err)
		}
	}
	for i := range prompts {
		store(workers-1, i, events.HostPinned, 0, fixed)
	}
	// Worker i holds nothing at or above limit(i), nor in [0, i) on the host.
	limit := func(i int) int { return blocks - 40*i }

	rounds := 1500
	if testing.Short() {
		rounds = 150
	}
	var writers, readers sync.WaitGroup
	var stop atomic.Bool
	for i := range workers - 1 {
		writers.Add(1)
		go func() {
			defer writers.Done()
			r := rand.New(rand.NewPCG(1, uint64(i)))
			for n := range rounds {
				prompt := r.IntN(prompts)
				tier := events.Tier(r.IntN(2))
				from := i + r.IntN(limit(i)-i)
				if tier == events.Device {
					from = 0
				}
				to := from + 1 + r.IntN(limit(i)-from)
				switch r.IntN(5) {
				case 0, 1, 2:
					store(i, prompt, tier, from, to)
				case 3:
					ev := events.RouterEvent{Worker: worker(i), Tier: tier, Op: events.Removed}
					for p := to - 1; p >= from; p-- {
						if p%17 != 0 {
							ev.Hashes = append(ev.Hashes, hashes[prompt][p])
						}
					}
					x.Apply(&ev)
				case 4:
					if n%20 == 0 {
						x.Apply(&events.RouterEvent{Worker: worker(i), Op: events.Cleared})
					}
					if n%50 == 0 {
						x.SetTopology(members)
					}
				}
			}
		}()
	}
	for k := range 3 {
		readers.Add(1)
		go func() {
			defer readers.Done()
			s := x.NewScratch()
			r := rand.New(rand.NewPCG(2, uint64(k)))
			var choices []plan.Choice
			var multis []plan.Multi
			for !stop.Load() {
				prompt := r.IntN(prompts)
				m := x.Match(s, locals[prompt])
				check := func(source plan.Owner, from, to int) {
					w := int(source.Worker.ID) - 1
					if w == workers-1 {
						if from > 0 && from >= fixed || to > fixed {
							t.Errorf("worker %d serves [%d, %d), and never held that", w, from, to)
						}
					} else if to > limit(w) {
						t.Errorf("worker %d serves [%d, %d), and never held that", w, from, to)
					}
					for p, h := range s.Chain() {
						if h != hashes[prompt][p] {
							t.Errorf("hash %d of the chain is not the prompt's", p)
							return
						}
					}
				}
				choices = x.Plan(s, m, choices)
				for _, c := range choices {
					if c.Target == worker(workers-1) && c.Frontier != fixed {
						t.Errorf("frontier of the fixed worker is %d", c.Frontier)
					}
					if c.Target != worker(workers-1) && c.Frontier < fixed && c.End < fixed {
						t.Errorf("the fixed worker was not seen: %+v", c)
					}
					if c.Kind != plan.None {
						check(c.Source, c.Frontier, c.End)
						if _, h, ok := s.Hint(c); !ok || len(h) != c.End {
							t.Errorf("no hint for %+v", c)
						}
					}
				}
				multis = x.PlanMulti(s, m, multis)
				for _, a := range multis {
					for _, seg := range a.Segments {
						check(seg.Source, seg.From, seg.To)
					}
				}
				if t.Failed() {
					return
				}
			}
		}()
	}
	readers.Add(1)
	go func() {
		defer readers.Done()
		for !stop.Load() {
			n := 0
			x.Dump(func(ev *events.RouterEvent) bool {
				if ev.Worker == worker(workers-1) {
					n++
				}
				return true
			})
			if want := 3 * fixed; n != want { // a prompt of each pair has the other's head
				t.Errorf("a dump has %d blocks of the fixed worker, want %d", n, want)
				return
			}
		}
	}()
	writers.Wait()
	stop.Store(true)
	readers.Wait()
	if err := x.Check(); err != nil {
		t.Error(err)
	}
	for i := range workers {
		x.RemoveOwner(plan.Owner{Worker: worker(i)})
	}
	if st := x.Stats(); st.Pairs != [4]int{} {
		t.Errorf("pairs are left: %+v", st)
	}
	if err := x.Check(); err != nil {
		t.Error(err)
	}
}

// A block that stays is seen while its chunk is rewritten around it, again and again.
func TestMovedBlocksAreSeen(t *testing.T) {
	x := plan.New(plan.Config{})
	locals, hashes := fixture.Prompt(1, 64)
	w := events.Worker{ID: 1}
	x.SetTopology([]plan.Member{{Owner: plan.Owner{Worker: w}, Type: "decode", Capable: true}})
	all := &events.RouterEvent{Worker: w, Tier: events.HostPinned, Op: events.Stored}
	most := &events.RouterEvent{Worker: w, Tier: events.HostPinned, Op: events.Removed}
	for p := range hashes {
		all.Blocks = append(all.Blocks, events.Block{Hash: hashes[p], Local: locals[p]})
		if p > 2 {
			most.Hashes = append(most.Hashes, hashes[p])
		}
	}
	apply(t, x, all)
	var stop atomic.Bool
	var readers sync.WaitGroup
	for range 2 {
		readers.Add(1)
		go func() {
			defer readers.Done()
			s := x.NewScratch()
			var choices []plan.Choice
			for !stop.Load() {
				choices = x.Choose(s, locals[:3], choices)
				if choices[0].Frontier != 3 {
					t.Errorf("frontier %d, want 3", choices[0].Frontier)
					return
				}
			}
		}()
	}
	rounds := 6000
	if testing.Short() {
		rounds = 1000
	}
	for range rounds {
		apply(t, x, most, all)
	}
	stop.Store(true)
	readers.Wait()
	if err := x.Check(); err != nil {
		t.Error(err)
	}
}

// Owners come and go, so that slots go from one to another; each lookup names the
// owner that holds the block.
func TestSlotsChangeOwners(t *testing.T) {
	x := plan.New(plan.Config{MaxOwners: 8})
	locals, hashes := fixture.Prompt(1, 20)
	stays := events.Worker{ID: 1}
	x.SetTopology([]plan.Member{{Owner: plan.Owner{Worker: stays}, Type: "decode", Capable: true}})
	var stop atomic.Bool
	var readers sync.WaitGroup
	for range 2 {
		readers.Add(1)
		go func() {
			defer readers.Done()
			s := x.NewScratch()
			var scores []plan.Score
			for !stop.Load() {
				scores = x.Scores(s, x.Match(s, locals), scores)
				for _, sc := range scores {
					// Worker n holds n%20 blocks, in the tier n%2.
					n := int(sc.Owner.Worker.ID)
					if sc.Hits[1-n%2] != 0 || sc.Hits[n%2] > n%20 {
						t.Errorf("worker %d is said to hold %v", n, sc.Hits)
						return
					}
				}
			}
		}()
	}
	for n := 2; n < 200; n++ {
		ev := events.RouterEvent{Worker: events.Worker{ID: uint64(n)}, Tier: events.Tier(n % 2), Op: events.Stored}
		for p := range n % 20 {
			ev.Blocks = append(ev.Blocks, events.Block{Hash: hashes[p], Local: locals[p]})
		}
		for tries := 0; ; tries++ {
			refused := x.Stats().Refused
			if err := x.Apply(&ev); err != nil {
				t.Fatal(err)
			}
			if x.Stats().Refused == refused {
				break
			}
			// Lookups keep all the slots that were given back; they are over soon.
			if tries == 1_000_000 {
				t.Fatal("no slot comes back")
			}
			runtime.Gosched()
		}
		if n > 4 {
			x.RemoveOwner(plan.Owner{Worker: events.Worker{ID: uint64(n - 3)}})
		}
	}
	stop.Store(true)
	readers.Wait()
}
