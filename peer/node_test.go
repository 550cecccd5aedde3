package peer

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvcr-go/kvcr/wire"
)

func TestMain(m *testing.M) {
	if role := os.Getenv("KVCR_PEER_TEST_ROLE"); role != "" {
		childMain(role)
		return
	}
	// A pool that a dependency of gnet keeps for the life of the process.
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/panjf2000/ants/v2.(*poolCommon).purgeStaleWorkers"),
		goleak.IgnoreTopFunction("github.com/panjf2000/ants/v2.(*poolCommon).ticktock"))
}

var testSecret = []byte("0123456789abcdef")

// quick is a timing for tests: little patience, nothing else different.
var quick = Timing{Repeat: 50 * time.Millisecond, RepeatMax: 200 * time.Millisecond, Operation: 5 * time.Second, Allowance: 300 * time.Millisecond}

type nodeOption func(*Config)

func withSecret(c *Config) { c.Secret = testSecret }

func withRoutes(r ...wire.Route) nodeOption { return func(c *Config) { c.Routes = r } }

func openNode(t testing.TB, tb *table, opts ...nodeOption) *Node {
	t.Helper()
	cfg := Config{
		Name: t.Name(), Listen: []string{"tcp://127.0.0.1:0"}, Records: tb, Routes: []wire.Route{wire.RouteStream},
		Timing: quick, Stall: time.Second, HandshakeTimeout: 2 * time.Second,
	}
	for _, o := range opts {
		o(&cfg)
	}
	n, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeNode(t, n) })
	return n
}

func closeNode(t testing.TB, n *Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := n.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func keyOf(i int) string { return fmt.Sprintf("key-%d", i) }

// fetch asks for keys and waits for all answers.
func fetch(t testing.TB, n *Node, endpoint string, s Submit, limit time.Duration) []Settle {
	t.Helper()
	got := make(chan Settle, len(s.Items))
	s.Deadline = n.Now() + limit
	n.Submit(endpoint, s, func(r Settle) { got <- r })
	all := make([]Settle, len(s.Items))
	late := time.After(limit + 10*time.Second)
	for range s.Items {
		select {
		case r := <-got:
			all[r.Index] = r
		case <-late:
			t.Fatal("an item is not settled long after the deadline")
		}
	}
	return all
}

func wanted(from, n int) (w []wire.Wanted) {
	for i := from; i < from+n; i++ {
		w = append(w, wire.Wanted{Key: []byte(keyOf(i))})
	}
	return w
}

func mustFetch(t testing.TB, n *Node, endpoint string, from, count int) {
	t.Helper()
	for i, r := range fetch(t, n, endpoint, Submit{Namespace: "ns", Items: wanted(from, count)}, 5*time.Second) {
		if r.Status != wire.StatusOK {
			t.Fatalf("item %d: %v", from+i, r.Status)
		}
	}
}

// Blocks of all sizes arrive whole, over one and over many operations, with and
// without a secret.
func TestFetch(t *testing.T) {
	sizes := []int{0, 1, 63, 4096, 64 << 10, 1 << 20, 1<<20 - 1}
	for _, secret := range []bool{false, true} {
		t.Run(fmt.Sprintf("secret=%t", secret), func(t *testing.T) {
			src, dst := newTable(t, 64, 1<<20, false), newTable(t, 64, 1<<20, false)
			var opts []nodeOption
			if secret {
				opts = append(opts, withSecret)
			}
			a, b := openNode(t, src, opts...), openNode(t, dst, opts...)
			for i := range 48 {
				src.put(t, keyOf(i), sizes[i%len(sizes)])
			}
			mustFetch(t, b, a.Endpoints()[0], 0, 40)
			for i := 40; i < 48; i++ {
				mustFetch(t, b, a.Endpoints()[0], i, 1)
			}
			for i := range 48 {
				if err := dst.check(keyOf(i), sizes[i%len(sizes)]); err != nil {
					t.Error(err)
				}
			}
			again := fetch(t, b, a.Endpoints()[0], Submit{Namespace: "ns", Items: wanted(47, 2)}, 5*time.Second)
			if again[0].Status != wire.StatusOK || !again[0].Existing || again[1].Status != wire.StatusMiss {
				t.Errorf("what is there, and what is nowhere: %+v", again)
			}
			src.quiet(t)
			dst.quiet(t)
			st, ok := b.Known(a.Endpoints()[0])
			if !ok || !st.Connected || st.Incarnation != a.Self() || st.Route != wire.RouteStream {
				t.Errorf("state %+v", st)
			}
			if s := b.Stats(); s.Fetched[wire.RouteStream].Blocks != 48 || s.Posted != 0 {
				t.Errorf("stats %+v", s)
			}
		})
	}
}
