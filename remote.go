package kvcr

import (
	"context"
	"errors"
	"sync"
	"time"
)

// RemoteSource brings blocks that are not resident here. It must not call the
// engine. A panic in Fetch fails its keys and is counted (Stats.SourceFaults).
type RemoteSource interface {
	// Query reports for each key whether it could be fetched now, from what is
	// known locally. It must not block: Close waits for it.
	Query(namespace string, keys [][]byte) []bool
	// Fetch brings blocks into sink. It returns when it will write no more:
	// ctx ends at the operation's deadline or abort, and memory that the sink
	// gave out stays reserved until Fetch has returned. Keys that it neither
	// commits nor fails answer ReasonSource.
	Fetch(ctx context.Context, namespace string, keys [][]byte, sink Sink) error
}

// Sink takes the blocks of one Fetch. Its methods are for the goroutine of
// Fetch.
type Sink interface {
	// Reserve returns the memory for key i, size bytes of it.
	Reserve(i, size int) ([]byte, error)
	// Commit ends key i: its bytes are complete.
	Commit(i int) error
	// Fail ends key i without a block. ReasonOK is no reason and means
	// ReasonSource.
	Fail(i int, why Reason)
}

// fetchRemote asks the remote source for the keys numbered in absent. With
// targets the blocks go to the callers' memory, else into ours. within replaces
// Config.OperationTimeout, unless it is 0.
func (e *Engine) fetchRemote(ns *namespace, op *Op, keys [][]byte, absent []int, targets []Target, within time.Duration) {
	if within <= 0 {
		within = e.cfg.OperationTimeout
	}
	ctx, cancel := context.WithTimeout(e.background, within)
	op.onAbort(cancel)
	asked := make([][]byte, len(absent))
	for j, i := range absent {
		asked[j] = append([]byte(nil), keys[i]...)
	}
	s := &sink{e: e, ctx: ctx, op: op, keys: asked, at: absent, targets: targets, state: make([]sinkState, len(absent)), held: make([]*Reservation, len(absent))}
	e.work.Add(1)
	go func() {
		defer e.work.Done()
		defer cancel()
		h, err := e.newHandle(ns)
		if err != nil {
			why := ReasonCapacity // of handles
			if errors.Is(err, ErrClosed) {
				why = ReasonClosed
			}
			for _, i := range absent {
				op.settle(i, Result{Reason: why})
			}
			return
		}
		defer h.Close()
		s.h = h
		stop := context.AfterFunc(ctx, s.expire)
		s.run(ns.cfg.Name)
		stop()
		s.end()
	}()
}

// run lets the source work. Its error is its own log's matter: every key has a
// reason. A panic is caught and counts as one, since it must not take the
// process down; the source has let go of the memory then, like one that returned.
func (s *sink) run(namespace string) {
	defer func() {
		if recover() != nil {
			s.e.sourceFaults.Add(1)
		}
	}()
	_ = s.e.cfg.Remote.Fetch(s.ctx, namespace, s.keys, s)
}

type sinkState uint8

const (
	sinkOpen     sinkState = iota // nothing given out
	sinkReserved                  // the source may be writing
	sinkEnded
)

type sink struct {
	e       *Engine
	ctx     context.Context
	h       *Handle
	op      *Op
	keys    [][]byte
	at      []int // key j is the operation's key at[j]
	targets []Target

	mu    sync.Mutex // guards state and late
	state []sinkState
	late  Reason // what ended the operation early, OK if nothing did
	held  []*Reservation
}

func (s *sink) Reserve(j, size int) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j < 0 || j >= len(s.state) || s.state[j] != sinkOpen {
		return nil, &OpError{Op: "sink reserve", Err: ErrReleased}
	}
	s.expireLocked() // the operation may have ended this moment
	if s.late != ReasonOK {
		return nil, &OpError{Op: "sink reserve", Err: conditions[s.late]}
	}
	if s.targets != nil {
		dst := s.targets[s.at[j]].Dst
		if len(dst) != size {
			s.failLocked(j, ReasonLayout)
			return nil, &OpError{Op: "sink reserve", Err: ErrLayout, Value: size, Limit: len(dst)}
		}
		s.state[j] = sinkReserved
		return dst, nil
	}
	r, err := s.h.ReserveDeposit(s.keys[j], size)
	if err != nil {
		s.failLocked(j, reasonOf(err))
		return nil, err
	}
	s.state[j], s.held[j] = sinkReserved, r
	return r.Bytes(), nil
}

func (s *sink) Commit(j int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j < 0 || j >= len(s.state) || s.state[j] != sinkReserved {
		return &OpError{Op: "sink commit", Err: ErrReleased}
	}
	s.state[j] = sinkEnded
	i := s.at[j]
	if s.targets != nil {
		// The operation's time may be up, but the bytes are there and whole.
		s.op.settle(i, Result{})
		return nil
	}
	if err := s.held[j].Commit(); err != nil {
		s.op.settle(i, Result{Reason: reasonOf(err)})
		return err
	}
	if s.late != ReasonOK {
		return nil // the block stays, its caller has been answered
	}
	v, ok := s.h.Get(s.keys[j])
	if !ok {
		s.op.settle(i, Result{Reason: ReasonCapacity})
	} else if !s.op.settle(i, Result{View: v}) {
		v.Release()
	}
	return nil
}

func (s *sink) Fail(j int, why Reason) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if why == ReasonOK {
		why = ReasonSource
	}
	if j >= 0 && j < len(s.state) && s.state[j] != sinkEnded {
		s.failLocked(j, why)
	}
}

func (s *sink) failLocked(j int, why Reason) {
	s.state[j] = sinkEnded
	if r := s.held[j]; r != nil {
		r.Abort()
	}
	s.op.settle(s.at[j], Result{Reason: why})
}

// expire answers what may be answered when time is up or the caller aborts.
func (s *sink) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expireLocked()
}

func (s *sink) expireLocked() {
	err := s.ctx.Err()
	if err == nil || s.late != ReasonOK {
		return
	}
	switch {
	case s.e.closed.Load():
		s.late = ReasonClosed
	case errors.Is(err, context.DeadlineExceeded):
		s.late = ReasonTimeout
	default:
		s.late = ReasonAborted
	}
	for j, st := range s.state {
		if st == sinkOpen || st == sinkReserved && s.targets == nil {
			s.op.settle(s.at[j], Result{Reason: s.late})
		}
	}
}

// end answers the rest once the source has returned and writes no more. A
// source that obeys ctx may be here before expire is.
func (s *sink) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expireLocked()
	why := s.late
	if why == ReasonOK {
		why = ReasonSource
	}
	for j, st := range s.state {
		if st != sinkEnded {
			s.failLocked(j, why)
		}
	}
}
