package sim

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// Every rule of the block table is needed, and the checks see when it is missing.
func TestBroken(t *testing.T) {
	for _, tt := range []struct {
		name string
		o    Options
		want string // a regular expression
	}{
		{"M1: removes what the move has not marked any more", Options{broken: broken{takeover: true}}, "whose mark was lifted"},
		{"M2: commits without the hold", Options{broken: broken{hold: true}}, "does not hold"},
		{"M2: evicts what is held", Options{broken: broken{evictHeld: true}}, "has no copy"},
		{"M3: holds what is marked", Options{broken: broken{crossing: true}}, "mark|has no copy"},
		{"frees what is claimed", Options{Route: wire.RouteShm, broken: broken{freeClaimed: true}}, "free"},
		{"serves what has taken a block's place", Options{Nodes: 2, Mode: Calm, broken: broken{generation: true}}, "another block of"},
		{"answers hashes in another order", Options{broken: broken{shuffle: true}}, "which nobody gave"},
		{"commits unverified", Options{broken: broken{tear: true}}, "bytes that are not its own"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, v := failing(tt.o, 20_000, time.Minute)
			if v == nil {
				t.Fatalf("nothing found in %d schedules", r.Schedules)
			}
			if !regexp.MustCompile(tt.want).MatchString(v.What) {
				t.Errorf("seed %d: %s\nwant %q", v.Options.Seed, v.What, tt.want)
			}
			t.Logf("after %d schedules: %s", r.Schedules, v.What)
		})
	}
}

// A schedule is a function of its options, also of what is left out.
func TestDeterminism(t *testing.T) {
	for seed := range uint64(50) {
		var first, second []string
		o := Options{Seed: seed + 1, Skip: []int{int(seed) % 7}}
		o.Trace = func(s string) { first = append(first, s) }
		if _, err := Run(o); err != nil {
			t.Fatal(err)
		}
		o.Trace = func(s string) { second = append(second, s) }
		if _, err := Run(o); err != nil {
			t.Fatal(err)
		}
		if strings.Join(first, "\n") != strings.Join(second, "\n") {
			t.Fatalf("seed %d: two runs differ", seed+1)
		}
	}
}

// A violation names a schedule that shows it again, and what is shrunk still fails.
func TestShrink(t *testing.T) {
	_, v := failing(Options{broken: broken{evictHeld: true}}, 20_000, time.Minute)
	if v == nil {
		t.Fatal("nothing found")
	}
	small := Shrink(v, 100)
	if _, err := Run(small.Options); err == nil {
		t.Fatal("the smaller one does not fail")
	}
	if len(small.Plan) > len(v.Plan) || len(small.Plan) == 0 || len(small.Last) == 0 {
		t.Errorf("plan of %d events, before %d", len(small.Plan), len(v.Plan))
	}
	if !strings.Contains(small.Details(), "last events") {
		t.Error("no events shown")
	}
}

func TestOptions(t *testing.T) {
	for _, n := range []int{1, -1, MaxNodes + 1} {
		if _, err := Run(Options{Nodes: n}); err == nil {
			t.Errorf("%d nodes are accepted", n)
		}
	}
	if _, err := ParseMode("gentle"); err == nil {
		t.Error("an unknown mode is accepted")
	}
	for _, route := range []wire.Route{wire.RouteShm, wire.RouteUCX, wire.RouteUCXPut, wire.RouteStream} {
		for mode := Calm; mode < modeEnd; mode++ {
			for nodes := 2; nodes <= MaxNodes; nodes++ {
				o := Options{Seed: uint64(nodes), Nodes: nodes, Mode: mode, Route: route}
				if _, err := Run(o); err != nil {
					t.Error(err)
				}
			}
		}
	}
}
