package shard

import (
	"github.com/kvcr-go/kvcr/internal/own"
	"github.com/kvcr-go/kvcr/shard/evict"
)

// An embedder's policy may panic or answer nonsense; the shard must go on. Each
// call is guarded, each fault counted, and the answer falls back: admit, drop,
// and the first block found that may leave. Built-in policies are trusted: a
// panic in them is our bug and stays one.

func (s *Shard) policyFault() {
	if !s.cfg.Foreign {
		return
	}
	if recover() != nil {
		own.Add64(&s.stats.PolicyFaults, 1)
	}
}

func (s *Shard) admit(run []evict.Insert) (ok bool) {
	ok = true
	defer s.policyFault()
	return s.policy.Admit(run)
}

func (s *Shard) listed(run []evict.Insert) {
	defer s.policyFault()
	s.policy.Insert(run, s.now.Load())
}

func (s *Shard) replaced(old, id uint32) {
	defer s.policyFault()
	s.policy.Replace(evict.ID(old), evict.ID(id), s.now.Load())
}

func (s *Shard) unlisted(id uint32, why evict.Reason) {
	defer s.policyFault()
	s.policy.Remove(evict.ID(id), why, s.now.Load())
}

func (s *Shard) decide(id uint32) (d evict.Decision) {
	defer s.policyFault()
	return s.policy.Decide(evict.ID(id))
}

func (s *Shard) askVictim() uint32 {
	v, ok := s.policyVictim()
	if ok {
		return v
	}
	own.Add64(&s.stats.PolicyFaults, 1)
	return s.anyVictim()
}

// policyVictim reports false for an answer that no policy may give.
func (s *Shard) policyVictim() (v uint32, ok bool) {
	if !s.cfg.Foreign {
		return uint32(s.policy.Victim(s.now.Load())), true
	}
	defer func() {
		if recover() != nil {
			v, ok = 0, false
		}
	}()
	v = uint32(s.policy.Victim(s.now.Load()))
	if v == 0 {
		// One that has failed before may not know all blocks any more.
		return 0, s.stats.PolicyFaults.Load() == 0
	}
	return v, int(v) <= s.cfg.Records && !(blocks{s}).Busy(evict.ID(v))
}

// anyVictim is the fallback for a policy that fails: the next block that is
// not busy, in order of records.
func (s *Shard) anyVictim() uint32 {
	for i := 0; i < int(s.freshRec); i++ {
		s.scan = s.scan%s.freshRec + 1
		if !(blocks{s}).Busy(evict.ID(s.scan)) {
			return s.scan
		}
	}
	return 0
}
