package client

import (
	"context"
	"fmt"
	"sync"
	"testing"
)

// BenchmarkGet reads values from one goroutine, and from many over one connection.
// The node is the fake in this process: the figures compare ways to write.
func BenchmarkGet(b *testing.B) {
	for _, size := range []int{128, 64 << 10} {
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprintf("size=%d/callers=%d", size, callers), func(b *testing.B) {
				f := newFake(b, nil)
				f.set("key", make([]byte, size))
				cl := f.dial(nil)
				ctx := context.Background()
				b.SetBytes(int64(size))
				b.ReportAllocs()
				b.ResetTimer()
				var wg sync.WaitGroup
				for i := range callers {
					wg.Add(1)
					go func() {
						defer wg.Done()
						key, buf := []byte("key"), make([]byte, size)
						for range (b.N + callers - 1 - i) / callers {
							if v, ok, err := cl.Get(ctx, key, buf); err != nil || !ok || len(v) != size {
								b.Errorf("%d bytes, %t, %v", len(v), ok, err)
								return
							}
						}
					}()
				}
				wg.Wait()
			})
		}
	}
}
