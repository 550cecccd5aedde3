//go:build !race

package blockcopy

import (
	"runtime"
	"sync/atomic"
	"testing"
)

// withISAs runs f as a subtest once for every set of instructions this machine
// has, and once without any. Nothing else may run beside it.
func withISAs(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	was := have
	defer func() { have = was }()
	for i := isaNone; i <= was; i++ {
		have = i
		t.Run("isa="+i.String(), f)
	}
}

// TestFence: whoever sees a flag stored after a copy by a plain move sees the
// bytes. Go's atomic store is a locked exchange, which drains streaming
// stores by itself, so only a plain move shows whether the routines fence; the
// queues of this module publish by such moves.
func TestFence(t *testing.T) {
	const n = 2 * Chunk
	src, dst := aligned(n), aligned(n)
	withISAs(t, func(t *testing.T) {
		for _, v := range verbs {
			if v.name == "CopyOut" {
				continue
			}
			turn.flag = 0
			stale := make(chan int)
			const rounds = 250
			go func() {
				bad := -1
				for i := uint32(1); i <= rounds; i++ {
					for atomic.LoadUint32(&turn.flag) != 2*i-1 {
						runtime.Gosched() // ends when the copying side stores
					}
					for at := n - 64; at >= 0; at -= 64 { // newest first
						if dst[at] != byte(i) && bad < 0 {
							bad = at
						}
					}
					atomic.StoreUint32(&turn.flag, 2*i)
				}
				stale <- bad
			}()
			for i := uint32(1); i <= rounds; i++ {
				for at := 0; at < n; at += 64 {
					src[at] = byte(i)
				}
				v.f(dst, src)
				turn.flag = 2*i - 1 // a plain move, on purpose
				for atomic.LoadUint32(&turn.flag) != 2*i {
					runtime.Gosched() // ends when the reading side stores
				}
			}
			if bad := <-stale; bad >= 0 {
				t.Errorf("%s: byte %d was stale after the flag was seen", v.name, bad)
			}
		}
	})
}

// turn is odd while it is the reader's.
var turn struct {
	_    [64]byte
	flag uint32
	_    [64]byte
}
