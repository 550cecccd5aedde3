package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvcr-go/kvcr/bench/trace"
	"github.com/kvcr-go/kvcr/wire/client"
)

// TraceOptions are those of the trace suite.
type TraceOptions struct {
	Options
	// Exe is this program: it is run again as the node.
	Exe    string
	Traces []*trace.Trace
	// Speeds to measure: how many times as fast as they were recorded requests
	// come. Empty: 120.
	Speeds []float64
}

const (
	traceBlock = 4 << 10 // bytes
	// tracePercent of the trace's different blocks fit the node.
	tracePercent = 20
	traceLanes   = 64
	traceConns   = 4
	// traceFlight is how many reads or writes of one request are under way.
	traceFlight = 16
	// traceDepth is more than may wait for a lane of a node that keeps up by far.
	traceDepth = 1024
	traceDrain = 30 * time.Second
	// traceQuiet is the pause before the clock starts, as in the router's benchmark.
	traceQuiet = 5 * time.Second
	// quickTrace is how much of a trace a quick run plays.
	quickTrace = 4 * time.Second
)

// Trace replays traces against a whole node in a process of its own, as an open loop:
// each request comes at its time, asks how many of its leading blocks there are,
// reads them, and writes the others.
func Trace(ctx context.Context, o TraceOptions) (*Report, error) {
	if len(o.Speeds) == 0 {
		o.Speeds = []float64{120}
	}
	for _, s := range o.Speeds {
		if !(s > 0) {
			return &Report{}, &OptionError{"speed", s, "above 0"}
		}
	}
	return runParts(ctx, o.Options, []part{
		{[]string{"request", "took", "drain", "queue-at-stop", "valid", "usable-prefix-hit"}, 1, func(ctx context.Context, opts Options, rep *Report) error {
			o.Options = opts
			n := len(o.Traces) * len(o.Speeds)
			for i, tr := range o.Traces {
				for j, speed := range o.Speeds {
					if err := o.measure(ctx, o.slice(i*len(o.Speeds)+j, n), rep, tr, speed); err != nil {
						return fmt.Errorf("%s at speed %g: %w", tr.Name, speed, err)
					}
				}
			}
			return nil
		}},
	})
}

// cut is the part of a trace that is played.
func (o TraceOptions) cut(tr *trace.Trace, speed float64) *trace.Trace {
	switch {
	case o.Smoke:
		return begin(tr, smokeRequests/3)
	case o.Quick:
		n := 0
		for n < len(tr.Requests) && float64(tr.Requests[n].Timestamp)/speed <= float64(quickTrace.Milliseconds()) {
			n++
		}
		return begin(tr, max(2, n))
	}
	return tr
}

func (o TraceOptions) measure(ctx context.Context, opts Options, rep *Report, whole *trace.Trace, speed float64) error {
	tr := o.cut(whole, speed)
	if o.Smoke { // in a fifth of a second, whatever the trace
		first, last := tr.Requests[0].Timestamp, tr.Requests[len(tr.Requests)-1].Timestamp
		speed = max(1, float64(last-first)/200)
	}
	given := []Param{{"trace", tr.Name}, {"speed", speed}}
	if o.Smoke {
		given[1].Value = 0.0 // none that was asked for
	}
	result := func(name, unit string, better Better, bar Bar) *Result {
		return rep.result(Result{Suite: "trace", Name: name, Params: given, Unit: unit, Better: better, Bar: bar})
	}
	return opts.rounds(ctx, func(round int) error {
		o.Progress(fmt.Sprintf("%s at %g times its speed, round %d of %d", tr.Name, speed, round+1, opts.Runs))
		p, hits, err := o.playOnce(ctx, tr, speed, uint64(round+1))
		if err != nil {
			return err
		}
		why := p.broken()
		valid := 1.0
		if len(why) > 0 {
			valid = 0
		}
		add := func(r *Result, v float64) *Series {
			s := r.series(ours)
			s.Runs = append(s.Runs, v)
			return s
		}
		add(result("valid", "of 1", Higher, Bar{Limit: 1, HasLimit: true}), valid).Note = strings.Join(why, "; ")
		add(result("took", "of the window", Lower, Bar{Limit: keptUpLimit, HasLimit: true}), p.took()).Note = fmt.Sprintf("%d requests in a window of %v; up to %.2f it has kept up", len(tr.Requests), p.window.Round(time.Millisecond), keptUpLimit)
		add(result("drain", "ms", Lower, Bar{}), p.drained.Seconds()*1e3)
		add(result("queue-at-stop", "requests", Lower, Bar{}), float64(p.queuedAtEnd))
		add(result("usable-prefix-hit", "%", Higher, Bar{}), hits)
		for _, stage := range stages {
			rep.addCurve(Result{Suite: "trace", Name: "request", Params: append(given[:2:2], Param{"stage", stage}), Unit: "us", Better: Lower}, ours, p.times[stage], 1e3)
		}
		return nil
	})
}

// playOnce plays a trace against a fresh node.
func (o TraceOptions) playOnce(ctx context.Context, tr *trace.Trace, speed float64, seed uint64) (_ *played, hitPercent float64, err error) {
	dir, err := os.MkdirTemp("", "kvcr-bench")
	if err != nil {
		return nil, 0, err
	}
	defer os.RemoveAll(dir)
	node, err := o.startNode(ctx, dir, CapacityOf(tr, tracePercent))
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, node.stop()) }()
	cl, err := client.Dial(ctx, client.Options{Addr: node.addr("tcp", "binary"), Name: "bench", Conns: traceConns})
	if err != nil {
		return nil, 0, err
	}
	defer cl.Close()

	// Everything that can be is made before the clock starts.
	t := newTraceClient(cl, tr)
	s := &schedule{do: t.request, lanes: traceLanes, depth: traceDepth, drain: traceDrain}
	rng := rand.New(rand.NewPCG(seed, 1))
	first := tr.Requests[0].Timestamp
	for i := range tr.Requests {
		s.due = append(s.due, time.Duration(float64(tr.Requests[i].Timestamp-first)/speed*1e6))
		s.lane = append(s.lane, rng.IntN(traceLanes))
	}
	if s.due[len(s.due)-1] <= 0 {
		return nil, 0, &OptionError{"trace", tr.Name, "requests at different times"}
	}
	debug.FreeOSMemory()
	quiet := traceQuiet
	if o.Quick {
		quiet /= 10
	}
	time.Sleep(o.lasting(quiet)) // the node's start has passed
	p, err := s.play(ctx)
	return p, t.hitPercent(), err
}

// startNode starts a node with room for so many blocks.
func (o TraceOptions) startNode(ctx context.Context, dir string, blocks int) (*process, error) {
	resp, err := freePort()
	if err != nil {
		return nil, err
	}
	binary, err := freePort()
	if err != nil {
		return nil, err
	}
	at := func(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }
	args := []string{"serve", "--http=", "--resp", at(resp) + ",unix:" + filepath.Join(dir, "node.sock"), "--listen", at(binary), "--prefault", "true",
		"--block", strconv.Itoa(traceBlock), "--capacity", strconv.Itoa(max(blocks*traceBlock, 16<<20)), "--max-blocks", strconv.Itoa(blocks), "--log-level", "warn"}
	p := &process{name: ours, addrs: map[string]string{"tcp/binary": at(binary)}}
	return p, p.launch(ctx, o.Exe, o.Profiles.child("server", args...), os.Environ(), at(binary))
}

// traceClient plays requests through a client of the node. Lanes share the client
// alone.
type traceClient struct {
	cl    *client.Client
	keys  []*Keys // of each request
	lanes []traceLane
}

type traceLane struct {
	flights    []flight
	hits, asks int
}

// flight is the memory of one read or write under way.
type flight struct {
	values *values
	buf    []byte
}

func newTraceClient(cl *client.Client, tr *trace.Trace) *traceClient {
	t := &traceClient{cl: cl, lanes: make([]traceLane, traceLanes)}
	for i := range tr.Requests {
		t.keys = append(t.keys, NewKeys(tr.Requests[i].IDs))
	}
	for i := range t.lanes {
		for j := range traceFlight {
			t.lanes[i].flights = append(t.lanes[i].flights, flight{newValues(traceBlock, uint64(i*traceFlight+j)), make([]byte, traceBlock)})
		}
	}
	return t
}

// hitPercent is the usable-prefix hit ratio. Call it when no lane works.
func (t *traceClient) hitPercent() float64 {
	hits, asks := 0, 0
	for _, l := range t.lanes {
		hits, asks = hits+l.hits, asks+l.asks
	}
	return percent(hits, asks)
}

// request plays one: how many leading blocks are there, each of them read and looked
// at, the others written.
func (t *traceClient) request(ctx context.Context, lane, job int) (lookup, store time.Duration, err error) {
	l, keys := &t.lanes[lane], t.keys[job]
	names := make([][]byte, keys.Len())
	for i := range names {
		names[i] = keys.At(i).Bytes
	}
	start := time.Now()
	hits, err := t.cl.Prefix(ctx, names)
	if err != nil {
		return 0, 0, err
	}
	// A block may have been evicted since: what comes after it is of no use.
	gone := make([]bool, hits)
	err = l.each(hits, func(f *flight, i int) error {
		v, ok, err := t.cl.Get(ctx, names[i], f.buf)
		if err != nil {
			return err
		}
		gone[i] = !ok
		if k := keys.At(i); ok && (len(v) != traceBlock || !stamped(v, k)) {
			return &WrongBytesError{k.Bytes, k.stamp()}
		}
		return nil
	})
	if err != nil {
		return 0, 0, err
	}
	for i := range gone {
		if gone[i] {
			hits = i
			break
		}
	}
	lookup = time.Since(start)
	l.hits, l.asks = l.hits+hits, l.asks+keys.Len()
	if hits == keys.Len() {
		return lookup, 0, nil
	}
	start = time.Now()
	err = l.each(keys.Len()-hits, func(f *flight, i int) error {
		k := keys.At(hits + i)
		_, err := t.cl.Deposit(ctx, k.Bytes, f.values.of(k))
		return err
	})
	return lookup, time.Since(start), err
}

// each does n things, some at the same time, and returns the first error.
func (l *traceLane) each(n int, do func(f *flight, i int) error) error {
	workers := min(n, len(l.flights))
	errs := make([]error, workers)
	var done sync.WaitGroup
	for w := range workers {
		done.Add(1)
		go func() {
			defer done.Done()
			for i := w; i < n && errs[w] == nil; i += workers {
				errs[w] = do(&l.flights[w], i)
			}
		}()
	}
	done.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
