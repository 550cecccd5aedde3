package peer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// numbered resolves hash n to keyOf(n), and fails for some.
type numbered struct {
	calls atomic.Int64
	with  func(hash uint64) // before each answer; may be nil
}

func (r *numbered) Resolve(hash uint64) (string, []byte, wire.Status) {
	r.calls.Add(1)
	if r.with != nil {
		r.with(hash)
	}
	switch {
	case hash%100 == 97:
		return "", nil, wire.StatusAmbiguous
	case hash%100 == 98:
		panic("an adapter with a fault")
	case hash%100 == 99:
		return "", nil, wire.StatusMiss
	}
	return "ns", []byte(keyOf(int(hash))), wire.StatusOK
}

// describing is numbered, and says of each block what its key is.
type describing struct{ *numbered }

func (describing) AppendDescription(dst []byte, limit int, namespace string, key []byte) []byte {
	return fmt.Appendf(dst, "this is %s/%s", namespace, key)
}

func withResolver(r Resolver) nodeOption { return func(c *Config) { c.Resolver = r } }

func hashesTo(n int) (hashes []uint64) {
	for i := range n {
		hashes = append(hashes, uint64(i))
	}
	return hashes
}

func resolve(t testing.TB, n *Node, endpoint string, hashes []uint64, limit time.Duration) ([]Resolution, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	start := time.Now()
	all, err := n.Resolve(ctx, endpoint, hashes)
	if took := time.Since(start); took > limit+2*time.Second {
		t.Errorf("Resolve takes %v, its limit is %v", took, limit)
	}
	if len(all) != len(hashes) {
		t.Fatalf("%d answers for %d hashes", len(all), len(hashes))
	}
	for i, r := range all {
		if r.Hash != hashes[i] {
			t.Fatalf("answer %d is of hash %d, not %d", i, r.Hash, hashes[i])
		}
	}
	return all, err
}

// errorOf checks that an error of Resolve says what it should.
func errorOf(t *testing.T, err, want error, status wire.Status, endpoint string) {
	t.Helper()
	var e *Error
	if !errors.Is(err, want) || !errors.As(err, &e) || e.Status != status || e.Endpoint != endpoint || e.Op != "resolve" && e.Op != "dial" {
		t.Errorf("%v, want %v of %s with %v", err, want, endpoint, status)
	}
}

func TestResolve(t *testing.T) {
	src := newTable(t, 256, 4096, false)
	for i := range 200 {
		src.put(t, keyOf(i), 100+i)
	}
	a := openNode(t, src, withResolver(describing{&numbered{}}))
	b := openNode(t, newTable(t, 1, 4096, false))
	hashes := hashesTo(1000)
	slices.Reverse(hashes)
	hashes = append(hashes, 3, 3)
	all, err := resolve(t, b, a.Endpoints()[0], hashes, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		want := wire.StatusOK
		switch {
		case r.Hash%100 == 97:
			want = wire.StatusAmbiguous
		case r.Hash%100 == 98:
			want = wire.StatusAdapter
		case r.Hash%100 == 99 || r.Hash >= 200:
			want = wire.StatusMiss
		}
		if r.Status != want || r.Source != a.Self() {
			t.Fatalf("hash %d: %v by %x, want %v", r.Hash, r.Status, uint64(r.Source), want)
		}
		if want != wire.StatusOK {
			if r.Description != nil {
				t.Fatalf("hash %d, %v: described as %q", r.Hash, r.Status, r.Description)
			}
			continue
		}
		if want := "this is ns/" + keyOf(int(r.Hash)); string(r.Description) != want {
			t.Fatalf("hash %d: described as %q, want %q", r.Hash, r.Description, want)
		}
		if got := src.blocks[keyOf(int(r.Hash))]; r.Namespace != "ns" || string(r.Key) != string(got.key) || r.Generation != got.gen || r.Size != uint64(got.size) {
			t.Fatalf("hash %d: %+v", r.Hash, r)
		}
	}
	if s := a.Stats(); s.Hashes != 1002 || s.AdapterFailures != 10 {
		t.Errorf("%d hashes, %d failures of the adapter", s.Hashes, s.AdapterFailures)
	}
	if all, err := resolve(t, b, a.Endpoints()[0], nil, 5*time.Second); err != nil || len(all) != 0 {
		t.Errorf("no hashes: %v", err)
	}
	src.quiet(t)
	if b.Stats().Outbound != 0 || len(b.dests[a.Endpoints()[0]].resolves) != 0 {
		t.Error("something is left")
	}
}

// Who asks itself is told so, by whatever address, and nothing is looked up; and so is
// who fetches from itself.
func TestResolveSelf(t *testing.T) {
	for _, secret := range []bool{false, true} {
		src := newTable(t, 8, 4096, false)
		src.put(t, keyOf(0), 4096)
		r := &numbered{}
		opts := []nodeOption{withResolver(r)}
		if secret {
			opts = append(opts, withSecret)
		}
		a := openNode(t, src, opts...)
		other := openNode(t, newTable(t, 1, 4096, false), opts...)
		_, port, _ := net.SplitHostPort(strings.TrimPrefix(a.Endpoints()[0], "tcp://"))
		alias := newRelay(t, a.Endpoints()[0]).endpoint()
		for _, endpoint := range []string{a.Endpoints()[0], "tcp://localhost:" + port, alias} {
			all, err := resolve(t, a, endpoint, hashesTo(200), 10*time.Second)
			errorOf(t, err, ErrRefused, wire.StatusSelf, endpoint)
			for _, h := range all {
				if h.Status != wire.StatusSelf {
					t.Fatalf("%s: hash %d: %v", endpoint, h.Hash, h.Status)
				}
			}
			for i, s := range fetch(t, a, endpoint, Submit{Namespace: "ns", Items: wanted(0, 2), Mode: wire.TransferMove}, 10*time.Second) {
				if s.Status != wire.StatusSelf {
					t.Errorf("%s: item %d: %v", endpoint, i, s.Status)
				}
			}
		}
		if n := r.calls.Load(); n != 0 {
			t.Errorf("the resolver was asked for %d hashes", n)
		}
		// The same address is fine for others.
		if all, err := resolve(t, other, alias, hashesTo(1), 10*time.Second); err != nil || all[0].Status != wire.StatusOK {
			t.Errorf("%v, %v", all[0].Status, err)
		}
		src.quiet(t)
	}
}

// A node without a resolver says so at once.
func TestResolveWithout(t *testing.T) {
	a, b := openNode(t, newTable(t, 1, 1, false)), openNode(t, newTable(t, 1, 1, false))
	start := time.Now()
	all, err := resolve(t, b, a.Endpoints()[0], hashesTo(300), 20*time.Second)
	errorOf(t, err, ErrRefused, wire.StatusUnsupported, a.Endpoints()[0])
	if all[0].Status != wire.StatusUnsupported || all[299].Status != wire.StatusUnsupported || time.Since(start) > 5*time.Second {
		t.Errorf("%v after %v", all[0].Status, time.Since(start))
	}
	if !strings.Contains(err.Error(), "does not resolve hashes") {
		t.Errorf("%v", err)
	}
	all, err = resolve(t, b, "nowhere", hashesTo(2), time.Second)
	errorOf(t, err, ErrRefused, wire.StatusUnsupported, "nowhere")
	if all[1].Status != wire.StatusUnsupported {
		t.Errorf("%v", all[1].Status)
	}
}

// Where nobody listens, or nobody answers, time is what ends it.
func TestResolveTime(t *testing.T) {
	b := openNode(t, newTable(t, 1, 1, false), func(c *Config) { c.ResolveTimeout = 300 * time.Millisecond })
	for name, endpoint := range map[string]string{"nobody listens": freePort(t), "nobody answers": newRawSource(t).endpoint()} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(100*time.Millisecond, cancel)
			all, err := b.Resolve(ctx, endpoint, hashesTo(200))
			if all[0].Status != wire.StatusAborted || all[199].Status != wire.StatusAborted || !errors.Is(err, ErrLost) || !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled: %v, %v", all[0].Status, err)
			}
			start := time.Now()
			all, err = b.Resolve(context.Background(), endpoint, hashesTo(200)) // its own time
			if all[0].Status != wire.StatusTimeout || all[199].Status != wire.StatusTimeout || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 2*time.Second {
				t.Errorf("%v, %v after %v", all[0].Status, err, time.Since(start))
			}
			errorOf(t, err, ErrLost, wire.StatusTimeout, endpoint)
		})
	}
}

// Calls end when the node does, those that wait for their turn too.
func TestResolveClose(t *testing.T) {
	b := openNode(t, newTable(t, 1, 1, false))
	endpoint := newRawSource(t).endpoint()
	ended := make(chan error, 2*destResolves)
	for range cap(ended) {
		go func() {
			_, err := b.Resolve(context.Background(), endpoint, hashesTo(3))
			ended <- err
		}()
	}
	within(t, 5*time.Second, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.dests[endpoint] != nil && b.dests[endpoint].users == cap(ended)
	}, func() string { return "the calls do not begin" })
	closeNode(t, b)
	for range cap(ended) {
		if err := <-ended; !errors.Is(err, ErrClosed) {
			t.Errorf("%v", err)
		}
	}
	if all, err := resolve(t, b, endpoint, hashesTo(1), time.Second); !errors.Is(err, ErrClosed) || all[0].Status != wire.StatusClosed {
		t.Errorf("%v, %v", all[0].Status, err)
	}
}

// A connection that is lost in the middle costs time, and nothing else.
func TestResolveReconnects(t *testing.T) {
	src := newTable(t, 64, 4096, false)
	for i := range 60 {
		src.put(t, keyOf(i), 10)
	}
	var a *Node
	r := &numbered{}
	r.with = func(hash uint64) {
		if hash%300 != 0 {
			return
		}
		a.mu.Lock()
		for c := range a.controls {
			go c.close()
		}
		a.mu.Unlock()
		time.Sleep(20 * time.Millisecond) // so that the answer comes too late
	}
	a = openNode(t, src, withResolver(r))
	b := openNode(t, newTable(t, 1, 1, false), func(c *Config) { c.ResolveTimeout = 20 * time.Second })
	r.with(0)
	var once sync.Map
	cut := r.with
	r.with = func(hash uint64) {
		if _, again := once.LoadOrStore(hash, true); !again {
			cut(hash)
		}
	}
	all, err := resolve(t, b, a.Endpoints()[0], hashesTo(1000), 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range all[:60] {
		if h.Status != wire.StatusOK || string(h.Key) != keyOf(int(h.Hash)) {
			t.Errorf("hash %d: %v %s", h.Hash, h.Status, h.Key)
		}
	}
	if b.Stats().Reconnects == 0 {
		t.Error("the connection was never lost")
	}
}

// What a source's link has to do takes its time; hashes do not wait for it.
func TestResolveWhileBusy(t *testing.T) {
	src := newTable(t, 8, 4096, false)
	src.put(t, keyOf(0), 4096)
	a := openNode(t, src, withResolver(&numbered{}))
	b := openNode(t, newTable(t, 8, 4096, false))
	mustFetch(t, b, a.Endpoints()[0], 0, 1)
	within(t, 5*time.Second, func() bool { // else the event loop may be who is held
		a.mu.Lock()
		l := &a.sources[sourceID{b.Self(), 0}].link
		a.mu.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		return !l.running && l.ops == 0 && len(l.queue) == 0
	}, func() string { return "the fetch goes on" })
	release := held(t, a, b.Self())
	defer release()
	if all, err := resolve(t, b, a.Endpoints()[0], hashesTo(2), 5*time.Second); err != nil || all[0].Status != wire.StatusOK {
		t.Errorf("%v, %v", all[0].Status, err)
	}
}

// A call has its own time also where its own link has none for it.
func TestResolveBesideBusyLink(t *testing.T) {
	src := newTable(t, 8, 4096, false)
	src.put(t, keyOf(0), 4096)
	a := openNode(t, src, withResolver(&numbered{}))
	b := openNode(t, newTable(t, 1, 1, false))
	endpoint := a.Endpoints()[0]
	if _, err := resolve(t, b, endpoint, hashesTo(1), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	l := &b.dests[endpoint].link
	b.mu.Unlock()
	begun, gate, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		l.post(call(func() { close(begun); <-gate }))
	}()
	<-begun
	all, err := resolve(t, b, endpoint, hashesTo(300), 50*time.Millisecond)
	errorOf(t, err, ErrLost, wire.StatusTimeout, endpoint)
	if all[0].Status != wire.StatusTimeout || all[299].Status != wire.StatusTimeout {
		t.Errorf("%v", all[0].Status)
	}
	close(gate)
	<-over
	if all, err := resolve(t, b, endpoint, hashesTo(1), 5*time.Second); err != nil || all[0].Status != wire.StatusOK {
		t.Errorf("%v, %v", all[0].Status, err)
	}
}

// A resolver that does not return costs its own answers, and the time of those who ask:
// blocks go on being served.
func TestResolverThatBlocks(t *testing.T) {
	src := newTable(t, 8, 4096, false)
	for i := range 8 {
		src.put(t, keyOf(i), 4096)
	}
	gate := make(chan struct{})
	r := &numbered{with: func(uint64) { <-gate }}
	a := openNode(t, src, withResolver(r))
	b := openNode(t, newTable(t, 8, 4096, false))
	all, err := resolve(t, b, a.Endpoints()[0], hashesTo(1000), 300*time.Millisecond)
	errorOf(t, err, ErrLost, wire.StatusTimeout, a.Endpoints()[0])
	if all[999].Status != wire.StatusTimeout {
		t.Errorf("%v", all[999].Status)
	}
	mustFetch(t, b, a.Endpoints()[0], 0, 8)
	// Repeats are not worked off one by one.
	if n := r.calls.Load(); n > 2 {
		t.Errorf("%d calls under way for two requests", n)
	}
	close(gate)
	if all, err := resolve(t, b, a.Endpoints()[0], hashesTo(200), 10*time.Second); err != nil || all[0].Status != wire.StatusOK {
		t.Errorf("%v, %v", all[0].Status, err)
	}
}

// However many ask at a time, so many requests are under way.
func TestResolveInFlight(t *testing.T) {
	src := newTable(t, 8, 4096, false)
	src.put(t, keyOf(0), 4096)
	a := openNode(t, src, withResolver(&numbered{}))
	b := openNode(t, newTable(t, 1, 1, false))
	r := newRawSource(t)
	const calls, parts = 3 * destResolves, 3
	var ended sync.WaitGroup
	for range calls {
		ended.Add(1)
		go func() {
			defer ended.Done()
			all, _ := b.Resolve(context.Background(), r.endpoint(), hashesTo(parts*wire.MaxHashes))
			for _, h := range all {
				if h.Status != wire.StatusAmbiguous {
					t.Errorf("%v", h.Status)
					return
				}
			}
		}()
	}
	ctrl := <-r.ctrl
	type question struct {
		id uint64
		n  int
	}
	asked := make(chan question)
	go func() {
		defer close(asked)
		for {
			m, id, err := readOne(ctrl, wire.TypeResolveHashes)
			if err != nil {
				return
			}
			asked <- question{id, len(m.(*wire.ResolveHashes).Hashes)}
		}
	}()
	open, answered := map[uint64]int{}, map[uint64]bool{}
	most, patience := 0, 5*time.Second
	for len(answered) < calls*parts {
		select {
		case q := <-asked:
			if !answered[q.id] { // else a repeat
				open[q.id] = q.n
			}
			if most = max(most, len(open)); most >= 2*destResolves {
				patience = 20 * time.Millisecond // for what must not come
			}
			continue
		case <-time.After(patience):
		}
		for id, n := range open {
			answered[id] = true
			ctrl.Write(answerOf(r, n, wire.StatusAmbiguous).Append(nil, id))
		}
		clear(open)
	}
	go func() {
		for range asked {
		}
	}()
	ended.Wait()
	if want := 2 * destResolves; most != want {
		t.Errorf("%d requests are under way at a time, want %d", most, want)
	}
	// And others are not in their way.
	if all, err := resolve(t, b, a.Endpoints()[0], hashesTo(1), 5*time.Second); err != nil || all[0].Status != wire.StatusOK {
		t.Errorf("%v, %v", all[0].Status, err)
	}
}

// answerOf is an answer of n times the same.
func answerOf(r *rawSource, n int, s wire.Status) *wire.HashesResolved {
	m := &wire.HashesResolved{Source: r.self, Dest: r.dest.Load(), Items: make([]wire.Resolved, n)}
	for i := range m.Items {
		m.Items[i].Status = s
	}
	return m
}

// Whatever a source answers, the destination lives, has the answers to other requests,
// and fetches from others.
func TestHostileHashes(t *testing.T) {
	good := newTable(t, 8, 4096, false)
	good.put(t, keyOf(0), 4096)
	a := openNode(t, good, withResolver(&numbered{}))
	// keys answers hash n with the key n+off.
	keys := func(r *rawSource, q *wire.ResolveHashes, off uint64) *wire.HashesResolved {
		m := &wire.HashesResolved{Source: r.self, Dest: r.dest.Load()}
		for _, h := range q.Hashes {
			m.Items = append(m.Items, wire.Resolved{Namespace: "ns", Key: []byte(keyOf(int(h + off))), Generation: 1})
		}
		return m
	}
	for _, tt := range []struct {
		name string
		want wire.Status // StatusOK: the right keys
		do   func(r *rawSource, ctrl net.Conn, id uint64, q *wire.ResolveHashes)
	}{
		{"silence", wire.StatusTimeout, func(r *rawSource, ctrl net.Conn, id uint64, q *wire.ResolveHashes) {}},
		{"garbage", wire.StatusTimeout, func(r *rawSource, ctrl net.Conn, id uint64, q *wire.ResolveHashes) { ctrl.Write(make([]byte, 999)) }},
		{"half an answer", wire.StatusTimeout, func(r *rawSource, ctrl net.Conn, id uint64, q *wire.ResolveHashes) {
			b := keys(r, q, 0).Append(nil, id)
			ctrl.Write(b[:len(b)/2])
			_, _ = io.Copy(io.Discard, ctrl)
		}},
		{"an earlier version", wire.StatusUnsupported, func(r *rawSource, ctrl net.Conn, id uint64, q *wire.ResolveHashes) {
			ctrl.Write((&wire.ErrorReply{Code: wire.CodeBadType, Text: "not known here"}).Append(nil, id))
		}},
		{"no message", wire.StatusSource, func(r *rawSource, ctrl net.Conn, id uint64, q *wire.ResolveHashes) {
			b := keys(r, q, 0).Append(nil, id)
			binary.LittleEndian.PutUint32(b[wire.HeaderSize+16:], uint32(len(q.Hashes)+1))
			ctrl.Write(b)
		}},
		{"too few", wire.StatusSource, func(r *rawSource, ctrl net.Conn, id uint64, q *wire.ResolveHashes) {
			m := keys(r, q, 0)
			m.Items = m.Items[:1]
			ctrl.Write(m.Append(nil, id))
		}},
		{"another message", wire.StatusTimeout, func(r *rawSource, ctrl net.Conn, id uint64, q *wire.ResolveHashes) {
			ctrl.Write((&wire.Finished{}).Append(nil, id))
			ctrl.Write((&wire.Results{Results: make([]wire.Result, len(q.Hashes))}).Append(nil, id))
		}},
		{"another id", wire.StatusTimeout, func(r *rawSource, ctrl net.Conn, id uint64, q *wire.ResolveHashes) {
			ctrl.Write(keys(r, q, 0).Append(nil, id+77))
		}},
		{"another life", wire.StatusOK, func(r *rawSource, ctrl net.Conn, id uint64, q *wire.ResolveHashes) {
			for _, change := range []func(*wire.HashesResolved){
				func(m *wire.HashesResolved) { m.Source++ },
				func(m *wire.HashesResolved) { m.Dest++ },
			} {
				wrong := keys(r, q, 100)
				change(wrong)
				ctrl.Write(wrong.Append(nil, id))
			}
			ctrl.Write(keys(r, q, 0).Append(nil, id))
		}},
		{"twice", wire.StatusOK, func(r *rawSource, ctrl net.Conn, id uint64, q *wire.ResolveHashes) {
			ctrl.Write(keys(r, q, 0).Append(nil, id))
			ctrl.Write(keys(r, q, 100).Append(nil, id))
			ctrl.Write(keys(r, q, 100).Append(nil, id-1)) // late, of a request that has its answer
		}},
		{"busy at first", wire.StatusOK, func(r *rawSource, ctrl net.Conn, id uint64, q *wire.ResolveHashes) {
			ctrl.Write((&wire.StatusReply{Status: wire.StatusBusy}).Append(nil, id))
			m, again, err := readOne(ctrl, wire.TypeResolveHashes)
			for ; err == nil && again != id; m, again, err = readOne(ctrl, wire.TypeResolveHashes) {
				ctrl.Write(keys(r, m.(*wire.ResolveHashes), 0).Append(nil, again))
			}
			ctrl.Write(keys(r, q, 0).Append(nil, id))
		}},
		{"goodbye", wire.StatusTimeout, func(r *rawSource, ctrl net.Conn, id uint64, q *wire.ResolveHashes) {
			ctrl.Write((&wire.Goodbye{Reason: wire.CodeShutdown}).Append(nil, 0))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := openNode(t, newTable(t, 8, 4096, false))
			r := newRawSource(t)
			go func() {
				for ctrl := range r.ctrl {
					for {
						m, id, err := readOne(ctrl, wire.TypeResolveHashes)
						if err != nil {
							break
						}
						tt.do(r, ctrl, id, m.(*wire.ResolveHashes))
					}
				}
			}()
			t.Cleanup(func() { close(r.ctrl) })
			limit := 200 * time.Millisecond
			if tt.want != wire.StatusTimeout {
				limit = 10 * time.Second
			}
			all, err := resolve(t, b, r.endpoint(), hashesTo(300), limit)
			if (err == nil) != (tt.want == wire.StatusOK) {
				t.Errorf("%v", err)
			}
			for _, h := range all {
				if h.Status != tt.want || h.Status == wire.StatusOK && string(h.Key) != keyOf(int(h.Hash)) {
					t.Fatalf("hash %d: %v %q, want %v", h.Hash, h.Status, h.Key, tt.want)
				}
			}
			if got, err := resolve(t, b, a.Endpoints()[0], hashesTo(2), 5*time.Second); err != nil || got[0].Status != wire.StatusOK || got[1].Status != wire.StatusMiss {
				t.Errorf("another source: %+v, %v", got, err)
			}
			mustFetch(t, b, a.Endpoints()[0], 0, 1)
		})
	}
}

// An answer counts on the connection that was asked, and on no other: a peer cannot
// answer for another.
func TestAnswersOfAnother(t *testing.T) {
	b := openNode(t, newTable(t, 8, 4096, false))
	r, liar := newRawSource(t), newRawSource(t)
	liar.self = r.self // and says that it is that one
	asked := make(chan error, 2)
	results := make(chan []Resolution, 1)
	go func() {
		all, err := b.Resolve(context.Background(), r.endpoint(), hashesTo(1))
		results <- all
		asked <- err
	}()
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_, err := b.Query(ctx, liar.endpoint(), "ns", [][]byte{[]byte("k")})
		asked <- err
	}()
	ctrl, other := <-r.ctrl, <-liar.ctrl
	m, id, err := readOne(ctrl, wire.TypeResolveHashes)
	if err != nil {
		t.Fatal(err)
	}
	q, qid, err := readOne(other, wire.TypePeerQuery)
	if err != nil {
		t.Fatal(err)
	}
	n := len(m.(*wire.ResolveHashes).Hashes)
	wrong := answerOf(r, n, wire.StatusOK)
	wrong.Items[0].Key = []byte("wrong")
	other.Write(wrong.Append(nil, id))
	other.Write((&wire.Results{Results: make([]wire.Result, len(q.(*wire.PeerQuery).Keys))}).Append(nil, qid))
	if err := <-asked; err != nil { // so that what went before has been read
		t.Fatal(err)
	}
	ctrl.Write(answerOf(r, n, wire.StatusAmbiguous).Append(nil, id))
	if all := <-results; all[0].Status != wire.StatusAmbiguous {
		t.Errorf("%v %q", all[0].Status, all[0].Key)
	}
	if err := <-asked; err != nil {
		t.Error(err)
	}
}

// Whatever a destination asks, others are answered.
func TestHostileHashRequests(t *testing.T) {
	src := newTable(t, 8, 4096, false)
	src.put(t, keyOf(0), 4096)
	gate := make(chan struct{})
	var closed atomic.Bool
	r := &numbered{with: func(hash uint64) {
		if hash == 5 && !closed.Load() {
			<-gate
		}
	}}
	a := openNode(t, src, withResolver(r))
	t.Run("another life", func(t *testing.T) {
		d := newRawDest(t, a, 100, streamOnly, [16]byte{})
		d.send(1, &wire.ResolveHashes{Dest: 101, Hashes: []uint64{0}})
		if m := d.readOne(wire.TypeStatus).(*wire.StatusReply); m.Status != wire.StatusIncarnation {
			t.Errorf("%v", m.Status)
		}
		d.send(2, &wire.ResolveHashes{Dest: uint64(a.Self()), Hashes: []uint64{0, 1}})
		if m := d.readOne(wire.TypeHashesResolved).(*wire.HashesResolved); len(m.Items) != 2 || m.Items[0].Status != wire.StatusSelf {
			t.Errorf("%+v", m)
		}
		if r.calls.Load() != 0 {
			t.Error("something was looked up")
		}
	})
	t.Run("too many", func(t *testing.T) {
		d := newRawDest(t, a, 200, streamOnly, [16]byte{})
		const n = sourceResolves + 50
		for id := range uint64(n) {
			d.send(id+1, &wire.ResolveHashes{Dest: 200, Hashes: []uint64{5}})
			d.send(id+1, &wire.ResolveHashes{Dest: 200, Hashes: []uint64{5}}) // a repeat is not another
		}
		busy := 0
		for range 100 { // of both, but for repeats of those that are being answered
			if d.readOne(wire.TypeStatus).(*wire.StatusReply).Status == wire.StatusBusy {
				busy++
			}
		}
		if busy != 100 {
			t.Errorf("%d are refused", busy)
		}
		closed.Store(true)
		close(gate)
		for range sourceResolves {
			d.readOne(wire.TypeHashesResolved)
		}
		within(t, 5*time.Second, func() bool {
			a.resolves.mu.Lock()
			defer a.resolves.mu.Unlock()
			return len(a.resolves.now) == 0 && len(a.resolves.each) == 0
		}, func() string { return fmt.Sprintf("%d are being answered", len(a.resolves.now)) })
	})
	b := openNode(t, newTable(t, 1, 1, false))
	if all, err := resolve(t, b, a.Endpoints()[0], hashesTo(1), 5*time.Second); err != nil || all[0].Status != wire.StatusOK {
		t.Errorf("%v, %v", all[0].Status, err)
	}
}

// A garbled answer ends the question that it belongs to, whatever that is.
func TestGarbledAnswer(t *testing.T) {
	b := openNode(t, newTable(t, 1, 1, false))
	r := newRawSource(t)
	go func() {
		for ctrl := range r.ctrl {
			_, id, err := readOne(ctrl, wire.TypePeerQuery, wire.TypeInvalidate)
			if err != nil {
				continue
			}
			f := (&wire.Results{Results: make([]wire.Result, 1)}).Append(nil, id)
			f[wire.HeaderSize] = 9 // elements
			ctrl.Write(f)
		}
	}()
	t.Cleanup(func() { close(r.ctrl) })
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if _, err := b.Query(ctx, r.endpoint(), "ns", [][]byte{[]byte("k")}); !errors.Is(err, ErrLost) || !errors.Is(err, wire.ErrPayload) {
		t.Errorf("Query: %v", err)
	}
	if _, err := b.Invalidate(ctx, r.endpoint(), "ns", wanted(0, 1)); !errors.Is(err, ErrLost) || !errors.Is(err, wire.ErrPayload) {
		t.Errorf("Invalidate: %v", err)
	}
}

// A block that is replaced after its hash was resolved is noticed: it is neither copied
// nor moved under its old generation.
func TestReboundBetween(t *testing.T) {
	src, dst := newTable(t, 8, 4096, false), newTable(t, 8, 4096, false)
	for i := range 4 {
		src.put(t, keyOf(i), 4096)
	}
	a, b := openNode(t, src, withResolver(&numbered{})), openNode(t, dst)
	all, err := resolve(t, b, a.Endpoints()[0], hashesTo(4), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	src.dropAll(1, 2)
	src.put(t, keyOf(1), 4096) // another block under the same key
	var items []wire.Wanted
	for _, h := range all {
		items = append(items, wire.Wanted{Key: h.Key, Generation: h.Generation})
	}
	want := []wire.Status{wire.StatusOK, wire.StatusGeneration, wire.StatusMiss, wire.StatusOK}
	for i, s := range fetch(t, b, a.Endpoints()[0], Submit{Namespace: "ns", Items: items, Mode: wire.TransferMove}, 5*time.Second) {
		if s.Status != want[i] {
			t.Errorf("%s: %v, want %v", items[i].Key, s.Status, want[i])
		}
	}
	src.quiet(t)
	dst.quiet(t)
	if src.blocks[keyOf(1)] == nil || dst.blocks[keyOf(1)] != nil {
		t.Error("the block that was not meant has moved")
	}
	if src.blocks[keyOf(0)] != nil || src.blocks[keyOf(3)] != nil {
		t.Error("the others have not")
	}
}
