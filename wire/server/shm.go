package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/internal/blockcopy"
	"github.com/kvcr-go/kvcr/internal/procs"
	"github.com/kvcr-go/kvcr/wire"
)

// Shared memory: a client on a unix socket reads blocks in place, and writes
// values to staging memory from where they are copied once.
//
// What it gets is the payload memory of its namespace, read-only and sealed
// (Engine.Share), and staging memory of its own. Index, records and claim words
// stay here: a claim is taken and released by a request. sharing says when claims
// end.

const (
	// maxPlaces is how many reservations of one connection may be open.
	maxPlaces = 1024
	// payloadPool is the number of the one pool that a client gets.
	payloadPool = 0
	// commitOnLoop is the most bytes that COMMIT copies on an event loop: as much
	// as a chunk of a value. Other connections wait meanwhile.
	commitOnLoop = wire.MaxChunk
)

// shmDefaults fills the fields about staging memory.
func (o *Options) shmDefaults() {
	if o.StagingCap == 0 {
		o.StagingCap = 16 << 20
	}
	if o.StagingTotal == 0 {
		o.StagingTotal = 256 << 20
	}
	if o.readStaging == nil {
		o.readStaging = (*staging).read
	}
}

// attachment is the shared memory of one connection.
type attachment struct {
	process *process
	claims  int      // that the connection may hold
	staging *staging // nil: none
	places  map[uint64]*place
	last    uint64
}

// place is a reservation: staging memory that waits for its COMMIT.
type place struct {
	key  []byte
	off  int64
	size int64
	verb wire.Verb
}

// attach runs SHM_ATTACH.
func (c *binaryConn) attach(s *session, id uint64, payload []byte) error {
	var m wire.ShmAttach
	if err := m.Parse(payload); err != nil {
		return err
	}
	if c.shm != nil {
		c.failRequest(s, id, wire.CodeBadPayload, "the connection has shared memory already")
		return nil
	}
	err := c.share(s, id, m.StagingBytes)
	var no *notShared
	if !errors.As(err, &no) {
		return err // nil, or the end of the connection
	}
	s.srv.log.Info("no shared memory for a client", "conn", s.name(), "why", no.why)
	c.reply(s, id, no.status)
	return nil
}

// failRequest ends one request with ERROR.
func (c *binaryConn) failRequest(s *session, id uint64, code wire.Code, text string) {
	m := wire.ErrorReply{Code: code, Text: text}
	s.out.text = m.Append(s.out.text, id)
}

// share gives the connection its memory. Errors that end the request only are
// *notShared.
func (c *binaryConn) share(s *session, id, want uint64) error {
	if s.kind.network != "unix" {
		return notSupported("a connection over %s carries no descriptors", s.kind.network)
	}
	if s.slow.Load() {
		return &notShared{wire.StatusBusy, "the client does not read its answers"}
	}
	mem, size, err := s.srv.opt.Engine.Share(c.namespace)
	if err != nil {
		if errors.Is(err, kvcr.ErrClosed) {
			return &notShared{wire.StatusClosed, err.Error()}
		}
		return notSupported("%v", err)
	}
	defer mem.Close()
	sh := &s.srv.sharing
	kernel := sh.kernel
	if kernel == nil {
		kernel = &procs.System
	}
	pid, pidfd, err := processOf(kernel, s.fd)
	if err != nil {
		return err
	}
	p, owed, err := sh.join(pid, pidfd)
	if err != nil {
		return err
	}
	a := &attachment{process: p, claims: maxClaims - owed, places: map[uint64]*place{}}
	if a.claims <= 0 {
		sh.leave(p, nil)
		return &notShared{wire.StatusBusy, fmt.Sprintf("process %d has left %d claims behind", pid, owed)}
	}
	answer := wire.ShmPools{Pools: []wire.Pool{{Pool: payloadPool, Bytes: uint64(size), SlotBytes: s.srv.slotBytes(c.namespace)}}}
	files := []*os.File{mem}
	if a.staging, err = sh.grant(want, &s.srv.opt); err != nil {
		s.srv.log.Warn("no staging memory for a client", "conn", s.name(), "err", err)
	}
	if a.staging != nil {
		answer.StagingBytes = uint64(a.staging.size)
		files = append(files, a.staging.f)
	}
	if err := s.sendWith(answer.Append(nil, id), files); err != nil {
		a.close(sh, nil)
		return err
	}
	c.shm = a
	sh.held.Add(int64(len(c.claims)))
	s.attached.Store(true)
	return nil
}

// slotBytes is the length of all slots in a namespace, 0 when they differ.
func (s *Server) slotBytes(namespace string) uint64 {
	for _, ns := range s.opt.Engine.Config().Namespaces {
		if ns.Name == namespace && len(ns.Pools) == 1 {
			return uint64(ns.Pools[0].SlotBytes)
		}
	}
	return 0
}

// grant makes staging memory of the size asked for, or as much as may be: nil when
// that is nothing.
func (sh *sharing) grant(want uint64, o *Options) (*staging, error) {
	const page = 64 << 10 // of the systems we run on, none has larger ones
	sh.mu.Lock()
	n := max(0, min(int64(o.StagingCap), int64(o.StagingTotal)-sh.granted)) &^ (page - 1)
	if want < uint64(n) {
		n = (int64(want) + page - 1) &^ (page - 1)
	}
	sh.granted += n
	sh.mu.Unlock()
	if n == 0 {
		return nil, nil
	}
	st, err := newStaging(n)
	if err != nil {
		sh.revoke(n)
	}
	return st, err
}

func (sh *sharing) revoke(n int64) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.granted -= n
}

// close ends the connection's share. Its claims wait for the end of the process.
func (a *attachment) close(sh *sharing, claims map[uint64]kvcr.View) {
	sh.leave(a.process, claims)
	if a.staging != nil {
		a.staging.drop(sh)
	}
}

// sendWith sends what the session has to say, and then a frame with descriptors
// beside it. When something waits for the kernel the frame would have to wait as
// well, and descriptors with it, so that is a *notShared instead.
func (s *session) sendWith(frame []byte, files []*os.File) error {
	if err := s.flush(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return net.ErrClosed
	}
	busy := &notShared{wire.StatusBusy, "answers wait for the client to read them"}
	if s.slow.Load() || s.queued > 0 || len(s.streams) > 0 {
		return busy
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	for {
		n, err := unix.SendmsgN(s.fd, frame, unix.UnixRights(fds...), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch err {
		case nil:
		case unix.EINTR:
			continue
		case unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM, unix.ETOOMANYREFS: // the last: descriptors that nobody has received yet
			return busy
		default:
			return os.NewSyscallError("sendmsg", err)
		}
		s.srv.bytesOut.Add(int64(len(frame)))
		if n == len(frame) {
			return nil
		}
		// The descriptors went with the first byte.
		s.queue = append(s.queue, parcel{b: frame[n:]})
		s.queued += len(frame) - n
		return s.startWriter()
	}
}

// reserve runs RESERVE.
func (c *binaryConn) reserve(s *session, id uint64, payload []byte) error {
	var m wire.Reserve
	if err := m.Parse(payload); err != nil {
		return err
	}
	if c.shm == nil || c.shm.staging == nil {
		c.reply(s, id, wire.StatusUnsupported)
		return nil
	}
	r := c.shm.reserve(&m, s.srv.maxValue[c.namespace])
	s.out.text = r.Append(s.out.text, id)
	return nil
}

func (a *attachment) reserve(m *wire.Reserve, maxValue uint64) (r wire.Reservation) {
	r.Pool = wire.NoPool
	if m.Size > min(maxValue, uint64(a.staging.size)) {
		r.Status = wire.StatusTooLarge
		return r
	}
	if len(a.places) >= maxPlaces {
		r.Status = wire.StatusBusy
		return r
	}
	off, ok := a.staging.take(int64(m.Size))
	if !ok {
		r.Status = wire.StatusCapacity
		return r
	}
	a.last++
	a.places[a.last] = &place{key: append([]byte(nil), m.Key...), off: off, size: int64(m.Size), verb: m.Verb}
	return wire.Reservation{Reservation: a.last, Pool: wire.StagingPool, Offset: uint64(off)}
}

// end takes a reservation's place back.
func (a *attachment) end(n uint64, p *place) {
	delete(a.places, n)
	a.staging.give(p.off, p.size)
}

// place finds a reservation, nil: there is none.
func (c *binaryConn) place(n uint64) *place {
	if c.shm == nil {
		return nil
	}
	return c.shm.places[n]
}

// abortPlace runs ABORT.
func (c *binaryConn) abortPlace(s *session, id uint64, payload []byte) error {
	var m wire.Abort
	if err := m.Parse(payload); err != nil {
		return err
	}
	p := c.place(m.Reservation)
	if p == nil {
		c.reply(s, id, wire.StatusReleased)
		return nil
	}
	c.shm.end(m.Reservation, p)
	c.reply(s, id, wire.StatusOK)
	return nil
}

// commitPlace runs COMMIT. Its reservation is over with the request; the place is
// taken back when it has been read.
func (c *binaryConn) commitPlace(s *session, id uint64, payload []byte) error {
	var m wire.Commit
	if err := m.Parse(payload); err != nil {
		return err
	}
	p := c.place(m.Reservation)
	if p == nil {
		c.reply(s, id, wire.StatusReleased)
		return nil
	}
	delete(c.shm.places, m.Reservation)
	st := c.shm.staging
	if p.size > commitOnLoop && !s.slow.Load() {
		// Without a handle for it the loop has to.
		if h, err := s.srv.lend(c.namespace); err == nil {
			st.use()
			if err = s.later(c.commitJob(s, id, h, st, p, m), 0); err != nil {
				s.srv.giveBack(c.namespace, h)
				st.drop(&s.srv.sharing)
			}
			return err
		}
	}
	s.count(commandCommit)
	answer, failed := s.srv.commit(s.h, st, p, &m)
	if failed {
		s.failed()
	}
	s.out.text = answer.Append(s.out.text, id)
	return nil
}

// commitJob is a COMMIT off the loop, with a lent handle and a use of the staging
// memory. It counts, and has its time, like one on the loop.
func (c *binaryConn) commitJob(s *session, id uint64, h *kvcr.Handle, st *staging, p *place, m wire.Commit) job {
	srv, namespace, tally := s.srv, c.namespace, s.first+commandCommit
	began := time.Since(srv.started)
	return func() []byte {
		defer st.drop(&srv.sharing)
		defer srv.giveBack(namespace, h)
		answer, failed := srv.commit(h, st, p, &m)
		srv.commands[tally].Add(1)
		if failed {
			srv.errors[tally].Add(1)
		}
		srv.slowWatch.record(tally, time.Since(srv.started)-began, 1)
		return answer.Append(nil, id)
	}
}

// commit stores what lies in a place: it is copied out of the client's reach, and
// only then looked at. failed: the answer is an error, not that something was there.
func (s *Server) commit(h *kvcr.Handle, st *staging, p *place, m *wire.Commit) (answer wire.Message, failed bool) {
	defer st.give(p.off, p.size)
	res, err := h.Reserve(p.key, int(p.size))
	if err != nil {
		m := statusReply(err)
		return &m, true
	}
	if err := s.opt.readStaging(st, res.Bytes(), p.off); err != nil {
		res.Abort()
		return &wire.ErrorReply{Code: wire.CodeInternal, Text: fmt.Sprintf("staging memory: %v", err)}, true
	}
	if m.HasSum {
		if sum := blockcopy.Sum(res.Bytes()); sum != m.Sum {
			res.Abort()
			return &wire.ErrorReply{Code: wire.CodeBadPayload, Text: fmt.Sprintf("the sum of the value is %#x, not %#x", sum, m.Sum)}, true
		}
	}
	stored, err := store(res, p.verb)
	if err == nil && stored {
		s.sharing.commits.Add(1)
		s.sharing.committed.Add(uint64(p.size))
	}
	reply := storedReply(p.verb, stored, err)
	return &reply, err != nil
}
