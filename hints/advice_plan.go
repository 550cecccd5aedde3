package hints

import "hash/maphash"

// SourcePlan is what one source may be asked for. It is the caller's own: it stays as
// it is when the advice is replaced or discarded.
type SourcePlan struct {
	Source string
	// Keys are indices of the keys given to Plan, ascending.
	Keys []int
	// Listed are those of Keys that the advice names: all of them, except where
	// AdviceConfig.Opportunistic is set. It may be the same slice.
	Listed []int
	// Move: the source shall be asked to free the keys in Listed. Others are copied.
	Move        bool
	NoRetain    bool
	NoFramework bool

	version uint64 // of the advice, so that a late report does not hit a newer one
}

// Plan returns, for each source of the request in order, which of the keys it may be
// asked for. Left out are sources that failed, keys that a source is remembered not to
// have, and sources without any key. A key for which the adapter knows no hash is
// asked for by an opportunistic table only; without an adapter that goes for all keys.
//
// The plan of a source does not depend on those before it: the caller asks the first
// one for its keys, and the next for those of its keys that are still missing.
func (a *Advice) Plan(requestID, namespace string, keys [][]byte, adapter KeyAdapter) []SourcePlan {
	held := a.hold(requestID)
	if held == nil {
		return nil
	}
	defer held.release()
	hashes := make([]uint64, len(keys))
	known := make([]bool, len(keys))
	if adapter != nil {
		for i, k := range keys {
			hashes[i], known[i] = adapter.ToRouter(namespace, k)
		}
	}
	plans := make([]SourcePlan, 0, len(held))
	for i := range held {
		src := &held[i]
		p := SourcePlan{
			Source: src.endpoint, Keys: make([]int, 0, len(keys)),
			Move: src.move, NoRetain: src.noRetain, NoFramework: src.noFramework, version: src.version,
		}
		if a.cfg.Opportunistic {
			p.Listed = make([]int, 0, len(keys))
		}
		for k := range keys {
			listed := known[k] && src.set.has(hashes[k])
			if listed || a.cfg.Opportunistic {
				p.Keys = append(p.Keys, k)
			}
			if listed && a.cfg.Opportunistic {
				p.Listed = append(p.Listed, k)
			}
		}
		plans = append(plans, p)
	}
	plans = a.withoutMisses(requestID, namespace, keys, plans)
	if !a.cfg.Opportunistic {
		for i := range plans {
			plans[i].Listed = plans[i].Keys
		}
	}
	return plans
}

// heldSources are sources of a request, each with a reference to its set.
type heldSources []source

// hold returns the sources of a request that have not failed, nil if there are none.
func (a *Advice) hold(requestID string) heldSources {
	now := a.cfg.Now()
	s, h := a.shard(requestID)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expireLocked(a, now)
	r := s.findLocked(h, requestID)
	if r == nil {
		return nil
	}
	var held heldSources
	for i := range r.sources {
		if !r.sources[i].failed {
			r.sources[i].set.hold()
			held = append(held, r.sources[i])
			held[len(held)-1].misses = nil // those are the table's
		}
	}
	return held
}

func (held heldSources) release() {
	for i := range held {
		held[i].set.release()
	}
}

// withoutMisses takes remembered misses out of plans, and then plans without keys.
func (a *Advice) withoutMisses(requestID, namespace string, keys [][]byte, plans []SourcePlan) []SourcePlan {
	s, h := a.shard(requestID)
	s.mu.Lock()
	r := s.findLocked(h, requestID)
	for i := range plans {
		p := &plans[i]
		src := r.version(p)
		if src == nil || len(src.misses) == 0 {
			continue
		}
		missed := func(k int) bool {
			_, ok := src.misses[a.keyID(namespace, keys[k])]
			return ok
		}
		p.Keys = without(p.Keys, missed)
		p.Listed = without(p.Listed, missed)
	}
	s.mu.Unlock()
	left := plans[:0]
	for _, p := range plans {
		if len(p.Keys) > 0 {
			left = append(left, p)
		}
	}
	return left
}

func without(indices []int, drop func(int) bool) []int {
	left := indices[:0]
	for _, k := range indices {
		if !drop(k) {
			left = append(left, k)
		}
	}
	return left
}

// version returns the source that p was made from, nil if it was replaced or
// forgotten since.
func (r *request) version(p *SourcePlan) *source {
	if r == nil {
		return nil
	}
	for i := range r.sources {
		if r.sources[i].version == p.version {
			return &r.sources[i]
		}
	}
	return nil
}

// keyID is the name by which misses are remembered. Two keys of one name would hide
// one another from a source: with a secret seed and 64 bits that is a miss in a
// blue moon, not an attack.
func (a *Advice) keyID(namespace string, key []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(a.seed)
	h.WriteString(namespace)
	h.WriteByte(0)
	h.Write(key)
	return h.Sum64()
}

// Report says how asking the source of p ended: asked and delivered are indices of keys,
// as p's are. failed says that the operation as a whole did, not that some keys were
// not there: the source is left out from now on. Otherwise keys that were asked for and
// not delivered are remembered as misses. A report about advice that was replaced or
// discarded since changes nothing.
func (a *Advice) Report(requestID, namespace string, keys [][]byte, p *SourcePlan, asked, delivered []int, failed bool) {
	var missed []uint64
	if !failed && len(delivered) < len(asked) {
		got := make(map[int]struct{}, len(delivered))
		for _, k := range delivered {
			got[k] = struct{}{}
		}
		for _, k := range asked {
			if _, ok := got[k]; !ok {
				missed = append(missed, a.keyID(namespace, keys[k]))
			}
		}
	}
	s, h := a.shard(requestID)
	s.mu.Lock()
	if src := s.findLocked(h, requestID).version(p); src != nil {
		before := src.weight()
		if failed {
			src.failed = true
			s.counts.Failures++
		} else {
			src.remember(missed, a.cfg.Misses)
		}
		more := src.weight() - before
		s.counts.Misses += uint64(more)
		a.hashes.Add(more)
	}
	s.mu.Unlock()
	a.dropExcess()
}

// remember adds misses, up to most in all.
func (src *source) remember(missed []uint64, most int) {
	if src.misses == nil && len(missed) > 0 {
		src.misses = map[uint64]struct{}{}
	}
	for _, id := range missed {
		if len(src.misses) >= most {
			return
		}
		src.misses[id] = struct{}{}
	}
}

// Knows reports whether Plan would find a source for the key.
func (a *Advice) Knows(requestID, namespace string, key []byte, adapter KeyAdapter) bool {
	return len(a.Plan(requestID, namespace, [][]byte{key}, adapter)) > 0
}

// Known reports whether a source that has not failed is said to hold the hash. It knows
// nothing of misses, which are remembered by key, and takes no chances.
func (a *Advice) Known(requestID string, hash uint64) bool {
	held := a.hold(requestID)
	defer held.release()
	for i := range held {
		if held[i].set.has(hash) {
			return true
		}
	}
	return false
}
