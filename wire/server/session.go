package server

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/panjf2000/gnet/v2"
	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr"
)

// errQuit ends a session after what it has said was delivered.
var errQuit = errors.New("server: the session ends")

// protocol is what a session speaks. Its methods are called by whoever serves
// the session, one at a time.
type protocol interface {
	// feed runs the commands in b, as far as they are whole, and returns the
	// bytes it used. b begins where the last call's used bytes ended. It says
	// what it has to say in s.out and may flush. An error ends the session:
	// errQuit, or what the log should hear.
	feed(s *session, b []byte) (used int, err error)
	// want is memory that the next bytes of the stream belong into, nil when they
	// are for feed. took says that n of them are there.
	want() []byte
	took(s *session, n int)
	// rebind hands what it has reserved to another handle, that of who serves the
	// session next.
	rebind(h *kvcr.Handle) error
	// abort gives up what is half done: the connection is gone.
	abort()
}

// session is one connection.
//
// It is served by its event loop until that would make it queue more than it
// may; then for good by its own goroutine. out, proto and h belong to who serves
// it; mu guards what that one shares with the goroutine that writes. Whoever needs
// Server.mu too takes that first.
type session struct {
	srv       *Server
	kind      *listener
	namespace string
	proto     protocol
	out       *outbox      // of the turn that runs: the loop's, or a slow session's own
	h         *kvcr.Handle // of the turn that runs
	first     int          // of the protocol's tallies
	command   int          // kind of the command that runs

	// Of a session outside the loops: commands since the last settleSlow, and how
	// long the turn has waited for the client.
	ran    [commandKinds]uint64
	waited time.Duration

	loop *loop
	gc   gnet.Conn
	fd   int    // gnet's, while the loop serves
	in   []byte // input that was not run: a command that is not whole, or more when it leaves its loop

	begun    int64        // both in coarse ns since the server started
	lastSeen atomic.Int64 // the last turn
	ready    atomic.Bool  // the handshake is over, or none is needed
	listens  atomic.Int32 // subscriptions: who has one need not say anything
	fetching atomic.Int32 // requests that wait for other nodes: their answers are owed
	slow     atomic.Bool  // left its loop
	attached atomic.Bool  // has shared memory: may be silent while it reads

	sendMu sync.Mutex // held over what must not be cut by another writer

	mu      sync.Mutex
	room    sync.Cond // queued fell, or the session ends
	conn    net.Conn  // a duplicate, once there was something to wait for
	queue   []parcel  // what the kernel has not taken, in order
	queued  int       // bytes in queue, or on their way from it
	streams []*stream // values that follow when the queue is empty
	jobs    []longJob // in order, for the goroutine to do between its writes
	working bool      // it does one
	held    int       // bytes that jobs hold, the one that is done too
	writing bool      // the goroutine is there
	ending  bool      // nothing more will be said: close when all is sent
	dead    bool      // the connection failed: say nothing more
}

func newSession(srv *Server, l *listener) *session {
	s := &session{srv: srv, kind: l, namespace: l.namespace, begun: srv.coarse()}
	s.lastSeen.Store(s.begun)
	s.room.L = &s.mu
	if !l.resp {
		s.first = binaryFirst
	}
	return s
}

// turn runs the input and sends the answers.
func (s *session) turn(b []byte) (used int, err error) {
	s.lastSeen.Store(s.srv.coarse())
	used, err = s.proto.feed(s, b)
	if e := s.flush(); e != nil {
		err = e
	}
	return used, err
}

// flushAt is how much a session gathers before it sends in the middle of a turn:
// more makes one write longer than a socket buffer, and keeps claims for longer.
const flushAt = 512 << 10

// mayFlush sends when enough is gathered. The protocol calls it between two
// commands. It fails when the connection is dead, and returns errStop when the
// session has to leave its loop before it runs another command.
func (s *session) mayFlush() error {
	if s.out.len() < flushAt {
		return nil
	}
	if err := s.flush(); err != nil {
		return err
	}
	if s.full() {
		return errStop
	}
	return nil
}

// errStop asks a protocol to return what it has used so far.
var errStop = errors.New("server: no more commands now")

// full reports that the session may not queue more, nor hold more for jobs.
func (s *session) full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queued+s.held > s.srv.opt.OutboundCap
}

const (
	// readFrom is the least part of a value that is read straight to its place: for
	// less, another system call costs more than the copy.
	readFrom = 32 << 10
	// readTurn is how much is read so in one turn; other connections wait meanwhile.
	readTurn = 4 << 20
)

// fill reads a value that is on its way from the socket to its place, as far as
// it has arrived: what comes by way of gnet's buffer is copied twice. Ends and
// errors of the connection are left for gnet to meet.
func (s *session) fill() error {
	read := 0
	for read < readTurn {
		dst := s.proto.want()
		if len(dst) < readFrom {
			break
		}
		n, err := unix.Read(s.fd, dst)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			break
		}
		read += n
		s.srv.bytesIn.Add(int64(n))
		s.proto.took(s, n)
	}
	if read == 0 {
		return nil // nothing new to say either
	}
	return s.flush()
}

// input appends what has arrived to a command that is not whole yet, and keep
// stores what was not used of it. The loop only. gnet would do the same, and move
// all of it at each arrival.
func (s *session) input(b []byte) []byte {
	if len(s.in) == 0 {
		return b
	}
	s.in = append(s.in, b...)
	return s.in
}

func (s *session) keep(rest []byte) {
	switch {
	case len(rest) == 0 && cap(s.in) > inKept:
		s.in = nil
	case len(s.in) > 0 && len(rest) == len(s.in):
		// Nothing was used of it, and moving it each time would be quadratic.
	case len(s.in) > 0 && len(rest) > 0 && &rest[len(rest)-1] == &s.in[len(s.in)-1]:
		s.in = s.in[:copy(s.in, rest)]
	default:
		s.in = append(s.in[:0], rest...)
	}
}

// inKept is the most memory that a session without half a command keeps for one.
const inKept = 1 << 10

// flush sends what the outbox holds, or queues it behind what waits.
func (s *session) flush() error {
	s.out.cut()
	s.srv.bytesOut.Add(int64(s.out.size))
	if s.slow.Load() {
		return s.flushSlow()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out.size == 0 {
		return s.flushStreams()
	}
	if s.dead {
		s.out.drop()
		return net.ErrClosed
	}
	sent := 0
	if s.queued == 0 {
		n, err := s.loop.write(s.fd, s.out)
		if err != nil {
			s.kill()
			s.out.drop()
			return err
		}
		sent = n
	}
	s.queued += s.out.size - sent
	s.queue = s.out.parcels(s.queue, sent)
	if len(s.queue) == 0 {
		return s.flushStreams()
	}
	return s.startWriter()
}

const (
	// streamLot is how much of the streams is sent in one write: what a ping may
	// have to wait for, beside what the kernel holds.
	streamLot = 1 << 20
	// streamTurn is how much a loop sends of them in one turn, before it lets the
	// session's goroutine go on: other connections wait meanwhile.
	streamTurn = 4 << 20
)

// flushStreams sends of the streams what the kernel takes at once. mu held.
func (s *session) flushStreams() error {
	for turn := 0; s.queued == 0 && len(s.streams) > 0; turn += streamLot {
		if turn >= streamTurn {
			return s.startWriter()
		}
		lot, size := s.nextLot(nil)
		sent, err := s.loop.writeParcels(s.fd, lot)
		if err != nil {
			releaseAll(lot)
			s.kill()
			return err
		}
		s.queue = restOf(lot, sent)
		s.queued = size - sent
	}
	if len(s.queue) == 0 && len(s.streams) == 0 {
		return nil
	}
	return s.startWriter()
}

// nextLot takes frames of the streams, in turn. mu held.
func (s *session) nextLot(into []parcel) (lot []parcel, size int) {
	lot = into
	for len(s.streams) > 0 && size < streamLot {
		first := len(lot)
		lot = s.nextFrame(lot)
		for _, p := range lot[first:] {
			size += len(p.b)
		}
	}
	return lot, size
}

// restOf is what remains of parcels after sent bytes; claims of what was sent
// whole end.
func restOf(lot []parcel, sent int) []parcel {
	for i := range lot {
		if sent < len(lot[i].b) {
			lot[i].b = lot[i].b[sent:]
			return lot[i:]
		}
		sent -= len(lot[i].b)
		lot[i].view.Release()
	}
	return nil
}

// startWriter sees to it that somebody writes the queue. mu held.
func (s *session) startWriter() error {
	if s.writing {
		return nil
	}
	if s.conn == nil {
		conn, err := duplicate(s.gc)
		if err != nil {
			s.kill()
			return err
		}
		s.conn = conn
	}
	s.writing = true
	s.srv.work.Add(1)
	go roleWriter.Run(s.write)
	return nil
}

// job is work that would keep a loop's other connections waiting. It returns the
// answer. It runs whatever becomes of the connection.
type job func() (answer []byte)

type longJob struct {
	job
	holds int // bytes of memory, until it is done
}

// later has the session's goroutine do a job that holds so many bytes. The loop only.
// It fails when the connection is dead: the job is not done then.
func (s *session) later(j job, holds int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return net.ErrClosed
	}
	if err := s.startWriter(); err != nil {
		return err
	}
	s.jobs = append(s.jobs, longJob{j, holds})
	s.held += holds
	return nil
}

// toDo is how many jobs are not done.
func (s *session) toDo() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.jobs)
	if s.working {
		n++
	}
	return n
}

// do does the job that next has returned, and queues its answer.
func (s *session) do(j longJob) {
	answer := j.job()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.working = false
	s.held -= j.holds
	if !s.dead {
		s.srv.bytesOut.Add(int64(len(answer)))
		s.queue = append(s.queue, parcel{b: answer})
		s.queued += len(answer)
	}
}

// duplicate makes a net.Conn of gnet's descriptor, so that Go's poller can wait
// for it and it outlives gnet's.
func duplicate(gc gnet.Conn) (net.Conn, error) {
	fd, err := gc.Dup()
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "connection")
	defer f.Close()
	return net.FileConn(f)
}

// kill marks the connection dead and ends all claims. mu held.
func (s *session) kill() {
	s.dead = true
	releaseAll(s.queue)
	for _, st := range s.streams {
		st.view.Release()
	}
	s.queue, s.streams, s.queued = nil, nil, 0
	s.room.Broadcast()
}

// write sends the queue and the streams and does the jobs until there is nothing
// left, then ends, or serves the session from here on if that has left its loop
// meanwhile.
func (s *session) write() {
	defer s.srv.work.Done()
	for {
		lot, todo, conn, slow := s.next()
		if todo.job != nil {
			s.do(todo)
			continue
		}
		if lot == nil {
			if slow && conn == nil {
				conn = s.serve()
			}
			if conn != nil {
				conn.Close()
			}
			if slow {
				s.proto.abort()
				s.srv.giveBack(s.namespace, s.h)
			}
			if conn != nil {
				s.srv.forget(s)
			}
			return
		}
		n, err := s.send(lot)
		s.mu.Lock()
		s.queued = max(0, s.queued-n)
		if err != nil {
			s.srv.log.Debug("connection lost while writing", "conn", s.name(), "err", err)
			s.kill()
		}
		s.room.Broadcast()
		s.mu.Unlock()
	}
}

// next is what the writer sends next, or the job it does. When there is nothing its
// work is over: with a connection to close, if the session is, and otherwise by
// serving the session, if that has left its loop. Both are settled here, under mu,
// since the next moment the loop may start another writer.
func (s *session) next() (lot []parcel, todo longJob, over net.Conn, slow bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) > 0 {
		lot, s.queue = s.queue, nil
		return lot, todo, nil, false
	}
	if len(s.streams) > 0 {
		lot, size := s.nextLot(nil)
		s.queued += size
		return lot, todo, nil, false
	}
	if len(s.jobs) > 0 {
		todo, s.jobs, s.working = s.jobs[0], s.jobs[1:], true
		return nil, todo, nil, false
	}
	s.writing = false
	slow = s.slow.Load()
	if s.dead || s.ending {
		over, s.conn = s.conn, nil
		if !slow {
			s.gc.Close() // no harm when it is closed already
		}
	}
	return nil, todo, over, slow
}

// send writes parcels in order, ends their claims and returns how many bytes
// they were, sent or not.
func (s *session) send(lot []parcel) (n int, err error) {
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	const most = 64 // parts of one write
	var iov [most][]byte
	for at := 0; at < len(lot); {
		k := min(most, len(lot)-at)
		for i := range k {
			iov[i] = lot[at+i].b
			n += len(iov[i])
		}
		for bufs := net.Buffers(iov[:k]); err == nil && len(bufs) > 0; {
			var conn net.Conn
			if conn, err = s.timed(); err != nil {
				break
			}
			var sent int64
			sent, err = bufs.WriteTo(conn)
			if sent > 0 && errors.Is(err, os.ErrDeadlineExceeded) {
				err = nil // it takes little, but it takes
			}
		}
		releaseAll(lot[at : at+k])
		at += k
	}
	return n, err
}

// timed returns the connection with the time for one write running. A session
// that was cut off gets none: its deadline must stay.
func (s *session) timed() (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return nil, net.ErrClosed
	}
	return s.conn, s.conn.SetWriteDeadline(time.Now().Add(s.srv.opt.WriteTimeout))
}

// name is for logs.
func (s *session) name() string { return s.kind.network + " " + s.kind.addr }

// leave moves the session out of its loop: rest is the input that was not run.
// The loop must close its descriptor now. When that fails the session ends.
func (s *session) leave(rest []byte) {
	h, err := s.srv.lend(s.namespace)
	if err == nil {
		err = s.proto.rebind(h)
	}
	if err != nil {
		s.srv.log.Warn("a slow connection is closed: no handle for it", "conn", s.name(), "err", err)
		return
	}
	s.mu.Lock()
	s.h, s.out = h, new(outbox)
	s.in = append([]byte(nil), rest...)
	s.slow.Store(true)
	err = s.startWriter()
	if err != nil {
		s.slow.Store(false)
	}
	s.mu.Unlock()
	if err != nil { // Server.mu comes before mu: nothing of the server under it
		s.srv.giveBack(s.namespace, h)
		s.srv.log.Warn("a slow connection is closed: no descriptor for it", "conn", s.name(), "err", err)
		return
	}
	s.srv.slowConns.Add(1)
}

// serve runs a session that has left its loop, to its end: it reads only when
// everything it had to say was taken. It returns the connection to close.
func (s *session) serve() net.Conn {
	in := s.in
	s.in = nil
	for {
		s.waited = 0
		start := time.Now()
		used, err := s.turn(in)
		s.settleSlow(time.Since(start) - s.waited)
		in = in[used:]
		if errors.Is(err, errStop) {
			continue // everything was sent by then
		}
		if err == nil {
			in, err = s.read(in)
		}
		if err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.kill()
			conn := s.conn
			s.conn = nil
			return conn
		}
	}
}

// read appends input to what is left of the last.
func (s *session) read(left []byte) ([]byte, error) {
	const part = 64 << 10
	if cap(left)-len(left) < part {
		grown := make([]byte, len(left), 2*len(left)+part)
		copy(grown, left)
		left = grown
	}
	s.mu.Lock()
	conn, dead := s.conn, s.dead
	if !dead && !s.attached.Load() { // one that was cut off keeps its deadline
		conn.SetReadDeadline(time.Now().Add(s.srv.opt.IdleTimeout))
	}
	s.mu.Unlock()
	if dead {
		return left, net.ErrClosed
	}
	n, err := conn.Read(left[len(left):cap(left)])
	if n == 0 && err == nil {
		err = io.ErrNoProgress
	}
	if n > 0 {
		err = nil
		s.srv.bytesIn.Add(int64(n))
	}
	return left[:len(left)+n], err
}

// flushSlow sends the outbox and the streams and waits for them.
func (s *session) flushSlow() error {
	size := s.out.size
	lot := s.out.parcels(nil, 0)
	for {
		s.mu.Lock()
		s.queued += size // so that all see it owes something
		s.mu.Unlock()
		start := time.Now()
		_, err := s.send(lot)
		s.waited += time.Since(start)
		s.mu.Lock()
		s.queued = max(0, s.queued-size)
		s.room.Broadcast()
		if err != nil {
			s.kill()
		}
		if err != nil || len(s.streams) == 0 {
			s.mu.Unlock()
			return err
		}
		lot, size = s.nextLot(lot[:0])
		s.mu.Unlock()
	}
}

// post says something outside a turn: any goroutine. It waits while more than
// limit bytes are queued; give tells it to give up.
func (s *session) post(b []byte, limit int, give func() bool) error {
	s.mu.Lock()
	for s.queued > limit && !s.dead && !s.ending && !give() {
		s.room.Wait()
	}
	if s.dead || s.ending || give() {
		s.mu.Unlock()
		return net.ErrClosed
	}
	s.srv.bytesOut.Add(int64(len(b)))
	if s.slow.Load() && !s.writing {
		s.mu.Unlock()
		_, err := s.send([]parcel{{b: b}})
		return err
	}
	defer s.mu.Unlock()
	s.queue = append(s.queue, parcel{b: b})
	s.queued += len(b)
	return s.startWriter()
}

// setNamespace makes later commands act on another namespace.
func (s *session) setNamespace(ns string) (err error) {
	s.namespace = ns
	if s.slow.Load() {
		return errors.New("server: handshake on a slow connection")
	}
	s.h, err = s.srv.handle(s.loop, ns)
	return err
}

// finish ends the session of a loop, which closes its descriptor. What is queued is
// still delivered: then the session lives until that is done, and is not over.
func (s *session) finish() (over bool) {
	s.proto.abort()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = true
	s.room.Broadcast()
	if s.writing {
		return false
	}
	if s.conn != nil {
		s.conn.Close()
		s.conn = nil
	}
	return true
}

// cutOff closes a session that its server gives up: idle, late, or at the end of
// a drain. Any goroutine.
func (s *session) cutOff() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kill()
	if s.conn != nil {
		s.conn.SetDeadline(time.Unix(1, 0))
	}
	if s.gc != nil && !s.slow.Load() {
		s.gc.Close()
	}
}

// write sends an outbox without waiting and returns the bytes that the kernel
// took.
func (l *loop) write(fd int, o *outbox) (sent int, err error) {
	return l.writeAll(fd, len(o.segs), func(i int) []byte { return o.bytes(&o.segs[i]) })
}

func (l *loop) writeParcels(fd int, lot []parcel) (sent int, err error) {
	return l.writeAll(fd, len(lot), func(i int) []byte { return lot[i].b })
}

// writeAll sends n parts of a stream without waiting.
func (l *loop) writeAll(fd, n int, part func(i int) []byte) (sent int, err error) {
	if n == 1 {
		if b := part(0); 0 < len(b) && len(b) <= sendSome {
			return sendOne(fd, b)
		}
	}
	defer l.iov.reset()
	for i := 0; i < n; {
		l.iov.reset()
		want := 0
		for ; i < n && len(l.iov.iov) < maxIOV; i++ {
			if b := part(i); len(b) > 0 {
				l.iov.add(b)
				want += len(b)
			}
		}
		if want == 0 {
			continue
		}
		n, err := l.iov.write(fd)
		for err == unix.EINTR {
			n, err = l.iov.write(fd)
		}
		if err == unix.EAGAIN {
			return sent, nil
		}
		if err != nil {
			return sent, os.NewSyscallError("writev", err)
		}
		if sent += n; n < want {
			return sent, nil
		}
	}
	return sent, nil
}

// sendOne is writeAll for one short part, which most answers are.
func sendOne(fd int, b []byte) (sent int, err error) {
	n, err := send(fd, b)
	for err == unix.EINTR {
		n, err = send(fd, b)
	}
	if err == unix.EAGAIN {
		return 0, nil
	}
	return n, os.NewSyscallError("sendto", err)
}

// maxIOV is the most parts of one writev that Linux takes.
const maxIOV = 1024
