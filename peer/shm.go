package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr/internal/blockcopy"
	"github.com/kvcr-go/kvcr/internal/memfd"
	"github.com/kvcr-go/kvcr/internal/points"
	"github.com/kvcr-go/kvcr/wire"
)

// shmRoute is payload between two processes of one host: the destination maps the
// source's memory, sealed and read-only, and copies. Nobody writes to foreign
// memory, so nothing is ever left to a peer's good will but the source's claims,
// and those end with the process that reads: its pidfd is proof.
type shmRoute struct {
	n *Node

	mu      sync.Mutex
	jobs    []*copyJob // in order
	workers int
}

func newShmRoute(n *Node) *shmRoute { return &shmRoute{n: n} }

func (*shmRoute) Kind() wire.Route        { return wire.RouteShm }
func (*shmRoute) Announce(*wire.PeerInfo) {}

func (r *shmRoute) Usable(peer *wire.PeerInfo) bool {
	return r.n.local != "" && peer.Host != [16]byte{} && peer.Host == r.n.host
}

func (*shmRoute) Close() error { return nil }

// Dest connects to the source's socket and maps the namespace that is wanted
// first: whether that works decides about the route.
func (r *shmRoute) Dest(ctx context.Context, s *Session) (DestRoute, error) {
	if s.local == "" {
		return nil, errors.New("the source names no unix socket")
	}
	d := &shmDest{route: r, s: s, maps: map[string]*shmMap{}, jobs: map[item]*copyJob{}, apart: map[item]bool{}}
	left := *s
	left.Event = d.cameApart
	left.dial = nil // its connection comes with the memory, and with it the session ends
	d.left = newStreamDest(&left, 1)
	d.left.lost = func(err error) { s.Fail(fmt.Errorf("the payload connection is lost: %w", err)) }
	nc, mem, err := d.attach(ctx, s.Namespace, 0)
	if err == nil {
		if err = s.watch(nc); err == nil {
			err = d.left.streams[0].adopt(nc)
		}
	}
	if err != nil {
		if mem != nil {
			_ = unix.Munmap(mem) // mapped whole
			nc.Close()
		}
		return nil, err
	}
	d.maps[s.Namespace] = &shmMap{mem: mem}
	return d, nil
}

// shmDest is the destination's side. Blocks outside of shared memory come over the
// payload connection, as on route stream.
type shmDest struct {
	route *shmRoute
	s     *Session
	left  *streamDest

	mu    sync.Mutex
	maps  map[string]*shmMap
	jobs  map[item]*copyJob // not answered
	apart map[item]bool     // posted to left
	down  bool
}

// shmMap is the memory of one namespace. mem is nil until it is mapped.
type shmMap struct {
	mem  []byte
	wait []*copyJob // for it to be mapped
	busy int        // copies that run
}

// copyJob is one Post. It is in shmRoute.jobs until a copier takes it.
type copyJob struct {
	d     *shmDest
	m     *shmMap
	p     Post
	taken bool // guarded by d.mu
}

// cameApart takes the answers for blocks outside of shared memory.
func (d *shmDest) cameApart(ev Event) {
	var id item
	switch e := ev.(type) {
	case Landed:
		id = item{e.Op, e.Index}
	case Shut:
		id = item{e.Op, e.Index}
	}
	d.mu.Lock()
	delete(d.apart, id)
	d.mu.Unlock()
	d.s.Event(ev)
}

func (*shmDest) Describe(dst []byte, _ OpID, _ int) []byte { return dst }

func (d *shmDest) Post(p Post, namespace string) {
	id := item{p.Op, p.Index}
	d.mu.Lock()
	switch {
	case d.down:
		d.mu.Unlock()
		d.s.Event(Landed{p.Op, p.Index, wire.StatusLost})
		return
	case p.Offer.Flags&wire.OfferNoPool != 0:
		d.apart[id] = true
		d.mu.Unlock()
		d.left.Post(p, namespace)
		return
	}
	m := d.maps[namespace]
	if m == nil {
		m = &shmMap{}
		d.maps[namespace] = m
		if !d.s.node.spawn(func() { d.mapLate(namespace, m) }) {
			delete(d.maps, namespace)
			d.mu.Unlock()
			d.s.Event(Landed{p.Op, p.Index, wire.StatusLost})
			return
		}
	}
	j := &copyJob{d: d, m: m, p: p}
	d.jobs[id] = j
	if m.mem == nil {
		m.wait = append(m.wait, j)
		d.mu.Unlock()
		return
	}
	d.mu.Unlock()
	d.route.push(j)
}

// mapLate maps a further namespace and starts what waits for it.
func (d *shmDest) mapLate(namespace string, m *shmMap) {
	nc, mem, err := d.attach(d.left.ctx, namespace, 1)
	if nc != nil {
		nc.Close() // it has done its duty
	}
	d.mu.Lock()
	wait := m.wait
	m.wait = nil
	if err == nil && d.down {
		_ = unix.Munmap(mem)
		err = ErrClosed
	}
	if err != nil {
		delete(d.maps, namespace)
		wait = wait[:copy(wait, d.dropLocked(wait))]
		d.mu.Unlock()
		d.s.node.log.Warn("the memory of a namespace cannot be mapped", "namespace", namespace, "err", err)
		for _, j := range wait {
			d.s.Event(Landed{j.p.Op, j.p.Index, wire.StatusUnsupported})
		}
		return
	}
	m.mem = mem
	d.mu.Unlock()
	for _, j := range wait {
		d.route.push(j)
	}
}

// dropLocked takes those of the jobs that are not answered out of the table. mu
// held.
func (d *shmDest) dropLocked(jobs []*copyJob) (dropped []*copyJob) {
	for _, j := range jobs {
		id := item{j.p.Op, j.p.Index}
		if d.jobs[id] == j && !j.taken {
			delete(d.jobs, id)
			dropped = append(dropped, j)
		}
	}
	return dropped
}

func (d *shmDest) Done(op OpID, index int) {
	d.mu.Lock()
	apart := d.apart[item{op, index}]
	d.mu.Unlock()
	if apart {
		d.left.Done(op, index)
	}
}

func (d *shmDest) Close(op OpID, index int) {
	id := item{op, index}
	d.mu.Lock()
	if d.apart[id] {
		d.mu.Unlock()
		d.left.Close(op, index)
		return
	}
	j := d.jobs[id]
	if j == nil || j.taken {
		d.mu.Unlock()
		return // it is being copied, which does not take long
	}
	delete(d.jobs, id)
	d.mu.Unlock()
	d.s.Event(Shut{op, index})
}

func (d *shmDest) Down() {
	d.mu.Lock()
	d.down = true
	var all []*copyJob
	for _, j := range d.jobs {
		all = append(all, j)
	}
	all = d.dropLocked(all)
	for _, m := range d.maps {
		d.unmapLocked(m)
	}
	d.mu.Unlock()
	d.left.Down()
	for _, j := range all {
		d.s.Event(Landed{j.p.Op, j.p.Index, wire.StatusLost})
	}
}

// unmapLocked ends a mapping of a session that is down, once nobody copies from
// it. mu held.
func (d *shmDest) unmapLocked(m *shmMap) {
	if d.down && m.busy == 0 && m.mem != nil {
		_ = unix.Munmap(m.mem) // it was mapped whole
		m.mem = nil
	}
}

// push hands a job to the copiers: as many as there are processors, while there is
// work.
func (r *shmRoute) push(j *copyJob) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.jobs = append(r.jobs, j)
	if r.workers < runtime.GOMAXPROCS(0) && r.n.spawn(r.work) {
		r.workers++
	}
}

func (r *shmRoute) work() {
	for {
		r.mu.Lock()
		if len(r.jobs) == 0 {
			r.workers--
			r.jobs = nil
			r.mu.Unlock()
			return
		}
		j := r.jobs[0]
		r.jobs[0] = nil
		r.jobs = r.jobs[1:]
		r.mu.Unlock()
		j.run()
	}
}

// run copies one block, unless it was closed meanwhile.
func (j *copyJob) run() {
	d := j.d
	id := item{j.p.Op, j.p.Index}
	d.mu.Lock()
	if d.jobs[id] != j {
		d.mu.Unlock()
		return
	}
	j.taken = true
	j.m.busy++
	mem := j.m.mem
	d.mu.Unlock()
	points.At("copy", uint64(d.s.Peer))
	status := copyBlock(d.s.Memory, mem, &j.p)
	points.At("copied", uint64(d.s.Peer))
	d.mu.Lock()
	delete(d.jobs, id)
	j.m.busy--
	d.unmapLocked(j.m)
	d.mu.Unlock()
	d.s.Event(Landed{j.p.Op, j.p.Index, status})
}

// copyBlock copies a block's pieces from the source's memory to the slot, and
// compares sums. What the offer says is a peer's word: it is checked before it is
// used.
func copyBlock(memory Memory, mem []byte, p *Post) wire.Status {
	o := p.Offer
	dst := memory.SlotBytes(p.Slot)
	if len(o.Offsets) != len(dst) {
		return wire.StatusSource
	}
	left := o.Size
	for i, b := range dst {
		n := min(uint64(len(b)), left)
		if n > uint64(len(mem)) || o.Offsets[i] > uint64(len(mem))-n {
			return wire.StatusSource
		}
		dst[i] = b[:n]
		left -= n
	}
	if left > 0 {
		return wire.StatusTooLarge
	}
	if o.Flags&wire.OfferSum != 0 && len(dst) == 1 && blockcopy.Fused(dst[0]) {
		status := copyFused(dst[0], mem[o.Offsets[0]:][:len(dst[0])], o.Sum)
		if status == wire.StatusOK {
			memory.SlotSummed(p.Slot, o.Sum)
		}
		return status
	}
	for i, b := range dst {
		blockcopy.Copy(b, mem[o.Offsets[i]:][:len(b)])
	}
	if o.Flags&wire.OfferSum != 0 && memory.SlotSum(p.Slot) != o.Sum {
		return wire.StatusChecksum
	}
	return wire.StatusOK
}

// copyFused copies and sums in one pass. The sum must be that of the slot, not of
// what the source's memory holds at another moment: a fused copy loads each byte
// once, but for the last ones, which are compared.
func copyFused(dst, src []byte, sum uint64) wire.Status {
	const tail = 64
	got := blockcopy.CopySum(dst, src)
	if end := len(dst) - min(tail, len(dst)); got != sum || !bytes.Equal(dst[end:], src[end:]) {
		return wire.StatusChecksum
	}
	return wire.StatusOK
}

// attach connects to the source's unix socket and maps the memory of a namespace.
func (d *shmDest) attach(ctx context.Context, namespace string, index int) (net.Conn, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, d.s.node.cfg.HandshakeTimeout)
	defer cancel()
	nc, err := d.s.dial(ctx, "unix", d.s.local, namespace, index)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })
	mem, err := receiveMemory(nc.(*net.UnixConn))
	if !stop() && err == nil {
		_ = unix.Munmap(mem)
		err = ctx.Err()
	}
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	nc.SetDeadline(time.Time{})
	return nc, mem, nil
}

// receiveMemory asks for a namespace's memory on a payload connection.
func receiveMemory(uc *net.UnixConn) ([]byte, error) {
	if _, err := uc.Write((&wire.ShmAttach{}).Append(nil, 1)); err != nil {
		return nil, err
	}
	var head [wire.HeaderSize]byte
	control := make([]byte, unix.CmsgSpace(4*4)) // for 4 descriptors; the rest would be cut off
	n, nc, _, _, err := uc.ReadMsgUnix(head[:], control)
	files := memfd.Descriptors(control[:max(0, nc)])
	defer func() {
		for _, f := range files {
			f.Close() // the mapping holds the memory
		}
	}()
	if err == nil {
		_, err = io.ReadFull(uc, head[n:])
	}
	if err != nil {
		return nil, err
	}
	m, err := readAnswer(io.MultiReader(bytes.NewReader(head[:]), uc), wire.TypeShmPools)
	if err != nil {
		return nil, err
	}
	pools := m.(*wire.ShmPools).Pools
	if len(pools) != 1 || len(files) != 1 {
		return nil, fmt.Errorf("%d pools and %d descriptors", len(pools), len(files))
	}
	return memfd.Map(files[0], pools[0].Bytes, unix.PROT_READ)
}

// hostID identifies the running kernel; zero when it cannot be told.
func hostID() (id [16]byte) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return id
	}
	n := 0
	for _, c := range b {
		var v byte
		switch {
		case c >= '0' && c <= '9':
			v = c - '0'
		case c >= 'a' && c <= 'f':
			v = c - 'a' + 10
		default:
			continue
		}
		if n < 32 {
			id[n/2] = id[n/2]<<4 | v
			n++
		}
	}
	if n != 32 {
		return [16]byte{}
	}
	return id
}
