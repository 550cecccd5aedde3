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

// lender lends blocks of a second table.
type lender struct {
	tb *table
	as map[string]string // what it has, and as which block of the table
}

func (l *lender) Ask(_ string, indices []int, keys [][]byte, done func([]PinnedItem)) (stop func()) {
	var items []PinnedItem
	for i, k := range keys {
		p := PinnedItem{Index: indices[i]}
		if as, ok := l.as[string(k)]; ok {
			p.Claim, p.Offer.Status = l.tb.Claim("", &wire.Wanted{Key: []byte(as)}, &p.Offer)
		}
		items = append(items, p)
	}
	go done(items)
	return func() {}
}

// What the source does not have the host program may lend, for copies only.
func TestPinned(t *testing.T) {
	src, dst := newTable(t, 4, 4096, false), newTable(t, 4, 4096, false)
	src.put(t, keyOf(0), 4096)
	src.put(t, "lent", 4096)
	a := openNode(t, src, func(c *Config) { c.Pinner = &lender{src, map[string]string{keyOf(1): "lent"}} })
	b := openNode(t, dst)
	s := fetch(t, b, a.Endpoints()[0], Submit{Namespace: "ns", Items: wanted(0, 3)}, 5*time.Second)
	if s[0].Status != wire.StatusOK || s[1].Status != wire.StatusOK || s[2].Status != wire.StatusMiss {
		t.Errorf("%+v", s)
	}
	if got := dst.blocks[keyOf(1)]; got == nil || string(dst.mem[got.at:][:4096]) != string(payload("lent", 4096)) {
		t.Error("what was lent did not come")
	}
	dst.drop()
	s = fetch(t, b, a.Endpoints()[0], Submit{Namespace: "ns", OwnedOnly: true, Items: wanted(0, 2)}, 5*time.Second)
	if s[0].Status != wire.StatusOK || s[1].Status != wire.StatusMiss {
		t.Errorf("own blocks only: %+v", s)
	}
	src.quiet(t)
	dst.quiet(t)
}

// More peers than may be are refused; endpoints of which nothing is left make
// room.
func TestMaxPeers(t *testing.T) {
	src := newTable(t, 4, 4096, false)
	src.put(t, keyOf(0), 4096)
	two := func(c *Config) { c.MaxPeers = 2 }
	a := openNode(t, src, two)
	var d []*rawDest
	for i := range 2 {
		d = append(d, newRawDest(t, a, uint64(100+i), streamOnly, [16]byte{}))
	}
	nc := rawDial(t, a, 102)
	nc.Write((&wire.PeerHello{Routes: streamOnly}).Append(nil, 1))
	if m, _, err := readOne(nc, wire.TypeError); err != nil || m.(*wire.ErrorReply).Code != wire.CodeTooMany {
		t.Errorf("a third peer: %v, %v", m, err)
	}
	d[0].nc.Close()
	within(t, 5*time.Second, func() bool { return a.Stats().Sources == 1 }, func() string { return "the peer that left is not forgotten" })
	newRawDest(t, a, 103, streamOnly, [16]byte{})

	b := openNode(t, newTable(t, 4, 4096, false), two)
	for range 4 { // nobody is there, so that nothing stays
		if r := fetch(t, b, freePort(t), Submit{Namespace: "ns", Items: wanted(0, 1)}, 30*time.Millisecond); r[0].Status != wire.StatusTimeout {
			t.Errorf("%v", r[0].Status)
		}
		within(t, 5*time.Second, func() bool {
			for _, p := range b.Peers() {
				l := b.dests[p.Endpoint]
				l.link.mu.Lock()
				busy := l.dialling
				l.link.mu.Unlock()
				if busy {
					return false
				}
			}
			return true
		}, func() string { return "it still dials" })
	}
	if n := b.Stats().Dests; n > 2 {
		t.Errorf("%d endpoints are known", n)
	}
}
