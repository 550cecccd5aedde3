package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/arena"
	"github.com/kvcr-go/kvcr/internal/blockcopy"
	"github.com/kvcr-go/kvcr/wire"
	"github.com/kvcr-go/kvcr/wire/client"
)

// needSharing skips a test where the system cannot share memory safely.
func needSharing(t testing.TB) {
	t.Helper()
	fd, err := unix.MemfdCreate("kvcr-test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Skipf("no memfd: %v", err)
	}
	defer unix.Close(fd)
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE); err != nil {
		t.Skipf("no F_SEAL_FUTURE_WRITE: %v", err)
	}
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Skipf("no pidfd: %v", err)
	}
	unix.Close(pidfd)
}

// sharedNamespace is what these tests share unless they say otherwise.
var sharedNamespace = kvcr.Namespace{Name: "default", MaxValue: 1 << 20, Checksums: kvcr.ChecksumOn}

// startShared serves an engine whose memory can be shared on a unix socket, and
// checks at the end that nothing is left. It returns the path of the socket, too.
func startShared(t *testing.T, ns kvcr.Namespace, edit func(*Options)) (*Server, string) {
	t.Helper()
	needSharing(t)
	dir, err := os.MkdirTemp("", "kvcr") // not t.TempDir: a socket's path is at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "socket")
	cfg := kvcr.Config{Capacity: 8 << 20, Shards: 1, Namespaces: []kvcr.Namespace{ns}, Memory: kvcr.Memory{Backing: arena.Memfd}}
	s := startWith(t, cfg, func(o *Options) {
		o.RESP, o.Binary = nil, []string{"unix:" + path, "127.0.0.1:0"}
		if edit != nil {
			edit(o)
		}
	})
	return s, path
}

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// attachTo returns a client with shared memory. Its end closes both; views must be
// released by then.
func attachTo(t *testing.T, path string, staging uint64) (*client.Client, *client.Shared) {
	t.Helper()
	cl, err := client.Dial(soon(t), client.Options{Addr: "unix:" + path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	sh, err := cl.Attach(soon(t), staging)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sh.Close(); err != nil {
			t.Errorf("Shared.Close: %v", err)
		}
	})
	return cl, sh
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("it is not so that %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func mustView(t testing.TB, sh *client.Shared, key string) client.View {
	t.Helper()
	v, err := sh.View(soon(t), []byte(key))
	if err != nil || !v.OK() {
		t.Fatalf("View(%q): %v, status %v", key, err, v.Status)
	}
	return v
}

// Values of all sizes are seen in place, and claims end with their views.
func TestSharedViews(t *testing.T) {
	kinds := map[string]kvcr.Namespace{
		"classes": sharedNamespace,
		"pools":   {Name: "default", Pools: []kvcr.Pool{{SlotBytes: 1 << 20}}},
		"chained": {Name: "default", Kind: kvcr.Chained, Pools: []kvcr.Pool{{SlotBytes: 1 << 20}}},
	}
	for name, ns := range kinds {
		t.Run(name, func(t *testing.T) {
			s, path := startShared(t, ns, nil)
			cl, sh := attachTo(t, path, 1<<20)
			e := s.opt.Engine
			sizes := []int{0, 1, 63, 64, 65, 4096, 4097, 300 << 10}
			var keys [][]byte
			for i, n := range sizes {
				keys = append(keys, fmt.Appendf(nil, "key-%d", n))
				if err := cl.Set(soon(t), keys[i], pattern(n, i)); err != nil {
					t.Fatal(err)
				}
			}
			keys = append(keys, []byte("none"))
			views, err := sh.Views(soon(t), keys...)
			if err != nil {
				t.Fatal(err)
			}
			for i, n := range sizes {
				if !views[i].OK() || !bytes.Equal(views[i].Bytes(), pattern(n, i)) {
					t.Errorf("the value of %d bytes is another one", n)
				}
			}
			st, total := s.Stats().Shared, 0
			for _, n := range sizes {
				total += n
			}
			if st.Clients != 1 || st.Conns != 1 || st.Gets != uint64(len(keys)) || st.Hits != uint64(len(sizes)) || st.LentBytes != uint64(total) || st.Claims != int64(len(sizes)) || st.HeldForDead != 0 || st.StagingBytes != 1<<20 {
				t.Errorf("counted with %d views of %d keys, %d bytes: %+v", len(sizes), len(keys), total, st)
			}
			if last := views[len(sizes)]; last.OK() || last.Status != wire.StatusMiss {
				t.Errorf("a missing key: status %v", last.Status)
			}
			if n := e.Claims(); n != len(sizes) {
				t.Errorf("%d claims for %d views", n, len(sizes))
			}
			var busy *client.InUseError
			err = sh.Close()
			if !errors.As(err, &busy) || busy.Views != len(sizes) {
				t.Errorf("Close with %d views out: %v", len(sizes), err)
			}
			first := views[3]
			if err := first.Release(); err != nil {
				t.Errorf("Release: %v", err)
			}
			if err := first.Release(); !errors.Is(err, client.ErrReleased) {
				t.Errorf("the second Release: %v", err)
			}
			views[3] = client.View{}
			if _, err := sh.View(soon(t), keys[0]); !errors.Is(err, client.ErrClosed) {
				t.Errorf("View after Close: %v", err)
			}
			client.ReleaseViews(views)
			eventually(t, "all claims have ended", func() bool { return e.Claims() == 0 })
			eventually(t, "the last view has ended the connection", func() bool { return s.Stats().Shared.Conns == 0 })
			if n := s.Stats().Shared.HeldForDead; n != 0 {
				t.Errorf("%d claims wait for the end of a client that has released all", n)
			}
		})
	}
}

// A block of several pieces lies in no one place: it is copied.
func TestSharedPieces(t *testing.T) {
	ns := kvcr.Namespace{Name: "default", Pools: []kvcr.Pool{{Name: "large", SlotBytes: 128 << 10}, {Name: "a", SlotBytes: 64 << 10}, {Name: "b", SlotBytes: 4096}}}
	s, path := startShared(t, ns, nil)
	_, sh := attachTo(t, path, 0)
	h, err := s.opt.Engine.Handle()
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	item := kvcr.Item{Key: []byte("k"), Pools: []string{"a", "b"}, Pieces: [][]byte{pattern(64<<10, 1), pattern(4096, 2)}}
	if r := h.DepositBatch([]kvcr.Item{item}, kvcr.DepositOptions{}); !r[0].OK() {
		t.Fatal(r[0].Reason)
	}
	v := mustView(t, sh, "k")
	if !bytes.Equal(v.Bytes(), bytes.Join(item.Pieces, nil)) {
		t.Error("the value is another one")
	}
	v.Release()
	if _, err := sh.Put(soon(t), []byte("k"), nil, wire.VerbSet); !errors.Is(err, client.ErrUnsupported) {
		t.Errorf("Put without staging memory: %v", err)
	}
}

// Bytes under a view stay, though the memory around them is written a hundred
// times over.
func TestSharedBytesStay(t *testing.T) {
	s, path := startShared(t, sharedNamespace, nil)
	cl, sh := attachTo(t, path, 0)
	var views []client.View
	sizes := []int{100, 5000, 64 << 10, 1 << 20}
	for i, n := range sizes {
		if err := cl.Set(soon(t), []byte{byte(i)}, pattern(n, i)); err != nil {
			t.Fatal(err)
		}
		views = append(views, mustView(t, sh, string([]byte{byte(i)})))
	}
	h, err := s.opt.Engine.Handle()
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	const n = 256 << 10
	value := bytes.Repeat([]byte{0xff}, n)
	rounds := 100 * int(s.opt.Engine.Config().Capacity/n)
	for i := range rounds {
		if err := h.Set(fmt.Appendf(nil, "other-%d", i%64), value); err != nil {
			t.Fatal(err)
		}
		if i%4 == 0 { // the keys of the views, too
			if err := h.Set([]byte{byte(i / 4 % len(sizes))}, value[:1000]); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, n := range sizes {
		if !bytes.Equal(views[i].Bytes(), pattern(n, i)) {
			t.Errorf("the %d bytes under a view have changed", n)
		}
	}
	client.ReleaseViews(views)
}

// rawShared is one connection that has shared memory, frame by frame.
type rawShared struct {
	*binaryClient
	pools wire.ShmPools
	fds   []int
}

func dialUnix(t *testing.T, path string) *binaryClient {
	t.Helper()
	nc, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(20 * time.Second))
	c := &binaryClient{t: t, Conn: nc}
	c.greet(nil, nil)
	return c
}

func attachRaw(t *testing.T, path string, staging uint64) *rawShared {
	t.Helper()
	r := &rawShared{binaryClient: dialUnix(t, path)}
	r.write((&wire.ShmAttach{StagingBytes: staging}).Append(nil, 1))
	buf, control := make([]byte, 4096), make([]byte, 256)
	n, nc, _, _, err := r.Conn.(*net.UnixConn).ReadMsgUnix(buf, control)
	if err != nil {
		t.Fatal(err)
	}
	msgs, err := unix.ParseSocketControlMessage(control[:nc])
	for i := range msgs {
		fds, _ := unix.ParseUnixRights(&msgs[i])
		r.fds = append(r.fds, fds...)
	}
	t.Cleanup(func() {
		for _, fd := range r.fds {
			unix.Close(fd)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	r.in = append(r.in, buf[:n]...)
	r.recv(1, &r.pools)
	return r
}

// mapped maps the i-th descriptor.
func (r *rawShared) mapped(i, size, prot int) []byte {
	r.t.Helper()
	mem, err := unix.Mmap(r.fds[i], 0, size, prot, unix.MAP_SHARED)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { unix.Munmap(mem) })
	return mem
}

// A client gets its pool read-only, whatever it does with the descriptor, and
// staging memory whose length it cannot change.
func TestSharedDescriptors(t *testing.T) {
	_, path := startShared(t, sharedNamespace, nil)
	r := attachRaw(t, path, 100_000)
	if len(r.fds) != 2 || len(r.pools.Pools) != 1 || r.pools.StagingBytes < 100_000 || r.pools.StagingBytes > 128<<10 {
		t.Fatalf("%d descriptors, %+v", len(r.fds), r.pools)
	}
	pool := r.pools.Pools[0]
	if pool.Pool != 0 || pool.Bytes != 8<<20 || pool.SlotBytes != 0 {
		t.Errorf("pool %+v", pool)
	}
	size := int(pool.Bytes)
	// The inode lets its owner, and root, open it for writing; the seals do not let
	// anybody write.
	again, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", r.fds[0]), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		again = r.fds[0]
	} else {
		defer unix.Close(again)
	}
	for name, fd := range map[string]int{"passed": r.fds[0], "opened for writing": again} {
		if flags, _ := unix.FcntlInt(uintptr(r.fds[0]), unix.F_GETFL, 0); flags&unix.O_ACCMODE != unix.O_RDONLY {
			t.Errorf("the descriptor passed has flags %#x", flags)
		}
		if _, err := unix.Pwrite(fd, []byte{1}, 0); err == nil {
			t.Errorf("%s: write", name)
		}
		if mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
			unix.Munmap(mem)
			t.Errorf("%s: mapped for writing", name)
		}
		for _, n := range []int64{0, 4096, int64(size) * 2} {
			if unix.Ftruncate(fd, n) == nil {
				t.Errorf("%s: cut to %d bytes", name, n)
			}
		}
		if unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096) == nil {
			t.Errorf("%s: a hole was punched", name)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err == nil {
			t.Errorf("%s: sealed by the client", name)
		}
		mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		if unix.Mprotect(mem, unix.PROT_READ|unix.PROT_WRITE) == nil {
			t.Errorf("%s: made writable", name)
		}
		if unix.Madvise(mem, unix.MADV_REMOVE) == nil {
			t.Errorf("%s: memory removed", name)
		}
		unix.Munmap(mem)
	}
	for _, n := range []int64{0, int64(r.pools.StagingBytes) * 2} {
		if unix.Ftruncate(r.fds[1], n) == nil {
			t.Errorf("staging memory was cut to %d bytes", n)
		}
	}
}

func TestSharedRefused(t *testing.T) {
	_, path := startShared(t, sharedNamespace, nil)
	c := dialUnix(t, path)
	for _, m := range []wire.Message{&wire.Reserve{Key: []byte("k"), Size: 1}} {
		var st wire.StatusReply
		if c.ask(1, m, &st); st.Status != wire.StatusUnsupported {
			t.Errorf("%v without shared memory: %v", m.Type(), st.Status)
		}
	}
	for _, m := range []wire.Message{&wire.Commit{Reservation: 1}, &wire.Abort{Reservation: 1}} {
		var st wire.StatusReply
		if c.ask(1, m, &st); st.Status != wire.StatusReleased {
			t.Errorf("%v without shared memory: %v", m.Type(), st.Status)
		}
	}
	var e wire.ErrorReply
	r := attachRaw(t, path, 0)
	if r.ask(2, &wire.ShmAttach{}, &e); e.Code != wire.CodeBadPayload {
		t.Errorf("the second SHM_ATTACH: %v", e.Code)
	}
	var p wire.Pong
	r.ask(3, &wire.Ping{}, &p)

	refused := func(what string, c *binaryClient) {
		t.Helper()
		var st wire.StatusReply
		if c.ask(1, &wire.ShmAttach{StagingBytes: 1}, &st); st.Status != wire.StatusUnsupported {
			t.Errorf("%s: %v", what, st.Status)
		}
	}
	tcp := startBinary(t, nil)
	ct := dialBinary(t, tcp)
	ct.greet(nil, nil)
	refused("over TCP", ct)
	anonymous := startWith(t, kvcr.Config{Capacity: 4 << 20, Shards: 1}, func(o *Options) {
		o.RESP, o.Binary = nil, []string{"unix:" + path + "2"}
	})
	refused("of anonymous memory", dialUnix(t, path+"2"))
	if st := anonymous.Stats(); st.Shared.Conns != 0 {
		t.Errorf("%d connections share memory", st.Shared.Conns)
	}
}

// An answer that waits for the client would have to carry the descriptors: the
// client must read first.
func TestSharedBusy(t *testing.T) {
	s, path := startShared(t, kvcr.Namespace{Name: "default", MaxValue: 2 << 20}, nil)
	h, err := s.opt.Engine.Handle()
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	want := pattern(2<<20, 3)
	if err := h.Set([]byte("k"), want); err != nil {
		t.Fatal(err)
	}
	c := dialUnix(t, path)
	c.write((&wire.ShmAttach{}).Append((&wire.Get{Key: []byte("k")}).Append(nil, 1), 2))
	var got []byte
	var st wire.StatusReply
	for len(got) < len(want) || st.Status == wire.StatusOK {
		h, payload, err := c.next()
		if err != nil {
			t.Fatal(err)
		}
		var v wire.Value
		var d wire.Data
		switch {
		case h.ID == 2 && h.Type == wire.TypeStatus:
			err = st.Parse(payload)
		case h.Type == wire.TypeValue:
			err = v.Parse(payload)
			got = append(got, v.Value...)
		case h.Type == wire.TypeData:
			err = d.Parse(payload)
			got = append(got, d.Bytes...)
		default:
			t.Fatalf("%v of request %d", h.Type, h.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if st.Status != wire.StatusBusy || !bytes.Equal(got, want) {
		t.Errorf("status %v, the value is right: %t", st.Status, bytes.Equal(got, want))
	}
}

// Nothing comes between the parts of what waits, whether or not the kernel would
// take it now.
func TestSendWithWaits(t *testing.T) {
	srv := &Server{}
	for name, s := range map[string]*session{
		"queued": {queued: 1},
		"dead":   {dead: true},
	} {
		s.srv, s.out, s.fd = srv, new(outbox), -1
		err := s.sendWith([]byte("frame"), nil)
		var no *notShared
		if busy := errors.As(err, &no) && no.status == wire.StatusBusy; busy == s.dead || s.dead && !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Values are written through staging memory by each verb.
func TestSharedPut(t *testing.T) {
	s, path := startShared(t, sharedNamespace, func(o *Options) { o.StagingCap = 192 << 10 })
	cl, sh := attachTo(t, path, 1<<30)
	if n := sh.Staging(); n != 192<<10 {
		t.Fatalf("%d bytes of staging memory", n)
	}
	for _, tt := range []struct {
		verb     wire.Verb
		value    []byte
		existing bool
		want     []byte
	}{
		{wire.VerbSet, pattern(1000, 1), false, pattern(1000, 1)},
		{wire.VerbSet, pattern(150<<10, 2), false, pattern(150<<10, 2)},
		{wire.VerbDeposit, pattern(150<<10, 3), false, pattern(150<<10, 2)},
		{wire.VerbSetIfAbsent, pattern(10, 4), true, pattern(150<<10, 2)},
		{wire.VerbSet, nil, false, nil},
	} {
		existing, err := sh.Put(soon(t), []byte("k"), tt.value, tt.verb)
		if err != nil || existing != tt.existing {
			t.Fatalf("Put of %d bytes, verb %d: existing %t, %v", len(tt.value), tt.verb, existing, err)
		}
		got, ok, err := cl.Get(soon(t), []byte("k"), nil)
		if err != nil || !ok || !bytes.Equal(got, tt.want) {
			t.Fatalf("after Put of %d bytes, verb %d: %d bytes, %t, %v", len(tt.value), tt.verb, len(got), ok, err)
		}
	}
	// In place, one after the other in the same memory.
	for i := range 50 {
		r, err := sh.Reserve(soon(t), []byte("r"), 100<<10, wire.VerbSet)
		if err != nil {
			t.Fatal(err)
		}
		copy(r.Bytes(), pattern(100<<10, i))
		if _, err := r.Commit(soon(t)); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Commit(soon(t)); !errors.Is(err, client.ErrReleased) {
			t.Fatalf("the second Commit: %v", err)
		}
		v := mustView(t, sh, "r")
		if !bytes.Equal(v.Bytes(), pattern(100<<10, i)) {
			t.Fatalf("round %d: another value", i)
		}
		v.Release()
	}
	// Until nothing is left.
	a, err := sh.Reserve(soon(t), []byte("a"), 100<<10, wire.VerbSet)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sh.Reserve(soon(t), []byte("b"), 100<<10, wire.VerbSet); !errors.Is(err, client.ErrCapacity) {
		t.Errorf("Reserve of more than is left: %v", err)
	}
	if _, err := sh.Put(soon(t), []byte("b"), make([]byte, 193<<10), wire.VerbSet); !errors.Is(err, client.ErrTooLarge) {
		t.Errorf("Put of more than there is: %v", err)
	}
	var busy *client.InUseError
	if err := a.Abort(); err != nil {
		t.Fatal(err)
	}
	if err := a.Abort(); !errors.Is(err, client.ErrReleased) {
		t.Errorf("the second Abort: %v", err)
	}
	eventually(t, "aborted memory can be reserved", func() bool {
		a, err = sh.Reserve(soon(t), []byte("b"), 192<<10, wire.VerbSet)
		return err == nil
	})
	if err := sh.Close(); !errors.As(err, &busy) || busy.Reservations != 1 {
		t.Errorf("Close with a reservation: %v", err)
	}
	a.Abort()
	if _, ok, err := cl.Get(soon(t), []byte("b"), nil); ok || err != nil {
		t.Errorf("an aborted value is there: %t, %v", ok, err)
	}
	if st := s.Stats().Shared; st.Commits != 53 || st.CommittedBytes != 1000+150<<10+50*100<<10 {
		t.Errorf("%d values of %d bytes were stored from staging memory", st.Commits, st.CommittedBytes)
	}
	eventually(t, "staging memory is given back", func() bool { return s.Stats().Shared.StagingBytes == 0 })
}

// The copy of a large COMMIT keeps no other connection waiting, and the one that
// commits goes on as before.
func TestLargeCommitBesideLoop(t *testing.T) {
	blocked, let := make(chan int, 8), make(chan struct{})
	s, path := startShared(t, sharedNamespace, func(o *Options) {
		o.Loops = 1
		o.readStaging = func(st *staging, dst []byte, off int64) error {
			blocked <- len(dst)
			<-let
			return st.read(dst, off)
		}
	})
	defer close(let) // or a loop that waits would wait for ever
	cl, sh := attachTo(t, path, 2<<20)
	other := dialUnix(t, path)
	ping := func(n uint64) {
		t.Helper()
		var pong wire.Pong
		if other.ask(n, &wire.Ping{Bytes: []byte("x")}, &pong); string(pong.Bytes) != "x" {
			t.Fatalf("PONG with %q", pong.Bytes)
		}
	}
	ping(1)
	put := func(key string, value []byte) chan error {
		done := make(chan error, 1)
		go func() {
			_, err := sh.Put(soon(t), []byte(key), value, wire.VerbSet)
			done <- err
		}()
		return done
	}
	for i, key := range []string{"first", "second"} {
		value := pattern(commitOnLoop+1+i, i)
		done := put(key, value)
		if n := <-blocked; n != len(value) {
			t.Fatalf("%d bytes are copied, want %d", n, len(value))
		}
		ping(uint64(2 + i)) // while the copy does not end, on the only loop
		let <- struct{}{}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if got, ok, err := cl.Get(soon(t), []byte(key), nil); err != nil || !ok || !bytes.Equal(got, value) {
			t.Fatalf("the value of %q: %d bytes, %t, %v", key, len(got), ok, err)
		}
	}
	v := mustView(t, sh, "second") // the share goes on
	v.Release()
	st := s.Stats()
	if st.SlowConns != 0 || st.Shared.Commits != 2 {
		t.Errorf("%d connections are said to read slowly, %d commits", st.SlowConns, st.Shared.Commits)
	}
	for _, c := range st.Commands {
		if c.Count > 0 && c.Latency.Count != c.Count {
			t.Errorf("%d of %d commands %s %s have their time", c.Latency.Count, c.Count, c.Proto, c.Name)
		}
	}
}

// A COMMIT that is being copied when its connection ends is stored all the same,
// answered where the client can still hear it, and leaves nothing behind. Its place
// is not given out before it has been read.
func TestLargeCommitAndTheEnd(t *testing.T) {
	for _, how := range []string{"half-closed", "closed", "shut down"} {
		t.Run(how, func(t *testing.T) {
			blocked, let := make(chan struct{}, 8), make(chan struct{})
			s, path := startShared(t, sharedNamespace, func(o *Options) {
				o.readStaging = func(st *staging, dst []byte, off int64) error {
					blocked <- struct{}{}
					<-let
					return st.read(dst, off)
				}
			})
			free := sync.OnceFunc(func() { close(let) })
			defer free()
			const size = 600 << 10
			r := attachRaw(t, path, 1<<20)
			var place wire.Reservation
			r.ask(2, &wire.Reserve{Key: []byte("k"), Size: size}, &place)
			copy(r.mapped(1, 1<<20, unix.PROT_READ|unix.PROT_WRITE)[place.Offset:], pattern(size, 7))
			r.write((&wire.Commit{Reservation: place.Reservation}).Append(nil, 3))
			<-blocked
			var st wire.StatusReply
			if r.ask(4, &wire.Commit{Reservation: place.Reservation}, &st); st.Status != wire.StatusReleased {
				t.Errorf("the same COMMIT again: %v", st.Status)
			}
			if r.ask(5, &wire.Reserve{Key: []byte("k"), Size: size}, &place); place.Status != wire.StatusCapacity {
				t.Errorf("RESERVE of the memory that is being read: %v", place.Status)
			}
			switch how {
			case "half-closed":
				if err := r.Conn.(*net.UnixConn).CloseWrite(); err != nil {
					t.Fatal(err)
				}
				eventually(t, "the share is over", func() bool { return s.Stats().Shared.Conns == 0 })
				free()
				if r.recv(3, &st); st.Status != wire.StatusOK {
					t.Errorf("after the end of input: %v", st.Status)
				}
				if _, _, err := r.next(); err != io.EOF {
					t.Errorf("after the last answer: %v", err)
				}
			case "closed":
				r.Close()
				eventually(t, "the share is over", func() bool { return s.Stats().Shared.Conns == 0 })
				free()
			case "shut down":
				done := make(chan error, 1)
				go func() { done <- s.Shutdown(soon(t)) }()
				eventually(t, "it drains", s.Draining)
				free()
				if r.recv(3, &st); st.Status != wire.StatusOK {
					t.Errorf("while draining: %v", st.Status)
				}
				if err := <-done; err != nil {
					t.Errorf("Shutdown: %v", err)
				}
			}
			eventually(t, "nothing is left", func() bool {
				st := s.Stats()
				return st.Shared.StagingBytes == 0 && st.Conns == 0 && st.Shared.Commits == 1
			})
			h, err := s.opt.Engine.Handle()
			if err != nil {
				t.Fatal(err)
			}
			defer h.Close()
			v, ok := h.Get([]byte("k"))
			defer v.Release()
			if !ok || !bytes.Equal(v.Bytes(), pattern(size, 7)) {
				t.Errorf("the value is stored: %t, %d bytes", ok, v.Len())
			}
		})
	}
}

// A connection for which there is no handle off the loop commits on it.
func TestLargeCommitStaysOnLoop(t *testing.T) {
	s, path := startShared(t, sharedNamespace, func(o *Options) { o.Loops = 1 })
	cl, sh := attachTo(t, path, 2<<20)
	if err := cl.Set(soon(t), []byte("k"), nil); err != nil { // the loop has its handle
		t.Fatal(err)
	}
	var all []*kvcr.Handle
	for {
		h, err := s.opt.Engine.Handle()
		if errors.Is(err, kvcr.ErrHandles) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, h)
	}
	defer func() {
		for _, h := range all {
			h.Close()
		}
	}()
	value := pattern(commitOnLoop+1, 1)
	if _, err := sh.Put(soon(t), []byte("k"), value, wire.VerbSet); err != nil {
		t.Fatal(err)
	}
	if got, ok, err := cl.Get(soon(t), []byte("k"), nil); err != nil || !ok || !bytes.Equal(got, value) {
		t.Errorf("%d bytes, %t, %v", len(got), ok, err)
	}
}

// Staging memory has a limit for each client and one for all.
func TestStagingLimits(t *testing.T) {
	s, path := startShared(t, sharedNamespace, func(o *Options) { o.StagingCap, o.StagingTotal = 1<<20, 1536<<10 })
	for i, want := range []uint64{1 << 20, 512 << 10, 0} {
		r := attachRaw(t, path, 1<<40)
		if r.pools.StagingBytes != want || len(r.fds) != 1+min(1, int(want)) {
			t.Errorf("client %d: %d bytes, %d descriptors", i, r.pools.StagingBytes, len(r.fds))
		}
	}
	if n := s.Stats().Shared.StagingBytes; n != 1536<<10 {
		t.Errorf("%d bytes counted", n)
	}
	one := attachRaw(t, path, 0)
	var st wire.StatusReply
	if one.ask(2, &wire.Reserve{Key: []byte("k"), Size: 0}, &st); st.Status != wire.StatusUnsupported {
		t.Errorf("RESERVE without staging memory: %v", st.Status)
	}
}

func TestReservationLimits(t *testing.T) {
	_, path := startShared(t, sharedNamespace, nil)
	r := attachRaw(t, path, 128<<10)
	seen := map[uint64]bool{}
	for i := range maxPlaces {
		var got wire.Reservation
		r.ask(uint64(i+2), &wire.Reserve{Key: []byte("k"), Size: 1}, &got)
		if got.Status != wire.StatusOK || got.Pool != wire.StagingPool || seen[got.Offset] {
			t.Fatalf("reservation %d: %+v", i, got)
		}
		seen[got.Offset] = true
	}
	var got wire.Reservation
	if r.ask(9999, &wire.Reserve{Key: []byte("k"), Size: 1}, &got); got.Status != wire.StatusBusy {
		t.Errorf("one more than %d reservations: %v", maxPlaces, got.Status)
	}
	for _, n := range []uint64{1<<20 + 1, 1 << 63, 1<<64 - 1} {
		if r.ask(9999, &wire.Reserve{Key: []byte("k"), Size: n}, &got); got.Status != wire.StatusTooLarge {
			t.Errorf("RESERVE of %d bytes: %v", n, got.Status)
		}
	}
}

// What is stored is what was checked, though the client changes its memory all the
// time.
func TestStagingChangesDuringCommit(t *testing.T) {
	s, path := startShared(t, sharedNamespace, nil)
	r := attachRaw(t, path, 1<<20)
	area := r.mapped(1, int(r.pools.StagingBytes), unix.PROT_READ|unix.PROT_WRITE)
	const n = 256 << 10
	var place atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			// A byte near the end, so that a second look would often see another.
			at := place.Load() + n - 1 - int64(i%1000)
			area[at] ^= 0x80
			for range 50 {
				area[at] ^= 0x80
				area[at] ^= 0x80
			}
			area[at] ^= 0x80
		}
	}()
	h, err := s.opt.Engine.Handle()
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	good, bad := 0, 0
	for i := 0; i < 1000 && (i < 200 || good == 0 || bad == 0); i++ {
		var got wire.Reservation
		key := fmt.Appendf(nil, "key-%d", i)
		r.ask(2, &wire.Reserve{Key: key, Size: n}, &got)
		if got.Status != wire.StatusOK {
			t.Fatal(got.Status)
		}
		place.Store(int64(got.Offset))
		value := pattern(n, i)
		copy(area[got.Offset:], value)
		sum := blockcopy.Sum(value)
		r.write((&wire.Commit{Reservation: got.Reservation, HasSum: true, Sum: sum}).Append(nil, 3))
		head, _, err := r.next()
		if err != nil {
			t.Fatal(err)
		}
		v, stored := h.Get(key)
		if stored != (head.Type == wire.TypeStatus) {
			t.Fatalf("answered %v, stored %t", head.Type, stored)
		}
		if !stored {
			bad++
			continue
		}
		good++
		if got := blockcopy.Sum(v.Bytes()); got != sum || !v.Verify() {
			t.Errorf("round %d: stored with sum %#x, checked as %#x, the engine's sum fits: %t", i, got, sum, v.Verify())
		}
		v.Release()
	}
	close(stop)
	<-stopped
	t.Logf("%d commits saw the value, %d another one", good, bad)
	if good == 0 {
		t.Error("no commit was accepted")
	}
}

// A wrong sum stores nothing and gives the memory back; without a sum all is taken.
func TestCommitSums(t *testing.T) {
	_, path := startShared(t, sharedNamespace, nil)
	r := attachRaw(t, path, 64<<10)
	area := r.mapped(1, int(r.pools.StagingBytes), unix.PROT_READ|unix.PROT_WRITE)
	value := pattern(60<<10, 1)
	for i, tt := range []struct {
		hasSum bool
		sum    uint64
		stored bool
	}{
		{true, blockcopy.Sum(value) + 1, false},
		{true, blockcopy.Sum(value), true},
		{false, 0, true},
	} {
		var got wire.Reservation
		key := strconv.Itoa(i)
		r.ask(2, &wire.Reserve{Key: []byte(key), Size: uint64(len(value))}, &got)
		if got.Status != wire.StatusOK {
			t.Fatalf("round %d: %v", i, got.Status)
		}
		copy(area[got.Offset:], value)
		commit := wire.Commit{Reservation: got.Reservation, HasSum: tt.hasSum, Sum: tt.sum}
		if tt.stored {
			var st wire.StatusReply
			if r.ask(3, &commit, &st); st.Status != wire.StatusOK {
				t.Errorf("round %d: %v", i, st.Status)
			}
		} else {
			var e wire.ErrorReply
			if r.ask(3, &commit, &e); e.Code != wire.CodeBadPayload {
				t.Errorf("round %d: %v", i, e.Code)
			}
		}
		if b, st := r.get(4, key); (st == wire.StatusOK) != tt.stored || tt.stored && !bytes.Equal(b, value) {
			t.Errorf("round %d: %v", i, st)
		}
		var st wire.StatusReply
		if r.ask(5, &commit, &st); st.Status != wire.StatusReleased {
			t.Errorf("round %d, COMMIT again: %v", i, st.Status)
		}
	}
}

// Nothing stays of clients that come and go.
func TestSharedLeaks(t *testing.T) {
	s, path := startShared(t, sharedNamespace, nil)
	cl, err := client.Dial(soon(t), client.Options{Addr: "unix:" + path})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	mapped := 0
	round := func() {
		sh, err := cl.Attach(soon(t), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sh.Put(soon(t), []byte("k"), pattern(1000, 1), wire.VerbSet); err != nil {
			t.Fatal(err)
		}
		v := mustView(t, sh, "k")
		v.Release()
		mapped = unforkedMaps(t)
		if err := sh.Close(); err != nil {
			t.Fatal(err)
		}
	}
	round() // what the first one makes stays
	gone := func() bool { return s.Stats().Shared.Conns == 0 && s.conns.Load() == 1 }
	eventually(t, "the first client is gone", gone)
	fds, maps, running := openDescriptors(t), unforkedMaps(t), goleak.IgnoreCurrent()
	for range 200 {
		round()
	}
	if mapped != maps+2 {
		t.Errorf("%d mappings are kept from children while one is attached, %d before", mapped, maps)
	}
	eventually(t, "all clients are gone", gone)
	eventually(t, "no descriptor is left", func() bool { return openDescriptors(t) <= fds })
	if n := unforkedMaps(t); n > maps {
		t.Errorf("%d mappings, %d before", n, maps)
	}
	if err := goleak.Find(running); err != nil {
		t.Error(err)
	}
	if st := s.Stats(); st.Shared.HeldForDead != 0 || st.Shared.StagingBytes != 0 || s.opt.Engine.Claims() != 0 {
		t.Errorf("%d claims wait, %d are there, %d bytes of staging memory", st.Shared.HeldForDead, s.opt.Engine.Claims(), st.Shared.StagingBytes)
	}
}

func openDescriptors(t testing.TB) int {
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

// unforkedMaps counts the mappings that no child gets: those of arenas and clients.
func unforkedMaps(t testing.TB) (n int) {
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if flags, ok := strings.CutPrefix(sc.Text(), "VmFlags:"); ok && strings.Contains(flags+" ", " dc ") {
			n++
		}
	}
	return n
}

// A client that reads in place has nothing to say for long: it is not idle.
func TestSharedIdle(t *testing.T) {
	s, path := startShared(t, sharedNamespace, func(o *Options) { o.IdleTimeout = time.Millisecond })
	r := attachRaw(t, path, 0)
	c := dialUnix(t, path)
	if _, _, err := c.next(); err == nil {
		t.Error("a frame for an idle client")
	}
	if s.Stats().Shared.Conns != 1 {
		t.Error("the client with shared memory was cut off, too")
	}
	var p wire.Pong
	r.ask(2, &wire.Ping{}, &p)
}

// The claims that a process has left behind count among those that it may hold.
func TestClaimsLeftBehind(t *testing.T) {
	s, path := startShared(t, sharedNamespace, nil)
	r := attachRaw(t, path, 0)
	if st := r.set(1, wire.VerbSet, "k", []byte("value")); st != wire.StatusOK {
		t.Fatal(st)
	}
	keys := make([][]byte, wire.MaxList)
	for i := range keys {
		keys[i] = []byte("k")
	}
	fetch := func(r *rawShared, keys [][]byte) (n int) {
		var got wire.Claims
		r.ask(2, &wire.Fetch{Keys: keys}, &got)
		for _, c := range got.Claims {
			if c.Status == wire.StatusOK {
				n++
			} else if c.Status != wire.StatusBusy {
				t.Fatal(c.Status)
			}
		}
		return n
	}
	if n := fetch(r, keys); n != len(keys) {
		t.Fatalf("%d claims of %d", n, len(keys))
	}
	r.Close()
	eventually(t, "the claims wait", func() bool { return s.Stats().Shared.HeldForDead == int64(len(keys)) })
	r = attachRaw(t, path, 0)
	if n := fetch(r, keys) + fetch(r, keys); n != maxClaims-len(keys) {
		t.Errorf("%d more claims with %d left behind, of %d", n, len(keys), maxClaims)
	}
	r.Close()
	eventually(t, "all claims wait", func() bool { return s.Stats().Shared.HeldForDead == maxClaims })
	c := dialUnix(t, path)
	var st wire.StatusReply
	if c.ask(1, &wire.ShmAttach{}, &st); st.Status != wire.StatusBusy {
		t.Errorf("SHM_ATTACH with %d claims left behind: %v", maxClaims, st.Status)
	}
	// startShared's cleanup sees that Shutdown has ended them.
}

// What follows needs other processes: this test binary again, as the variable says.
const childVariable = "KVCR_SHM_TEST_CHILD"

// child is another process that runs one of TestSharedChild's parts.
type child struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startChild(t *testing.T, binary, part, path string, edit func(*exec.Cmd)) *child {
	t.Helper()
	c := &child{t: t, cmd: exec.Command(binary, "-test.run=^TestSharedChild$", "-test.timeout=60s")}
	c.cmd.Env = append(os.Environ(), childVariable+"="+part+" "+path)
	if edit != nil {
		edit(c.cmd)
	}
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewScanner(out)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	return c
}

// expect reads what the child says next.
func (c *child) expect(want string) {
	c.t.Helper()
	if !c.out.Scan() {
		c.t.Fatalf("the child ends, %q expected: %v", want, c.out.Err())
	}
	if got := c.out.Text(); got != want {
		c.t.Fatalf("the child says %q, want %q", got, want)
	}
}

func (c *child) tell(word string) {
	c.t.Helper()
	if _, err := io.WriteString(c.in, word+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

func (c *child) kill() {
	c.cmd.Process.Kill() // by its pid; it may have ended
	c.cmd.Wait()
}

const childKeys = 5

func childValue(i int) []byte { return pattern(20<<10+i, i) }

// TestSharedChild is no test: it is what the others run in another process.
func TestSharedChild(t *testing.T) {
	part, path, ok := strings.Cut(os.Getenv(childVariable), " ")
	if !ok {
		t.Skip("for a child process")
	}
	fail := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cl, err := client.Dial(ctx, client.Options{Addr: "unix:" + path})
	fail(err)
	sh, err := cl.Attach(ctx, 0)
	if part == "attach" {
		fmt.Println("attach:", errors.Is(err, client.ErrUnauthorized))
		os.Exit(0)
	}
	fail(err)
	var keys [][]byte
	for i := range childKeys {
		keys = append(keys, []byte{'a' + byte(i)})
	}
	views, err := sh.Views(ctx, keys...)
	fail(err)
	in := bufio.NewScanner(os.Stdin)
	fmt.Println("attached")
	for in.Scan() {
		switch in.Text() {
		case "close":
			cl.Close()
			fmt.Println("closed")
		case "check":
			same := true
			for i := range views {
				same = same && bytes.Equal(views[i].Bytes(), childValue(i))
			}
			fmt.Println("same:", same)
		case "again":
			cl, err = client.Dial(ctx, client.Options{Addr: "unix:" + path})
			fail(err)
			_, err = cl.Attach(ctx, 0)
			fail(err)
			fmt.Println("attached again")
		case "write":
			views[0].Bytes()[0]++
			fmt.Println("written")
		}
	}
	os.Exit(0)
}

// self is this test binary.
func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// watched is how many processes the server waits for.
func (s *Server) watched() int {
	s.sharing.mu.Lock()
	defer s.sharing.mu.Unlock()
	return len(s.sharing.known)
}

func childSets(t *testing.T, s *Server) *kvcr.Handle {
	t.Helper()
	h, err := s.opt.Engine.Handle()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	for i := range childKeys {
		if err := h.Set([]byte{'a' + byte(i)}, childValue(i)); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// Claims of a process stay while it lives, with or without a connection, and end
// when it is dead.
func TestSharedDeath(t *testing.T) {
	s, path := startShared(t, sharedNamespace, nil)
	e := s.opt.Engine
	h := childSets(t, s)
	c := startChild(t, self(t), "views", path, nil)
	c.expect("attached")
	if n := e.Claims(); n != childKeys {
		t.Fatalf("%d claims", n)
	}
	c.tell("close")
	c.expect("closed")
	held := func(n int64) func() bool {
		return func() bool { st := s.Stats(); return st.Shared.HeldForDead == n && st.Shared.Conns == 0 }
	}
	eventually(t, "the claims wait for the end of the process", held(childKeys))
	value := bytes.Repeat([]byte{0xee}, 256<<10)
	for i := range 20 * 32 { // the memory, twenty times
		if err := h.Set(fmt.Appendf(nil, "other-%d", i%40), value); err != nil {
			t.Fatal(err)
		}
	}
	c.tell("check")
	c.expect("same: true")
	c.tell("again")
	c.expect("attached again")
	if st := s.Stats(); st.Shared.HeldForDead != childKeys || st.Shared.Conns != 1 || e.Claims() != childKeys {
		t.Errorf("connected again: %d claims wait, %d are there, %d connections", st.Shared.HeldForDead, e.Claims(), st.Shared.Conns)
	}
	c.kill()
	eventually(t, "death ends the claims", held(0))
	eventually(t, "the dead are counted, once", func() bool {
		st := s.Stats().Shared
		return st.Dropped == 1 && st.Clients == 0 && st.Claims == 0
	})
	if n := s.watched(); n != 0 {
		t.Errorf("%d processes are watched after death", n)
	}
	if n := e.Claims(); n != 0 {
		t.Errorf("%d claims after death", n)
	}

	// With its connection open, and one among several processes.
	childSets(t, s)
	living := startChild(t, self(t), "views", path, nil)
	living.expect("attached")
	living.tell("close")
	living.expect("closed")
	c = startChild(t, self(t), "views", path, nil)
	c.expect("attached")
	c.kill()
	eventually(t, "only the dead one's claims end", func() bool { return e.Claims() == childKeys && held(childKeys)() })
	if st := s.Stats().Shared; st.Dropped != 2 || st.Claims != childKeys || st.Clients != 0 {
		t.Errorf("two have died with claims, one holds claims without a connection: %+v", st)
	}
	living.tell("check")
	living.expect("same: true")
}

// What a client that lives has claimed stays claimed until the engine has closed, so
// that nothing which still runs then, such as a fetch from another node, writes to it.
func TestSharedShutdown(t *testing.T) {
	s, path := startShared(t, sharedNamespace, nil)
	childSets(t, s)
	e := s.opt.Engine
	late, err := e.Handle()
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	for _, leave := range []string{"by itself", "cut off"} {
		c := startChild(t, self(t), "views", path, nil)
		c.expect("attached")
		if leave == "by itself" {
			c.tell("close")
			c.expect("closed")
			eventually(t, "the claims wait", func() bool { return s.Stats().Shared.HeldForDead == childKeys })
		}
		defer func() {
			// Its mapping outlives ours: reading is no fault.
			c.tell("check")
			c.expect("same: true")
		}()
	}
	if err := s.Shutdown(soon(t)); err != nil {
		t.Fatal(err)
	}
	if n := e.Claims(); n != 2*childKeys {
		t.Errorf("%d claims after Shutdown, want %d", n, 2*childKeys)
	}
	for i := range 64 { // many times what the memory holds
		_ = late.Set([]byte{'z', byte(i)}, make([]byte, 1<<20)) // some find no room
	}
	var busy *kvcr.BusyError
	if err := e.Close(); !errors.As(err, &busy) || busy.Views != 2*childKeys {
		t.Errorf("Close while claims are out: %v", err)
	}
	s.EndClaims()
	if err := e.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// A client that writes to what it may only read is the one that dies.
func TestSharedWriteFaults(t *testing.T) {
	s, path := startShared(t, sharedNamespace, nil)
	h := childSets(t, s)
	var errs bytes.Buffer
	c := startChild(t, self(t), "views", path, func(cmd *exec.Cmd) { cmd.Stderr = &errs })
	c.expect("attached")
	c.tell("write")
	if c.out.Scan() {
		t.Errorf("the child says %q", c.out.Text())
	}
	c.cmd.Wait()
	if !strings.Contains(errs.String(), "SIGSEGV") {
		t.Errorf("the child ended otherwise: %v, %.200s", c.cmd.ProcessState, &errs)
	}
	v, ok := h.Get([]byte("a"))
	if !ok || !bytes.Equal(v.Bytes(), childValue(0)) {
		t.Error("the value has changed")
	}
	v.Release()
	eventually(t, "its claims have ended", func() bool { return s.opt.Engine.Claims() == 0 })
}

// A process of another user gets no memory, even where it can connect.
func TestSharedOtherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can run a process as another user")
	}
	_, path := startShared(t, sharedNamespace, nil)
	for name, mode := range map[string]os.FileMode{filepath.Dir(path): 0o755, path: 0o777} {
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(self(t)) // the directory of the binary itself is closed to others
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(filepath.Dir(path), "test")
	if err := os.WriteFile(binary, b, 0o755); err != nil {
		t.Fatal(err)
	}
	c := startChild(t, binary, "attach", path, func(cmd *exec.Cmd) {
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	})
	c.expect("attach: true")
}
