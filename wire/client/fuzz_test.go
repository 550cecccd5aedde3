package client

import (
	"bytes"
	"errors"
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// pair returns a connection after its handshake, and the node's end of it.
func pair(t *testing.T, cl *Client, lim limits) (*conn, net.Conn) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "pair")
		if ends[i], err = net.FileConn(file); err != nil {
			t.Fatal(err)
		}
		file.Close()
	}
	raw, err := ends[0].(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	return newConn(cl, ends[0], raw, lim), ends[1]
}

// FuzzRead: whatever a node sends, the reader does not panic, all calls end when
// the connection does, each in one of the ways that this package knows, a value
// has no bytes that did not arrive, and the memory taken is bounded by what
// arrived and the caps: one frame, and firstAlloc for the one value that is still
// waited for and has no buffer that must do.
func FuzzRead(f *testing.F) {
	const calls = 8
	whole := (&wire.Value{Total: 5, Value: []byte("hello")}).Append(nil, 1)
	chunks := (&wire.Value{Total: 9, Value: []byte("hello"), More: true}).Append(nil, 1)
	chunks = (&wire.StatusReply{Status: wire.StatusMiss}).Append(chunks, 2)
	chunks = (&wire.Data{Offset: 5, Bytes: []byte("more")}).Append(chunks, 1)
	long := (&wire.Value{Total: 1 << 40, Value: make([]byte, 40_000), More: true}).Append(nil, 1)
	fixed := (&wire.Value{Total: 1 << 40, Value: make([]byte, 40_000), More: true}).Append(nil, 2)
	for _, seed := range [][]byte{
		whole, chunks, long, fixed, whole[:20], {},
		(&wire.Results{Results: make([]wire.Result, 2)}).Append(nil, 3),
		(&wire.Claims{Claims: []wire.Claim{{Claim: 9}, {}}}).Append(nil, 4),
		(&wire.Claims{Claims: []wire.Claim{{Claim: 9}, {}}}).Append(nil, 6),
		(&wire.StatusReply{Status: wire.StatusCapacity}).Append(nil, 5),
		(&wire.Data{Offset: 5, Bytes: []byte("late")}).Append(nil, 7),
		(&wire.Goodbye{Reason: 14, Text: "x"}).Append(nil, 0),
		(&wire.ErrorReply{Code: 13, Text: "x"}).Append(whole, 0),
		(&wire.Events{}).Append(nil, 1),
		bytes.Repeat([]byte("KV"), 100),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		opt := Options{Addr: "fuzz"}
		opt.withDefaults()
		cl := &Client{opt: opt, conns: map[*conn]struct{}{}}
		c, node := pair(t, cl, limits{value: 1 << 50, key: 100, chunk: 1 << 10, inFlight: 100})
		var all [calls]*call
		for i, op := range []op{opGet, opGet, opQuery, opFetch, opSet, opFetch, opGet, opPing} {
			k := newCall()
			k.op, k.key, k.keys, k.src = op, []byte("k"), keysOf("a", "b"), make([]byte, 1<<20)
			k.fixed, k.dst = i == 1, make([]byte, 0, 3)
			c.slots <- struct{}{}
			if !c.start(k) {
				t.Fatal("not started")
			}
			all[i] = k
		}
		gaveUp := map[*call]bool{all[5]: true, all[6]: true}
		for k := range gaveUp {
			if !c.abandon(k) {
				t.Fatal("ended without an answer")
			}
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if !cl.adopt(c) {
			t.Fatal("not adopted")
		}
		node.SetDeadline(time.Now().Add(10 * time.Second))
		node.Write(in) // fails when the reader has had enough
		node.(*net.UnixConn).CloseWrite()
		late := time.NewTimer(10 * time.Second)
		defer late.Stop()
		for i, k := range all {
			if gaveUp[k] {
				continue
			}
			select {
			case <-k.done:
			case <-late.C:
				t.Fatalf("call %d hangs", i)
			}
			if err := k.outcome(); err != nil && err.Err == nil {
				t.Fatalf("call %d: unclassified %v", i, err)
			}
			value := k.dst[:min(int(k.have), cap(k.dst))]
			if k.op == opGet && k.outcome() == nil && k.status == wire.StatusOK && (uint64(len(value)) != k.total || len(value) > 0 && !arrived(in, value)) {
				t.Fatalf("call %d: value of %d bytes, %d promised, did not arrive: %x", i, len(value), k.total, value)
			}
		}
		<-c.gone
		cl.work.Wait()
		runtime.ReadMemStats(&after)
		node.Close()
		// What is resident in slices of lists takes up to three times its bytes on
		// the wire; the rest is small change.
		const caps = firstAlloc + 2*wire.MaxPayload + 1<<18
		if took := after.TotalAlloc - before.TotalAlloc; took > uint64(8*len(in)+caps) {
			t.Fatalf("%d bytes made the client take %d", len(in), took)
		}
		if err := c.dead; !errors.Is(err, ErrLost) && !errors.Is(err, ErrProtocol) && err.Code == 0 {
			t.Fatalf("the connection ended for no known reason: %v", err)
		}
	})
}

// arrived reports whether value consists of pieces of in, in order: the first
// bytes are somewhere in it, and each further piece after the one before.
func arrived(in, value []byte) bool {
	for len(value) > 0 {
		n := 0
		for n < len(value) && bytes.Contains(in, value[:n+1]) {
			n++
		}
		if n == 0 {
			return false
		}
		in = in[bytes.Index(in, value[:n])+n:]
		value = value[n:]
	}
	return true
}
