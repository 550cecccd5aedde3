package ring

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/puzpuzpuz/xsync/v3"
)

// queue is what the benchmarks ask of a queue: neither call blocks, except
// that the channel's do, because that is how a channel is used.
type queue interface {
	push(m *Msg) bool
	pop(m *Msg) bool
}

type spscQueue struct{ *SPSC }

func (q spscQueue) push(m *Msg) bool { return q.Push(m) }
func (q spscQueue) pop(m *Msg) bool  { return q.Pop(m) }

type xsyncSPSC struct{ *xsync.SPSCQueueOf[Msg] }

func (q xsyncSPSC) push(m *Msg) bool { return q.TryEnqueue(*m) }
func (q xsyncSPSC) pop(m *Msg) (ok bool) {
	*m, ok = q.TryDequeue()
	return ok
}

type xsyncMPMC struct{ *xsync.MPMCQueueOf[Msg] }

func (q xsyncMPMC) push(m *Msg) bool { return q.TryEnqueue(*m) }
func (q xsyncMPMC) pop(m *Msg) (ok bool) {
	*m, ok = q.TryDequeue()
	return ok
}

type channel chan Msg

func (q channel) push(m *Msg) bool { q <- *m; return true }
func (q channel) pop(m *Msg) bool  { *m = <-q; return true }

var queues = []struct {
	name string
	new  func(capacity int) queue
}{
	{"spsc", func(n int) queue { return spscQueue{New(n)} }},
	{"xsync-spsc", func(n int) queue { return xsyncSPSC{xsync.NewSPSCQueueOf[Msg](n)} }},
	{"xsync-mpmc", func(n int) queue { return xsyncMPMC{xsync.NewMPMCQueueOf[Msg](n)} }},
	{"channel", func(n int) queue { return channel(make(chan Msg, n)) }},
}

// pollsPerYield is how often a benchmark's side tries again before it lets
// the scheduler in: rarely enough not to show, often enough that a machine
// with other work still ends.
const pollsPerYield = 1024

func mustPush(q queue, m *Msg) {
	for i := 1; !q.push(m); i++ {
		if i%pollsPerYield == 0 {
			runtime.Gosched()
		}
	}
}

func mustPop(q queue, m *Msg) {
	for i := 1; !q.pop(m); i++ {
		if i%pollsPerYield == 0 {
			runtime.Gosched()
		}
	}
}

// BenchmarkOneWay moves messages through a queue of the given capacity, both
// sides as fast as they can: ns an item.
func BenchmarkOneWay(b *testing.B) {
	for _, capacity := range []int{2, 8, 64, 1024} {
		for _, kind := range queues {
			b.Run(fmt.Sprintf("capacity=%d/queue=%s", capacity, kind.name), func(b *testing.B) {
				q := kind.new(capacity)
				done := make(chan uint64)
				n := b.N
				b.ReportAllocs()
				b.ResetTimer()
				go func() {
					var m Msg
					sum := uint64(0)
					for i := 0; i < n; i++ {
						mustPop(q, &m)
						sum += m[0]
					}
					done <- sum
				}()
				var m Msg
				for i := 0; i < n; i++ {
					m[0] = uint64(i)
					mustPush(q, &m)
				}
				if sum, want := <-done, uint64(n)*uint64(n-1)/2; sum != want {
					b.Fatalf("sum of items %d, want %d", sum, want)
				}
			})
		}
	}
}

// BenchmarkRoundTrip keeps inflight messages between two queues: one side
// sends, the other answers each. ns a message, there and back.
func BenchmarkRoundTrip(b *testing.B) {
	for _, inflight := range []int{1, 8, 64, 1024} {
		for _, kind := range queues {
			b.Run(fmt.Sprintf("inflight=%d/queue=%s", inflight, kind.name), func(b *testing.B) {
				there, back := kind.new(1024), kind.new(1024)
				n := b.N
				b.ReportAllocs()
				b.ResetTimer()
				go func() {
					var m Msg
					for i := 0; i < n; i++ {
						mustPop(there, &m)
						m[1] = m[0]
						mustPush(back, &m)
					}
				}()
				var m Msg
				sent := 0
				for i := 0; i < n; i++ {
					for ; sent < n && sent < i+inflight; sent++ {
						m[0] = uint64(sent)
						mustPush(there, &m)
					}
					mustPop(back, &m)
					if m[1] != uint64(i) {
						b.Fatalf("answer %d is to request %d", i, m[1])
					}
				}
			})
		}
	}
}

// BenchmarkBatch moves messages in batches of the given size through a queue
// of 1024: ns an item.
func BenchmarkBatch(b *testing.B) {
	for _, size := range []int{1, 4, 16, 64} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			q := New(1024)
			n := b.N
			done := make(chan uint64)
			b.ReportAllocs()
			b.ResetTimer()
			go func() {
				ms := make([]Msg, size)
				sum := uint64(0)
				for got, polls := 0, 0; got < n; {
					k := q.PopBatch(ms)
					for i := range ms[:k] {
						sum += ms[i][0]
					}
					got += k
					if k == 0 {
						if polls++; polls%pollsPerYield == 0 {
							runtime.Gosched()
						}
					}
				}
				done <- sum
			}()
			ms := make([]Msg, size)
			for sent, polls := 0, 0; sent < n; {
				k := min(size, n-sent)
				for i := range ms[:k] {
					ms[i][0] = uint64(sent + i)
				}
				for ms := ms[:k]; len(ms) > 0; {
					k := q.PushBatch(ms)
					ms = ms[k:]
					if k == 0 {
						if polls++; polls%pollsPerYield == 0 {
							runtime.Gosched()
						}
					}
				}
				sent += k
			}
			if sum, want := <-done, uint64(n)*uint64(n-1)/2; sum != want {
				b.Fatalf("sum of items %d, want %d", sum, want)
			}
		})
	}
}
