package client

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr/wire"
)

const sealAll = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// memfd makes memory to pass to a client.
func newMemfd(t testing.TB, content []byte, seals int) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("kvcr-test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Skipf("no memfd: %v", err)
	}
	f := os.NewFile(uintptr(fd), "test")
	t.Cleanup(func() { f.Close() })
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return f
}

// sharer answers SHM_ATTACH with an answer and descriptors, and then goes on.
func sharer(answer wire.Message, files []*os.File, then func(*peer)) func(*peer) {
	return func(p *peer) {
		h, _, ok := p.next()
		if !ok {
			return
		}
		if h.Type != wire.TypeShmAttach { // the client's first connection
			p.drain()
			return
		}
		var rights []byte
		if len(files) > 0 {
			var fds []int
			for _, f := range files {
				fds = append(fds, int(f.Fd()))
			}
			rights = unix.UnixRights(fds...)
		}
		p.nc.(*net.UnixConn).WriteMsgUnix(answer.Append(nil, h.ID), rights, nil)
		if then == nil {
			p.drain()
		} else {
			then(p)
		}
	}
}

// sharing dials a node that shares memory as serve does.
func sharing(t *testing.T, serve func(*peer)) *Client {
	t.Helper()
	f := newFake(t, func(f *fake) {
		f.unix = filepath.Join(t.TempDir(), "s")
		f.serve = serve
	})
	cl, err := Dial(soon(t), Options{Addr: f.addr()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	return cl
}

// Memory that could make reading or writing a signal, or that is not what the node
// says, is refused.
func TestAttachAnswers(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // it closes files that were forgotten
	const size = 64 << 10
	pool := newMemfd(t, make([]byte, size), sealAll)
	open := newMemfd(t, make([]byte, size), unix.F_SEAL_GROW)
	plain, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	pools := func(staging uint64, list ...wire.Pool) *wire.ShmPools {
		return &wire.ShmPools{Pools: list, StagingBytes: staging}
	}
	whole := wire.Pool{Bytes: size}
	for _, tt := range []struct {
		name   string
		answer wire.Message
		files  []*os.File
		err    error
	}{
		{"pool", pools(0, whole), []*os.File{pool}, nil},
		{"pool and staging", pools(size, whole), []*os.File{pool, pool}, nil},
		{"part of the memory", pools(0, wire.Pool{Bytes: 1}), []*os.File{pool}, nil},
		{"no descriptor", pools(0, whole), nil, ErrProtocol},
		{"one missing", pools(size, whole), []*os.File{pool}, ErrProtocol},
		{"one too many", pools(0, whole), []*os.File{pool, pool}, ErrProtocol},
		{"no pool", pools(0), []*os.File{pool}, ErrProtocol},
		{"two pools", pools(0, whole, whole), []*os.File{pool, pool}, ErrProtocol},
		{"a number that means another", pools(0, wire.Pool{Pool: wire.NoPool, Bytes: size}), []*os.File{pool}, ErrProtocol},
		{"longer than it is", pools(0, wire.Pool{Bytes: size + 1}), []*os.File{pool}, ErrProtocol},
		{"endless", pools(0, wire.Pool{Bytes: 1<<64 - 1}), []*os.File{pool}, ErrProtocol},
		{"empty", pools(0, wire.Pool{}), []*os.File{pool}, ErrProtocol},
		{"may be cut off", pools(0, whole), []*os.File{open}, ErrProtocol},
		{"staging may be cut off", pools(size, whole), []*os.File{pool, open}, ErrProtocol},
		{"no memfd", pools(0, wire.Pool{Bytes: 1}), []*os.File{plain}, ErrProtocol},
		{"refused", &wire.StatusReply{Status: wire.StatusUnauthorized}, nil, ErrUnauthorized},
		{"not supported", &wire.StatusReply{Status: wire.StatusUnsupported}, nil, ErrUnsupported},
		{"busy", &wire.StatusReply{Status: wire.StatusBusy}, nil, ErrBusy},
		{"refused with descriptors", &wire.StatusReply{Status: wire.StatusBusy}, []*os.File{pool, pool}, ErrBusy},
		{"error", &wire.ErrorReply{Code: wire.CodeBadPayload}, nil, ErrRefused},
		{"goodbye", &wire.Goodbye{Reason: wire.CodeShutdown}, nil, ErrClosing},
		{"another answer", &wire.Pong{}, nil, ErrProtocol},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cl := sharing(t, sharer(tt.answer, tt.files, nil))
			before := openFiles(t)
			s, err := cl.Attach(soon(t), size)
			if tt.err != nil {
				want(t, err, tt.err, "attach")
			} else if err != nil {
				t.Fatal(err)
			} else if err := s.Close(); err != nil {
				t.Error(err)
			}
			// The node's own end may take a moment to close.
			for end := time.Now().Add(5 * time.Second); openFiles(t) > before; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%d descriptors, %d before", openFiles(t), before)
				}
			}
		})
	}
}

func openFiles(t testing.TB) int {
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

func TestAttachOverTCP(t *testing.T) {
	f := newFake(t, nil)
	cl, err := Dial(soon(t), Options{Addr: f.addr()})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	_, err = cl.Attach(soon(t), 0)
	want(t, err, ErrUnsupported, "attach")
	ctx, cancel := context.WithCancel(background)
	cancel()
	_, err = cl.Attach(ctx, 0)
	want(t, err, context.Canceled, "attach")
	cl.Close()
	_, err = cl.Attach(soon(t), 0)
	want(t, err, ErrClosed, "attach")
}

// A node that hangs does not hold Attach.
func TestAttachUntilContextEnds(t *testing.T) {
	cl := sharing(t, (*peer).drain)
	ctx, cancel := context.WithTimeout(background, 20*time.Millisecond)
	defer cancel()
	_, err := cl.Attach(ctx, 0)
	want(t, err, ErrTimeout, "attach")
}

// A place outside the memory ends the connection instead of the process.
func TestPlacesOutside(t *testing.T) {
	const size = 64 << 10
	pool := newMemfd(t, bytes.Repeat([]byte{7}, size), sealAll)
	for _, tt := range []struct {
		name         string
		offset, size uint64
		ok           bool
	}{
		{"all", 0, size, true},
		{"the last byte", size - 1, 1, true},
		{"nothing, at the end", size, 0, true},
		{"one more", 1, size, false},
		{"behind", size + 1, 0, false},
		{"far behind", 1<<64 - 1, 1, false},
		{"too long", 0, 1<<64 - 1, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			released := make(chan uint64, 1)
			cl := sharing(t, sharer(&wire.ShmPools{Pools: []wire.Pool{{Bytes: size}}, StagingBytes: size}, []*os.File{pool, pool}, func(p *peer) {
				for {
					h, payload, ok := p.next()
					if !ok {
						return
					}
					switch h.Type {
					case wire.TypeFetch:
						p.send((&wire.Claims{Claims: []wire.Claim{{Claim: 77, Size: tt.size, Offset: tt.offset}}}).Append(nil, h.ID))
					case wire.TypeRelease:
						var m wire.Release
						m.Parse(payload)
						released <- m.Claims[0]
						p.send((&wire.Statuses{Statuses: make([]wire.Status, len(m.Claims))}).Append(nil, h.ID))
					case wire.TypeReserve:
						p.send((&wire.Reservation{Reservation: 1, Pool: wire.StagingPool, Offset: tt.offset}).Append(nil, h.ID))
					case wire.TypeAbort:
						p.send((&wire.StatusReply{}).Append(nil, h.ID))
					}
				}
			}))
			s, err := cl.Attach(soon(t), size)
			if err != nil {
				t.Fatal(err)
			}
			v, err := s.View(soon(t), []byte("k"))
			if !tt.ok {
				want(t, err, ErrProtocol, "fetch")
				if s.Close() != nil {
					t.Error("Close: something is out")
				}
			} else {
				if err != nil || !bytes.Equal(v.Bytes(), bytes.Repeat([]byte{7}, int(tt.size))) {
					t.Fatalf("%d bytes, %v", len(v.Bytes()), err)
				}
				if cap(v.Bytes()) != len(v.Bytes()) {
					t.Error("an append would run into what follows")
				}
				v.Release()
				if n := <-released; n != 77 {
					t.Errorf("claim %d was released", n)
				}
			}
			if tt.ok && tt.size > 0 || tt.size > size {
				s.Close()
				return
			}
			// The same place for a value to write.
			if s, err = cl.Attach(soon(t), size); err != nil {
				t.Fatal(err)
			}
			r, err := s.Reserve(soon(t), []byte("k"), int(tt.size), wire.VerbSet)
			if tt.ok != (err == nil) {
				t.Errorf("Reserve: %v", err)
			}
			if r != nil {
				r.Abort()
			} else {
				want(t, err, ErrProtocol, "reserve")
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A reservation that comes after its caller has gone is given back, and the claims
// of views reach the node before Close ends the connection.
func TestLateReservation(t *testing.T) {
	const size = 64 << 10
	pool := newMemfd(t, make([]byte, size), sealAll)
	asked, aborted, ended := make(chan struct{}), make(chan uint64, 1), make(chan int, 1)
	cl := sharing(t, sharer(&wire.ShmPools{Pools: []wire.Pool{{Bytes: size}}, StagingBytes: size}, []*os.File{pool, pool}, func(p *peer) {
		var reserve uint64
		released := 0
		for {
			h, payload, ok := p.next()
			if !ok {
				ended <- released
				return
			}
			switch h.Type {
			case wire.TypeReserve:
				reserve = h.ID
				close(asked)
			case wire.TypeCancel: // the reservation was on its way already
				p.send((&wire.Reservation{Reservation: 5, Pool: wire.StagingPool}).Append(nil, reserve))
			case wire.TypeAbort:
				var m wire.Abort
				m.Parse(payload)
				p.send((&wire.StatusReply{}).Append(nil, h.ID))
				aborted <- m.Reservation
			case wire.TypeFetch:
				claims := make([]wire.Claim, 3)
				for i := range claims {
					claims[i] = wire.Claim{Claim: uint64(i + 1), Size: 1}
				}
				p.send((&wire.Claims{Claims: claims}).Append(nil, h.ID))
			case wire.TypeRelease:
				var m wire.Release
				m.Parse(payload)
				released += len(m.Claims)
				p.send((&wire.Statuses{Statuses: make([]wire.Status, len(m.Claims))}).Append(nil, h.ID))
			}
		}
	}))
	s, err := cl.Attach(soon(t), size)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(soon(t))
	go func() {
		<-asked
		cancel()
	}()
	_, err = s.Reserve(ctx, []byte("k"), 10, wire.VerbSet)
	want(t, err, context.Canceled, "reserve")
	if n := <-aborted; n != 5 {
		t.Errorf("reservation %d was aborted", n)
	}
	views, err := s.Views(soon(t), keysOf("a", "b", "c")...)
	if err != nil {
		t.Fatal(err)
	}
	for i := range views {
		views[i].Release()
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n := <-ended; n != 3 {
		t.Errorf("%d claims were released before the connection ended", n)
	}
}

// Claims that come after their caller has gone are given back before Close ends the
// connection: afterwards nobody could.
func TestLateViews(t *testing.T) {
	const size = 64 << 10
	pool := newMemfd(t, make([]byte, size), sealAll)
	asked, answer, ended := make(chan struct{}), make(chan struct{}), make(chan int, 1)
	cl := sharing(t, sharer(&wire.ShmPools{Pools: []wire.Pool{{Bytes: size}}}, []*os.File{pool}, func(p *peer) {
		released := 0
		for {
			h, payload, ok := p.next()
			if !ok {
				ended <- released
				return
			}
			switch h.Type {
			case wire.TypeFetch:
				close(asked)
				<-answer
				p.send((&wire.Claims{Claims: []wire.Claim{{Claim: 9, Size: 1}}}).Append(nil, h.ID))
			case wire.TypeRelease:
				var m wire.Release
				m.Parse(payload)
				released += len(m.Claims)
				p.send((&wire.Statuses{Statuses: make([]wire.Status, len(m.Claims))}).Append(nil, h.ID))
			}
		}
	}))
	s, err := cl.Attach(soon(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(soon(t))
	go func() {
		<-asked
		cancel()
	}()
	_, err = s.View(ctx, []byte("k"))
	want(t, err, context.Canceled, "fetch")
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	for waits := false; !waits; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		if waits = s.closed; s.unmapped {
			t.Error("Close has not waited for the claim")
		}
		s.mu.Unlock()
	}
	close(answer)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if n := <-ended; n != 1 {
		t.Errorf("%d claims were released before the connection ended", n)
	}
}

// A view outlives its connection and its client.
func TestViewOutlivesConnection(t *testing.T) {
	const size = 64 << 10
	pool := newMemfd(t, bytes.Repeat([]byte{7}, size), sealAll)
	peers := make(chan *peer, 1)
	cl := sharing(t, sharer(&wire.ShmPools{Pools: []wire.Pool{{Bytes: size}}}, []*os.File{pool}, func(p *peer) {
		h, _, _ := p.next()
		p.send((&wire.Claims{Claims: []wire.Claim{{Claim: 1, Size: size}}}).Append(nil, h.ID))
		peers <- p
		p.drain()
	}))
	s, err := cl.Attach(soon(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	v, err := s.View(soon(t), []byte("k"))
	if err != nil {
		t.Fatal(err)
	}
	(<-peers).nc.Close()
	<-s.Lost()
	_, err = s.View(soon(t), []byte("k"))
	want(t, err, ErrLost, "fetch")
	cl.Close()
	if !bytes.Equal(v.Bytes(), bytes.Repeat([]byte{7}, size)) {
		t.Error("the bytes have changed")
	}
	var busy *InUseError
	if err := s.Close(); !errors.As(err, &busy) || !errors.Is(err, ErrInUse) || busy.Views != 1 {
		t.Errorf("Close: %v", err)
	}
	if err := v.Release(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close at the end: %v", err)
	}
	if s.pool != nil {
		t.Error("the memory is mapped still")
	}
}

// What has ended goes along with the next request for views, before it, and stays
// when that is not sent or the table is full.
func TestReleasesGoAlong(t *testing.T) {
	const size = 64 << 10
	pool := newMemfd(t, make([]byte, size), sealAll)
	type frame struct {
		t      wire.Type
		claims []uint64
	}
	seen := make(chan frame, 100)
	cl := sharing(t, sharer(&wire.ShmPools{Pools: []wire.Pool{{Bytes: size}}}, []*os.File{pool}, func(p *peer) {
		for {
			h, payload, ok := p.next()
			if !ok {
				return
			}
			switch h.Type {
			case wire.TypeFetch:
				seen <- frame{t: h.Type}
				p.send((&wire.Claims{Claims: []wire.Claim{{Status: wire.StatusMiss}}}).Append(nil, h.ID))
			case wire.TypeRelease:
				var m wire.Release
				m.Parse(payload)
				seen <- frame{h.Type, m.Claims}
				p.send((&wire.Statuses{Statuses: make([]wire.Status, len(m.Claims))}).Append(nil, h.ID))
			}
		}
	}))
	s, err := cl.Attach(soon(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	// As if a goroutine was about to tell the node.
	s.mu.Lock()
	s.releasing, s.claims = true, []uint64{7, 8}
	s.mu.Unlock()

	over, cancel := context.WithCancel(soon(t))
	cancel()
	_, err = s.View(over, []byte("k"))
	want(t, err, context.Canceled, "fetch")
	room := cap(s.c.slots)
	for range room - 1 {
		s.c.slots <- struct{}{}
	}
	if _, err := s.View(soon(t), []byte("k")); err != nil {
		t.Fatal(err)
	}
	for range room - 1 {
		<-s.c.slots
	}
	if f := <-seen; f.t != wire.TypeFetch || len(s.claims) != 2 {
		t.Fatalf("%v with a full table, %d claims are left", f, len(s.claims))
	}
	if _, err := s.View(soon(t), []byte("k")); err != nil {
		t.Fatal(err)
	}
	if f := <-seen; f.t != wire.TypeRelease || len(f.claims) != 2 || f.claims[0] != 7 || f.claims[1] != 8 {
		t.Errorf("%v came first", f)
	}
	if f := <-seen; f.t != wire.TypeFetch {
		t.Errorf("%v came second", f)
	}
	s.release()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if len(seen) > 0 {
		t.Errorf("%v came later", <-seen)
	}
}
