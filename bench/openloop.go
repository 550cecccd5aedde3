package bench

import (
	"context"
	"runtime"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// newHistogram holds 1 ns to a minute with three significant digits.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, time.Minute.Nanoseconds(), 3)
}

// percentiles are those that a curve of latencies is drawn from: nines and what
// lies between. 100 is the longest.
var percentiles = []float64{50, 75, 90, 95, 99, 99.5, 99.9, 99.95, 99.99, 99.999, 100}

// addCurve adds one run of a latency's curve: a result for each percentile that h
// has values beyond, in unit, of which one is so many nanoseconds.
func (rep *Report) addCurve(r Result, impl string, h *hdrhistogram.Histogram, unitNs float64) {
	params := r.Params
	for _, p := range percentiles {
		if beyond := float64(h.TotalCount()) * (100 - p) / 100; p < 100 && beyond < 1 {
			continue
		}
		r.Params = append(slices.Clip(params), Param{"percentile", p})
		s := rep.result(r).series(impl)
		s.Runs = append(s.Runs, float64(h.ValueAtQuantile(p))/unitNs)
	}
}

// openLoop calls op at a fixed rate for d and records, for each call, the time
// from when it was due to when it was done: a call that starts late since an
// earlier one was slow is slow as well, as it is for whoever sent it.
//
// It yields between calls instead of sleeping, so that the figures are not the
// timer's.
func openLoop(ctx context.Context, interval, d time.Duration, op func() error) (*hdrhistogram.Histogram, error) {
	h := newHistogram()
	defer asClient(ctx)()
	start := time.Now()
	for due := time.Duration(0); due < d; due += interval {
		if err := ctx.Err(); err != nil {
			return h, err
		}
		for time.Since(start) < due {
			runtime.Gosched()
		}
		if err := op(); err != nil {
			return h, err
		}
		h.RecordValue(max(1, (time.Since(start) - due).Nanoseconds()))
	}
	return h, nil
}

// timerLateness sleeps until each of a row of instants, interval apart, and
// records how late it wakes, until stop is closed.
func timerLateness(interval time.Duration, stop <-chan struct{}) *hdrhistogram.Histogram {
	h := newHistogram()
	start := time.Now()
	for due := interval; ; due += interval {
		select {
		case <-stop:
			return h
		case <-time.After(due - time.Since(start)):
		}
		h.RecordValue(max(1, (time.Since(start) - due).Nanoseconds()))
	}
}
