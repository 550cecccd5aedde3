//go:build linux && cgo && ucx

package ucx

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// Connecting to a worker that is no longer there ends in an error, for every
// kind of operation that was waiting for the connection.
func TestConnectToNobody(t *testing.T) {
	r := newRig(t, Options{})
	m, _ := r.memory(1 << 20)
	w := r.worker(WorkerOptions{})
	for i := range 10 {
		gone, err := r.ctx.NewWorker(WorkerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		addr := gone.Address()
		if err := gone.Close(time.Second); err != nil {
			t.Fatal(err)
		}
		failed := make(chan error, 1)
		ep, err := w.Connect(addr, func(err error) { failed <- err })
		if err != nil {
			t.Fatal(err)
		}
		_, small := start(t, w, Op{Kind: OpSend, Endpoint: ep, Mem: m, Len: 8, Tag: 1})
		_, large := start(t, w, Op{Kind: OpSend, Endpoint: ep, Mem: m, Len: 1 << 20, Tag: 2})
		_, flush := start(t, w, Op{Kind: OpFlush, Endpoint: ep})
		for name, ch := range map[string]<-chan Completion{"small": small, "large": large, "flush": flush} {
			if c := await(t, name, ch); c.Err == nil && name != "small" {
				t.Errorf("round %d: %s to nobody: %+v", i, name, c)
			}
		}
		select {
		case <-failed:
		case <-time.After(testPatience):
			t.Fatal("the endpoint does not fail")
		}
		if ep.Err() == nil {
			t.Error("a failed endpoint without a reason")
		}
		if err := ep.Close(time.Second); err != nil {
			t.Error(err)
		}
	}
}

func init() {
	roles["victim"] = victim
	roles["target"] = target
}

// victim is a worker that receives under tags 1000 and up, forever.
func victim(in *bufio.Reader) {
	c := mustChild(Open(Options{Puts: true}))
	m := mustChild(c.RegisterAt(childMemory(16<<20), 16<<20, Host, nil))
	w := mustChild(c.NewWorker(WorkerOptions{}))
	fmt.Println(blobText(w.Address()))
	fmt.Println(blobText(mustChild(m.Key())))
	for i := range uint64(8) {
		mustChild(w.Start(Op{Kind: OpRecv, Mem: m, Off: i << 20, Len: 1 << 20, Tag: 1000 + i, Done: func(Completion) {}}))
	}
	var ep *Endpoint
	for {
		switch f := strings.Fields(hearLine(in)); f[0] {
		case "connect":
			ep = mustChild(w.Connect(mustChild(textBlob(f[1])), nil))
			// Rendezvous sends for receives that the test has posted.
			for i := range uint64(4) {
				mustChild(w.Start(Op{Kind: OpSend, Endpoint: ep, Mem: m, Off: i << 20, Len: 1 << 20, Tag: 2000 + i,
					Done: func(c Completion) { fmt.Println("sent") }}))
			}
		}
	}
}

// Killing the other process ends every send, put and flush with an error within
// a bound, tells the endpoint's function once, and Close returns; receives stay
// posted, as anybody may send to them, until they are cancelled.
func TestPeerDeath(t *testing.T) {
	for _, moment := range []string{"idle", "sending", "receiving", "stopped"} {
		t.Run(moment, func(t *testing.T) {
			r := newRig(t, Options{Puts: true})
			m, _ := r.memory(32 << 20)
			w := r.worker(WorkerOptions{})
			peer := startChild(t, "victim")
			addr, key := peer.hearBlob(), peer.hearBlob()
			failed := make(chan error, 4)
			ep, err := w.Connect(addr, func(err error) { failed <- err })
			if err != nil {
				t.Fatal(err)
			}
			rk, err := ep.Import(key)
			if err != nil {
				t.Fatal(err)
			}
			_, flushed := start(t, w, Op{Kind: OpFlush, Endpoint: ep})
			if c := await(t, "flush", flushed); c.Err != nil {
				t.Fatal(c.Err)
			}
			var open, recvs []<-chan Completion
			var posted []Request
			for i := range uint64(4) {
				q, c := start(t, w, Op{Kind: OpRecv, Mem: m, Off: 16<<20 + i<<20, Len: 1 << 20, Tag: 2000 + i})
				recvs, posted = append(recvs, c), append(posted, q)
			}
			if moment == "stopped" { // buffers fill: puts really wait
				if err := stopChild(peer); err != nil {
					t.Fatal(err)
				}
			}
			if moment != "idle" {
				for i := range uint64(8) {
					_, a := start(t, w, Op{Kind: OpSend, Endpoint: ep, Mem: m, Off: i << 20, Len: 1 << 20, Tag: 3000 + i}) // never received
					_, b := start(t, w, Op{Kind: OpPut, Endpoint: ep, Mem: m, Off: i << 20, Len: 1 << 20, Key: rk, RemoteOff: 8<<20 + i<<20})
					open = append(open, a, b)
				}
			}
			if moment == "receiving" {
				peer.say("connect %s", blobText(w.Address()))
				peer.hear() // at least one of the sends has ended: the others are under way
			}
			if err := peer.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			_, f := start(t, w, Op{Kind: OpFlush, Endpoint: ep})
			open = append(open, f)
			bad := 0
			for i, ch := range open {
				if c := await(t, fmt.Sprintf("operation %d", i), ch); c.Err != nil {
					bad++
				} else if c.Kind == OpSend {
					t.Errorf("a send nobody received: %+v", c)
				}
			}
			if moment != "idle" && bad < 8 {
				t.Errorf("only %d of %d operations failed", bad, len(open))
			}
			if moment == "idle" {
				// Nothing was under way: the next operation finds out, or keepalive.
				for ep.Err() == nil && time.Since(begin) < testPatience {
					_, f := start(t, w, Op{Kind: OpPut, Endpoint: ep, Mem: m, Len: 1, Key: rk})
					await(t, "put", f)
					time.Sleep(time.Millisecond)
				}
			}
			select {
			case err := <-failed:
				t.Logf("%v after %v", err, time.Since(begin).Round(time.Millisecond))
			case <-time.After(testPatience):
				t.Fatal("the endpoint does not fail")
			}
			for _, q := range posted {
				w.Cancel(q)
			}
			canceled := 0
			for i, ch := range recvs {
				if c := await(t, fmt.Sprintf("receive %d", i), ch); c.Err != nil {
					canceled++
				}
			}
			if moment != "receiving" && canceled != 4 {
				t.Errorf("%d of 4 receives were cancelled", canceled)
			}
			if err := ep.Close(time.Second); err != nil {
				t.Errorf("Close: %v", err)
			}
			if d := time.Since(begin); d > 5*time.Second {
				t.Errorf("all of it took %v", d)
			}
			if len(failed) > 0 {
				t.Error("the endpoint failed twice")
			}
		})
	}
}

// target checks, when told on its standard input, that a round of puts is there
// whole: 4 blocks of 1 MiB filled with the round's byte.
func target(in *bufio.Reader) {
	c := mustChild(Open(Options{Puts: true}))
	addr := childMemory(4 << 20)
	m := mustChild(c.RegisterAt(addr, 4<<20, Host, nil))
	w := mustChild(c.NewWorker(WorkerOptions{}))
	fmt.Println(blobText(w.Address()))
	fmt.Println(blobText(mustChild(m.Key())))
	mem := childBytes(addr, 4<<20)
	for {
		var round byte
		fmt.Sscan(hearLine(in), &round)
		stale := 0
		for i := len(mem) - 1; i >= 0; i -= 4096 {
			if mem[i] != round {
				stale++
			}
		}
		fmt.Println(stale)
	}
}

// The completion of a flush that was started after puts means arrival: a message
// on another channel finds the bytes there. Without the flush it often does not,
// which the second half shows, so that the first cannot pass by luck.
func TestFlushOrders(t *testing.T) {
	rounds := 50
	if testing.Short() {
		rounds = 15
	}
	r := newRig(t, Options{Puts: true})
	m, src := r.memory(4 << 20)
	w := r.worker(WorkerOptions{})
	peer := startChild(t, "target")
	addr, key := peer.hearBlob(), peer.hearBlob()
	ep, err := w.Connect(addr, nil)
	if err != nil {
		t.Fatal(err)
	}
	rk, err := ep.Import(key)
	if err != nil {
		t.Fatal(err)
	}
	early := map[bool]int{}
	for i := range 2 * rounds {
		flush := i < rounds
		round := byte(1 + i%250)
		copy(src, bytes.Repeat([]byte{round}, len(src)))
		var puts [4]<-chan Completion
		for k := range uint64(4) {
			_, puts[k] = start(t, w, Op{Kind: OpPut, Endpoint: ep, Mem: m, Off: k << 20, Len: 1 << 20, Key: rk, RemoteOff: k << 20})
		}
		var flushed <-chan Completion
		if flush {
			_, flushed = start(t, w, Op{Kind: OpFlush, Endpoint: ep})
		}
		for _, c := range puts {
			if c := await(t, "put", c); c.Err != nil {
				t.Fatal(c.Err)
			}
		}
		if flush {
			if c := await(t, "flush", flushed); c.Err != nil {
				t.Fatal(c.Err)
			}
		}
		peer.say("%d", round)
		if peer.hear() != "0" {
			early[flush]++
		}
		if !flush { // leave nothing under way for the next round
			_, flushed = start(t, w, Op{Kind: OpFlush, Endpoint: ep})
			await(t, "flush", flushed)
		}
	}
	t.Logf("told too early: %d of %d with flush, %d of %d without", early[true], rounds, early[false], rounds)
	if early[true] > 0 {
		t.Errorf("%d of %d rounds were not there after a flush", early[true], rounds)
	}
	if early[false] == 0 {
		t.Error("no round was early without flush: this test shows nothing")
	}
}

// Opening and closing endpoints leaves nothing: descriptors, goroutines, memory.
func TestEndpointLeak(t *testing.T) {
	rounds := 10000
	if testing.Short() {
		rounds = 500
	}
	r := newRig(t, Options{Puts: true})
	m, _ := r.memory(4096)
	key, err := m.Key()
	if err != nil {
		t.Fatal(err)
	}
	a, b := r.worker(WorkerOptions{}), r.worker(WorkerOptions{})
	settled := countFDs(t) + 8
	const together = 8
	measure := func(n int) (fds, goroutines int, rss int64) {
		t.Helper()
		var wg sync.WaitGroup
		for g := range together {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for i := g; i < n; i += together {
					ep := r.connect(a, b)
					rk, err := ep.Import(key)
					if err != nil {
						t.Error(err)
						return
					}
					_, put := start(t, a, Op{Kind: OpPut, Endpoint: ep, Mem: m, Len: 8, Key: rk})
					if c := await(t, "put", put); c.Err != nil {
						t.Error(c.Err)
					}
					if i/together%2 == 0 {
						err = ep.Close(testPatience)
					} else {
						ep.Abort()
						<-ep.Closed()
					}
					if err != nil {
						t.Error(err)
					}
				}
			}()
		}
		wg.Wait()
		// The other side gives up its half of each connection with its keepalive.
		for begin := time.Now(); time.Since(begin) < testPatience; time.Sleep(10 * time.Millisecond) {
			if fds = countFDs(t); fds <= settled {
				break
			}
		}
		runtime.GC()
		return fds, runtime.NumGoroutine(), rssBytes(t)
	}
	// The first half fills UCX's pools to what such a storm needs.
	fds, gos, rss := measure(rounds / 2)
	fds2, gos2, rss2 := measure(rounds / 2)
	t.Logf("%d rounds: descriptors %d -> %d, goroutines %d -> %d, memory %d -> %d KiB", rounds, fds, fds2, gos, gos2, rss>>10, rss2>>10)
	if fds2 > fds+4 || gos2 > gos+2 {
		t.Error("descriptors or goroutines leak")
	}
	if per := (rss2 - rss) / int64(rounds/2); rounds >= 5000 && per > 1024 {
		t.Errorf("%d bytes leak with each endpoint", per)
	}
	if s := a.Stats(); s.Endpoints != 0 {
		t.Errorf("%d endpoints left", s.Endpoints)
	}
}

func countFDs(t testing.TB) int {
	e, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}

func rssBytes(t testing.TB) int64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var size, resident int64
	fmt.Sscan(string(b), &size, &resident)
	return resident * int64(os.Getpagesize())
}
