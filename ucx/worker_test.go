//go:build linux && cgo && ucx

package ucx

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Bytes sent are the bytes received, below and above every threshold of UCX, in
// either order of send and receive, and a receive says how much came.
func TestSendRecv(t *testing.T) {
	r := newRig(t, Options{})
	const most = 5 << 20
	from, src := r.memory(most)
	to, dst := r.memory(most)
	a, b := r.worker(WorkerOptions{}), r.worker(WorkerOptions{})
	ep := r.connect(a, b)
	fill(src, 1)
	for i, n := range []uint64{1, 8, 1000, 8192, 65536, 65537, 1 << 20, most - 7} {
		for _, first := range []string{"recv", "send"} {
			t.Run(fmt.Sprintf("size=%d/first=%s", n, first), func(t *testing.T) {
				clear(dst)
				var sent, got <-chan Completion
				send := func() {
					_, sent = start(t, a, Op{Kind: OpSend, Endpoint: ep, Mem: from, Off: 7, Len: n, Tag: uint64(i)})
				}
				recv := func() { _, got = start(t, b, Op{Kind: OpRecv, Mem: to, Len: most, Tag: uint64(i), User: 99}) }
				if first == "recv" {
					recv()
					send()
				} else {
					send()
					// The message is at the peer, or known there, before its receive.
					_, flushed := start(t, a, Op{Kind: OpFlush, Endpoint: ep})
					if n < 65536 {
						await(t, "flush", flushed)
					}
					recv()
				}
				if c := await(t, "recv", got); c.Err != nil || c.Bytes != n || c.User != 99 || c.Kind != OpRecv {
					t.Errorf("recv of %d: %+v", n, c)
				}
				if c := await(t, "send", sent); c.Err != nil || c.Bytes != n {
					t.Errorf("send: %+v", c)
				}
				if !bytes.Equal(dst[:n], src[7:7+n]) {
					t.Error("other bytes arrived")
				}
				if n < most && dst[n] != 0 {
					t.Error("more than the message arrived")
				}
			})
		}
	}
}

// A message longer than its receive is an error that names it, and writes
// nothing beyond the receive.
func TestTruncated(t *testing.T) {
	r := newRig(t, Options{})
	from, src := r.memory(1 << 20)
	to, dst := r.memory(1 << 20)
	a, b := r.worker(WorkerOptions{}), r.worker(WorkerOptions{})
	ep := r.connect(a, b)
	fill(src, 2)
	for _, n := range []uint64{4096, 1 << 20} {
		clear(dst)
		_, got := start(t, b, Op{Kind: OpRecv, Mem: to, Len: n / 2, Tag: n})
		_, sent := start(t, a, Op{Kind: OpSend, Endpoint: ep, Mem: from, Len: n, Tag: n})
		if c := await(t, "recv", got); c.Err != StatusTruncated || c.Bytes != 0 {
			t.Errorf("%d into %d: %+v", n, n/2, c)
		}
		await(t, "send", sent)
		if !bytes.Equal(dst[n/2:], make([]byte, len(dst)-int(n/2))) {
			t.Error("bytes beyond the receive were written")
		}
	}
}

// A region registered in pieces is one region for puts, over every seam.
func TestPutOverSeams(t *testing.T) {
	r := newRig(t, Options{Puts: true})
	r.ctx.chunk = 1 << 20
	const size = 3<<20 + 4096
	from, src := r.memory(size)
	b := mapped(t, size)
	var steps []uint64
	to, err := r.ctx.Register(b, func(done, total uint64) bool {
		if total != size {
			t.Errorf("total %d", total)
		}
		steps = append(steps, done)
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { to.Deregister() })
	if fmt.Sprint(steps) != fmt.Sprint([]uint64{1 << 20, 2 << 20, 3 << 20, size}) {
		t.Errorf("progress %v", steps)
	}
	key, err := to.Key()
	if err != nil {
		t.Fatal(err)
	}
	w, peer := r.worker(WorkerOptions{}), r.worker(WorkerOptions{})
	ep := r.connect(w, peer)
	rk, err := ep.Import(key)
	if err != nil {
		t.Fatal(err)
	}
	if rk.Size() != size || rk.Type() != Host {
		t.Errorf("key of %d bytes of %v", rk.Size(), rk.Type())
	}
	fill(src, 3)
	for _, p := range []struct{ off, n uint64 }{{0, size}, {1<<20 - 1, 2}, {1<<20 - 1, 1<<20 + 2}, {1 << 20, 1 << 20}, {size - 1, 1}, {5, 1}} {
		clear(b)
		_, put := start(t, w, Op{Kind: OpPut, Endpoint: ep, Mem: from, Off: p.off, Len: p.n, Key: rk, RemoteOff: p.off})
		_, flushed := start(t, w, Op{Kind: OpFlush, Endpoint: ep})
		if c := await(t, "put", put); c.Err != nil || c.Bytes != p.n {
			t.Errorf("put %+v: %+v", p, c)
		}
		if c := await(t, "flush", flushed); c.Err != nil {
			t.Errorf("flush: %+v", c)
		}
		want := make([]byte, size)
		copy(want[p.off:], src[p.off:p.off+p.n])
		if !bytes.Equal(b, want) {
			t.Errorf("put %+v wrote other bytes", p)
		}
	}
	if _, err := w.Start(Op{Kind: OpPut, Endpoint: ep, Mem: from, Len: 2, Key: rk, RemoteOff: size - 1, Done: func(Completion) {}}); !errors.Is(err, ErrRange) {
		t.Errorf("put beyond the peer's region: %v", err)
	}
	rk.Close()
	rk.Close()
	if _, err := w.Start(Op{Kind: OpPut, Endpoint: ep, Mem: from, Len: 1, Key: rk, Done: func(Completion) {}}); !errors.Is(err, ErrClosed) {
		t.Errorf("put with a closed key: %v", err)
	}
}

// Registration that is given up leaves nothing registered.
func TestRegisterGivenUp(t *testing.T) {
	r := newRig(t, Options{})
	r.ctx.chunk = 4096
	n := 0
	if _, err := r.ctx.Register(mapped(t, 1<<20), func(uint64, uint64) bool { n++; return n < 3 }); !errors.Is(err, ErrClosed) || n != 3 {
		t.Errorf("given up after %d: %v", n, err)
	}
	if r.ctx.regions != 0 || r.ctx.bytes != 0 {
		t.Errorf("%d regions, %d bytes left", r.ctx.regions, r.ctx.bytes)
	}
}

func TestLimits(t *testing.T) {
	r := newRig(t, Options{Puts: true, MaxRegions: 2, MaxRegisteredBytes: 3 << 12})
	m, b := r.memory(4096)
	var limit *LimitError
	if _, err := r.ctx.Register(mapped(t, 3<<12), nil); !errors.As(err, &limit) || limit.What != "registered bytes" {
		t.Errorf("too many bytes: %v", err)
	}
	r.memory(4096)
	if _, err := r.ctx.Register(mapped(t, 4096), nil); !errors.As(err, &limit) || limit.What != "regions" || !errors.Is(err, ErrFull) {
		t.Errorf("too many regions: %v", err)
	}
	if !r.ctx.Supports(CUDA) {
		if _, err := r.ctx.RegisterAt(1<<40, 4096, CUDA, nil); !errors.Is(err, StatusUnsupported) {
			t.Errorf("CUDA memory without CUDA: %v", err)
		}
	}
	w := r.worker(WorkerOptions{MaxRequests: 3, MaxEndpoints: 1, MaxKeys: 1})
	ep := r.connect(w, w)
	if _, err := w.Connect(w.Address(), nil); !errors.As(err, &limit) || limit.What != "endpoints" {
		t.Errorf("too many endpoints: %v", err)
	}
	key, err := m.Key()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ep.Import(key); err != nil {
		t.Fatal(err)
	}
	if _, err := ep.Import(key); !errors.As(err, &limit) || limit.What != "keys of an endpoint" {
		t.Errorf("too many keys: %v", err)
	}
	got := make(chan Completion, 4)
	ops := make([]Op, 4)
	for i := range ops {
		ops[i] = Op{Kind: OpRecv, Mem: m, Len: 16, Tag: uint64(i), Done: func(c Completion) { got <- c }}
	}
	reqs := make([]Request, 4)
	if n, err := w.Submit(ops, reqs); n != 3 || !errors.As(err, &limit) || limit.Limit != 3 {
		t.Errorf("Submit took %d of 4: %v", n, err)
	}
	if err := m.Deregister(); !errors.Is(err, ErrBusy) {
		t.Errorf("Deregister under operations: %v", err)
	}
	w.Cancel(reqs[1])
	if c := await(t, "cancelled receive", got); c.Err != StatusCanceled || c.Request != reqs[1] {
		t.Errorf("%+v", c)
	}
	if n, err := w.Submit(ops[3:], reqs[3:]); n != 1 || err != nil {
		t.Errorf("Submit after one ended: %d, %v", n, err)
	}
	w.Cancel(reqs[1]) // its slot is somebody else's now
	w.Cancel(0)
	w.Cancel(1<<40 | 77)
	select {
	case c := <-got:
		t.Errorf("a late cancel hit %+v", c)
	case <-time.After(20 * time.Millisecond):
	}
	_ = b
}

// What can never work is refused at once, with the reason.
func TestRefused(t *testing.T) {
	r := newRig(t, Options{})
	m, b := r.memory(4096)
	other := newRig(t, Options{})
	foreign, _ := other.memory(4096)
	w, v := r.worker(WorkerOptions{}), r.worker(WorkerOptions{})
	ep, eq := r.connect(w, v), r.connect(v, w)
	done := func(Completion) { t.Error("a refused operation completed") }
	for name, tt := range map[string]struct {
		op   Op
		want error
	}{
		"nothing":            {Op{}, ErrInvalid},
		"no function":        {Op{Kind: OpRecv, Mem: m, Len: 1}, ErrInvalid},
		"no memory":          {Op{Kind: OpRecv, Len: 1, Done: done}, ErrInvalid},
		"no endpoint":        {Op{Kind: OpSend, Mem: m, Len: 1, Done: done}, ErrInvalid},
		"no key":             {Op{Kind: OpPut, Endpoint: ep, Mem: m, Len: 1, Done: done}, ErrInvalid},
		"flush of memory":    {Op{Kind: OpFlush, Endpoint: ep, Mem: m, Done: done}, ErrInvalid},
		"endpoint elsewhere": {Op{Kind: OpSend, Endpoint: eq, Mem: m, Len: 1, Done: done}, ErrInvalid},
		"memory elsewhere":   {Op{Kind: OpRecv, Mem: foreign, Len: 1, Done: done}, ErrInvalid},
		"put without Puts":   {Op{Kind: OpPut, Endpoint: ep, Mem: m, Len: 1, Key: &RemoteKey{ep: ep}, Done: done}, ErrInvalid},
		"no bytes":           {Op{Kind: OpRecv, Mem: m, Done: done}, ErrRange},
		"beyond":             {Op{Kind: OpRecv, Mem: m, Off: 4090, Len: 7, Done: done}, ErrRange},
		"wraps":              {Op{Kind: OpRecv, Mem: m, Off: 1, Len: 1<<64 - 1, Done: done}, ErrRange},
		"kind":               {Op{Kind: 9, Mem: m, Len: 1, Done: done}, ErrInvalid},
	} {
		if _, err := w.Start(tt.op); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
	if _, err := m.OffsetOf(b[4000:]); err != nil {
		t.Error(err)
	}
	if off, err := m.OffsetOf(b[17:20]); off != 17 || err != nil {
		t.Errorf("OffsetOf = %d, %v", off, err)
	}
	if _, err := m.OffsetOf(make([]byte, 1)); !errors.Is(err, ErrRange) {
		t.Errorf("OffsetOf foreign bytes: %v", err)
	}
	if _, err := w.Connect([]byte("nonsense"), nil); !errors.Is(err, ErrBlob) {
		t.Errorf("Connect to nonsense: %v", err)
	}
	if err := ep.Close(testPatience); err != nil {
		t.Error(err)
	}
	if _, err := w.Start(Op{Kind: OpSend, Endpoint: ep, Mem: m, Len: 1, Done: done}); !errors.Is(err, ErrClosed) {
		t.Errorf("send on a closed endpoint: %v", err)
	}
}

// Many goroutines, many tags: every receive gets its own message whole, every
// operation completes once, and cancels in between tell the truth.
func TestManyGoroutines(t *testing.T) {
	const workers, rounds, size = 4, 60, 24 << 10
	r := newRig(t, Options{})
	src, sb := r.memory(workers * size)
	dst, db := r.memory(workers * size)
	spare, _ := r.memory(size)
	a, b := r.worker(WorkerOptions{MaxRequests: 64}), r.worker(WorkerOptions{MaxRequests: 64})
	ep := r.connect(a, b)
	var wg sync.WaitGroup
	for g := range uint64(workers) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range uint64(rounds) {
				fill(sb[g*size:(g+1)*size], g*1000+i)
				tag := g<<32 | i
				// Nobody sends this one: it must end cancelled.
				lost, ended := start(t, b, Op{Kind: OpRecv, Mem: spare, Len: 8, Tag: 1<<63 | tag})
				_, got := start(t, b, Op{Kind: OpRecv, Mem: dst, Off: g * size, Len: size, Tag: tag})
				_, sent := start(t, a, Op{Kind: OpSend, Endpoint: ep, Mem: src, Off: g * size, Len: size, Tag: tag})
				b.Cancel(lost)
				if c := await(t, "recv", got); c.Err != nil || c.Bytes != size {
					t.Errorf("recv: %+v", c)
				}
				if c := await(t, "send", sent); c.Err != nil {
					t.Errorf("send: %+v", c)
				}
				if c := await(t, "cancelled recv", ended); !Canceled(c.Err) {
					t.Errorf("a receive nobody sends to: %+v", c)
				}
				if !bytes.Equal(sb[g*size:(g+1)*size], db[g*size:(g+1)*size]) {
					t.Errorf("goroutine %d, round %d: other bytes", g, i)
				}
			}
		}()
	}
	wg.Wait()
	if s := b.Stats(); s.Submitted != 2*workers*rounds || s.Completed != s.Submitted || s.InFlight != 0 {
		t.Errorf("%+v", s)
	}
}

// In the steady state an operation costs no allocation on either side.
func TestAllocs(t *testing.T) {
	r := newRig(t, Options{})
	m, _ := r.memory(2 << 16)
	a, b := r.worker(WorkerOptions{}), r.worker(WorkerOptions{})
	ep := r.connect(a, b)
	const n = 32
	done := make(chan struct{}, 2*n)
	fn := func(c Completion) {
		if c.Err != nil {
			t.Error(c.Err)
		}
		done <- struct{}{}
	}
	sends, recvs, reqs := make([]Op, n), make([]Op, n), make([]Request, n)
	for i := range uint64(n) {
		recvs[i] = Op{Kind: OpRecv, Mem: m, Off: i * 1024, Len: 1024, Tag: i, Done: fn}
		sends[i] = Op{Kind: OpSend, Endpoint: ep, Mem: m, Off: 1<<16 + i*1024, Len: 1024, Tag: i, Done: fn}
	}
	round := func() {
		b.Submit(recvs, reqs)
		a.Submit(sends, nil)
		for range 2 * n {
			<-done
		}
	}
	for range 20 {
		round()
	}
	if got := testing.AllocsPerRun(50, round); got > 1 {
		t.Errorf("%v allocations for %d operations", got, 2*n)
	}
}

// Close ends what is in flight, at any moment, and nothing is left of it.
func TestCloseUnderOperations(t *testing.T) {
	for i := range 8 {
		r := newRig(t, Options{})
		m, _ := r.memory(4 << 20)
		a, b := r.worker(WorkerOptions{}), r.worker(WorkerOptions{})
		ep := r.connect(a, b)
		var ended []<-chan Completion
		for k := range uint64(4) {
			_, c := start(t, b, Op{Kind: OpRecv, Mem: m, Off: k << 19, Len: 1 << 19, Tag: k})
			_, d := start(t, b, Op{Kind: OpRecv, Mem: m, Off: k << 19, Len: 1 << 19, Tag: 100 + k})
			_, e := start(t, a, Op{Kind: OpSend, Endpoint: ep, Mem: m, Off: 2<<20 + k<<19, Len: 1 << 19, Tag: k})
			_, f := start(t, a, Op{Kind: OpSend, Endpoint: ep, Mem: m, Off: 2<<20 + k<<19, Len: 1 << 19, Tag: 200 + k})
			ended = append(ended, c, d, e, f)
		}
		time.Sleep(time.Duration(i) * 300 * time.Microsecond) // a different moment each time
		first, second := a, b
		if i%2 == 1 {
			first, second = b, a
		}
		for _, w := range []*Worker{first, second} {
			begin := time.Now()
			if err := w.Close(2 * time.Second); err != nil {
				t.Errorf("Close: %v", err)
			}
			if d := time.Since(begin); d > 3*time.Second {
				t.Errorf("Close took %v", d)
			}
		}
		for _, ch := range ended {
			select {
			case <-ch:
			default:
				t.Fatal("an operation had not completed when Close returned")
			}
		}
	}
}

// Within a bound even a peer that does nothing any more cannot hold up the
// closing of an endpoint, and its operations end with it.
func TestEndpointClose(t *testing.T) {
	r := newRig(t, Options{})
	m, _ := r.memory(8 << 20)
	a, b := r.worker(WorkerOptions{}), r.worker(WorkerOptions{})
	ep := r.connect(a, b)
	_, sent := start(t, a, Op{Kind: OpSend, Endpoint: ep, Mem: m, Len: 8 << 20, Tag: 1}) // never received
	begin := time.Now()
	if err := ep.Close(100 * time.Millisecond); err != nil {
		t.Errorf("Close: %v", err)
	}
	if d := time.Since(begin); d > time.Second {
		t.Errorf("Close took %v", d)
	}
	if c := await(t, "send", sent); c.Err == nil {
		t.Errorf("a send nobody received: %+v", c)
	}
	if err := ep.Close(0); err != nil {
		t.Errorf("second Close: %v", err)
	}
	// Abort from a completion function, W1.
	ep = r.connect(a, b)
	_, flushed := start(t, a, Op{Kind: OpFlush, Endpoint: ep})
	await(t, "flush", flushed)
	if _, err := a.Start(Op{Kind: OpFlush, Endpoint: ep, Done: func(Completion) { ep.Abort(); ep.Abort() }}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ep.Closed():
	case <-time.After(testPatience):
		t.Error("Abort does not end")
	}
}

// cpuTime is what this process has used so far.
func cpuTime(t testing.TB) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A hundred idle endpoints cost less than one hundredth of a processor, their
// keepalive included.
func TestIdleCost(t *testing.T) {
	if testing.Short() {
		t.Skip("measures over two seconds")
	}
	r := newRig(t, Options{})
	a, b := r.worker(WorkerOptions{}), r.worker(WorkerOptions{})
	var all []<-chan Completion
	for range 100 {
		_, c := start(t, a, Op{Kind: OpFlush, Endpoint: r.connect(a, b)})
		all = append(all, c)
	}
	for _, c := range all {
		if c := await(t, "flush", c); c.Err != nil {
			t.Fatal(c.Err)
		}
	}
	// The least of three spans: other work of this process is not idleness.
	const span = time.Second
	least := span
	for range 3 {
		before, parks := cpuTime(t), a.Stats()
		time.Sleep(span)
		used, after := cpuTime(t)-before, a.Stats()
		t.Logf("%v of %v, %d crossings, %d parks", used, span, after.Crossings-parks.Crossings, after.Parks-parks.Parks)
		least = min(least, used)
	}
	if least > span/100 {
		t.Errorf("idle endpoints used %v in %v", least, span)
	}
}
