package work

import (
	"context"
	"runtime"
	"testing"

	"github.com/kvcr-go/kvcr/hints"
)

type deaf struct{ end chan struct{} }

func (deaf) Report(hints.Stage, string, ...uint64) int { return 0 }
func (deaf) AddBytes(int64)                            {}
func (d deaf) End(string) bool                         { close(d.end); return true }

// BenchmarkAction is one action of many hashes, queued and reported, with a source and
// an engine that cost nothing. bytes/hash is what a queued hash holds.
func BenchmarkAction(b *testing.B) {
	const n = 1 << 16
	hashes := make([]uint64, n)
	for i := range hashes {
		hashes[i] = uint64(i) * 0x9e3779b97f4a7c15
	}
	goOn := make(chan struct{})
	f := newFake()
	f.resolve = func(_ context.Context, _ string, hashes []uint64) (out []Block, _ string) {
		<-goOn
		return make([]Block, len(hashes)), ""
	}
	f.look = func(*Block) (Standing, string) { return Present, "" }
	x := start(b, f, nil)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	d := deaf{make(chan struct{})}
	if err := x.Submit(Action{Source: "a", Hashes: hashes, Report: d}); err != nil {
		b.Fatal(err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	close(goOn)
	<-d.end
	for b.Loop() {
		d := deaf{make(chan struct{})}
		if err := x.Submit(Action{Source: "a", Hashes: hashes, Report: d}); err != nil {
			b.Fatal(err)
		}
		<-d.end
	}
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "bytes/hash")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/hash")
}
