package kvcr

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvcr-go/kvcr/arena"
)

// Every engine of these tests is opened by open, whose cleanup closes it and
// then looks for goroutines, descriptors and regions that stayed. TestMain
// looks once more at the end, for engines that no cleanup knows of.

func TestMain(m *testing.M) {
	// The runtime opens two descriptors of its own with the first pipe.
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
	before := takeStock()
	code := m.Run()
	if code == 0 {
		if err := before.check(5 * time.Second); err != nil {
			fmt.Fprintln(os.Stderr, "after all tests:", err)
			code = 1
		}
	}
	for _, f := range AtTestEnd {
		f()
	}
	os.Exit(code)
}

// AtTestEnd is what tests want done after the last of them.
var AtTestEnd []func()

// stock is what there must be no more of once an engine is closed.
type stock struct {
	goroutines goleak.Option
	fds        int
	regions    int
	bytes      int64
}

func takeStock() stock {
	s := stock{goroutines: goleak.IgnoreCurrent(), fds: descriptors()}
	s.regions, s.bytes = regions()
	return s
}

// check waits until all is as it was; what was running may still be on its way
// out.
func (s stock) check(wait time.Duration) error {
	deadline := time.Now().Add(wait)
	for {
		err := s.once()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		runtime.GC() // handles and timers that became unreachable
		time.Sleep(2 * time.Millisecond)
	}
}

func (s stock) once() error {
	var errs []error
	if n := descriptors(); n > s.fds {
		errs = append(errs, fmt.Errorf("%d descriptors are open, %d were", n, s.fds))
	}
	if n, bytes := regions(); n > s.regions || bytes > s.bytes {
		errs = append(errs, fmt.Errorf("%d regions of %d bytes are mapped, %d of %d were", n, bytes, s.regions, s.bytes))
	}
	if len(errs) == 0 {
		if err := goleak.Find(s.goroutines); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func descriptors() int {
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	return len(d)
}

// regions counts the mappings that are not inherited over a fork: arenas are
// the only ones (anonymous ones of race builds lie in Go's heap and do not
// count).
func regions() (n int, bytes int64) {
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		panic(err)
	}
	defer f.Close()
	size := int64(0)
	for sc := bufio.NewScanner(f); sc.Scan(); {
		switch key, rest, _ := strings.Cut(sc.Text(), ":"); key {
		case "Size":
			size, _ = strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		case "VmFlags":
			for _, flag := range strings.Fields(rest) {
				if flag == "dc" {
					n++
					bytes += size << 10
				}
			}
		}
	}
	return n, bytes
}

// open opens an engine that the test's cleanup closes. Whatever the test did,
// nothing may be out by then.
func open(t testing.TB, cfg Config) *Engine {
	t.Helper()
	before := takeStock()
	e, err := Open(cfg)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := closeWithin(e); err != nil {
			t.Errorf("Close at the end of the test: %v", err)
		}
		if err := before.check(2 * time.Second); err != nil {
			t.Errorf("after Close: %v", err)
		}
	})
	return e
}

// closeBound is how long a Close may take in these tests.
const closeBound = 10 * time.Second

// closeWithin panics with all stacks when Close hangs.
func closeWithin(e *Engine) (err error) {
	within(closeBound, "Close", func() { err = e.Close() })
	return err
}

// within runs f and panics with all stacks if it takes longer than d: a hang
// must show where it hangs.
func within(d time.Duration, what string, f func()) {
	timer := time.AfterFunc(d, func() {
		buf := make([]byte, 1<<20)
		buf = buf[:runtime.Stack(buf, true)]
		panic(fmt.Sprintf("%s takes longer than %v\n%s", what, d, buf))
	})
	defer timer.Stop()
	f()
}

func handle(t testing.TB, e *Engine) *Handle {
	t.Helper()
	h, err := e.Handle()
	if err != nil {
		t.Fatalf("Handle: %v", err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

func handleIn(t testing.TB, e *Engine, ns string) *Handle {
	t.Helper()
	h, err := e.HandleIn(ns)
	if err != nil {
		t.Fatalf("HandleIn(%q): %v", ns, err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

// stats returns a snapshot that must be there.
func stats(t testing.TB, e *Engine) Stats {
	t.Helper()
	st, err := e.Stats()
	if err != nil {
		t.Fatalf("Stats: %v", err)
	}
	return st
}

// A test payload tells by itself whether it is whole: all of it follows from
// its first eight bytes and its length. The shortest is eight bytes.

func stamp(dst []byte, seed uint64) []byte {
	binary.LittleEndian.PutUint64(dst, seed)
	x := seed ^ uint64(len(dst))<<32
	i := 8
	for ; i+8 <= len(dst); i += 8 {
		x = x*6364136223846793005 + 1442695040888963407
		binary.LittleEndian.PutUint64(dst[i:], x^x>>29)
	}
	for ; i < len(dst); i++ {
		x = x*6364136223846793005 + 1442695040888963407
		dst[i] = byte(x >> 56)
	}
	return dst
}

func stamped(seed uint64, n int) []byte { return stamp(make([]byte, n), seed) }

// seedOf returns the seed of a whole payload; ok is false for a broken one.
func seedOf(b []byte) (seed uint64, ok bool) {
	if len(b) < 8 {
		return 0, false
	}
	seed = binary.LittleEndian.Uint64(b)
	x := seed ^ uint64(len(b))<<32
	i := 8
	for ; i+8 <= len(b); i += 8 {
		x = x*6364136223846793005 + 1442695040888963407
		if binary.LittleEndian.Uint64(b[i:]) != x^x>>29 {
			return seed, false
		}
	}
	for ; i < len(b); i++ {
		x = x*6364136223846793005 + 1442695040888963407
		if b[i] != byte(x>>56) {
			return seed, false
		}
	}
	return seed, true
}

func keyOf(i int) []byte { return fmt.Appendf(nil, "key-%d", i) }

// isErr fails unless err is target.
func isErr(t testing.TB, what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: error %v, want %v", what, err, target)
	}
}

// pick returns short in short runs and under the race detector, else long.
func pick(short, long int) int {
	if testing.Short() || raceOn {
		return short
	}
	return long
}

// one is a namespace list of one.
func one(ns Namespace) []Namespace {
	if ns.Name == "" {
		ns.Name = "ns"
	}
	return []Namespace{ns}
}

// variants are the ways in which callers reach a shard.
type variant struct {
	name   string
	config func(*Namespace)
}

// foreign is a policy that the engine must take for the embedder's own, so that
// no caller helps and every command goes through the rings.
func foreign(name string) func(*Namespace) {
	return func(ns *Namespace) { ns.NewPolicy = wrapPolicy(name, nil) }
}

var helping = []variant{
	{"helped", func(*Namespace) {}},
	{"rings", foreign("lru")},
}

// reserved says how many payload bytes are neither free nor resident, rounded
// as the allocator rounds; 0 when nothing is claimed, held or on its way.
func reserved(e *Engine) (n int) {
	for _, ns := range e.list {
		for _, p := range ns.parts {
			n += p.Reserved()
		}
	}
	return n
}

func checking() bool { return arena.Checking }
