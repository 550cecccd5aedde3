package soak

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/pprof"
	"sync"
	"time"

	"github.com/kvcr-go/kvcr/wire/client"
)

const (
	// callBound is how long a call may take by its own words, and callGrace how much
	// later it may return: what a busy machine needs.
	callBound = 10 * time.Second
	callGrace = 10 * time.Second
)

// worker is one client's goroutine.
type worker struct {
	run     *run
	node    *node
	name    string
	rng     *rand.Rand
	cells   []*cell     // that it writes
	direct  bool        // nothing is between it and the node now
	since   func() bool // from excuse, when calls depend on what was before them
	buf     []byte
	scratch []byte
}

func (w *worker) where() string { return w.node.name() + ", " + w.name }

// call makes one call within its bound, sometimes one that is cancelled soon, and
// judges its error.
func (w *worker) call(kind string, f func(ctx context.Context) error) error {
	return w.bounded(kind, w.rng.IntN(40) == 0, f)
}

// calm is call without cancelling.
func (w *worker) calm(kind string, f func(ctx context.Context) error) error {
	return w.bounded(kind, false, f)
}

func (w *worker) bounded(kind string, hurried bool, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), callBound)
	defer cancel()
	if hurried {
		t := time.AfterFunc(time.Duration(w.rng.IntN(3000))*time.Microsecond, cancel)
		defer t.Stop()
	}
	began, excused := time.Now(), w.since
	if excused == nil {
		excused = w.excuse()
	}
	ticket := w.run.watch.enter(w.where() + ": " + kind)
	err := f(ctx)
	w.run.watch.leave(ticket)
	if took := time.Since(began); took > callBound+callGrace {
		w.run.trouble.add(noAnswer, w.where(), "%s took %v, %v beyond its bound", kind, took, took-callBound)
	}
	w.run.ops.add(kind, 1)
	if hurried && err != nil {
		w.run.faults.add("cancelled call", 1)
	}
	if !hurried || !errors.Is(err, context.Canceled) {
		w.run.judge(w.name+": "+kind, w.node, err, excused())
	}
	return err
}

// excuse is called before something is asked of the node, and what it returns when
// that has failed: whether connections may have been lost meanwhile.
func (w *worker) excuse() func() bool {
	life, up := w.node.life.Load(), w.node.up.Load()
	return func() bool {
		return w.run.shaken.Load() && (!w.direct || !up || !w.node.up.Load() || w.node.life.Load() != life)
	}
}

// judge reports an error that nothing of what was done explains. shaken: connections
// may have been lost.
func (r *run) judge(what string, n *node, err error, shaken bool) {
	if err == nil || r.explained(err, shaken) {
		return
	}
	kind := unexpected
	if errors.Is(err, client.ErrTimeout) {
		kind = noAnswer
	}
	r.trouble.add(kind, n.name()+", "+what, "%v", err)
}

// explained reports whether an error is one of those that clients must expect: of a
// full cache always, of lost connections where there were faults.
func (r *run) explained(err error, shaken bool) bool {
	for _, ok := range []error{client.ErrCapacity, client.ErrDropped, client.ErrBusy} {
		if errors.Is(err, ok) {
			r.ops.add("refused: "+ok.Error(), 1)
			return true
		}
	}
	if !shaken {
		return false
	}
	for _, ok := range []error{client.ErrLost, client.ErrTimeout, client.ErrClosing, client.ErrReleased, client.ErrAborted, context.Canceled} {
		if errors.Is(err, ok) {
			r.ops.add("failed: "+ok.Error(), 1)
			return true
		}
	}
	return false
}

// saw checks a block's bytes.
func (w *worker) saw(how string, b *block, got []byte) {
	version, wrong, scratch := check(got, b.id, w.scratch)
	w.scratch = scratch
	w.run.bytes.Add(int64(len(got)))
	if wrong > 0 || version != 0 {
		w.run.wrong(w.where(), "%s of %s: %d of %d bytes are wrong (version %d)%s", how, w.run.names[b.id], wrong, len(got), version, w.whose(got))
	}
}

// sawCell checks what was read of a SET key.
func (w *worker) sawCell(how string, c *cell, l look, got []byte) {
	version, wrong, scratch := check(got, c.id, w.scratch)
	w.scratch = scratch
	w.run.bytes.Add(int64(len(got)))
	if wrong > 0 {
		w.run.wrong(w.where(), "%s of %s: %d of %d bytes are wrong (version %d)%s", how, c.key, wrong, len(got), version, w.whose(got))
	} else if err := c.judge(l, version); err != nil {
		w.run.wrong(w.where(), "%s of %s: %v", how, c.key, err)
	}
}

// whose says what the bytes are, when they are another key's.
func (w *worker) whose(got []byte) string {
	if name := w.run.names.of(got); name != "" {
		return ": they begin as those of " + name
	}
	return ""
}

func (r *run) wrong(where, format string, args ...any) {
	r.trouble.add(wrongBytes, where, format, args...)
}

// chain chooses a chain; a few are asked for far more often than the others.
func (w *worker) chain() *chain {
	n := len(w.run.chains)
	if w.rng.IntN(2) == 0 {
		n = min(n, 8)
	}
	return w.run.chains[w.rng.IntN(n)]
}

// blocks chooses up to most neighbours of a chain.
func (w *worker) blocks(most int) []*block {
	c := w.chain().blocks
	from := w.rng.IntN(len(c))
	return c[from:min(len(c), from+1+w.rng.IntN(most))]
}

// any is a cell to read, own one to write.
func (w *worker) any() *cell { return w.node.cells[w.rng.IntN(len(w.node.cells))] }
func (w *worker) own() *cell { return w.cells[w.rng.IntN(len(w.cells))] }

// rest lets others have the machine: the soak is about what happens, not how fast.
func (w *worker) rest(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Duration(w.rng.IntN(int(w.run.o.pause)))):
		return true
	}
}

// watch knows what is under way, so that what never returns is seen.
type watch struct {
	mu     sync.Mutex
	next   int
	active map[int]*ticket
}

type ticket struct {
	id    int
	what  string
	since time.Time
	told  bool
}

func (t *watch) enter(what string) *ticket {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.active == nil {
		t.active = map[int]*ticket{}
	}
	t.next++
	k := &ticket{id: t.next, what: what, since: time.Now()}
	t.active[k.id] = k
	return k
}

func (t *watch) leave(k *ticket) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.active, k.id)
}

// overdue are calls that should have returned long ago, each told once.
func (t *watch) overdue(bound time.Duration) (whats []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.active {
		if !k.told && time.Since(k.since) > bound {
			k.told = true
			whats = append(whats, fmt.Sprintf("%s has not returned for %v", k.what, time.Since(k.since).Round(time.Millisecond)))
		}
	}
	return whats
}

// guard looks for such calls until ctx ends.
func (r *run) guard(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(500 * time.Millisecond):
		}
		for _, what := range r.watch.overdue(2*callBound + callGrace) {
			r.trouble.add(noAnswer, "this process", "%s; its goroutines are in %s", what, r.dump())
		}
	}
}

// dump writes what this process's goroutines do.
func (r *run) dump() string {
	name := filepath.Join(r.dir, "goroutines.txt")
	f, err := os.Create(name)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if err := pprof.Lookup("goroutine").WriteTo(f, 1); err != nil {
		return err.Error()
	}
	return name
}

// names tell whose a value is, by the number that it begins with.
type names map[uint64]string

func (m names) of(got []byte) string {
	if len(got) < headBytes {
		return ""
	}
	return m[binary.LittleEndian.Uint64(got)]
}
