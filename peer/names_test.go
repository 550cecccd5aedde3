package peer

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// One process is fetched from by two names at a time, each with its own connection,
// which lasts.
func TestTwoNames(t *testing.T) {
	for _, route := range []struct {
		name   string
		shared bool
		opt    func(*table) nodeOption
	}{
		{"stream", false, func(*table) nodeOption { return withRoutes(wire.RouteStream) }},
		{"shm", true, func(*table) nodeOption { return shmFirst }},
		{"ucx", true, func(tb *table) nodeOption { return withUCX(t, tb) }},
	} {
		t.Run(route.name, func(t *testing.T) {
			if route.name == "shm" {
				needShm(t)
			}
			const n, size = 64, 16 << 10
			src, dst := newTable(t, n, size, route.shared), newTable(t, 2*n, size, route.shared)
			for i := range n {
				src.put(t, keyOf(i), size)
			}
			a, b := openNode(t, src, route.opt(src)), openNode(t, dst, route.opt(dst))
			names := []string{a.Endpoints()[0], newRelay(t, a.Endpoints()[0]).endpoint()}
			var wg sync.WaitGroup
			for i, name := range names {
				for k := range 4 {
					wg.Add(1)
					go func() {
						defer wg.Done()
						for round := range 8 {
							at := (i*4+k)*8 + round
							r := fetch(t, b, name, Submit{Namespace: "ns", Items: wanted(at, 1)}, 5*time.Second)
							if r[0].Status != wire.StatusOK {
								t.Errorf("%s by name %d: %v", keyOf(at), i, r[0].Status)
							}
						}
					}()
				}
			}
			wg.Wait()
			for i := range n {
				if err := dst.check(keyOf(i), size); err != nil {
					t.Error(err)
				}
			}
			if s := b.Stats(); s.Dials != 2 || s.Reconnects != 0 || s.Connections != 2 {
				t.Errorf("%d dials, %d reconnects, %d connections, want one connection of each name", s.Dials, s.Reconnects, s.Connections)
			}
			src.quiet(t)
			dst.quiet(t)
		})
	}
}

var _ = fmt.Sprint
var _ atomic.Bool
