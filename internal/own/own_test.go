package own

import (
	"sync"
	"sync/atomic"
	"testing"
)

// A watcher sees only values that were stored whole, and the last one at the
// end.
func TestWatchersSeeWholeValues(t *testing.T) {
	var w atomic.Uint64
	var n atomic.Uint64
	var narrow atomic.Uint32
	const rounds = 100000
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		for {
			v := w.Load()
			if hi, lo := uint32(v>>32), uint32(v); hi != lo {
				t.Errorf("torn value %#x", v)
				return
			}
			if uint32(v) == rounds {
				return
			}
		}
	}()
	for i := uint64(1); i <= rounds; i++ {
		Add64(&n, 2)
		Store32(&narrow, uint32(i))
		Store64(&w, i<<32|i)
	}
	wg.Wait()
	if n.Load() != 2*rounds || narrow.Load() != rounds {
		t.Errorf("n = %d, narrow = %d", n.Load(), narrow.Load())
	}
}
