package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr/internal/memfd"
	"github.com/kvcr-go/kvcr/wire"
)

// shmRoute is payload between two processes of one host: the destination maps the
// source's memory, sealed and read-only, and copies. Nobody writes to foreign
// memory, so nothing is ever left to a peer's good will but the source's claims,
// and those end with the process that reads: its pidfd is proof.
type shmRoute struct {
	n       *Node
	copiers crew
}

func newShmRoute(n *Node) *shmRoute { return &shmRoute{n: n, copiers: crew{spawn: n.spawn}} }

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
	here  int // bytes that Post may still copy itself, of who runs the link

	mu    sync.Mutex
	maps  map[string]*shmMap
	jobs  map[item]*copyJob // not answered
	apart map[item]bool     // posted to left
	down  bool
}

const (
	// copyHere is how many bytes of blocks Post copies itself in one run of the link,
	// copyHereBlock of one: a copier would be woken for less than its waking costs, and
	// what small blocks that came together have to say goes out together.
	copyHere      = 256 << 10
	copyHereBlock = 64 << 10
)

// ran gives Post its share for the next run.
func (d *shmDest) ran() { d.here = copyHere }

// shmMap is the memory of one namespace. mem is nil until it is mapped.
type shmMap struct {
	mem  []byte
	wait []*copyJob // for it to be mapped
	busy int        // copies that run
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
	if p.Offer.Size <= min(copyHereBlock, uint64(d.here)) {
		d.here -= int(p.Offer.Size)
		j.run()
		return
	}
	d.route.copiers.push(j.run)
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
		d.route.copiers.push(j.run)
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
