package server

import (
	"sync"
	"sync/atomic"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/wire"
)

// advised is what a connection has of FETCH requests that follow hints, and so wait
// for other nodes: those under way, and the claims that came while nobody served the
// connection. Whoever serves it collects those before it looks at claims.
type advised struct {
	mu      sync.Mutex
	gone    bool                // of the connection: claims that come late end
	running map[uint64]*kvcr.Op // by request
	coming  int                 // claims that running ones may bring
	came    map[uint64]kvcr.View

	some atomic.Bool // came is not empty: what the common case looks at
}

// requests is the number under way.
func (a *advised) requests() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.running)
}

// claims is how many are not collected, or may come.
func (a *advised) claims() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.came) + a.coming
}

// cancel ends a request. It says so itself.
func (a *advised) cancel(id uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	op := a.running[id]
	if op != nil {
		op.Abort()
	}
	return op != nil
}

// close ends all of them: the connection is gone. What has come is for collect still:
// the client may know of it.
func (a *advised) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone = true
	for _, op := range a.running {
		op.Abort()
	}
}

// collect makes claims that came the connection's.
func (c *binaryConn) collect() {
	a := &c.advised
	if !a.some.Load() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.some.Store(false)
	for n, v := range a.came {
		c.claims[n] = v
	}
	if c.shm != nil {
		c.srv.sharing.held.Add(int64(len(a.came)))
	}
	clear(a.came)
}

// fetchFor is FETCH on behalf of a request of the inference engine's. What is not here
// is fetched from where hints say; the answer comes when that has ended.
func (c *binaryConn) fetchFor(s *session, id uint64) {
	m, a := &c.msgs.fetch, &c.advised
	c.collect()
	limit := maxClaims
	if c.shm != nil {
		limit = c.shm.claims
	}
	a.mu.Lock()
	busy := a.running[id] != nil || len(c.claims)+len(a.came)+a.coming+len(m.Keys) > limit
	a.mu.Unlock()
	if busy || c.inFlight(s) >= maxInFlight {
		c.reply(s, id, wire.StatusBusy)
		return
	}
	op := s.h.FetchFrom(m.Keys, kvcr.FetchOptions{RequestID: m.RequestID})
	first, shared := c.nextClaim+1, c.shm != nil
	c.nextClaim += uint64(len(m.Keys))
	a.mu.Lock()
	if a.running == nil {
		a.running = map[uint64]*kvcr.Op{}
	}
	a.running[id] = op
	a.coming += len(m.Keys)
	a.mu.Unlock()
	n := len(m.Keys)
	s.srv.work.Add(1)
	s.fetching.Add(1)
	go func() {
		defer s.srv.work.Done()
		defer s.fetching.Add(-1)
		<-op.Done()
		answer := c.arrive(id, op, first, n, shared)
		_ = s.post(answer, 1<<62, func() bool { return false }) // bounded by maxInFlight
	}()
}

// arrive takes the blocks of a request that has ended, and returns the answer.
func (c *binaryConn) arrive(id uint64, op *kvcr.Op, first uint64, n int, shared bool) []byte {
	out := wire.Claims{Claims: make([]wire.Claim, n)}
	a, lent, hits := &c.advised, uint64(0), 0
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.running, id)
	a.coming -= n
	for i, r := range op.Results() {
		g := &out.Claims[i]
		if *g = (wire.Claim{Status: statusOfReason(r.Reason), Pool: wire.NoPool}); !r.OK() {
			continue
		}
		if a.gone {
			r.View.Release()
			g.Status = wire.StatusLost
			continue
		}
		g.Claim, g.Size = first+uint64(i), uint64(r.View.Len())
		if off, ok := r.View.Offset(); ok && shared {
			g.Pool, g.Offset = payloadPool, uint64(off)
			lent += g.Size
		}
		if a.came == nil {
			a.came = map[uint64]kvcr.View{}
		}
		a.came[g.Claim] = r.View
		a.some.Store(true)
		hits++
	}
	if shared {
		sh := &c.srv.sharing
		sh.gets.Add(uint64(n))
		sh.hits.Add(uint64(hits))
		sh.lent.Add(lent)
	}
	return out.Append(nil, id)
}

var reasonStatuses = map[kvcr.Reason]wire.Status{
	kvcr.ReasonOK: wire.StatusOK, kvcr.ReasonMiss: wire.StatusMiss, kvcr.ReasonCapacity: wire.StatusCapacity,
	kvcr.ReasonDropped: wire.StatusDropped, kvcr.ReasonTooLarge: wire.StatusTooLarge, kvcr.ReasonLayout: wire.StatusBadLayout,
	kvcr.ReasonKey: wire.StatusBadKey, kvcr.ReasonClosed: wire.StatusClosed, kvcr.ReasonTimeout: wire.StatusTimeout,
	kvcr.ReasonAborted: wire.StatusAborted, kvcr.ReasonSource: wire.StatusSource, kvcr.ReasonChecksum: wire.StatusChecksum,
}

func statusOfReason(why kvcr.Reason) wire.Status {
	if st, ok := reasonStatuses[why]; ok {
		return st
	}
	return wire.StatusAborted
}
