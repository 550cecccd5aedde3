package server

import (
	"encoding/json"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints/publish"
	"github.com/kvcr-go/kvcr/wire"
)

// request runs one whole request of an open connection.
func (c *binaryConn) request(s *session, h wire.Header, payload []byte) error {
	m := &c.msgs
	switch h.Type {
	case wire.TypeGet:
		if err := m.get.Parse(payload); err != nil {
			return err
		}
		s.count(commandGet)
		return c.value(s, h.ID, m.get.Key)
	case wire.TypeDelete:
		if err := m.del.Parse(payload); err != nil {
			return err
		}
		s.count(commandDelete)
		c.delete(s, h.ID)
	case wire.TypeExists:
		if err := m.exists.Parse(payload); err != nil {
			return err
		}
		s.count(commandExists)
		c.exists(s, h.ID)
	case wire.TypeQuery:
		if err := m.query.Parse(payload); err != nil {
			return err
		}
		s.count(commandOther)
		c.query(s, h.ID)
	case wire.TypeFetch:
		if err := m.fetch.Parse(payload); err != nil {
			return err
		}
		s.count(commandFetch)
		if m.fetch.RequestID != "" {
			c.fetchFor(s, h.ID)
		} else {
			c.fetch(s, h.ID)
		}
	case wire.TypeDeliver:
		if err := m.deliver.Parse(payload); err != nil {
			return err
		}
		s.count(commandDeliver)
		return c.deliver(s, h.ID)
	case wire.TypeRelease:
		if err := m.release.Parse(payload); err != nil {
			return err
		}
		s.count(commandRelease)
		c.release(s, h.ID)
	case wire.TypePing:
		if err := m.ping.Parse(payload); err != nil {
			return err
		}
		s.count(commandOther)
		s.out.text = (&wire.Pong{Bytes: m.ping.Bytes}).Append(s.out.text, h.ID)
	case wire.TypeStats:
		s.count(commandOther)
		return c.stats(s, h.ID)
	case wire.TypeSubscribe:
		return c.subscribe(s, h.ID, payload)
	case wire.TypeCancel:
		return c.cancel(s, payload)
	case wire.TypeShmAttach:
		s.count(commandOther)
		return c.attach(s, h.ID, payload)
	case wire.TypeReserve:
		s.count(commandOther)
		return c.reserve(s, h.ID, payload)
	case wire.TypeCommit:
		return c.commitPlace(s, h.ID, payload)
	case wire.TypeAbort:
		s.count(commandOther)
		return c.abortPlace(s, h.ID, payload)
	case wire.TypeHello, wire.TypeAuth:
		return refuse(wire.CodeHandshake, "%s on an open connection", h.Type)
	case wire.TypeHint:
		s.count(commandOther)
		return c.hint(s, h.ID, payload)
	case wire.TypeDiscardHint:
		s.count(commandOther)
		return c.discardHint(s, h.ID, payload)
	case wire.TypeDescribe:
		s.count(commandOther)
		return c.describe(s, h.ID, payload)
	case wire.TypeSubscribeOutcomes:
		return c.subscribeOutcomes(s, h.ID, payload)
	default:
		// Of nodes among each other: not served here, which the answer says.
		c.reply(s, h.ID, wire.StatusUnsupported)
	}
	return nil
}

func (c *binaryConn) reply(s *session, id uint64, st wire.Status) {
	m := wire.StatusReply{Status: st}
	s.out.text = m.Append(s.out.text, id)
}

// value answers with the block of a key.
func (c *binaryConn) value(s *session, id uint64, key []byte) error {
	b, v, ok := s.out.get(s.h, key)
	switch {
	case !ok:
		c.reply(s, id, wire.StatusMiss)
	case v.Pieces() == 0:
		s.out.text = append(wire.AppendValueHeader(s.out.text, id, uint64(len(b)), len(b), false), b...)
	default:
		return c.send(s, id, v)
	}
	return nil
}

// send answers with a claimed block. What fits one frame goes at once, others a
// frame at a time.
func (c *binaryConn) send(s *session, id uint64, v kvcr.View) error {
	n := v.Len()
	if n > wire.MaxChunk || v.Pieces() != 1 {
		if c.inFlight(s) >= maxInFlight {
			v.Release()
			c.reply(s, id, wire.StatusBusy)
			return nil
		}
		s.stream(id, v)
		return nil
	}
	s.out.text = wire.AppendValueHeader(s.out.text, id, uint64(n), n, false)
	s.out.add(v)
	return nil
}

// warm is called before the i-th of keys is looked up, in order: their cache misses
// overlap then.
func warm(s *session, keys [][]byte, i int) {
	if i%readAhead == 0 {
		s.h.Prefetch(keys[i:])
	}
}

func (c *binaryConn) delete(s *session, id uint64) {
	out := &c.msgs.statuses
	out.Statuses = out.Statuses[:0]
	for _, k := range c.msgs.del.Keys {
		ok, err := s.h.Delete(k)
		st, _ := statusOf(err)
		if err == nil && !ok {
			st = wire.StatusMiss
		}
		out.Statuses = append(out.Statuses, st)
	}
	s.out.text = out.Append(s.out.text, id)
}

func (c *binaryConn) exists(s *session, id uint64) {
	keys := c.msgs.exists.Keys
	if c.msgs.exists.Mode == wire.ModePrefix {
		n := 0
		for ; n < len(keys); n++ {
			warm(s, keys, n)
			if !s.h.Has(keys[n]) {
				break
			}
		}
		s.out.text = (&wire.Count{N: uint32(n)}).Append(s.out.text, id)
		return
	}
	out := &c.msgs.statuses
	out.Statuses = out.Statuses[:0]
	for i, k := range keys {
		warm(s, keys, i)
		st := wire.StatusMiss
		if s.h.Has(k) {
			st = wire.StatusOK
		}
		out.Statuses = append(out.Statuses, st)
	}
	s.out.text = out.Append(s.out.text, id)
}

func (c *binaryConn) query(s *session, id uint64) {
	out := &c.msgs.results
	out.Results = out.Results[:0]
	request := c.msgs.query.RequestID
	found := s.h.Query
	if request != "" {
		found = func(keys [][]byte) []kvcr.QueryResult { return s.h.QueryFor(request, keys) }
	}
	for _, q := range found(c.msgs.query.Keys) {
		r := wire.Result{Status: wire.StatusMiss}
		switch {
		case q.Status == kvcr.StatusHit:
			r = wire.Result{Status: wire.StatusOK, Tier: uint8(q.Tier), Size: uint64(q.Bytes)}
		case q.Status != kvcr.StatusMiss && request != "": // FETCH of the request may bring it
			r = wire.Result{Status: wire.StatusOK, Tier: uint8(kvcr.TierRemote)}
		}
		out.Results = append(out.Results, r)
	}
	s.out.text = out.Append(s.out.text, id)
}

// fetch claims blocks for the connection.
func (c *binaryConn) fetch(s *session, id uint64) {
	c.collect()
	out := &c.msgs.granted
	out.Claims = out.Claims[:0]
	limit := maxClaims
	if c.shm != nil {
		limit = c.shm.claims
	}
	before, lent, coming := len(c.claims), uint64(0), c.advised.claims()
	for i, k := range c.msgs.fetch.Keys {
		warm(s, c.msgs.fetch.Keys, i)
		g := wire.Claim{Status: wire.StatusMiss, Pool: wire.NoPool}
		if len(c.claims)+coming >= limit {
			g.Status = wire.StatusBusy
		} else if v, ok := s.h.Get(k); ok {
			c.nextClaim++
			c.claims[c.nextClaim] = v
			g.Status, g.Claim, g.Size = wire.StatusOK, c.nextClaim, uint64(v.Len())
			if off, ok := v.Offset(); ok && c.shm != nil {
				g.Pool, g.Offset = payloadPool, uint64(off)
				lent += g.Size
			}
		}
		out.Claims = append(out.Claims, g)
	}
	if sh := &c.srv.sharing; c.shm != nil {
		hits := len(c.claims) - before
		sh.gets.Add(uint64(len(c.msgs.fetch.Keys)))
		sh.hits.Add(uint64(hits))
		sh.lent.Add(lent)
		sh.held.Add(int64(hits))
	}
	s.out.text = out.Append(s.out.text, id)
}

// deliver answers with the block of a claim, under a claim of its own: the
// client may release its own meanwhile.
func (c *binaryConn) deliver(s *session, id uint64) error {
	c.collect()
	v, ok := c.claims[c.msgs.deliver.Claim]
	if !ok {
		c.reply(s, id, wire.StatusReleased)
		return nil
	}
	return c.send(s, id, v.Again())
}

func (c *binaryConn) release(s *session, id uint64) {
	c.collect()
	out := &c.msgs.statuses
	out.Statuses = out.Statuses[:0]
	before := len(c.claims)
	for _, n := range c.msgs.release.Claims {
		st := wire.StatusReleased
		if v, ok := c.claims[n]; ok {
			v.Release()
			delete(c.claims, n)
			st = wire.StatusOK
		}
		out.Statuses = append(out.Statuses, st)
	}
	if c.shm != nil {
		c.srv.sharing.held.Add(int64(len(c.claims) - before))
	}
	s.out.text = out.Append(s.out.text, id)
}

func (c *binaryConn) stats(s *session, id uint64) error {
	st, err := s.srv.opt.Engine.Stats()
	if err != nil {
		c.status(s, id, err)
		return nil
	}
	told := struct {
		Engine kvcr.Stats
		Server Stats
		Peers  *PeerStats      `json:",omitempty"`
		Hints  *HintStats      `json:",omitempty"`
		Router *publish.Totals `json:",omitempty"`
		Page   string          `json:",omitempty"`
	}{st, s.srv.statsForClient(), s.srv.peers(), hintStats(st.Hints), nil, s.srv.opt.Page}
	told.Engine.Hints = nil // by name, below
	if s.srv.opt.Router != nil {
		told.Router = s.srv.opt.Router()
	}
	body, err := json.Marshal(told)
	if err != nil || len(body) > wire.MaxPayload/2 {
		return refuse(wire.CodeInternal, "the counters do not fit a frame: %d bytes, %v", len(body), err)
	}
	s.out.text = (&wire.StatsReply{Body: body}).Append(s.out.text, id)
	return nil
}

// cancel ends a request that is under way.
func (c *binaryConn) cancel(s *session, payload []byte) error {
	var m wire.Cancel
	if err := m.Parse(payload); err != nil {
		return err
	}
	switch {
	case c.fills[m.Target] != nil:
		if f := c.fills[m.Target]; f.res != nil {
			f.res.Abort()
		}
		delete(c.fills, m.Target)
	case c.subs[m.Target] != nil:
		c.subs[m.Target].stop() // says aborted itself, after its last frame
		delete(c.subs, m.Target)
		return nil
	case c.advised.cancel(m.Target): // it answers itself, each key aborted or not
		return nil
	case !s.endStream(m.Target):
		return nil // over already: the answer is on its way
	}
	c.reply(s, m.Target, wire.StatusAborted)
	return nil
}

func millis(n uint64) time.Duration {
	return time.Duration(min(n, uint64((1<<63-1)/time.Millisecond))) * time.Millisecond
}
