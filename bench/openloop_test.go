package bench

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestOpenLoopCountsWaiting delays one call by ten intervals: the calls that
// were due meanwhile waited, and a closed loop would not say so.
func TestOpenLoopCountsWaiting(t *testing.T) {
	const interval = 2 * time.Millisecond
	n := 0
	h, err := openLoop(context.Background(), interval, 100*time.Millisecond, func() error {
		if n++; n == 5 {
			time.Sleep(10 * interval)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if h.TotalCount() != 50 || n != 50 {
		t.Errorf("%d calls, %d recorded, want 50", n, h.TotalCount())
	}
	late := int64(0)
	for _, bar := range h.Distribution() {
		if bar.From >= 2*interval.Nanoseconds() {
			late += bar.Count
		}
	}
	if late < 8 {
		t.Errorf("%d calls late by two intervals and more, want those that were due while the fifth slept", late)
	}
}

func TestOpenLoopEnds(t *testing.T) {
	boom := errors.New("boom")
	if _, err := openLoop(context.Background(), 1, time.Hour, func() error { return boom }); !errors.Is(err, boom) {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := openLoop(ctx, 1, time.Hour, func() error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestTimerLateness(t *testing.T) {
	stop := make(chan struct{})
	time.AfterFunc(30*time.Millisecond, func() { close(stop) })
	h := timerLateness(time.Millisecond, stop)
	if h.TotalCount() == 0 || h.Min() < 1 {
		t.Errorf("%d wakes, the earliest %d ns late", h.TotalCount(), h.Min())
	}
}
