package peer

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// host is a framework of the tests: it answers when told to.
type host struct {
	mu       sync.Mutex
	asked    [][]string
	answers  []func(PinResult)
	canceled int
	released []string
	refuse   int // releases it will not take over
}

func (h *host) RequestPin(_ string, keys [][]byte, done func(PinResult)) func() {
	h.mu.Lock()
	defer h.mu.Unlock()
	var names []string
	for _, k := range keys {
		names = append(names, string(k))
	}
	h.asked = append(h.asked, names)
	h.answers = append(h.answers, done)
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.canceled++
	}
}

func (h *host) ReleasePin(handle string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refuse > 0 {
		h.refuse--
		return false
	}
	h.released = append(h.released, handle)
	return true
}

func (h *host) questions() [][]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.asked)
}

func (h *host) returned() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.released)
}

func newPinTest(t *testing.T) (*host, *Pins) {
	t.Helper()
	var g Regions
	mem := make([]byte, 8*64)
	for i := range mem {
		mem[i] = byte(i / 64)
	}
	if err := g.Register(Region{Label: "kv:*", Mem: mem[:7*64+32], Size: 32, Stride: 64, Count: 8}); err != nil {
		t.Fatal(err)
	}
	h := &host{}
	p := NewPins(h, &g)
	t.Cleanup(func() {
		if !p.Close(5 * time.Second) {
			t.Error("pins are left")
		}
		if len(p.claims) != 0 || len(p.blocks) != 0 {
			t.Errorf("%d claims, %d blocks left", len(p.claims), len(p.blocks))
		}
		if err := g.Deregister("kv:*"); err != nil {
			t.Errorf("a span is in use: %v", err)
		}
	})
	return h, p
}

type pinAnswer struct {
	items []PinnedItem
	times int
}

func ask(p *Pins, keys ...string) (*pinAnswer, func()) {
	a := &pinAnswer{}
	var at []int
	var bs [][]byte
	for i, k := range keys {
		at, bs = append(at, i), append(bs, []byte(k))
	}
	stop := p.Ask("ns", at, bs, func(items []PinnedItem) { a.items, a.times = items, a.times+1 })
	return a, stop
}

func lent(element int) PinnedBlock {
	return PinnedBlock{Refs: []MemoryRef{{Label: "kv:k", Element: element}, {Label: "kv:v", Element: element}}, Pools: []byte{0, 1}}
}

// A question that nobody waits for any more is of no use to who comes later: the
// framework, told to forget it, answers with nothing.
func TestPinsAskAnewAfterCancel(t *testing.T) {
	h, p := newPinTest(t)
	a, stop := ask(p, "x", "y")
	stop()
	b, _ := ask(p, "x")
	if got := h.questions(); h.canceled != 1 || a.times != 1 || len(got) != 2 || !slices.Equal(got[1], []string{"x"}) {
		t.Fatalf("asked %v, cancelled %d times", got, h.canceled)
	}
	h.answers[1](PinResult{"p1", []PinnedBlock{lent(1)}})
	if b.times != 1 || b.items[0].Claim == 0 {
		t.Fatalf("b %+v", b)
	}
	h.answers[0](PinResult{"p0", []PinnedBlock{lent(2), lent(3)}}) // it was too late to forget it
	if got := h.returned(); !slices.Equal(got, []string{"p0"}) {
		t.Errorf("returned %v", got)
	}
	c, _ := ask(p, "x", "y")
	if c.times != 0 || len(h.questions()) != 3 || !slices.Equal(h.questions()[2], []string{"y"}) {
		t.Errorf("asked %v", h.questions())
	}
	h.answers[2](PinResult{})
	if c.times != 1 || c.items[0].Claim == 0 || c.items[1].Claim != 0 {
		t.Errorf("c %+v", c)
	}
	p.Unclaim(b.items[0].Claim)
	p.Unclaim(c.items[0].Claim)
	if got := h.returned(); !slices.Equal(got, []string{"p0", "p1"}) {
		t.Errorf("returned %v", got)
	}
}

func TestPinsAreShared(t *testing.T) {
	h, p := newPinTest(t)
	a, _ := ask(p, "x", "y")
	b, _ := ask(p, "y", "z") // y is being asked for: only z is a question
	if got := h.questions(); len(got) != 2 || !slices.Equal(got[0], []string{"x", "y"}) || !slices.Equal(got[1], []string{"z"}) {
		t.Fatalf("asked %v", got)
	}
	h.answers[0](PinResult{"p0", []PinnedBlock{lent(1), lent(2)}})
	if a.times != 1 || a.items[0].Claim == 0 || a.items[1].Claim == 0 || b.times != 0 {
		t.Fatalf("a %+v, b %+v", a, b)
	}
	if o := a.items[0].Offer; o.Size != 64 || o.Flags != wire.OfferNoPool || !slices.Equal(o.Pools, []byte{0, 1}) {
		t.Errorf("offer %+v", o)
	}
	if s := p.Spans(a.items[1].Claim); len(s) != 2 || s[0].Host[0] != 2 || len(s[0].Host) != 32 {
		t.Errorf("spans %v", s)
	}
	h.answers[1](PinResult{"p1", []PinnedBlock{lent(3)}})
	if b.times != 1 || b.items[0].Claim == 0 || b.items[1].Claim == 0 {
		t.Fatalf("b %+v", b)
	}
	c, _ := ask(p, "y") // pinned: answered at once
	if c.times != 1 || c.items[0].Claim == 0 || len(h.questions()) != 2 {
		t.Fatalf("c %+v after %v", c, h.questions())
	}
	p.Unclaim(a.items[0].Claim)
	p.Unclaim(a.items[1].Claim)
	p.Unclaim(a.items[1].Claim) // again: no effect
	p.Unclaim(b.items[0].Claim)
	if got := h.returned(); len(got) != 0 {
		t.Fatalf("%v given back while read through", got)
	}
	p.Unclaim(c.items[0].Claim)
	p.Unclaim(b.items[1].Claim)
	if got := h.returned(); !slices.Equal(got, []string{"p0", "p1"}) {
		t.Errorf("given back %v", got)
	}
}

func TestPinAnswersThatDoNotFit(t *testing.T) {
	tests := []struct {
		name string
		r    PinResult
	}{
		{"nothing", PinResult{}},
		{"handle without blocks", PinResult{Handle: "p"}},
		{"blocks without handle", PinResult{Blocks: []PinnedBlock{lent(1)}}},
		{"too many blocks", PinResult{"p", []PinnedBlock{lent(1), lent(2)}}},
		{"no such element", PinResult{"p", []PinnedBlock{lent(8)}}},
		{"no such region", PinResult{"p", []PinnedBlock{{Refs: []MemoryRef{{Label: "v"}}}}}},
		{"pools for other pieces", PinResult{"p", []PinnedBlock{{Refs: []MemoryRef{{Label: "kv:k"}}, Pools: []byte{0, 1}}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h, p := newPinTest(t)
			a, _ := ask(p, "x")
			h.answers[0](tt.r)
			if a.times != 1 || a.items[0].Claim != 0 {
				t.Errorf("%+v", a)
			}
			if want := len(tt.r.Handle); len(h.returned()) != want {
				t.Errorf("given back %v", h.returned())
			}
			h.answers[0](PinResult{"again", []PinnedBlock{lent(1)}}) // a second answer grants nothing
			if a.times != 1 || !slices.Contains(h.returned(), "again") {
				t.Errorf("second answer: %+v, given back %v", a, h.returned())
			}
		})
	}
}

func TestPinReleaseIsRepeated(t *testing.T) {
	h, p := newPinTest(t)
	p.retry = time.Millisecond
	h.refuse = 3
	a, _ := ask(p, "x")
	h.answers[0](PinResult{"p", []PinnedBlock{lent(1)}})
	p.Unclaim(a.items[0].Claim)
	b, _ := ask(p, "x") // leaving: not asked for, not lent
	if b.times != 1 || b.items[0].Claim != 0 || len(h.questions()) != 1 {
		t.Errorf("%+v after %v", b, h.questions())
	}
	if !p.Close(5*time.Second) || !slices.Equal(h.returned(), []string{"p"}) {
		t.Errorf("given back %v", h.returned())
	}
}

func TestPinStop(t *testing.T) {
	h, p := newPinTest(t)
	a, stopA := ask(p, "x")
	b, stopB := ask(p, "x")
	stopA()
	stopA()
	if a.times != 1 || a.items[0].Claim != 0 || h.canceled != 0 {
		t.Fatalf("%+v, %d cancelled: b still waits", a, h.canceled)
	}
	stopB()
	if b.times != 1 || h.canceled != 1 {
		t.Fatalf("%+v, %d cancelled", b, h.canceled)
	}
	h.answers[0](PinResult{"late", []PinnedBlock{lent(1)}})
	if got := h.returned(); !slices.Equal(got, []string{"late"}) || a.times != 1 {
		t.Errorf("given back %v", got)
	}
}

// TestPinsAtRandom has operations ask, stop and let go in any order beside a
// framework that answers when it likes: every claim ends, every grant is given
// back once.
func TestPinsAtRandom(t *testing.T) {
	h, p := newPinTest(t)
	p.retry = time.Microsecond
	var wg, answering sync.WaitGroup
	granted := 0
	quit := make(chan struct{})
	answering.Add(1)
	go func() {
		defer answering.Done()
		for at := 0; ; {
			h.mu.Lock()
			var done func(PinResult)
			n := 0
			if at < len(h.answers) {
				done, n = h.answers[at], len(h.asked[at])
				h.refuse = at % 3
			}
			h.mu.Unlock()
			if done == nil {
				select {
				case <-quit:
					return
				default:
					time.Sleep(10 * time.Microsecond)
					continue
				}
			}
			blocks := make([]PinnedBlock, n)
			for i := range blocks {
				if (at+i)%4 != 0 {
					blocks[i] = lent((at + i) % 8)
				}
			}
			done(PinResult{fmt.Sprint("p", at), blocks})
			granted++
			at++
		}
	}()
	for g := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			r := rand.New(rand.NewPCG(1, uint64(g)))
			for range 300 {
				got := make(chan []PinnedItem, 2)
				keys := [][]byte{[]byte{byte('a' + r.IntN(6))}, []byte{byte('g' + r.IntN(6))}}
				stop := p.Ask("ns", []int{0, 1}, keys, func(items []PinnedItem) { got <- items })
				if r.IntN(3) == 0 {
					stop()
				}
				for _, it := range <-got {
					if it.Claim != 0 {
						if len(p.Spans(it.Claim)) != 2 {
							t.Error("a claim without its memory")
						}
						p.Unclaim(it.Claim)
					}
				}
			}
		}()
	}
	wg.Wait()
	close(quit)
	answering.Wait()
	if !p.Close(5 * time.Second) {
		t.Fatalf("%d busy", p.Busy())
	}
	seen := map[string]int{}
	for _, hdl := range h.returned() {
		seen[hdl]++
	}
	for hdl, n := range seen {
		if n != 1 {
			t.Errorf("%s given back %d times", hdl, n)
		}
	}
	if len(seen) != granted {
		t.Errorf("%d granted, %d given back", granted, len(seen))
	}
}

func TestRegions(t *testing.T) {
	var g Regions
	mem := make([]byte, 1000)
	for _, bad := range []struct {
		why string
		r   Region
	}{
		{"label", Region{Mem: mem, Size: 1000}},
		{"label", Region{Label: ":v", Mem: mem, Size: 1000}},
		{"positive", Region{Label: "a", Mem: mem}},
		{"positive", Region{Label: "a", Mem: mem, Size: 10, Count: -1}},
		{"overlap", Region{Label: "a", Mem: mem, Size: 10, Stride: 9, Count: 2}},
		{"address space", Region{Label: "a", Mem: mem, Size: 10, Stride: 1 << 61, Count: 9}},
		{"1000 bytes, Size, Stride and Count make 910", Region{Label: "a", Mem: mem, Size: 10, Stride: 100, Count: 10}},
		{"needs its address", Region{Label: "a", Size: 10}},
	} {
		var e *RegionError
		if err := g.Register(bad.r); !errors.Is(err, ErrRegion) || !errors.As(err, &e) || !strings.Contains(err.Error(), bad.why) {
			t.Errorf("%+v: %v, want %q", bad.r.Label, err, bad.why)
		}
	}
	for _, r := range []Region{
		{Label: "a", Mem: mem[:910], Size: 10, Stride: 100, Count: 10},
		{Label: "p:*", Mem: mem[:64], Size: 32, Count: 2},
		{Label: "p:x", Device: 1, Addr: 0x1000, Size: 16, Stride: 32, Count: 4},
	} {
		if err := g.Register(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Register(Region{Label: "a", Mem: mem[:10], Size: 10}); !errors.Is(err, ErrRegionExists) {
		t.Error(err)
	}
	spans, release, err := g.Acquire([]MemoryRef{{"a", 9}, {"p:y", 1}, {"p:x", 3}})
	if err != nil {
		t.Fatal(err)
	}
	if &spans[0].Host[0] != &mem[900] || cap(spans[0].Host) != 10 || &spans[1].Host[0] != &mem[32] || spans[2].Host != nil || spans[2].Addr != 0x1060 || spans[2].Len != 16 || spans[2].Device != 1 {
		t.Errorf("%+v", spans)
	}
	if err := g.Deregister("a"); !errors.Is(err, ErrRegionBusy) {
		t.Error(err)
	}
	release()
	release()
	for _, ref := range []MemoryRef{{"a", 10}, {"a", -1}, {"q", 0}, {"p", 0}} {
		if _, _, err := g.Acquire([]MemoryRef{{"p:y", 0}, ref}); !errors.Is(err, ErrNoRegion) {
			t.Errorf("%v: %v", ref, err)
		}
	}
	for _, l := range []string{"a", "p:*", "p:x"} {
		if err := g.Deregister(l); err != nil {
			t.Error(err)
		}
	}
	if err := g.Deregister("a"); !errors.Is(err, ErrNoRegion) {
		t.Error(err)
	}
}
