package server

import (
	"encoding/json"
	"errors"

	"github.com/cespare/xxhash/v2"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/wire"
)

// hintOnLoop is the longest envelope that the loop itself takes; a longer one would
// keep its other connections waiting.
const hintOnLoop = 8 << 10

// hinted reports whether hints are about the connection's namespace. If not it
// answers so.
func (c *binaryConn) hinted(s *session, id uint64) bool {
	if ns := s.srv.opt.Hinted; ns != "" && ns != c.namespace {
		c.reply(s, id, wire.StatusUnsupported)
		return false
	}
	return true
}

// hint takes an envelope.
func (c *binaryConn) hint(s *session, id uint64, payload []byte) error {
	var m wire.Hint
	if err := m.Parse(payload); err != nil || !c.hinted(s, id) {
		return err
	}
	switch {
	case s.slow.Load():
		s.out.text = append(s.out.text, s.srv.hintInTurn(id, &m)...)
	case len(m.Body) <= hintOnLoop:
		s.out.text = append(s.out.text, s.srv.hint(id, &m)...)
	case c.inFlight(s)+s.toDo() >= maxInFlight: // each keeps its envelope
		c.reply(s, id, wire.StatusBusy)
	default:
		m.Body = append([]byte(nil), m.Body...) // the loop's own
		return s.later(func() []byte { return s.srv.hintInTurn(id, &m) }, len(m.Body))
	}
	return nil
}

// hintInTurn is hint off the loops. The answer may be made of a hundred times the
// memory of the envelope, so that many connections must not have theirs at once.
func (s *Server) hintInTurn(id uint64, m *wire.Hint) []byte {
	s.hinting <- struct{}{}
	defer func() { <-s.hinting }()
	return s.hint(id, m)
}

// hint returns the answer to an envelope.
func (s *Server) hint(id uint64, m *wire.Hint) []byte {
	format := kvcr.HintJSON
	if m.Format == wire.FormatMsgpack {
		format = kvcr.HintMsgpack
	}
	results, err := s.opt.Engine.SubmitHint(m.RequestID, m.Body, format)
	switch {
	case errors.Is(err, hints.ErrMalformed):
		e := wire.ErrorReply{Code: wire.CodeBadPayload, Text: err.Error()}
		return e.Append(nil, id)
	case errors.Is(err, kvcr.ErrNoHints):
		st := wire.StatusReply{Status: wire.StatusUnsupported}
		return st.Append(nil, id)
	case err != nil:
		st := statusReply(err)
		return st.Append(nil, id)
	}
	return appendResults(nil, id, results)
}

// appendResults appends the answer. Where it would not fit a frame the details, which
// are for people, are left out.
func appendResults(dst []byte, id uint64, results []hints.Result) []byte {
	if results == nil {
		results = []hints.Result{}
	}
	body, err := json.Marshal(results)
	if err == nil && len(body) > wire.MaxPayload {
		for i := range results {
			results[i].Detail, results[i].MessageID = "", ""
		}
		body, err = json.Marshal(results)
	}
	if err != nil || len(body) > wire.MaxPayload {
		st := wire.StatusReply{Status: wire.StatusTooLarge, Detail: wire.MaxPayload}
		return st.Append(dst, id)
	}
	m := wire.HintResults{Body: body}
	return m.Append(dst, id)
}

// discardHint forgets what is kept for a request.
func (c *binaryConn) discardHint(s *session, id uint64, payload []byte) error {
	var m wire.DiscardHint
	if err := m.Parse(payload); err != nil || !c.hinted(s, id) {
		return err
	}
	if s.srv.opt.Engine.Config().Hints == nil {
		c.reply(s, id, wire.StatusUnsupported)
		return nil
	}
	s.srv.opt.Engine.DiscardHint(m.RequestID)
	c.reply(s, id, wire.StatusOK)
	return nil
}

// describe tells whoever knows what blocks mean to the inference engine.
func (c *binaryConn) describe(s *session, id uint64, payload []byte) error {
	var m wire.Describe
	if err := m.Parse(payload); err != nil || !c.hinted(s, id) {
		return err
	}
	if s.srv.opt.Describe == nil {
		c.reply(s, id, wire.StatusUnsupported)
		return nil
	}
	out := &c.msgs.statuses
	out.Statuses = s.srv.opt.Describe(out.Statuses[:0], c.namespace, &m)
	s.out.text = out.Append(s.out.text, id)
	return nil
}

// subscribeOutcomes begins to send what becomes of accepted actions.
func (c *binaryConn) subscribeOutcomes(s *session, id uint64, payload []byte) error {
	var m wire.SubscribeOutcomes
	if err := m.Parse(payload); err != nil || !c.hinted(s, id) {
		return err
	}
	if c.subs[id] != nil || c.inFlight(s) >= maxInFlight {
		c.reply(s, id, wire.StatusBusy)
		return nil
	}
	e := s.srv.opt.Engine
	first := wire.Outcomes{Epoch: xxhash.Sum64String(e.Epoch())}
	from := m.FromSequence + 1
	if m.FromSequence > 0 && m.FromEpoch != first.Epoch {
		first.Gap, from = true, 1 // those of another life are lost, of this one it has none
	}
	var r *hints.OutcomeReader
	var err error
	if m.FromSequence == 0 {
		r, err = e.SubscribeOutcomes()
	} else {
		r, err = e.SubscribeOutcomesFrom(from)
	}
	switch {
	case errors.Is(err, kvcr.ErrNoHints):
		c.reply(s, id, wire.StatusUnsupported)
		return nil
	case errors.Is(err, hints.ErrLimit):
		c.reply(s, id, wire.StatusBusy)
		return nil
	case err != nil:
		c.status(s, id, err)
		return nil
	}
	c.begin(s, id, func(sub *subscription) wire.Status { return sub.runOutcomes(r, &first) })
	return nil
}

// runOutcomes sends outcomes, after a first frame that has none: a client that has it
// misses nothing of what it sends hints for from then on.
func (sub *subscription) runOutcomes(r *hints.OutcomeReader, first *wire.Outcomes) wire.Status {
	defer r.Close()
	gap := false
	lost := sub.s.post(first.Append(nil, sub.id), eventsAhead, sub.stopped)
	for lost == nil {
		o, err := r.Next(sub.ctx)
		if errors.Is(err, hints.ErrGap) {
			gap = true
			continue
		}
		if errors.Is(err, hints.ErrClosed) {
			return wire.StatusClosed
		}
		if err == nil {
			err = sub.outcome(&o, first.Epoch, gap)
		}
		lost, gap = err, false
	}
	return wire.StatusAborted
}

// outcome sends one outcome; one of very many blocks in several.
func (sub *subscription) outcome(o *hints.Outcome, epoch uint64, gap bool) error {
	item := wire.OutcomeItem{
		Sequence: o.Seq, UnixNanos: uint64(o.Time.UnixNano()), MessageID: o.MessageID, ActionID: o.ActionID, Index: uint32(o.Index),
		Type: o.Type, RequestID: o.RequestID, Rank: uint32(o.Rank), Stage: wire.OutcomeStage(o.Stage), Reason: o.Reason,
		Copied: uint32(o.Copied), Moved: uint32(o.Moved), Kept: uint32(o.Kept), Removed: uint32(o.Removed),
		Present: uint32(o.Present), Failed: uint32(o.Failed), Bytes: uint64(o.Bytes),
	}
	for left := o.Hashes; ; gap = false {
		n := min(len(left), wire.MaxOutcomeHashes)
		item.Hashes, left = left[:n], left[n:]
		m := wire.Outcomes{Epoch: epoch, Gap: gap, Items: []wire.OutcomeItem{item}}
		if err := sub.s.post(m.Append(nil, sub.id), eventsAhead, sub.stopped); err != nil || len(left) == 0 {
			return err
		}
	}
}
