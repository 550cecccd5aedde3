package hints

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// testAdapter has keys of 8 bytes, which are the hash; longer ones have none.
type testAdapter struct{}

func (testAdapter) Encode(h uint64) (Key, bool) { return Key{Key: key(h)}, true }
func (testAdapter) ToRouter(_ string, k []byte) (uint64, bool) {
	if len(k) != 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(k), true
}
func (testAdapter) FromRouter(h uint64) (Key, error) { return Key{Key: key(h)}, nil }

func key(h uint64) []byte { return binary.BigEndian.AppendUint64(nil, h) }

func keysOf(hashes ...uint64) (keys [][]byte) {
	for _, h := range hashes {
		keys = append(keys, key(h))
	}
	return keys
}

func newAdvice(t testing.TB, cfg AdviceConfig) *Advice {
	a, err := NewAdvice(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func fetch(t testing.TB, a *Advice, id, host string, hashes ...uint64) {
	t.Helper()
	if err := a.Submit(id, &Transfer{Source: "tcp://" + host + ":1", Hashes: hashes}); err != nil {
		t.Fatal(err)
	}
}

// planned is a plan in short: host and keys.
func planned(ps []SourcePlan) string {
	s := ""
	for _, p := range ps {
		s += fmt.Sprintf("%c%v ", p.Source[len("tcp://")], p.Keys)
	}
	return s
}

func TestPlan(t *testing.T) {
	a := newAdvice(t, AdviceConfig{})
	if err := a.Submit("r", &Transfer{Source: "tcp://a:1", Hashes: []uint64{1, 2, 0}, NoRetain: true, NoFramework: true, Move: true}); err != nil {
		t.Fatal(err)
	}
	fetch(t, a, "r", "b", 2, 3)
	keys := append(keysOf(3, 2, 1, 9, 0), []byte("no hash"))
	got := a.Plan("r", "ns", keys, testAdapter{})
	want := []SourcePlan{
		{Source: "tcp://a:1", Keys: []int{1, 2, 4}, Listed: []int{1, 2, 4}, NoRetain: true, NoFramework: true},
		{Source: "tcp://b:1", Keys: []int{0, 1}, Listed: []int{0, 1}},
	}
	for i := range got {
		got[i].version = 0
	}
	if !reflect.DeepEqual(got, want) { // Move is not followed without RequestMoves
		t.Errorf("%+v\nwant %+v", got, want)
	}
	if got := a.Plan("r", "ns", keys, nil); len(got) != 0 {
		t.Errorf("without an adapter: %+v", got)
	}
	if got := a.Plan("other", "ns", keys, testAdapter{}); got != nil {
		t.Errorf("for another request: %+v", got)
	}
	if a.Known("r", 9) || !a.Known("r", 3) || !a.Known("r", 0) || a.Known("other", 3) {
		t.Error("Known is wrong")
	}
	if a.Knows("r", "ns", key(9), testAdapter{}) || !a.Knows("r", "ns", key(3), testAdapter{}) {
		t.Error("Knows is wrong")
	}
	// Hashes replaced, by the same source.
	fetch(t, a, "r", "a", 9)
	if got := planned(a.Plan("r", "ns", keys, testAdapter{})); got != "a[3] b[0 1] " {
		t.Errorf("replaced: %s", got)
	}
	a.Discard("r")
	if got := a.Plan("r", "ns", keys, testAdapter{}); got != nil {
		t.Errorf("discarded: %+v", got)
	}
}

func TestOpportunistic(t *testing.T) {
	a := newAdvice(t, AdviceConfig{Opportunistic: true, RequestMoves: true})
	if err := a.Submit("r", &Transfer{Source: "tcp://a:1", Hashes: []uint64{1}, Move: true}); err != nil {
		t.Fatal(err)
	}
	keys := append(keysOf(5, 1), []byte("no hash"))
	got := a.Plan("r", "", keys, testAdapter{})
	if len(got) != 1 || !slices.Equal(got[0].Keys, []int{0, 1, 2}) || !slices.Equal(got[0].Listed, []int{1}) || !got[0].Move {
		t.Errorf("%+v", got)
	}
	a.Report("r", "", keys, &got[0], []int{0, 1}, nil, false)
	got = a.Plan("r", "", keys, testAdapter{})
	if len(got) != 1 || !slices.Equal(got[0].Keys, []int{2}) || len(got[0].Listed) != 0 {
		t.Errorf("after misses: %+v", got)
	}
}

func TestReport(t *testing.T) {
	a := newAdvice(t, AdviceConfig{Misses: 2})
	fetch(t, a, "r", "a", 1, 2, 3, 4, 5)
	fetch(t, a, "r", "b", 1, 2, 3, 4, 5)
	keys := keysOf(1, 2, 3, 4, 5)
	plan := func() string { return planned(a.Plan("r", "n", keys, testAdapter{})) }
	p := a.Plan("r", "n", keys, testAdapter{})
	a.Report("r", "n", keys, &p[0], []int{0, 1}, []int{1}, false)
	if got := plan(); got != "a[1 2 3 4] b[0 1 2 3 4] " {
		t.Errorf("a miss: %s", got)
	}
	if got := planned(a.Plan("r", "other", keys, testAdapter{})); got != "a[0 1 2 3 4] b[0 1 2 3 4] " {
		t.Errorf("the miss is one in another namespace: %s", got)
	}
	a.Report("r", "n", keys, &p[0], []int{2, 3, 4}, nil, false)
	if got := plan(); got != "a[1 3 4] b[0 1 2 3 4] " {
		t.Errorf("more misses than are remembered: %s", got)
	}
	a.Report("r", "n", keys, &p[1], []int{0, 1}, []int{0}, true)
	if got := plan(); got != "a[1 3 4] " {
		t.Errorf("a failure of b: %s", got)
	}
	if c := a.Counts(); c.Misses != 2 || c.Failures != 1 || c.Hashes != 12 {
		t.Errorf("%+v", c)
	}
	// The same source again: all is forgiven.
	fetch(t, a, "r", "b", 1)
	fetch(t, a, "r", "a", 1, 3)
	if got := plan(); got != "a[0 2] b[0] " {
		t.Errorf("replaced: %s", got)
	}
	// Late reports of old plans.
	a.Report("r", "n", keys, &p[0], nil, nil, true)
	a.Report("r", "n", keys, &p[1], []int{0}, nil, false)
	a.Report("gone", "n", keys, &p[0], nil, nil, true)
	if got := plan(); got != "a[0 2] b[0] " {
		t.Errorf("a late report counts: %s", got)
	}
	a.Discard("r")
	a.Report("r", "n", keys, &p[0], []int{0}, nil, false)
	if c := a.Counts(); c.Hashes != 0 || c.Requests != 0 {
		t.Errorf("%+v", c)
	}
}

func TestPoisonOnConflict(t *testing.T) {
	a := newAdvice(t, AdviceConfig{PoisonOnConflict: true})
	fetch(t, a, "r", "a", 1)
	var r *Rejection
	if err := a.Submit("r", &Transfer{Source: "tcp://b:1", Hashes: []uint64{1}}); !errors.As(err, &r) || r.Reason != SourceConflict {
		t.Errorf("a second source: %v", err)
	}
	if got := a.Plan("r", "", keysOf(1), testAdapter{}); len(got) != 0 || a.Known("r", 1) {
		t.Errorf("poisoned, but planned: %+v", got)
	}
	fetch(t, a, "r", "a", 2)
	if got := planned(a.Plan("r", "", keysOf(1, 2), testAdapter{})); got != "a[1] " {
		t.Errorf("the first source again: %s", got)
	}
	if c := a.Counts(); c.Conflicts != 1 || c.Submitted != 2 || c.Replaced != 1 || c.Hashes != 1 {
		t.Errorf("%+v", c)
	}
}

func TestAdviceBounds(t *testing.T) {
	now := time.Duration(0)
	clock := func() time.Duration { return now }
	a := newAdvice(t, AdviceConfig{Requests: 3, MaxAge: time.Minute, Now: clock})
	has := func(ids string) {
		t.Helper()
		got := ""
		for id := 'a'; id <= 'h'; id++ {
			if a.Known(string(id), 1) {
				got += string(id)
			}
		}
		if got != ids {
			t.Errorf("advice for %q, want %q", got, ids)
		}
	}
	for _, id := range []string{"a", "b", "c"} {
		fetch(t, a, id, "x", 1)
	}
	fetch(t, a, "a", "x", 1) // now b is the oldest
	fetch(t, a, "d", "x", 1)
	has("acd")
	fetch(t, a, "e", "x", 1)
	fetch(t, a, "f", "x", 1)
	has("def")
	now += 59 * time.Second
	fetch(t, a, "e", "y", 1) // begins its time anew
	has("def")
	now += time.Second
	has("e")
	if c := a.Counts(); c.Pushed != 3 || c.Expired != 2 || c.Requests != 1 || c.Hashes != 2 {
		t.Errorf("%+v", c)
	}
	now += time.Minute
	if c := a.Counts(); c.Requests != 0 || c.Hashes != 0 || c.Expired != 3 {
		t.Errorf("%+v", c)
	}

	a = newAdvice(t, AdviceConfig{Hashes: 10, Sources: 2})
	for i, id := range []string{"a", "b", "c"} {
		fetch(t, a, id, "x", slices.Repeat([]uint64{1}, 3+i)...)
	}
	has("bc")
	keys := keysOf(1, 1)
	p := a.Plan("c", "", keys, testAdapter{})
	a.Report("c", "", keys, &p[0], []int{0}, nil, false)
	has("bc") // 4 + 5 + a miss
	a.Report("c", "", keysOf(7), &p[0], []int{0}, nil, false)
	has("c")
	fetch(t, a, "b", "x", 1)
	has("bc")
	fetch(t, a, "c", "y", 1, 1, 1)
	has("c")
	var r *Rejection
	if err := a.Submit("c", &Transfer{Source: "tcp://z:1", Hashes: []uint64{1}}); !errors.As(err, &r) || r.Reason != LimitExceeded {
		t.Errorf("a third source: %v", err)
	}
	fetch(t, a, "h", "x", make([]uint64, 11)...)
	has("")
	for _, tt := range []struct {
		id   string
		p    Transfer
		want Reason
	}{
		{"", Transfer{Source: "tcp://a:1", Hashes: []uint64{1}}, NoRequestID},
		{string(make([]byte, maxRequestID+1)), Transfer{Source: "tcp://a:1", Hashes: []uint64{1}}, LimitExceeded},
		{"r", Transfer{Source: "tcp://a", Hashes: []uint64{1}}, InvalidSource},
		{"r", Transfer{Source: "tcp://a:1"}, MissingHashes},
	} {
		if err := a.Submit(tt.id, &tt.p); !errors.As(err, &r) || r.Reason != tt.want {
			t.Errorf("%+v: %v, want %v", tt.p, err, tt.want)
		}
	}
	for _, bad := range []AdviceConfig{{Requests: -1}, {Hashes: -1}, {Sources: -1}, {Sources: 1025}, {Misses: -1}, {MaxAge: -1}} {
		if _, err := NewAdvice(bad); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// modelSource and modelAdvice are the table's rules in their plainest form.
type modelSource struct {
	host   string
	hashes []uint64
	missed map[uint64]bool
	failed bool
	serial int
}

type modelRequest struct {
	id      string
	born    time.Duration
	sources []*modelSource
}

// Random operations against a list of requests, oldest first.
func TestAdviceModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Duration(0)
		cfg := AdviceConfig{
			Requests: rapid.IntRange(1, 6).Draw(t, "requests"), Hashes: rapid.IntRange(40, 400).Draw(t, "hashes"), Sources: 3, Misses: 4,
			MaxAge: 100, Opportunistic: rapid.Bool().Draw(t, "opportunistic"), PoisonOnConflict: rapid.Bool().Draw(t, "poison"),
			Now: func() time.Duration { return now },
		}
		a, err := NewAdvice(cfg)
		if err != nil {
			t.Fatal(err)
		}
		var model []*modelRequest
		find := func(id string) int {
			return slices.IndexFunc(model, func(r *modelRequest) bool { return r.id == id })
		}
		weight := func() (n int) {
			for _, r := range model {
				for _, s := range r.sources {
					n += len(s.hashes) + len(s.missed)
				}
			}
			return n
		}
		expire := func() {
			model = slices.DeleteFunc(model, func(r *modelRequest) bool { return now-r.born >= 100 })
		}
		shrink := func() {
			for len(model) > cfg.Requests || weight() > cfg.Hashes {
				model = model[1:]
			}
		}
		type heldPlan struct {
			id     string
			plan   SourcePlan
			serial int
		}
		var held []heldPlan
		keys := keysOf(0, 1, 2, 3, 4, 5, 6, 7)
		id := rapid.SampledFrom([]string{"q", "r", "s", "t", "u", "v", "w", "x"})
		serial := 0
		t.Repeat(map[string]func(*rapid.T){
			"fetch": func(t *rapid.T) {
				expire()
				id, host := id.Draw(t, "id"), rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "host")
				hashes := rapid.SliceOfN(rapid.Uint64Range(0, 7), 1, 60).Draw(t, "hashes")
				err := a.Submit(id, &Transfer{Source: "tcp://" + host + ":1", Hashes: hashes})
				clone := slices.Clone(hashes)
				clear(hashes) // they are the caller's again
				i := find(id)
				serial++
				fresh := &modelSource{host: host, hashes: clone, missed: map[uint64]bool{}, serial: serial}
				want := NoReason
				var r *modelRequest
				if i < 0 {
					r = &modelRequest{id: id, sources: []*modelSource{fresh}}
				} else {
					r = model[i]
					s := slices.IndexFunc(r.sources, func(s *modelSource) bool { return s.host == host })
					switch {
					case s >= 0:
						r.sources[s] = fresh
					case cfg.PoisonOnConflict:
						r.sources[0].failed = true
						want = SourceConflict
					case len(r.sources) == cfg.Sources:
						want = LimitExceeded
					default:
						r.sources = append(r.sources, fresh)
					}
				}
				var rej *Rejection
				if got := errors.As(err, &rej); got != (want != NoReason) || got && rej.Reason != want {
					t.Fatalf("%v, want %v", err, want)
				}
				if want != NoReason {
					return
				}
				if i >= 0 {
					model = slices.Delete(model, i, i+1)
				}
				r.born = now
				model = append(model, r)
				shrink()
			},
			"discard": func(t *rapid.T) {
				id := id.Draw(t, "id")
				a.Discard(id)
				if i := find(id); i >= 0 {
					model = slices.Delete(model, i, i+1)
				}
			},
			"wait": func(t *rapid.T) { now += time.Duration(rapid.IntRange(0, 60).Draw(t, "time")) },
			"plan": func(t *rapid.T) {
				expire()
				id := id.Draw(t, "id")
				got := a.Plan(id, "", keys, testAdapter{})
				want := ""
				var serials []int
				if i := find(id); i >= 0 {
					for _, s := range model[i].sources {
						var may []int
						for k := range keys {
							if !s.failed && !s.missed[uint64(k)] && (cfg.Opportunistic || slices.Contains(s.hashes, uint64(k))) {
								may = append(may, k)
							}
						}
						if may != nil {
							want += fmt.Sprintf("%s%v ", s.host, may)
							serials = append(serials, s.serial)
						}
					}
				}
				if planned(got) != want {
					t.Fatalf("%q: plan %s, want %s", id, planned(got), want)
				}
				for i, p := range got {
					held = append(held, heldPlan{id, p, serials[i]})
				}
			},
			"report": func(t *rapid.T) {
				expire() // Report does not, but the next Plan does
				if len(held) == 0 {
					return
				}
				h := held[rapid.IntRange(0, len(held)-1).Draw(t, "plan")]
				failed := rapid.Bool().Draw(t, "failed")
				n := rapid.IntRange(0, len(h.plan.Keys)).Draw(t, "asked")
				asked := h.plan.Keys[:n]
				got := asked[:rapid.IntRange(0, n).Draw(t, "delivered")]
				a.Counts() // expires
				a.Report(h.id, "", keys, &h.plan, asked, got, failed)
				i := find(h.id)
				if i < 0 {
					return
				}
				for _, s := range model[i].sources {
					if s.serial != h.serial {
						continue
					}
					if failed {
						s.failed = true
						continue
					}
					for _, k := range asked[len(got):] {
						if s.missed[uint64(k)] || len(s.missed) < cfg.Misses {
							s.missed[uint64(k)] = true
						}
					}
				}
				shrink()
			},
			"": func(t *rapid.T) {
				expire()
				if c := a.Counts(); c.Requests != len(model) || c.Hashes != weight() {
					t.Fatalf("%d requests with %d hashes, want %d with %d", c.Requests, c.Hashes, len(model), weight())
				}
			},
		})
	})
}

// The memory of a set that was let go serves the next one, which has nothing of it.
func TestHashSetAgain(t *testing.T) {
	for round := range uint64(10) {
		hashes := make([]uint64, 100)
		for i := range hashes {
			hashes[i] = round*1000 + uint64(i)
		}
		s := newHashSet(hashes)
		if !s.has(round*1000+99) || round > 0 && s.has(round*1000-901) || s.has(0) != (round == 0) {
			t.Fatalf("round %d: the set has what the one before had", round)
		}
		s.release()
	}
}

// meddler changes the advice while a plan is being made.
type meddler struct {
	testAdapter
	meddle func()
}

func (m meddler) ToRouter(ns string, k []byte) (uint64, bool) {
	m.meddle()
	return m.testAdapter.ToRouter(ns, k)
}

// A plan in the making keeps what it has begun with.
func TestPlanKeepsItsAdvice(t *testing.T) {
	a := newAdvice(t, AdviceConfig{})
	fetch(t, a, "r", "a", 1, 2)
	m := meddler{meddle: func() {
		a.Discard("r")
		fetch(t, a, "s", "b", 8, 9)
	}}
	if got := planned(a.Plan("r", "", keysOf(1, 2, 8, 9), m)); got != "a[0 1] " {
		t.Errorf("plan %s", got)
	}
}

func TestHashSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		some := rapid.OneOf(rapid.Uint64Range(0, 50), rapid.Uint64())
		in := rapid.SliceOfN(some, 1, 300).Draw(t, "in")
		s := newHashSet(in)
		for range 2 {
			for _, h := range append(rapid.SliceOf(some).Draw(t, "ask"), in...) {
				if s.has(h) != slices.Contains(in, h) {
					t.Fatalf("has(%d) is %t", h, s.has(h))
				}
			}
		}
		s.release()
	})
}

// Requests come, are planned and go, from many goroutines; what one holds stays as it
// was, and nothing is left in the end.
func TestAdviceConcurrent(t *testing.T) {
	a := newAdvice(t, AdviceConfig{Requests: 20, Hashes: 5000})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range 150 {
				id := fmt.Sprint((g + i) % 30)
				base := uint64((g+i)%30) * 1000 // hashes of a request are its own
				hashes := make([]uint64, 1+(i*37)%200)
				for k := range hashes {
					hashes[k] = base + uint64(k)
				}
				if err := a.Submit(id, &Transfer{Source: "tcp://a:1", Hashes: hashes}); err != nil {
					t.Error(err)
				}
				keys := keysOf(base, base+500, base+999999)
				for _, p := range a.Plan(id, "", keys, testAdapter{}) {
					if !slices.Equal(p.Keys, []int{0}) {
						t.Errorf("request %s: plan %v", id, p.Keys)
					}
					a.Report(id, "", keys, &p, p.Keys, nil, i%5 == 0)
				}
				if a.Known(id, base+500) {
					t.Error("a hash of nobody is known")
				}
				if i%4 == 0 {
					a.Discard(id)
				}
			}
		}()
	}
	wg.Wait()
	if c := a.Counts(); c.Requests > 20 || c.Hashes > 5000 {
		t.Errorf("%+v", c)
	}
	for i := range 30 {
		a.Discard(fmt.Sprint(i))
	}
	if c := a.Counts(); c.Requests != 0 || c.Hashes != 0 {
		t.Errorf("%+v", c)
	}
}
