package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr/internal/blockcopy"
	"github.com/kvcr-go/kvcr/internal/memfd"
	"github.com/kvcr-go/kvcr/wire"
)

// ErrInUse: the memory stays mapped since views or reservations are out.
var ErrInUse = errors.New("shared memory in use")

// InUseError is the answer of Shared.Close while memory is in use. It is an
// ErrInUse.
type InUseError struct {
	Views        int // not released
	Reservations int // neither committed nor aborted
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("client: close: %v: %d views and %d reservations are out; the last one to end unmaps it", ErrInUse, e.Views, e.Reservations)
}

// Is makes an InUseError an ErrInUse.
func (e *InUseError) Is(target error) bool { return target == ErrInUse }

// Shared is the memory of one namespace of a node on this host: values are read in
// place, and written to memory that the node copies them from. Any number of
// goroutines may use it. It has a connection of its own, which is not made again:
// when it is lost, calls fail with ErrLost, and Attach makes another Shared.
//
// Views outlive the connection, and the node: their bytes stay as they are until they
// are released or this process ends. So a process that loses connections with views
// out costs the node memory as long as it lives.
//
// The memory is not there in a child process that is forked.
type Shared struct {
	cl   *Client
	c    *conn
	pool []byte // the node's, read-only
	area []byte // ours to write values to; nil: none

	mu       sync.Mutex // guards what follows
	idle     sync.Cond  // releasing has become false
	views    int
	reserved int
	// What the node does not know to have ended yet, by its numbers.
	claims, places []uint64
	// releasing: a goroutine tells the node. One at a time, so that what ends
	// meanwhile goes out together.
	releasing bool
	closed    bool
	unmapped  bool
}

// Attach shares the memory of the client's namespace with the node, which must be
// on this host, run as the same user or serve root, and be reached by a unix
// socket. stagingBytes is how much memory to write values to is asked for, 0:
// none; Shared.Staging says what was granted. The caller must Close the result,
// before the client.
//
// ErrUnsupported: the connection, the node or its system cannot share memory.
// ErrUnauthorized: this user may not. ErrBusy: try again.
func (cl *Client) Attach(ctx context.Context, stagingBytes uint64) (*Shared, error) {
	s := &Shared{cl: cl}
	s.idle.L = &s.mu
	where := func(e *Error) error {
		e.Op, e.Addr = "attach", cl.opt.Addr
		return e
	}
	if ctx.Err() != nil {
		return nil, where(&Error{Err: ended(ctx)})
	}
	c, err := cl.open(ctx, func(nc net.Conn) error { return s.attach(nc, stagingBytes) })
	if err != nil {
		s.unmap()
		return nil, where(err)
	}
	s.c = c
	return s, nil
}

// attach asks for memory on a connection that has no reader yet.
func (s *Shared) attach(nc net.Conn, stagingBytes uint64) error {
	uc, ok := nc.(*net.UnixConn)
	if !ok {
		return &Error{Err: ErrUnsupported, Cause: errors.New("shared memory needs a unix socket")}
	}
	const id = 1 << 63 // never one of the connection's own
	m := wire.ShmAttach{StagingBytes: stagingBytes}
	if _, err := uc.Write(m.Append(nil, id)); err != nil {
		return err
	}
	h, payload, files, err := receive(uc)
	defer func() {
		for _, f := range files {
			f.Close() // the mappings hold the memory
		}
	}()
	switch {
	case err != nil:
		return err
	case h.Type == wire.TypeError, h.Type == wire.TypeGoodbye:
		var m wire.ErrorReply // a GOODBYE has the fields of an ERROR
		if err := m.Parse(payload); err != nil {
			return &Error{Err: ErrProtocol, Cause: err}
		}
		return codeError(&m)
	case h.ID != id:
		return violation("%v of id %d", h.Type, h.ID)
	case h.Type == wire.TypeStatus:
		var m wire.StatusReply
		if err := m.Parse(payload); err != nil {
			return &Error{Err: ErrProtocol, Cause: err}
		}
		return statusError(m.Status, m.Detail)
	case h.Type != wire.TypeShmPools:
		return violation("%v for SHM_ATTACH", h.Type)
	}
	var pools wire.ShmPools
	if err := pools.Parse(payload); err != nil {
		return &Error{Err: ErrProtocol, Cause: err}
	}
	want := 1
	if pools.StagingBytes > 0 {
		want = 2
	}
	if len(pools.Pools) != 1 || pools.Pools[0].Pool >= wire.StagingPool || len(files) != want {
		return violation("%d pools, staging memory of %d bytes and %d descriptors", len(pools.Pools), pools.StagingBytes, len(files))
	}
	if s.pool, err = mapFile(files[0], pools.Pools[0].Bytes, unix.PROT_READ); err == nil && want == 2 {
		s.area, err = mapFile(files[1], pools.StagingBytes, unix.PROT_READ|unix.PROT_WRITE)
	}
	return err
}

// receive reads one frame and the descriptors that come with its first byte.
func receive(uc *net.UnixConn) (h wire.Header, payload []byte, files []*os.File, err error) {
	var head [wire.HeaderSize]byte
	control := make([]byte, unix.CmsgSpace(4*8)) // for 8 descriptors; the rest would be cut off
	n, nc, flags, _, err := uc.ReadMsgUnix(head[:], control)
	if nc > 0 {
		files = memfd.Descriptors(control[:nc])
	}
	if err == nil && flags&unix.MSG_CTRUNC != 0 {
		err = errors.New("descriptors were cut off")
	}
	if err == nil {
		_, err = io.ReadFull(uc, head[n:])
	}
	if err != nil {
		return h, nil, files, err
	}
	if h, err = wire.ParseHeader(head[:]); err != nil {
		return h, nil, files, &Error{Err: ErrProtocol, Cause: err}
	}
	payload = make([]byte, h.Length)
	_, err = io.ReadFull(uc, payload)
	return h, payload, files, err
}

// mapFile maps what the node has passed.
func mapFile(f *os.File, size uint64, prot int) ([]byte, error) {
	mem, err := memfd.Map(f, size, prot)
	if errors.Is(err, memfd.ErrUnsealed) {
		return nil, violation("%v", err)
	}
	if err != nil {
		return nil, &Error{Err: ErrUnsupported, Cause: err}
	}
	return mem, nil
}

// unmap ends the mappings. Nobody may read or write them any more.
func (s *Shared) unmap() (err error) {
	for _, mem := range [][]byte{s.pool, s.area} {
		if mem != nil {
			err = errors.Join(err, os.NewSyscallError("munmap", unix.Munmap(mem)))
		}
	}
	s.pool, s.area = nil, nil
	return err
}

// Staging is how many bytes of memory there are to write values to.
func (s *Shared) Staging() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.area)
}

// Lost is closed when the connection has ended.
func (s *Shared) Lost() <-chan struct{} { return s.c.gone }

// Close gives the memory back and ends the connection. While views or reservations
// are out it returns an *InUseError; then the last one to end does both. Calls
// after the first Close fail with ErrClosed. It may be called any number of times.
// It waits until the node knows of all that has ended, for the time that calls may
// take (Options.RequestTimeout).
func (s *Shared) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.views+s.reserved > 0 {
		return &InUseError{s.views, s.reserved}
	}
	for s.releasing {
		s.idle.Wait()
	}
	return s.end()
}

// end gives everything back. mu held, nothing is out and nothing can come any more.
func (s *Shared) end() error {
	// A connection that ended now would leave claims that are still on their way to
	// us, for calls that were given up, to the end of this process.
	s.mu.Unlock()
	s.c.drain(s.cl.quietLimit())
	s.mu.Lock()
	if s.unmapped {
		return nil
	}
	s.unmapped = true
	s.c.fail(&Error{Op: "connection", Addr: s.cl.opt.Addr, Err: ErrClosed})
	return s.unmap()
}

// enter counts n views or reservations as out before they are asked for, so that
// the memory stays; leave takes those back that did not come or have ended.
func (s *Shared) enter(op op, what *int, n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return &Error{Op: op.name(), Addr: s.cl.opt.Addr, Err: ErrClosed}
	}
	*what += n
	return nil
}

func (s *Shared) leave(what *int, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*what -= n
	s.settle()
}

// settle sees to it that the node is told what has ended, and ends a closed Shared
// when nothing is out. mu held.
func (s *Shared) settle() {
	if s.releasing || !s.over() && len(s.claims)+len(s.places) == 0 {
		return
	}
	if s.releasing = s.cl.spawn(s.release); s.releasing {
		return
	}
	s.claims, s.places = nil, nil // the client is closed, and the connection gone
	if s.over() {
		_ = s.end() // munmap of what was mapped whole does not fail
	}
}

// over reports that a closed Shared has to end. mu held.
func (s *Shared) over() bool { return s.closed && !s.unmapped && s.views+s.reserved == 0 }

// release tells the node what has ended until it knows all, or it is on the way with
// a request.
func (s *Shared) release() {
	runtime.Gosched() // who has released asks for more, most likely: see Views
	for {
		s.mu.Lock()
		claims, places := s.claims, s.places
		s.claims, s.places = nil, nil
		if len(claims)+len(places) == 0 {
			if s.over() {
				_ = s.end()
			}
			s.releasing = false
			s.idle.Broadcast()
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		for lot := range slices.Chunk(claims, wire.MaxList) {
			k := s.cl.call(opRelease)
			k.claims = lot
			s.tell(k)
		}
		for _, n := range places {
			k := s.cl.call(opAbort)
			k.shm.place.Reservation = n
			s.tell(k)
		}
	}
}

// tell runs a call that may fail: then the connection is lost or silent, and there
// is nobody to tell.
func (s *Shared) tell(k *call) {
	_ = s.cl.do(s.cl.ctx, k, s.c)
	s.cl.end(k)
}

// View is a value in place: the node keeps its bytes as they are until Release,
// whatever happens to the key. It belongs to one goroutine at a time. The zero
// View is released.
type View struct {
	s      *Shared
	b      []byte
	claim  uint64 // the node's number
	Status wire.Status
}

// OK reports whether there is a value; Status says why not.
func (v *View) OK() bool { return v.s != nil }

// Bytes returns the value. The caller must not write to it, which is a fault where
// the memory is the node's, nor read it after Release.
func (v *View) Bytes() []byte { return v.b }

// Release gives the value back. It does not wait for the node. A second Release is
// ErrReleased.
func (v *View) Release() error {
	s := v.s
	if s == nil {
		return &Error{Op: opRelease.name(), Err: ErrReleased}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(v)
	s.settle()
	return nil
}

// drop takes one view back. mu held.
func (s *Shared) drop(v *View) {
	if v.claim != 0 {
		s.claims = append(s.claims, v.claim)
	}
	*v = View{}
	s.views--
}

// ReleaseViews is Release for many, with one message to the node. Those without a
// value are passed over.
func ReleaseViews(views []View) {
	var s *Shared
	for i := range views {
		v := &views[i]
		if v.s == nil {
			continue
		}
		if v.s != s {
			if s != nil {
				s.settle()
				s.mu.Unlock()
			}
			s = v.s
			s.mu.Lock()
		}
		s.drop(v)
	}
	if s != nil {
		s.settle()
		s.mu.Unlock()
	}
}

// View returns the value of a key in place. A miss is not OK and no error.
func (s *Shared) View(ctx context.Context, key []byte) (View, error) {
	views, err := s.Views(ctx, key)
	if err != nil {
		return View{}, err
	}
	return views[0], nil
}

// Views returns the values of keys, in their order; those that are missing are not
// OK. Values that do not lie in one piece are copied, a message for each. After an
// error there are none to release. The keys must fit one request, see
// Client.Delete.
func (s *Shared) Views(ctx context.Context, keys ...[]byte) ([]View, error) {
	views := make([]View, len(keys))
	if len(keys) == 0 {
		return views, nil
	}
	if err := s.enter(opFetch, &s.views, len(keys)); err != nil {
		return nil, err
	}
	k := s.cl.call(opFetch)
	defer s.cl.end(k)
	k.keys = keys
	// What has ended goes along: a message of its own costs both processes a wake-up.
	s.mu.Lock()
	n := min(len(s.claims), wire.MaxList)
	k.claims, s.claims = s.claims[:n:n], s.claims[n:]
	s.mu.Unlock()
	err := s.cl.do(ctx, k, s.c)
	if len(k.claims) > 0 { // there was no room
		s.mu.Lock()
		s.claims = append(s.claims, k.claims...)
		s.settle()
		s.mu.Unlock()
	}
	if err != nil {
		s.leave(&s.views, len(keys))
		return nil, err
	}
	missing, apart := 0, false
	s.c.mu.Lock()
	for i, g := range k.granted.Claims {
		views[i].Status = g.Status
		if g.Status != wire.StatusOK {
			missing++
			continue
		}
		views[i].s, views[i].claim = s, s.c.claims[g.Claim] // nil map: the connection is lost
		delete(s.c.claims, g.Claim)
		apart = apart || g.Pool == wire.NoPool
	}
	s.c.mu.Unlock()
	err = s.place(ctx, views, k.granted.Claims, apart)
	if missing > 0 {
		s.leave(&s.views, missing)
	}
	if err != nil {
		ReleaseViews(views)
		return nil, err
	}
	return views, nil
}

// place gives the views of claims their bytes. apart: some are not in the pool.
func (s *Shared) place(ctx context.Context, views []View, claims []wire.Claim, apart bool) error {
	for i, g := range claims {
		if g.Status != wire.StatusOK || g.Pool == wire.NoPool {
			continue
		}
		if g.Size > uint64(len(s.pool)) || g.Offset > uint64(len(s.pool))-g.Size {
			err := violation("a value of %d bytes at %d in memory of %d", g.Size, g.Offset, len(s.pool)).(*Error)
			err.Op, err.Addr = opFetch.name(), s.cl.opt.Addr
			s.c.fail(err)
			return err.of(opFetch, true)
		}
		views[i].b = s.pool[g.Offset : g.Offset+g.Size : g.Offset+g.Size]
	}
	for i := 0; apart && i < len(claims); i++ {
		if claims[i].Status != wire.StatusOK || claims[i].Pool != wire.NoPool {
			continue
		}
		b, err := s.deliver(ctx, views[i].claim)
		if err != nil {
			return err
		}
		views[i].b = b
	}
	return nil
}

func (s *Shared) deliver(ctx context.Context, claim uint64) ([]byte, error) {
	k := s.cl.call(opDeliver)
	defer s.cl.end(k)
	k.claims = []uint64{claim}
	if err := s.cl.do(ctx, k, s.c); err != nil {
		return nil, err
	}
	return k.dst[:k.have], nil
}

// Put writes a value by way of the shared memory. existing reports that the verb
// has left what was there, for set if absent. The node checks the value that it has
// copied against a checksum made here. ErrCapacity: the staging memory is full now,
// ErrTooLarge: the value is longer than it; Client.Set has no such limit.
func (s *Shared) Put(ctx context.Context, key, value []byte, verb wire.Verb) (existing bool, err error) {
	r, err := s.Reserve(ctx, key, len(value), verb)
	if err != nil {
		return false, err
	}
	sum := blockcopy.CopySum(r.b, value)
	existing, err = r.commit(ctx, true, sum)
	if r.s != nil { // not sent
		r.Abort()
	}
	return existing, err
}

// Reservation is memory for one value that the caller writes in place. It belongs
// to one goroutine at a time and ends with Commit or Abort.
type Reservation struct {
	s      *Shared
	b      []byte
	number uint64 // the node's
}

// Reserve takes staging memory for a value of size bytes that Commit will store
// under key as verb says. Errors as for Put.
func (s *Shared) Reserve(ctx context.Context, key []byte, size int, verb wire.Verb) (*Reservation, error) {
	k := s.cl.call(opReserve)
	defer s.cl.end(k)
	switch {
	case len(key) == 0 || len(key) > s.c.lim.key:
		return nil, s.cl.where(&Error{Err: ErrBadKey}, k)
	case size < 0 || verb > wire.VerbSetIfAbsent:
		return nil, s.cl.where(&Error{Err: ErrInvalid, Cause: fmt.Errorf("%d bytes, verb %d", size, verb)}, k)
	}
	if err := s.enter(opReserve, &s.reserved, 1); err != nil {
		return nil, err
	}
	k.key, k.verb, k.shm.size = key, verb, uint64(size)
	err := s.cl.do(ctx, k, s.c)
	if err == nil && k.shm.place.Status != wire.StatusOK {
		err = s.cl.where(statusError(k.shm.place.Status, 0), k)
	}
	if err != nil {
		s.leave(&s.reserved, 1)
		return nil, err
	}
	at := k.shm.place
	if at.Pool != wire.StagingPool || uint64(size) > uint64(len(s.area)) || at.Offset > uint64(len(s.area)-size) {
		s.leave(&s.reserved, 1)
		broken := violation("%d bytes at %d in pool %#x, staging memory of %d", size, at.Offset, at.Pool, len(s.area)).(*Error)
		err := s.cl.where(broken, k)
		s.c.fail(broken)
		return nil, err
	}
	end := at.Offset + uint64(size)
	return &Reservation{s: s, b: s.area[at.Offset:end:end], number: at.Reservation}, nil
}

// Bytes is the memory to write. The caller must not touch it after Commit or
// Abort.
func (r *Reservation) Bytes() []byte { return r.b }

// Commit stores the value; existing as for Put. The reservation ends with it. Only
// when the context or the time for calls ends before the request was sent it goes
// on: then Commit or Abort it again.
func (r *Reservation) Commit(ctx context.Context) (existing bool, err error) {
	return r.commit(ctx, false, 0)
}

func (r *Reservation) commit(ctx context.Context, hasSum bool, sum uint64) (existing bool, err error) {
	s := r.s
	if s == nil {
		return false, &Error{Op: opCommit.name(), Err: ErrReleased}
	}
	k := s.cl.call(opCommit)
	defer s.cl.end(k)
	k.shm.place.Reservation, k.shm.hasSum, k.shm.sum = r.number, hasSum, sum
	err = s.cl.do(ctx, k, s.c)
	if k.id == 0 && !errors.Is(err, ErrLost) {
		return false, err
	}
	*r = Reservation{}
	s.leave(&s.reserved, 1)
	if k.status == wire.StatusExists {
		return true, nil
	}
	return false, err
}

// Abort gives the memory back without storing anything. It does not wait for the
// node. A reservation that has ended is ErrReleased.
func (r *Reservation) Abort() error {
	s := r.s
	if s == nil {
		return &Error{Op: opAbort.name(), Err: ErrReleased}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.places = append(s.places, r.number)
	*r = Reservation{}
	s.reserved--
	s.settle()
	return nil
}

// shmCall is what RESERVE, COMMIT and ABORT add to a call.
type shmCall struct {
	size   uint64
	hasSum bool
	sum    uint64
	place  wire.Reservation
}

// appendShm appends the frame of one of the three.
func (k *call) appendShm(dst []byte) []byte {
	switch k.op {
	case opReserve:
		m := wire.Reserve{Key: k.key, Size: k.shm.size, Verb: k.verb}
		return m.Append(dst, k.id)
	case opCommit:
		m := wire.Commit{Reservation: k.shm.place.Reservation, HasSum: k.shm.hasSum, Sum: k.shm.sum}
		return m.Append(dst, k.id)
	default:
		m := wire.Abort{Reservation: k.shm.place.Reservation}
		return m.Append(dst, k.id)
	}
}

// giveAlong puts a RELEASE of the claims that a FETCH brings along before it, if the
// table has room. Nobody waits for its answer. mu held.
func (c *conn) giveAlong(k *call) {
	select {
	case c.slots <- struct{}{}:
	default:
		return
	}
	c.lastID++
	c.calls[c.lastID] = tombstone
	c.buf = (&wire.Release{Claims: k.claims}).Append(c.buf, c.lastID)
	k.claims = nil
}

// drain waits, for a while at most, until every request has its answer.
func (c *conn) drain(limit time.Duration) {
	answered := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.calls) == 0
	}
	for end := time.Now().Add(limit); !answered() && time.Now().Before(end); {
		time.Sleep(100 * time.Microsecond) // once in a connection's life: for what nobody waits for
	}
}

// giveBackPlace aborts a reservation that came for a call that was given up. The
// ABORT takes over the call's slot. mu held.
func (c *conn) giveBackPlace(payload []byte) (kick bool, err error) {
	var m wire.Reservation
	if err := m.Parse(payload); err != nil {
		return false, err
	}
	if m.Status != wire.StatusOK {
		<-c.slots
		return false, nil
	}
	c.lastID++
	c.calls[c.lastID] = tombstone
	c.buf = (&wire.Abort{Reservation: m.Reservation}).Append(c.buf, c.lastID)
	return c.takeRole(), nil
}

// placeTombstone stands for a RESERVE that was given up.
var placeTombstone = new(call)
