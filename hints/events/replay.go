package events

import (
	"context"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvcr-go/kvcr/hints/events/zmtp"
)

// maxReplay bounds a replay as a whole: a publisher that never ends one must not keep
// live batches waiting for ever.
const maxReplay = time.Minute

// replay asks for the batches from s.next up to target and applies them. Those that do
// not come are gaps; afterwards s.next is target or beyond.
func (c *Consumer) replay(s *stream, target uint64) {
	got := 0
	whole := c.ask(s.next, func(l Live) bool {
		switch {
		case c.decode(&c.again, l) != s:
			c.stats.Foreign++
		case l.Seq < s.next:
			c.stats.Stale++
		default:
			if l.Seq > s.next {
				kind := GapHole
				if got == 0 {
					kind = GapStartedLate
				}
				to := min(l.Seq, target)
				c.gap(s, s.next, to, kind)
				if s.next = to; l.Seq >= target {
					return false
				}
			}
			got++
			c.stats.Replayed++
			c.apply(s, &c.again, l)
		}
		return s.next < target
	})
	if s.next >= target || c.ctx.Err() != nil {
		return
	}
	kind := GapReplayFailed
	switch {
	case whole && got == 0:
		kind = GapEmpty
	case whole:
		kind = GapEndedEarly
	}
	c.gap(s, s.next, target, kind)
	s.next = target
}

// catchUp brings us in step with the publisher at the beginning of a connection: with
// all that it has kept if we know nothing yet, else with what it sent meanwhile. The
// last batch that we know is asked for as well: a publisher that cannot repeat it has
// begun anew.
//
// Behind one endpoint there is one publisher, and what answers replays is that one. If
// we have seen several ranks, it is not so, and gaps will show by themselves.
func (c *Consumer) catchUp(conn uint64) {
	if !c.canAsk() {
		return
	}
	var s *stream
	for _, only := range c.streams {
		s = only
	}
	if s != nil && s.known {
		same, sure := c.sameLife(s)
		if c.ctx.Err() != nil {
			return
		}
		if !same {
			c.restarted(s)
		}
		if !sure {
			return // what it answers next may be another's: the next live batch asks again
		}
		s.sure = max(s.sure, conn)
	}
	from := uint64(0)
	if s != nil {
		from = s.next
	}
	c.ask(from, func(l Live) bool {
		of := c.decode(&c.again, l)
		switch {
		case of == nil || s != nil && of != s:
			c.stats.Foreign++
			return true
		case l.Seq < of.next:
			c.stats.Stale++
			return true
		case l.Seq > of.next:
			kind := GapHole
			if of.next == from {
				kind = GapStartedLate
			}
			c.gap(of, of.next, l.Seq, kind)
		}
		s = of
		if !s.known {
			s.sure = max(s.sure, conn)
		}
		c.stats.Replayed++
		c.apply(s, &c.again, l)
		return true
	})
}

// canAsk reports whether what answers replays is the publisher at the other end.
func (c *Consumer) canAsk() bool { return c.cfg.Replay != "" && len(c.streams) <= 1 }

// sameLife reports whether the publisher still is the one whose batches we know. If it
// cannot be asked (sure is false) we believe it: a gap or a batch from the past will show.
func (c *Consumer) sameLife(s *stream) (same, sure bool) {
	same, answered := true, false
	whole := c.ask(s.next-1, func(l Live) bool {
		answered = true
		// A later one: what we know is no longer kept, so nobody can tell.
		same = l.Seq > s.next-1 || xxh3.Hash(l.Payload) == s.last
		return false
	})
	return same && (answered || !whole), answered || whole
}

// ask requests the batches from seq on and hands them to each, until that says stop.
// True: all were handed over.
//
// Every request has a connection of its own, so that a late answer to an earlier one
// cannot pass for one to this.
func (c *Consumer) ask(seq uint64, each func(Live) bool) bool {
	if c.cfg.Replay == "" {
		return false
	}
	c.stats.Replays++
	c.show() // what follows may take its time
	ctx, cancel := context.WithTimeout(c.ctx, maxReplay)
	defer cancel()
	conn, err := zmtp.Dial(ctx, c.cfg.Replay, zmtp.DEALER, zmtp.Options{MaxMessage: c.cfg.MaxMessage, Handshake: c.cfg.ReplayTimeout})
	if err != nil {
		c.cfg.Log.Debug("no replay", "endpoint", c.cfg.Replay, "err", err)
		return false
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	conn.SetWriteDeadline(time.Now().Add(c.cfg.ReplayTimeout))
	if err := conn.Write(zmtp.AppendMessage(nil, AppendReplayFrames(nil, seq)...)); err != nil {
		return false
	}
	var m zmtp.Message
	for {
		conn.SetReadDeadline(time.Now().Add(c.cfg.ReplayTimeout))
		if err := conn.Read(&m); err != nil {
			c.cfg.Log.Debug("replay broken off", "endpoint", c.cfg.Replay, "err", err)
			return false
		}
		l, last, err := ParseReplay(m.Frames)
		if err != nil {
			c.stats.BadFrames++
			return false
		}
		if last {
			return true
		}
		if !each(l) {
			return false
		}
	}
}
