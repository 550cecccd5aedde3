package evict

import (
	"slices"
	"testing"
)

func TestFIFOOrder(t *testing.T) {
	f, p := open(t, "fifo", 8)
	p.Insert(f.chain(0, 1, 2), 1)
	p.Insert(f.chain(0, 3), 3)
	f.last[2] = 9 // a touch changes nothing
	p.Replace(2, 4, 10)
	if got, want := drain(t, p, 11), []ID{4, 1, 3}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
}
