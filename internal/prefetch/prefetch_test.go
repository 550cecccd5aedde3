package prefetch

import (
	"sync/atomic"
	"testing"
)

func TestLineLeavesMemoryAlone(t *testing.T) {
	b := []byte{1, 2, 3}
	Line(&b[0])
	LineToWrite(&b[0])
	var w atomic.Uint64
	w.Store(7)
	Word(&w)
	if b[0] != 1 || b[1] != 2 || b[2] != 3 || w.Load() != 7 {
		t.Errorf("b = %v, w = %d", b, w.Load())
	}
}
