package sim

import (
	"errors"
	"flag"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

var (
	flagSeed    = flag.Uint64("seed", 0, "seed of the schedule that TestReplay runs")
	flagNodes   = flag.Int("nodes", 0, "its nodes")
	flagExplore = flag.Duration("explore", 0, "time of TestExplore")
	flagMode    = flag.String("mode", "any", "its mode")
	flagN       = flag.Int("schedules", 0, "schedules that TestSchedules runs; 0: as many as time allows")
)

// failing runs schedules of a sort until one fails, the time is up, or n have run,
// and returns the failure of the least seed found.
func failing(o Options, n int, limit time.Duration) (Report, *Violation) {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		next  atomic.Uint64
		stop  atomic.Bool
		total Report
		found *Violation
	)
	end := time.Now().Add(limit)
	for range runtime.GOMAXPROCS(0) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			var mine Report
			for !stop.Load() && time.Now().Before(end) {
				i := next.Add(1)
				if n > 0 && i > uint64(n) {
					break
				}
				o := o
				o.Seed = i
				r, err := Run(o)
				mine.Add(&r)
				if v := (*Violation)(nil); errors.As(err, &v) {
					stop.Store(true)
					mu.Lock()
					if found == nil || v.Options.Seed < found.Options.Seed {
						found = v
					}
					mu.Unlock()
					break
				}
			}
			mu.Lock()
			total.Add(&mine)
			mu.Unlock()
		}()
	}
	wg.Wait()
	return total, found
}

func TestSchedules(t *testing.T) {
	limit := 8 * time.Second
	if testing.Short() {
		limit = time.Second
	}
	if *flagN > 0 {
		limit = time.Hour
	}
	began := time.Now()
	r, v := failing(Options{}, *flagN, limit)
	if v != nil {
		t.Fatalf("%s\nreplay: go test ./internal/sim -run TestReplay -seed=%d", Shrink(v, 200).Details(), v.Options.Seed)
	}
	t.Logf("%d schedules, %.0f/s: %+v", r.Schedules, float64(r.Schedules)/time.Since(began).Seconds(), r)
	if r.Schedules < 4000 {
		return // too few to have everything in them
	}
	for name, n := range map[string]int{"copies": r.Copies, "moves": r.Removed, "second names": r.Named, "deliveries": r.Delivered, "cuts": r.Cuts, "crashes": r.Crashes, "stalls": r.Stalls,
		"clock steps": r.ClockSteps, "lost": r.Lost, "repeated": r.Repeated, "ghosts": r.Ghosts, "corrupted": r.Corrupted, "broken payloads": r.Broken, "quarantined": r.Quarantined,
		"window": r.Window, "crossing": r.Kept[wire.StatusCrossing], "held": r.Kept[wire.StatusHeld], "marked": r.Kept[wire.StatusMarked],
		"redeposited": r.Kept[wire.StatusRedeposited], "no_evict": r.Kept[wire.StatusNoEvict], "group": r.Kept[wire.StatusGroup], "source": r.Kept[wire.StatusSource],
		"unknown": r.Kept[wire.StatusUnknownOp], "capacity": r.Kept[wire.StatusCapacity], "checksum": r.Failed[wire.StatusChecksum],
		"generation": r.Failed[wire.StatusGeneration], "resolved": r.Resolved, "unanswered": r.Unanswered, "timeout": r.Kept[wire.StatusTimeout]} {
		if n == 0 {
			t.Errorf("no %s in %d schedules", name, r.Schedules)
		}
	}
}

// TestReplay runs one schedule and shows all of it.
func TestReplay(t *testing.T) {
	if *flagSeed == 0 {
		t.Skip("needs -seed")
	}
	mode, err := ParseMode(*flagMode)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(Options{Seed: *flagSeed, Nodes: *flagNodes, Mode: mode, Trace: func(s string) { t.Log(s) }, Route: wire.RouteNone})
	if v := (*Violation)(nil); errors.As(err, &v) {
		t.Fatal(Shrink(v, 300).Details())
	} else if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", r)
}
