//go:build linux && cgo && ucx

package cuda

import (
	"fmt"
	"testing"
)

// BenchmarkCopy moves batches of slots, four at a time under way. The name says
// which driver it ran on: figures of the double say nothing about a GPU, only
// about the cost of this package and of memcpy.
func BenchmarkCopy(b *testing.B) {
	const under = 4
	for _, dir := range []Direction{ToDevice, ToHost} {
		for _, shape := range []struct{ spans, slot int }{{1, 2 << 20}, {64, 64 << 10}, {256, 64 << 10}, {1024, 4 << 10}} {
			driver := "double"
			if realDriver != "" {
				driver = "real"
			}
			b.Run(fmt.Sprintf("%s/dir=%v/spans=%d/slot=%d", driver, dir, shape.spans, shape.slot), func(b *testing.B) {
				d := openAny(b, Options{Devices: []int{0}})
				control[wDelay].Store(1)
				f := newFixture(b, d, 0, under*shape.spans, shape.slot)
				c := make([]Copy, under)
				free := make(chan int, under)
				for i := range c {
					slots := seq(under * shape.spans)[i*shape.spans:][:shape.spans]
					c[i] = f.copyOf(dir, slots, slots, func(r Result) {
						if r.Err != nil {
							b.Error(r.Err)
						}
						free <- i
					})
					free <- i
				}
				b.SetBytes(int64(shape.spans * shape.slot))
				b.ReportAllocs()
				b.ResetTimer()
				for range b.N {
					if err := d.Submit(c[<-free]); err != nil {
						b.Fatal(err)
					}
				}
				for range under {
					<-free
				}
			})
		}
	}
}
