package work

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvcr-go/kvcr/hints"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// fake is an engine of which a test decides what it answers. Without a word from the
// test sources have every block, and all goes well at once.
type fake struct {
	resolve func(ctx context.Context, source string, hashes []uint64) ([]Block, string)
	look    func(b *Block) (Standing, string)
	await   func(b *Block, ended func())
	fetch   func(f *fetch)

	mu      sync.Mutex
	here    map[string]bool
	fetches []*fetch
}

// fetch is a call of Fetch.
type fetch struct {
	ctx     context.Context
	source  string
	blocks  []Block
	move    bool
	arrived func(i int, a Arrival)
	moved   func(i int, reason string)
}

func newFake() *fake { return &fake{here: map[string]bool{}} }

func blockOf(hash uint64) Block {
	return Block{Hash: hash, Namespace: "kv", Key: strconv.AppendUint(nil, hash, 10), Generation: 1, Bytes: 1 << 10}
}

func (f *fake) Resolve(ctx context.Context, source string, hashes []uint64) ([]Block, string) {
	if f.resolve != nil {
		return f.resolve(ctx, source, hashes)
	}
	var out []Block
	for _, h := range hashes {
		out = append(out, blockOf(h))
	}
	return out, ""
}

func (f *fake) Look(b *Block) (Standing, string) {
	if f.look != nil {
		return f.look(b)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.here[string(b.Key)] {
		return Present, ""
	}
	return Absent, ""
}

func (f *fake) Await(b *Block, ended func()) {
	if f.await != nil {
		f.await(b, ended)
		return
	}
	ended()
}

func (f *fake) Fetch(ctx context.Context, source string, blocks []Block, move bool, arrived func(int, Arrival), moved func(int, string)) {
	call := &fetch{ctx, source, blocks, move, arrived, moved}
	f.mu.Lock()
	f.fetches = append(f.fetches, call)
	f.mu.Unlock()
	if f.fetch != nil {
		f.fetch(call)
		return
	}
	f.bring(call)
}

// bring has all blocks of a call arrive, and their moves end.
func (f *fake) bring(call *fetch) {
	for i, b := range call.blocks {
		f.mu.Lock()
		was := f.here[string(b.Key)]
		f.here[string(b.Key)] = true
		f.mu.Unlock()
		call.arrived(i, Arrival{Existing: was})
		if call.move {
			call.moved(i, "")
		}
	}
}

func (f *fake) calls() []*fetch {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.fetches)
}

// tester is what a *testing.T and a *rapid.T have in common.
type tester interface {
	Helper()
	Error(...any)
	Errorf(string, ...any)
	Fatal(...any)
}

// record is a Report that checks the order of what it is told.
type record struct {
	t      tester
	end    chan struct{}
	mu     sync.Mutex
	stages map[uint64][]hints.Stage
	why    map[uint64]string
	bytes  int64
	ended  bool
	reason string
}

func newRecord(t tester) *record {
	return &record{t: t, end: make(chan struct{}), stages: map[uint64][]hints.Stage{}, why: map[uint64]string{}}
}

func (r *record) Report(stage hints.Stage, reason string, hashes ...uint64) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		r.t.Errorf("%v of %v after the end", stage, hashes)
	}
	for _, h := range hashes {
		r.stages[h] = append(r.stages[h], stage)
		r.why[h] = reason
	}
	return len(hashes)
}

func (r *record) AddBytes(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bytes += n
}

func (r *record) End(reason string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		r.t.Error("it ends twice")
		return false
	}
	r.ended, r.reason = true, reason
	close(r.end)
	return true
}

func (r *record) wait() {
	r.t.Helper()
	select {
	case <-r.end:
	case <-time.After(10 * time.Second):
		r.t.Fatal("the action does not end")
	}
}

// last is the last stage of a hash.
func (r *record) last(h uint64) hints.Stage {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.stages[h]; len(s) > 0 {
		return s[len(s)-1]
	}
	return hints.StageAccepted
}

func (r *record) is(h uint64, stage hints.Stage, reason string) {
	r.t.Helper()
	if got := r.last(h); got != stage || r.why[h] != reason {
		r.t.Errorf("%d has come to %v (%q), want %v (%q)", h, got, r.why[h], stage, reason)
	}
}

// start is an executor over the fake, closed at the end of the test.
func start(t testing.TB, f *fake, change func(*Config)) *Executor {
	t.Helper()
	cfg := Config{Engine: f, Pacer: NewPacer(1<<20, 8, time.Second)}
	if change != nil {
		change(&cfg)
	}
	x := New(cfg)
	t.Cleanup(func() {
		if !x.Close(5 * time.Second) {
			t.Error("it does not close")
		}
		if a, b := x.Queued(); a != 0 || b != 0 {
			t.Errorf("%d actions and %d blocks are left", a, b)
		}
		if n := x.cfg.Pacer.InFlight(); n != 0 {
			t.Errorf("%d bytes are in flight", n)
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		if len(x.lanes) > 0 {
			t.Errorf("%d lanes are left", len(x.lanes))
		}
	})
	return x
}

// order submits an action and returns what it is told.
func order(t testing.TB, x *Executor, source string, move bool, hashes ...uint64) *record {
	t.Helper()
	r := newRecord(t)
	if err := x.Submit(Action{Source: source, Hashes: hashes, Move: move, Report: r}); err != nil {
		t.Fatal(err)
	}
	return r
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}
