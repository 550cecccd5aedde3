package oracle

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

// Subject is what is compared with the oracle. Check uses one from one goroutine.
type Subject interface {
	Apply(events.RouterEvent)
	Remove(plan.Owner)
	SetMembers([]plan.Member)
	// Ask answers for every target. The reply may be written over by the next one.
	Ask(local []uint64) Reply
	// Dump returns the inventory as stores of one block each.
	Dump() []events.RouterEvent
	// Pairs is how many blocks the owners hold together, and Blocks how many
	// different ones, in each tier.
	Count() (pairs, blocks [4]int)
}

// Reply is all that a subject says to a prompt.
type Reply struct {
	Hints     []Hint // of the targets, smallest first
	Intervals []plan.Interval
	Multi     []plan.Multi // of the targets, smallest first
	Scores    []plan.Score // of the owners, smallest first
}

// Hint is one target's answer.
type Hint struct {
	Choice plan.Choice
	Hashes []uint64 // none without a source
}

// Hints are the answers of a to each target.
func (a Answer) Hints() []Hint {
	var out []Hint
	for _, c := range a.Choices {
		out = append(out, Hint{c, a.Chain[:c.End]})
	}
	return out
}

// Counts says what the scenarios so far have been about, so that a test can tell
// that they were about something.
type Counts struct {
	Inventories, Events, Asks           int
	Roots, Continuations, Nones, Caches int
	OffChain                            int // targets whose own blocks are not the chain's
	Shared                              int // targets for which several sources do more than one
}

func (c *Counts) add(o Counts) {
	c.Inventories += o.Inventories
	c.Events += o.Events
	c.Asks += o.Asks
	c.Roots += o.Roots
	c.Continuations += o.Continuations
	c.Nones += o.Nones
	c.Caches += o.Caches
	c.OffChain += o.OffChain
	c.Shared += o.Shared
}

func (c *Counts) note(q *question, a Answer) {
	c.Asks++
	for _, ch := range a.Choices {
		switch ch.Kind {
		case plan.RootPrefix:
			c.Roots++
		case plan.Continuation:
			c.Continuations++
		default:
			c.Nones++
		}
		if ch.Source.Cache {
			c.Caches++
		}
		if target := q.member(workerOwner(ch.Target)); !target.on {
			c.OffChain++
		} else if q.cover(target).End > max(ch.End, ch.Frontier) {
			c.Shared++
		}
	}
}

// Difference is where a subject and the oracle part.
type Difference struct {
	Scenario Scenario
	Step     int
	What     string
}

func (d *Difference) Error() string {
	n := names{}
	list := d.Scenario.list(n)
	return fmt.Sprintf("%sstep %d: %s", list, d.Step, d.What)
}

// Check plays a scenario on a new subject and on the oracle. It returns nil if they
// agree at every step, and what the scenario was about. A subject that panics
// disagrees.
func Check(s Scenario, fresh func() Subject) (d *Difference, c Counts) {
	step := 0
	defer func() {
		if p := recover(); p != nil {
			d = &Difference{s, step, fmt.Sprintf("panic: %v", p)}
		}
	}()
	v, sub := NewInventory(), fresh()
	c.Inventories = s.Inventories
	var members []plan.Member
	fail := func(what string) *Difference { return &Difference{s, step, what} }
	for i, st := range s.Steps {
		step = i
		switch st.Kind {
		case Event:
			c.Events++
			v.Apply(st.Event)
			sub.Apply(st.Event)
		case Gone:
			v.Remove(st.Owner)
			sub.Remove(st.Owner)
		case Join:
			members = st.Members
			sub.SetMembers(members)
		case Replay:
			dump := sub.Dump()
			if what := sameDumps(dump, v.Dump()); what != "" {
				return fail(what), c
			}
			r := rand.New(rand.NewPCG(st.Shuffle, 1))
			r.Shuffle(len(dump), func(i, j int) { dump[i], dump[j] = dump[j], dump[i] })
			sub = fresh()
			sub.SetMembers(members)
			for _, e := range dump {
				sub.Apply(e)
			}
		case Ask:
			q := v.ask(members, st.Prompt)
			a := q.answer()
			c.note(q, a)
			if what := q.compare(a, sub.Ask(st.Prompt)); what != "" {
				return fail(what), c
			}
			if what := v.compareCounts(sub.Count()); what != "" {
				return fail(what), c
			}
		}
	}
	return nil, c
}

// compare says where a reply is not what it should be.
func (q *question) compare(a Answer, r Reply) string {
	if what := sameHints(r.Hints, a.Hints()); what != "" {
		return what
	}
	got, want := slices.Clone(r.Intervals), slices.Clone(a.Intervals)
	slices.SortFunc(got, compareIntervals)
	slices.SortFunc(want, compareIntervals)
	if !slices.Equal(got, want) {
		return fmt.Sprintf("intervals\n%+v, want\n%+v", got, want)
	}
	if len(r.Multi) != len(a.Choices) {
		return fmt.Sprintf("%d answers of several sources, want %d", len(r.Multi), len(a.Choices))
	}
	for i, m := range r.Multi {
		if m.Target != a.Choices[i].Target {
			return fmt.Sprintf("answer %d of several sources is for %v, want %v", i, m.Target, a.Choices[i].Target)
		}
		if what := q.wrong(m); what != "" {
			return fmt.Sprintf("several sources: %+v: %s", m, what)
		}
	}
	if want := q.v.scores(q.local); !slices.Equal(r.Scores, want) {
		return fmt.Sprintf("scores\n%+v, want\n%+v", r.Scores, want)
	}
	return ""
}

func compareIntervals(a, b plan.Interval) int {
	return cmp.Or(compareOwners(a.Source, b.Source), cmp.Compare(a.Start, b.Start), cmp.Compare(a.End, b.End))
}

// compareCounts says where counts are not what they should be.
func (v *Inventory) compareCounts(pairs, blocks [4]int) string {
	if p, b := v.Count(); p != pairs || b != blocks {
		return fmt.Sprintf("pairs %v and blocks %v by tier, want %v and %v", pairs, blocks, p, b)
	}
	return ""
}

// sameHints: one answer a target, smallest first.
func sameHints(got, want []Hint) string {
	if len(got) != len(want) {
		return fmt.Sprintf("answers for %d targets, want %d", len(got), len(want))
	}
	for i, w := range want {
		g := got[i]
		if g.Choice != w.Choice {
			return fmt.Sprintf("%s, want %s", choiceName(g.Choice), choiceName(w.Choice))
		}
		if !slices.Equal(g.Hashes, w.Hashes) {
			return fmt.Sprintf("%s names hashes\n%v, want\n%v", choiceName(g.Choice), g.Hashes, w.Hashes)
		}
	}
	return ""
}

func choiceName(c plan.Choice) string {
	s := fmt.Sprintf("target %d/%d frontier %d: ", c.Target.ID, c.Target.Rank, c.Frontier)
	switch c.Kind {
	case plan.None:
		s += "none"
		if c.End != 0 || c.Source != (plan.Owner{}) {
			s += fmt.Sprintf(" (but source %s, end %d)", ownerName(c.Source), c.End)
		}
		return s
	case plan.RootPrefix:
		s += "root prefix"
	case plan.Continuation:
		s += "continuation"
	}
	return fmt.Sprintf("%s of %s to %d", s, ownerName(c.Source), c.End)
}

// line is one stored block, without what a dump is free to choose.
type line struct {
	tier    events.Tier
	owner   plan.Owner
	speaker events.Worker
	at      Edge
	hash    uint64
}

func lines(dump []events.RouterEvent) (map[line]bool, string) {
	out := map[line]bool{}
	for _, e := range dump {
		o := workerOwner(e.Worker)
		if e.Domain == events.DomainCacheOwner {
			o = cacheOwner(e.Owner)
		}
		if e.Op != events.Stored || len(e.Blocks) != 1 {
			return nil, fmt.Sprintf("dump has %+v, which is no store of one block", e)
		}
		l := line{e.Tier, o, e.Worker, Edge{e.HasParent, e.Parent, e.Blocks[0].Local}, e.Blocks[0].Hash}
		if out[l] {
			return nil, fmt.Sprintf("dump has %+v twice", l)
		}
		out[l] = true
	}
	return out, ""
}

func sameDumps(got, want []events.RouterEvent) string {
	g, bad := lines(got)
	if bad != "" {
		return bad
	}
	w, _ := lines(want)
	var b strings.Builder
	for l := range g {
		if !w[l] {
			fmt.Fprintf(&b, "dump has %+v, which nobody holds\n", l)
		}
	}
	for l := range w {
		if !g[l] {
			fmt.Fprintf(&b, "dump lacks %+v\n", l)
		}
	}
	return b.String()
}

// Run checks scenarios of the seeds from seed on, on all cores, until they have had n
// inventories. It stops at the first difference, and returns it, a *Difference, with
// the shortest scenario found that still shows one. progress, if not nil, hears how
// many inventories are done, now and then, from any goroutine.
func Run(n int, seed uint64, fresh func() Subject, progress func(done int)) (Counts, error) {
	var (
		next atomic.Uint64
		stop atomic.Bool
		wg   sync.WaitGroup

		mu    sync.Mutex
		total Counts
		first *Difference // of those seen, the one of the lowest seed
	)
	next.Store(seed)
	for range runtime.GOMAXPROCS(0) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for !stop.Load() {
				d, c := Check(Make(next.Add(1)-1), fresh)
				mu.Lock()
				before := total.Inventories
				total.add(c)
				done := total.Inventories
				if d != nil && (first == nil || d.Scenario.Seed < first.Scenario.Seed) {
					first = d
				}
				mu.Unlock()
				if d != nil || done >= n {
					stop.Store(true)
				}
				if progress != nil && before/1000 != done/1000 {
					progress(done)
				}
			}
		}()
	}
	wg.Wait()
	if first == nil {
		return total, nil
	}
	return total, Shrink(first, fresh)
}
