package peer

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// Both sides count what one fetched and moved of the other, by route and by peer.
func TestTrafficIsCounted(t *testing.T) {
	for _, route := range []wire.Route{wire.RouteStream, wire.RouteShm} {
		t.Run(route.String(), func(t *testing.T) {
			if route == wire.RouteShm {
				needShm(t)
			}
			const blocks, size = 6, 64 << 10
			ta, tb := newTable(t, 16, size, route == wire.RouteShm), newTable(t, 16, size, route == wire.RouteShm)
			a, b := openNode(t, ta, withRoutes(route)), openNode(t, tb, withRoutes(route))
			for i := range blocks {
				ta.put(t, keyOf(i), size)
			}
			at := a.Endpoints()[0]
			fetch(t, b, at, Submit{Namespace: "ns", Items: wanted(0, 4)}, 5*time.Second)
			fetch(t, b, at, Submit{Namespace: "ns", Items: wanted(4, 2), Mode: wire.TransferMove}, 5*time.Second)
			want := Traffic{blocks, blocks * size}
			within(t, 5*time.Second, func() bool {
				sa, sb := a.Stats(), b.Stats()
				return sa.Served[route] == want && sa.Given == Moves{Moved: 2} && sb.Fetched[route] == want && sb.Taken == Moves{Moved: 2}
			}, func() string { return fmt.Sprintf("the source counts %+v, the destination %+v", a.Stats(), b.Stats()) })
			if p := a.Peers(); len(p) != 1 || p[0].Traffic != want || p[0].Fetching {
				t.Errorf("the source knows %+v", p)
			}
			if p := b.Peers(); len(p) != 1 || p[0].Traffic != want || !p[0].Fetching {
				t.Errorf("the destination knows %+v", p)
			}
		})
	}
}
