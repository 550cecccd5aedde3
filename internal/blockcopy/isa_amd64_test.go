//go:build !race

package blockcopy

import (
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
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
// bytes. Go's atomic store is a locked exchange, which drains streaming stores
// by itself, so only a plain move shows whether the routines fence. Without the
// fence this fails within a few thousand rounds for 32-byte stores; 64-byte
// ones, whole lines, pass a move once in hundred thousands, hence
// TestFenceWritten.
func TestFence(t *testing.T) {
	if runtime.GOMAXPROCS(0) < 2 {
		t.Skip("needs two processors at once")
	}
	const n = streamMin
	src, dst := aligned(n), aligned(n)
	withISAs(t, func(t *testing.T) {
		if have == isaNone {
			t.Skip("ordinary stores keep their order")
		}
		for _, v := range verbs {
			turn.flag = 0
			stale := make(chan int)
			go func() {
				bad := -1
				for i := uint32(1); ; i++ {
					if waitTurn(2*i-1) == over {
						break
					}
					for at := n - 64; at >= n-512; at -= 64 { // newest first
						if dst[at] != byte(i) && bad < 0 {
							bad = at
						}
					}
					atomic.StoreUint32(&turn.flag, 2*i)
				}
				stale <- bad
			}()
			// By rounds on an idle machine, by time on a busy one.
			end := time.Now().Add(400 * time.Millisecond)
			for i := uint32(1); i <= 10000 && time.Now().Before(end); i++ {
				for at := n - 512; at < n; at += 64 {
					src[at] = byte(i)
				}
				v.f(dst, src)
				turn.flag = 2*i - 1 // a plain move, on purpose
				waitTurn(2 * i)
			}
			atomic.StoreUint32(&turn.flag, over)
			if bad := <-stale; bad >= 0 {
				t.Errorf("%s: byte %d was stale after the flag was seen", v.name, bad)
			}
		}
	})
}

// TestFenceWritten: in the assembly, every routine with a streaming store has
// SFENCE after its last one and before it returns.
func TestFenceWritten(t *testing.T) {
	text, err := os.ReadFile("stream_amd64.s")
	if err != nil {
		t.Fatal(err)
	}
	streaming := 0
	for _, body := range strings.Split(string(text), "\nTEXT ")[1:] {
		name, _, _ := strings.Cut(body, "(SB)")
		if next := strings.Index(body, "\n#define"); next >= 0 {
			body = body[:next] // macros between routines are not this one's
		}
		last := max(strings.LastIndex(body, "VMOVNTDQ"), strings.LastIndex(body, "STORE"))
		if last < 0 {
			continue
		}
		streaming++
		end := body[last:]
		fence, ret := strings.Index(end, "\tSFENCE\n"), strings.Index(end, "\tRET\n")
		if ret < 0 || fence < 0 || fence > ret || strings.Count(body, "\tRET\n") != 1 {
			t.Errorf("%s: no SFENCE between its last streaming store and its only RET", name)
		}
	}
	if streaming != 4 {
		t.Errorf("%d routines with streaming stores found, want 4", streaming)
	}
}

const over = ^uint32(0) // of turn.flag: no more rounds

// waitTurn spins until turn.flag is want or over, and returns it. It ends when
// the other side stores; processor time is given up only rarely, because a
// slow look is a look after the bytes have arrived.
func waitTurn(want uint32) uint32 {
	for spins := 1; ; spins++ {
		if f := atomic.LoadUint32(&turn.flag); f == want || f == over {
			return f
		}
		if spins%10000 == 0 {
			runtime.Gosched()
		}
	}
}

// turn is odd while it is the reader's.
var turn struct {
	_    [64]byte
	flag uint32
	_    [64]byte
}
