package faults

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/arena"
	"github.com/kvcr-go/kvcr/internal/points"
	"github.com/kvcr-go/kvcr/peer"
)

// Blocks of two sizes: keys that begin with "s" name small ones.
const (
	bigBytes   = 1 << 20
	smallBytes = 64 << 10
)

// payload is the one content that a key may have.
func payload(key string) []byte {
	n := bigBytes
	if strings.HasPrefix(key, "s") {
		n = smallBytes
	}
	h := fnv.New64a()
	h.Write([]byte(key))
	b, x := make([]byte, n), h.Sum64()
	for i := 0; i < n; i += 8 {
		x = x*6364136223846793005 + 1442695040888963407
		binary.LittleEndian.PutUint64(b[i:], x)
	}
	return b
}

// timing is that of all engines here: little patience, so that what nobody
// confirms or answers is over soon.
var timing = peer.Timing{Repeat: 100 * time.Millisecond, RepeatMax: 400 * time.Millisecond, Operation: 3 * time.Second, Allowance: 300 * time.Millisecond}

// settings are those of one engine, as a child gets them.
type settings struct {
	Name      string
	Listen    string // empty: it only fetches
	Routes    []string
	Slots     int  // default 32
	SlotBytes int  // default 1 MiB; engines with another one do not fit to others
	OwnSpace  bool // a network namespace of its own
}

func (s settings) open(outcome func(peer.Outcome)) (*kvcr.Engine, error) {
	if s.Slots == 0 {
		s.Slots = 32
	}
	if s.SlotBytes == 0 {
		s.SlotBytes = bigBytes
	}
	cfg := kvcr.Config{
		Capacity: int64(s.Slots) * int64(s.SlotBytes), Shards: 1,
		Namespaces: []kvcr.Namespace{{Name: "kv", Policy: "lru", Pools: []kvcr.Pool{{Name: "kv", SlotBytes: s.SlotBytes}}}},
		Peers:      &kvcr.Peers{Name: s.Name, Routes: s.Routes, Timing: timing, OnOutcome: outcome, Public: true, Streams: 1},
	}
	cfg.Memory.Backing = arena.Memfd
	if s.Listen != "" {
		cfg.Peers.Listen = []string{s.Listen}
	}
	return kvcr.Open(cfg)
}

// request is what a child is told to do; each has one reply, but for some that
// come by themselves (reply.At).
type request struct {
	ID       int
	Verb     string
	Keys     []string
	Endpoint string
	Move     bool
	Timeout  time.Duration
	// Of "arm": where to stop, on a link with that peer; Kill: to die there.
	Point string
	Peer  uint64
	Kill  bool
	Args  []string // of "run"
}

type reply struct {
	ID       int
	At       string // the armed point is reached, and waits for "go"
	Err      string
	Endpoint string // of "hello"
	Self     uint64
	Reasons  []string      // of "fetch", by key
	Took     time.Duration // of "fetch"
	Has      []bool        // of "has", by key
	Base     base
	Outcomes map[string]string
}

// base is what an engine at rest has none of, but for Taken, which it has as much
// of as before.
type base struct {
	Claims, Marks, Holds, Ops int
	Posted, Quarantined       int64
	Taken                     int64 // bytes neither free nor of a block
	Connections               int   // to and from peers: not part of rest
}

func (b base) rest() bool {
	b.Taken, b.Connections = 0, 0
	return b == base{}
}

func baseOf(e *kvcr.Engine) (b base, err error) {
	st, err := e.Stats()
	if err != nil {
		return b, err
	}
	n := e.Peers().Stats()
	b = base{Claims: e.Claims(), Marks: st.Marks, Holds: st.Holds, Posted: n.Posted, Quarantined: n.Quarantined, Connections: n.Connections}
	for _, p := range e.Peers().Peers() {
		b.Ops += p.Operations
	}
	for _, ns := range st.Namespaces {
		b.Taken += ns.CapacityBytes - ns.FreeBytes - int64(ns.PayloadBytes)
	}
	return b, nil
}

// fetchInto fetches, checks every byte that is said to be there, and gives the
// reasons. A wrong byte is an error.
func fetchInto(e *kvcr.Engine, keys []string, opt kvcr.FetchOptions) (reasons []string, took time.Duration, err error) {
	h, err := e.Handle()
	if err != nil {
		return nil, 0, err
	}
	defer h.Close()
	start := time.Now()
	op := h.FetchFrom(bytesOf(keys), opt)
	ctx, cancel := context.WithTimeout(context.Background(), opt.Timeout+20*time.Second)
	defer cancel()
	results, err := op.Wait(ctx)
	took = time.Since(start)
	if err != nil {
		return nil, took, fmt.Errorf("no end of a fetch: %w", err)
	}
	for i, r := range results {
		reasons = append(reasons, r.Reason.String())
		if !r.OK() {
			continue
		}
		if !bytes.Equal(r.View.Bytes(), payload(keys[i])) {
			err = fmt.Errorf("%s has wrong bytes", keys[i])
		}
		r.View.Release()
	}
	return reasons, took, err
}

func bytesOf(keys []string) (b [][]byte) {
	for _, k := range keys {
		b = append(b, []byte(k))
	}
	return b
}

const envChild = "KVCR_FAULTS_CHILD"

// kid is a child process.
type kid struct {
	e *kvcr.Engine

	mu       sync.Mutex // also of the standard output
	out      *json.Encoder
	outcomes map[string]string
	armed    request
	gate     chan struct{}
}

func childMain(config string) {
	var s settings
	if err := json.Unmarshal([]byte(config), &s); err != nil {
		panic(err)
	}
	k := &kid{out: json.NewEncoder(os.Stdout), outcomes: map[string]string{}}
	points.Hook = k.reached
	in := json.NewDecoder(os.Stdin)
	for {
		var r request
		if in.Decode(&r) != nil {
			return // whoever started us is gone, or has no more work
		}
		switch r.Verb {
		case "open":
			var err error
			if k.e, err = s.open(k.outcome); err != nil {
				k.say(reply{ID: r.ID, Err: err.Error()})
				continue
			}
			a := reply{ID: r.ID, Self: uint64(k.e.Peers().Self())}
			if eps := k.e.Peers().Endpoints(); len(eps) > 0 {
				a.Endpoint = eps[0]
			}
			k.say(a)
		case "go":
			k.mu.Lock()
			gate := k.gate
			k.gate, k.armed = nil, request{}
			k.mu.Unlock()
			if gate != nil {
				close(gate)
			}
			k.say(reply{ID: r.ID})
		case "arm":
			k.mu.Lock()
			k.armed = r
			k.mu.Unlock()
			k.say(reply{ID: r.ID})
		default:
			go k.work(r)
		}
	}
}

func (k *kid) say(a reply) {
	k.mu.Lock()
	defer k.mu.Unlock()
	_ = k.out.Encode(a) // nobody listens: the input has ended as well
}

func (k *kid) outcome(o peer.Outcome) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.outcomes[string(o.Key)] = o.Status.String()
}

// reached is the hook of package points.
func (k *kid) reached(point string, peer uint64) {
	k.mu.Lock()
	if k.armed.Point != point || k.armed.Peer != peer {
		k.mu.Unlock()
		return
	}
	if k.armed.Kill {
		syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
		select {} // not one instruction more
	}
	gate := make(chan struct{})
	k.armed, k.gate = request{}, gate
	_ = k.out.Encode(reply{At: point})
	k.mu.Unlock()
	<-gate
}

func (k *kid) work(r request) {
	a := reply{ID: r.ID}
	if err := k.do(r, &a); err != nil {
		a.Err = err.Error()
	}
	k.say(a)
}

func (k *kid) do(r request, a *reply) (err error) {
	switch r.Verb {
	case "fetch":
		opt := kvcr.FetchOptions{Sources: []string{r.Endpoint}, Move: r.Move, Timeout: r.Timeout}
		a.Reasons, a.Took, err = fetchInto(k.e, r.Keys, opt)
		return err
	case "base":
		a.Base, err = baseOf(k.e)
		return err
	case "outcomes":
		a.Outcomes = map[string]string{}
		k.mu.Lock()
		defer k.mu.Unlock()
		for _, key := range r.Keys {
			a.Outcomes[key] = k.outcomes[key]
		}
		return nil
	case "run":
		out, err := exec.Command(r.Args[0], r.Args[1:]...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%v: %w: %s", r.Args, err, out)
		}
		return nil
	}
	h, err := k.e.Handle()
	if err != nil {
		return err
	}
	defer h.Close()
	for _, key := range r.Keys {
		switch r.Verb {
		case "deposit":
			if err := h.Deposit([]byte(key), payload(key)); err != nil {
				return err
			}
		case "drop":
			if _, err := h.Delete([]byte(key)); err != nil {
				return err
			}
		case "has":
			v, ok := h.Get([]byte(key))
			if ok && !bytes.Equal(v.Bytes(), payload(key)) {
				err = fmt.Errorf("%s has wrong bytes", key)
			}
			if ok {
				v.Release()
			}
			a.Has = append(a.Has, ok)
		default:
			return fmt.Errorf("no such command: %q", r.Verb)
		}
	}
	return err
}
