package sim

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// explorations are small enough to be looked at whole, or nearly.
var explorations = map[string]Bounds{
	"timers":      {Route: wire.RouteShm, Timers: 3, Single: true, Lost: 1, Repeated: 1},
	"crash":       {Route: wire.RouteShm, Timers: 1, Crashes: 1, Single: true, Evictions: 1},
	"cross":       {Route: wire.RouteShm, Both: true, Evictions: 1, Repeated: 1},
	"put":         {Route: wire.RouteUCXPut, Timers: 2, Single: true, Lost: 1},
	"put-crash":   {Route: wire.RouteUCXPut, Crashes: 1, Single: true, Evictions: 1, Deposits: 1},
	"ghosts":      {Route: wire.RouteShm, Single: true, Crashes: 1, Ghosts: 1},
	"put-ghosts":  {Route: wire.RouteUCXPut, Single: true, Crashes: 1, Ghosts: 1},
	"cross-crash": {Route: wire.RouteShm, Both: true, Crashes: 1, Evictions: 1},
}

func TestExplore(t *testing.T) {
	limit := 6 * time.Second
	if testing.Short() {
		limit = time.Second
	}
	if *flagExplore > 0 {
		limit = *flagExplore
	}
	for name, b := range explorations {
		t.Run(name, func(t *testing.T) {
			b.Time = limit / time.Duration(len(explorations))
			x, err := Explore(b)
			if v := (*Violation)(nil); errors.As(err, &v) {
				t.Fatalf("after %+v: %s", x, v.Details())
			}
			t.Logf("%+v", x)
			if x.States < 50 && !testing.Short() { // a slow machine sees little in a short time
				t.Errorf("%d states only", x.States)
			}
		})
	}
}

// Without each of the rules that live in the block table, the shortest bad history
// is found.
func TestExploreBroken(t *testing.T) {
	both := Bounds{Route: wire.RouteShm, Both: true, Evictions: 1, Timers: 1}
	one := Bounds{Route: wire.RouteShm, Single: true, Evictions: 1, Deposits: 1, Timers: 2}
	for _, tt := range []struct {
		name string
		b    Bounds
		what broken
		want string
	}{
		{"M1", one, broken{takeover: true}, "whose mark was lifted"},
		{"M2", one, broken{hold: true}, "does not hold"},
		{"M2, evicted", one, broken{evictHeld: true}, "has no copy"},
		{"M3", both, broken{crossing: true}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := tt.b
			b.broken, b.Time = tt.what, 20*time.Second
			x, err := Explore(b)
			if err == nil {
				t.Fatalf("nothing found in %+v", x)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v\nwant %q", err, tt.want)
			}
			t.Logf("%+v: %v", x, err)
		})
	}
}
