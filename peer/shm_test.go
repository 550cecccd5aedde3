package peer

import (
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr/wire"
)

func needShm(t testing.TB) {
	t.Helper()
	if raceBuild {
		t.Skip("race builds have no memfd behind the table")
	}
	if hostID() == [16]byte{} {
		t.Skip("no boot id: /proc/sys/kernel/random/boot_id cannot be read")
	}
}

var shmFirst = withRoutes(wire.RouteShm, wire.RouteStream)

// Two processes, over shared memory: all bytes arrive, moves move.
func TestShm(t *testing.T) {
	needShm(t)
	for _, role := range []string{"source", "nopool"} {
		t.Run(role, func(t *testing.T) {
			src := startChild(t, role)
			dst := newTable(t, childBlocks, childSize, true)
			b := openNode(t, dst, shmFirst)
			for range 3 {
				mustFetch(t, b, src.endpoint, 0, childBlocks)
				for i := range childBlocks {
					if err := dst.check(keyOf(i), childSize); err != nil {
						t.Error(err)
					}
				}
				dst.quiet(t)
				dst.drop()
			}
			if s, _ := b.Known(src.endpoint); s.Route != wire.RouteShm {
				t.Errorf("route %v", s.Route)
			}
			within(t, 5*time.Second, func() bool { return src.ask("use") == "0" }, func() string { return "claims stay at the source" })
			for i, s := range fetch(t, b, src.endpoint, Submit{Namespace: "another", Mode: wire.TransferMove, Items: wanted(0, childBlocks)}, 5*time.Second) {
				if s.Status != wire.StatusOK {
					t.Errorf("item %d: %v", i, s.Status)
				}
			}
			dst.quiet(t)
			within(t, 5*time.Second, func() bool { return src.ask("use") == "0" }, func() string { return "claims stay at the source" })
			dst.drop()
			if r := fetch(t, b, src.endpoint, Submit{Namespace: "ns", Items: wanted(0, 1)}, 5*time.Second); r[0].Status != wire.StatusMiss {
				t.Errorf("what was moved is %v", r[0].Status)
			}
		})
	}
}

// Where memory cannot be shared the nodes agree on streams, and say so.
func TestShmFallsBack(t *testing.T) {
	needShm(t)
	src, dst := newTable(t, 4, 4096, false), newTable(t, 4, 4096, true) // no memfd at the source
	src.put(t, keyOf(0), 4096)
	a, b := openNode(t, src, shmFirst), openNode(t, dst, shmFirst)
	mustFetch(t, b, a.Endpoints()[0], 0, 1)
	if s, _ := b.Known(a.Endpoints()[0]); s.Route != wire.RouteStream {
		t.Errorf("route %v", s.Route)
	}
}

// A destination that is killed at any moment: its claims end by the proof of its
// death, and others go on.
func TestShmDestinationKilled(t *testing.T) {
	needShm(t)
	src := newTable(t, childBlocks, childSize, true)
	for i := range childBlocks {
		src.put(t, keyOf(i), childSize)
	}
	a := openNode(t, src, shmFirst)
	rounds := 6
	if testing.Short() {
		rounds = 2
	}
	for range rounds {
		c := startChild(t, "dest", envEndpoint+"="+a.Endpoints()[0])
		c.ask("fetch")
		within(t, 5*time.Second, func() bool { n, _, _, _ := src.use(); return n > 0 }, func() string { return "it fetches nothing" })
		time.Sleep(rand.N(20 * time.Millisecond))
		if got := c.ask("route"); got != "shm" {
			t.Errorf("route %v", got)
		}
		c.kill()
		src.quiet(t)
	}
	dst := newTable(t, childBlocks, childSize, true)
	b := openNode(t, dst, shmFirst)
	mustFetch(t, b, a.Endpoints()[0], 0, childBlocks)
	if n := a.procs.Len(); n != 1 {
		t.Errorf("%d processes are watched, want one", n)
	}
}

// A source that is killed at any moment: slots and holds end, and what arrived is
// whole.
func TestShmSourceKilled(t *testing.T) {
	needShm(t)
	dst := newTable(t, 2*childBlocks, childSize, true)
	b := openNode(t, dst, shmFirst)
	rounds := 6
	if testing.Short() {
		rounds = 2
	}
	for round := range rounds {
		c := startChild(t, "source")
		mustFetch(t, b, c.endpoint, 0, 1)
		dst.drop()
		got := make(chan Settle, childBlocks)
		mode := wire.TransferCopy
		if round%2 == 0 {
			mode = wire.TransferMove
		}
		b.Submit(c.endpoint, Submit{Namespace: "ns", Mode: mode, Items: wanted(0, childBlocks), Deadline: b.Now() + 2*time.Second}, func(s Settle) { got <- s })
		time.Sleep(rand.N(15 * time.Millisecond))
		c.kill()
		arrived := 0
		for range childBlocks {
			s := <-got
			if s.Status == wire.StatusOK {
				arrived++
				if err := dst.check(keyOf(s.Index), childSize); err != nil {
					t.Error(err)
				}
			}
		}
		t.Logf("%d of %d arrived", arrived, childBlocks)
		dst.quiet(t)
		dst.drop()
		within(t, 5*time.Second, func() bool { s, _ := b.Known(c.endpoint); return s.Operations == 0 }, func() string { return "operations with the dead" })
	}
}

// A destination that shares memory, takes an offer and loses its connection keeps
// its claims as long as its process lives; without a process that can be watched
// there is no offer.
func TestShmClaimsOutliveConnections(t *testing.T) {
	needShm(t)
	src := newTable(t, 8, 4096, true)
	src.put(t, keyOf(0), 4096)
	a := openNode(t, src, shmFirst)
	shm := wire.Routes(0).With(wire.RouteShm)
	d := newRawDest(t, a, 99, shm, hostID())
	if d.w.Route != wire.RouteShm || d.w.Local == "" {
		t.Fatalf("welcome %+v", d.w)
	}
	// Not attached: nothing is answered, and nothing claimed.
	d.send(7, &wire.Start{Source: d.who, Dest: d.self, Timeout: 60_000, Namespace: "ns", Items: wanted(0, 1)})
	time.Sleep(50 * time.Millisecond)
	if n, _, _, _ := src.use(); n != 0 {
		t.Error("claims for a process that nobody knows")
	}
	mem := attachRaw(t, d, "ns")
	o := d.start(7, wanted(0, 1))
	if len(o.Items[0].Offsets) != 1 || string(mem[o.Items[0].Offsets[0]:][:4096]) != string(payload(keyOf(0), 4096)) {
		t.Error("the offered bytes are not where they should be")
	}
	d.nc.Close()
	within(t, 2*time.Second, func() bool { return a.Stats().Connections == 0 }, func() string { return "still connected" })
	time.Sleep(20 * time.Millisecond)
	if n, _, _, _ := src.use(); n != 1 {
		t.Errorf("%d claims while the reader lives", n)
	}
	again := newRawDest(t, a, 99, shm, hostID())
	attachRaw(t, again, "ns")
	again.send(7, &wire.Finish{Source: again.who, Dest: again.self})
	again.readOne(wire.TypeFinished)
	src.quiet(t)
}

// attachRaw makes the payload connection of a raw destination and maps.
func attachRaw(t *testing.T, d *rawDest, namespace string) []byte {
	t.Helper()
	nc, err := net.Dial("unix", d.w.Local)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(10 * time.Second))
	nc.Write((&wire.Hello{MinVersion: 1, MaxVersion: 1, Incarnation: d.self, Namespace: namespace}).Append(nil, 0))
	if _, _, err := readOne(nc, wire.TypeChallenge); err != nil {
		t.Fatal(err)
	}
	nc.Write((&wire.Auth{}).Append(nil, 0))
	if _, _, err := readOne(nc, wire.TypeWelcome); err != nil {
		t.Fatal(err)
	}
	nc.Write((&wire.PeerStream{Token: d.w.Token}).Append(nil, 0))
	mem, err := receiveMemory(nc.(*net.UnixConn))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	return mem
}

// What a source offers outside of its memory is not read.
func TestShmOffsets(t *testing.T) {
	const size = 4096
	mem := payload("memory", 3*size)
	dst := newTable(t, 1, size, false)
	sum := uint64(1)
	for _, tt := range []struct {
		name    string
		offsets []uint64
		size    uint64
		flags   wire.OfferFlags
		want    wire.Status
	}{
		{"inside", []uint64{2 * size}, size, 0, wire.StatusOK},
		{"nothing", []uint64{3 * size}, 0, 0, wire.StatusOK},
		{"one beyond", []uint64{2*size + 1}, size, 0, wire.StatusSource},
		{"far beyond", []uint64{1 << 63}, size, 0, wire.StatusSource},
		{"wraps", []uint64{^uint64(0) - 10}, size, 0, wire.StatusSource},
		{"none", nil, size, 0, wire.StatusSource},
		{"two", []uint64{0, 0}, size, 0, wire.StatusSource},
		{"sum", []uint64{0}, size, wire.OfferSum, wire.StatusChecksum},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := &wire.Offered{Size: tt.size, Offsets: tt.offsets, Flags: tt.flags, Sum: sum}
			slot, _ := dst.Reserve(1, 0, "ns", []byte(strings.Repeat("k", 3)), o)
			defer dst.Free(slot)
			if got := copyBlock(dst, mem, &Post{Slot: slot, Offer: o}); got != tt.want {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}

// A node that listens on a unix socket only is reached by both routes.
func TestShmOnUnixEndpoint(t *testing.T) {
	needShm(t)
	dir, err := os.MkdirTemp("", "kvcr")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	src, dst := newTable(t, 4, 4096, true), newTable(t, 4, 4096, true)
	src.put(t, keyOf(0), 4096)
	a, b := openNode(t, src, shmFirst, at("unix://"+dir+"/peer.sock")), openNode(t, dst, shmFirst)
	mustFetch(t, b, a.Endpoints()[0], 0, 1)
	if s, _ := b.Known(a.Endpoints()[0]); s.Route != wire.RouteShm {
		t.Errorf("route %v", s.Route)
	}
	closeNode(t, b)
	dst.drop()
	c := openNode(t, dst)
	mustFetch(t, c, a.Endpoints()[0], 0, 1)
	if err := dst.check(keyOf(0), 4096); err != nil {
		t.Error(err)
	}
}
