package faults

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
)

// witness is the peer that nothing happens to: this process. It fetches from those
// that are meant to live, without a pause, and none of its fetches may fail.
type witness struct {
	t    testing.TB
	e    *kvcr.Engine
	keys []string

	mu     sync.Mutex // held by who fetches, or changes who is fetched from
	from   []string   // endpoints
	times  []time.Duration
	failed error

	stop chan struct{}
	done sync.WaitGroup
}

// witnessed are the keys that each process must have for the witness.
var witnessed = names("s", 4)

func watch(t testing.TB, routes []string) *witness {
	t.Helper()
	e, err := settings{Name: "witness", Routes: routes}.open(nil)
	if err != nil {
		t.Fatal(err)
	}
	w := &witness{t: t, e: e, keys: witnessed, stop: make(chan struct{})}
	w.done.Add(1)
	go w.run()
	t.Cleanup(w.close)
	return w
}

func (w *witness) close() {
	select {
	case <-w.stop:
		return
	default:
	}
	close(w.stop)
	w.done.Wait()
	if w.failed != nil {
		w.t.Error("a peer that nothing happened to:", w.failed)
	}
	if err := w.e.Close(); err != nil {
		w.t.Errorf("the witness: %v", err)
	}
}

func (w *witness) run() {
	defer w.done.Done()
	for i := 0; ; i++ {
		select {
		case <-w.stop:
			return
		case <-time.After(time.Millisecond):
		}
		w.mu.Lock()
		if len(w.from) > 0 && w.failed == nil {
			reasons, took, err := w.fetch(w.from[i%len(w.from)], w.keys, 5*time.Second)
			if err == nil && !all(reasons, "ok") {
				err = fmt.Errorf("%v", reasons)
			}
			w.failed = err
			w.times = append(w.times, took)
		}
		w.mu.Unlock()
	}
}

// fetch fetches by the witness, which forgets it again.
func (w *witness) fetch(endpoint string, keys []string, limit time.Duration) (reasons []string, took time.Duration, err error) {
	reasons, took, err = fetchInto(w.e, keys, kvcr.FetchOptions{Sources: []string{endpoint}, Timeout: limit})
	for _, k := range keys {
		if _, e := w.e.Delete([]byte(k)); err == nil {
			err = e
		}
	}
	return reasons, took, err
}

// only has the witness fetch from these, once the fetch under way has ended.
func (w *witness) only(ps ...*proc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.from = nil
	for _, p := range ps {
		w.from = append(w.from, p.endpoint)
	}
}

// median is that of the fetches since the last call.
func (w *witness) median() (d time.Duration, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n = len(w.times); n == 0 {
		return 0, 0
	}
	slices.Sort(w.times)
	d = w.times[n/2]
	w.times = nil
	return d, n
}
