package plan_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

// BenchmarkBeside times lookups (Plan, all targets) in an index of 64 workers: alone,
// and while a writer applies a million block events a second. Each prompt is 1000
// blocks that one worker has on the host; 8 targets have a quarter on the device.
func BenchmarkBeside(b *testing.B) {
	const workers, length, targets = 64, 1000, 8
	x := plan.New(plan.Config{})
	var members []plan.Member
	for w := range workers {
		members = append(members, plan.Member{Owner: plan.Owner{Worker: events.Worker{ID: uint64(w)}}, Type: "aggregated", Endpoint: "tcp://h:1"})
	}
	for t := range targets {
		members = append(members, plan.Member{Owner: plan.Owner{Worker: events.Worker{ID: uint64(1000 + t)}}, Type: "aggregated", Capable: true})
	}
	x.SetTopology(members)
	var prompts [][]uint64
	var removes []events.RouterEvent
	var c chains
	for range *benchBlocks / length {
		for w := range workers {
			chain := c.next(length)
			if (len(prompts)+w)%97 == 0 { // some are looked up
				var locals []uint64
				for _, bl := range chain {
					locals = append(locals, bl.Local)
				}
				prompts = append(prompts, locals)
				for t := range targets {
					s, _ := cut(events.Worker{ID: uint64(1000 + t)}, chain[:length/4], length)
					s[0].Tier = events.Device
					x.Apply(&s[0])
				}
			}
			s, r := cut(events.Worker{ID: uint64(w)}, chain, 64)
			for i := range s {
				x.Apply(&s[i])
			}
			if len(removes) < 100_000 {
				removes = append(removes, r...)
			}
		}
	}
	s := x.NewScratch()
	measure := func(n int) (p50, p99 time.Duration) {
		r := rand.New(rand.NewPCG(1, 2))
		var choices []plan.Choice
		took := make([]time.Duration, 0, n)
		for range n {
			m := x.Match(s, prompts[r.IntN(len(prompts))])
			start := time.Now()
			choices = x.Plan(s, m, choices)
			took = append(took, time.Since(start))
		}
		slices.Sort(took)
		return took[n/2], took[n*99/100]
	}
	lookups := max(b.N, 20_000)
	measure(lookups)
	quiet50, quiet99 := measure(lookups)

	stop, stopped := make(chan struct{}), make(chan int)
	go func() {
		const perMs = 1000
		applied, began := 0, time.Now()
		for {
			select {
			case <-stop:
				stopped <- int(float64(applied) / time.Since(began).Seconds())
				return
			default:
			}
			if due := int(time.Since(began) / time.Millisecond * perMs); applied >= due {
				time.Sleep(time.Millisecond)
				continue
			}
			// A chain comes, the like of it goes.
			w := events.Worker{ID: c.n % workers}
			ev, rm := cut(w, c.next(512), 64)
			for i := range ev {
				x.Apply(&ev[i])
			}
			for i := range rm {
				x.Apply(&rm[i])
			}
			applied += 1024
		}
	}()
	busy50, busy99 := measure(lookups)
	close(stop)
	rate := <-stopped
	b.ReportMetric(float64(quiet50)/1e3, "quiet-p50-µs")
	b.ReportMetric(float64(quiet99)/1e3, "quiet-p99-µs")
	b.ReportMetric(float64(busy50)/1e3, "busy-p50-µs")
	b.ReportMetric(float64(busy99)/1e3, "busy-p99-µs")
	b.ReportMetric(float64(rate)/1e6, "Mblockevents/s")
	b.ReportMetric(0, "ns/op")
}
