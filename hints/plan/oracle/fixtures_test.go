package oracle

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

// fixture is one of the 15 inventories of the contract's vectors/fixtures.json.
type fixture struct {
	ID           string
	Blocks       int
	LocalPrefix  int `json:"local_prefix"`
	Sources      int
	TargetDepths []struct{ Device, Host, Frontier int } `json:"target_depths"`
	Holds        holds
	CacheOwners  *struct{ Count, Start, End int } `json:"cache_owners"`
	Expected     struct {
		Runs    int `json:"runs_over_suffix"`
		Kept    int `json:"intervals_kept"`
		Choices []*struct {
			Source string
			Index  int
			End    int
			Kind   string
		} `json:"choice_per_target"`
	}
}

type holds struct {
	Kind                      string
	Start, End, Step, On, Off int
	Ranges                    [][2]int
}

// of returns the half-open ranges that source i holds.
func (h holds) of(t *testing.T, i int) (out [][2]int) {
	switch h.Kind {
	case "range":
		return [][2]int{{h.Start, h.End}}
	case "ranges":
		return h.Ranges
	case "staggered":
		return [][2]int{{h.Start + i*h.Step, h.End}}
	case "phase":
		for a := h.Start + h.On*(i%2); a < h.End; a += h.On + h.Off {
			out = append(out, [2]int{a, min(a+h.On, h.End)})
		}
		return out
	}
	t.Fatalf("fixtures.json has holds of kind %q, which this test does not know", h.Kind)
	return nil
}

func fixtures(t *testing.T) []fixture {
	const name = "../../../../shared/contract/vectors/fixtures.json"
	data, err := os.ReadFile(name)
	if err != nil {
		t.Skipf("no ../shared/contract/vectors/fixtures.json beside the repository")
	}
	var file struct{ Fixtures []fixture }
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Fixtures) != 15 {
		t.Fatalf("%d fixtures, want 15", len(file.Fixtures))
	}
	return file.Fixtures
}

func (f fixture) seed() uint64 { return uint64(f.Blocks) }

// Sources come after targets by id: a target must not win ties by its number.
const firstSource = 1000

func fixtureKey(i int) (k events.OwnerKey) {
	binary.BigEndian.PutUint64(k[8:], uint64(i)+1)
	return k
}

// build returns a fixture as a scenario that ends with its question. The hashes are
// not those of the contract's section 3: nothing here depends on them.
func (f fixture) build(t *testing.T) (members []plan.Member, stores []events.RouterEvent, local []uint64) {
	c := newChain(f.seed(), f.Blocks)
	put := func(tier events.Tier, o plan.Owner, speaker events.Worker, r [2]int) {
		if r[0] < r[1] {
			stores = append(stores, c.store(tier, o, speaker, r[0], r[1]))
		}
	}
	for i, d := range f.TargetDepths {
		w := events.Worker{ID: uint64(i)}
		// No source is a target: without an endpoint none is asked.
		members = append(members, plan.Member{Owner: workerOwner(w), Type: "aggregated", Capable: true})
		put(events.Device, workerOwner(w), w, [2]int{0, d.Device})
		put(events.HostPinned, workerOwner(w), w, [2]int{d.Device, d.Device + d.Host})
	}
	for i := range f.Sources {
		w := events.Worker{ID: firstSource + uint64(i)}
		members = append(members, plan.Member{Owner: workerOwner(w), Type: "aggregated", Endpoint: "tcp://s:1", Capable: false})
		for _, r := range f.Holds.of(t, i) {
			put(events.HostPinned, workerOwner(w), w, r)
		}
	}
	if f.CacheOwners != nil {
		for i := range f.CacheOwners.Count {
			w := events.Worker{ID: uint64(i)}
			o := cacheOwner(fixtureKey(i))
			members = append(members, plan.Member{Owner: o, Type: "aggregated", Endpoint: "tcp://c:1", HasAttached: true, Attached: w})
			put(events.HostPinned, o, w, [2]int{f.CacheOwners.Start, f.CacheOwners.End})
		}
	}
	return members, stores, c.local
}

// want is the choices that the file states.
func (f fixture) want() (out []plan.Choice) {
	for i, e := range f.Expected.Choices {
		c := plan.Choice{Target: events.Worker{ID: uint64(i)}, Frontier: f.TargetDepths[i].Frontier}
		if e != nil {
			c.End = e.End
			c.Kind = map[string]plan.Kind{"root_prefix": plan.RootPrefix, "continuation": plan.Continuation}[e.Kind]
			c.Source = workerOwner(events.Worker{ID: firstSource + uint64(e.Index)})
			if e.Source == "cache_owner" {
				c.Source = cacheOwner(fixtureKey(e.Index))
			}
		}
		out = append(out, c)
	}
	return out
}

// skipLong leaves the large ones out of short runs.
func (f fixture) skipLong(t *testing.T) {
	held := 0
	for i := range f.Sources {
		for _, r := range f.Holds.of(t, i) {
			held += r[1] - r[0]
		}
	}
	if testing.Short() && held > 60_000 {
		t.Skipf("%d blocks of sources: not in short runs", held)
	}
}

func TestFixtures(t *testing.T) {
	for _, f := range fixtures(t) {
		t.Run(f.ID, func(t *testing.T) {
			f.skipLong(t)
			members, stores, local := f.build(t)
			v := NewInventory()
			for _, e := range stores {
				v.Apply(e)
			}
			q := v.ask(members, local)
			total := 0
			for i := range q.all {
				if q.all[i].isTarget() {
					continue
				}
				for _, r := range runs(q.all[i].has) {
					if r[1] > f.LocalPrefix {
						total++
					}
				}
			}
			a := q.answer()
			if total != f.Expected.Runs || len(a.Intervals) != f.Expected.Kept {
				t.Errorf("%d runs, %d intervals kept, want %d and %d", total, len(a.Intervals), f.Expected.Runs, f.Expected.Kept)
			}
			want := f.want()
			if len(want) != len(a.Choices) {
				t.Fatalf("%d choices, want %d", len(a.Choices), len(want))
			}
			for i, c := range a.Choices {
				if c != want[i] {
					t.Errorf("target %d: %+v, want %+v", i, c, want[i])
				}
			}
		})
	}
}

// The index answers the fixtures as the file says, also when made from its own dump.
func TestFixturesIndex(t *testing.T) {
	for _, f := range fixtures(t) {
		t.Run(f.ID, func(t *testing.T) {
			f.skipLong(t)
			members, stores, local := f.build(t)
			x := plan.New(plan.Config{})
			for i := range stores {
				if err := x.Apply(&stores[i]); err != nil {
					t.Fatal(err)
				}
			}
			f.checkIndex(t, x, members, local)
			if f.Blocks <= 2048 && !testing.Short() {
				y := plan.New(plan.Config{})
				x.Dump(func(e *events.RouterEvent) bool { return y.Apply(e) == nil })
				f.checkIndex(t, y, members, local)
			}
		})
	}
}

func (f fixture) checkIndex(t *testing.T, x *plan.Index, members []plan.Member, local []uint64) {
	t.Helper()
	x.SetTopology(members)
	s := x.NewScratch()
	choices := x.Choose(s, local, nil)
	if got := s.Intervals(nil); len(got) != f.Expected.Kept {
		t.Errorf("%d intervals kept, want %d", len(got), f.Expected.Kept)
	}
	want := f.want()
	if !slices.Equal(choices, want) {
		t.Errorf("choices %+v, want %+v", choices, want)
	}
	ext := newChain(f.seed(), f.Blocks).ext
	for _, c := range choices {
		if _, hashes, ok := s.Hint(c); ok != (c.Kind != plan.None) || !slices.Equal(hashes, ext[:c.End]) {
			t.Errorf("target %d: hint %t of %d hashes, want the %d of the chain", c.Target.ID, ok, len(hashes), c.End)
		}
	}
	for i, m := range x.PlanMulti(s, x.Match(s, local), nil) {
		at := want[i].Frontier
		for _, g := range m.Segments {
			if g.From != at || g.To <= at {
				t.Fatalf("target %d: segments %+v", i, m.Segments)
			}
			at = g.To
		}
		if m.Target != want[i].Target || m.Frontier != want[i].Frontier || at < want[i].End {
			t.Errorf("target %d: %+v", i, m)
		}
		// Counted by hand: in f06 and f09 every 16 blocks have other sources, up to
		// the end; in f14 nobody has the hole, and it is behind the last three.
		segments := map[string]int{"f06": (f.Blocks - want[i].Frontier) / 16, "f09": (f.Blocks - want[i].Frontier) / 16, "f07": 0}
		n, ok := segments[f.ID]
		if !ok && want[i].Kind != plan.None {
			n = 1
		}
		if len(m.Segments) != n {
			t.Errorf("target %d: %d segments, want %d", i, len(m.Segments), n)
		}
	}
}
