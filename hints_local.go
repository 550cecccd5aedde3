package kvcr

import (
	"errors"
	"sync/atomic"

	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/wire"
)

// Reasons of outcomes that no status of package wire says as routers do.
const (
	reasonNotFound = "not_found"
	reasonAdapter  = "adapter"
)

// outcomeReason says in routers' words why a block failed or was kept.
func outcomeReason(s wire.Status) string {
	switch s {
	case wire.StatusOK:
		return ""
	case wire.StatusMiss:
		return reasonNotFound
	}
	return s.String()
}

// remove serves kv.invalidate and kv.evict, on the caller's goroutine.
func (h *hinted) remove(c *hints.Call, r *hints.Removal, one func(hints.Key) wire.Status) error {
	if h.adapter == nil {
		return &hints.Rejection{Reason: hints.HandlerError, Detail: "nobody knows which keys have these hashes: set Config.Hints.Adapter"}
	}
	a, err := h.tracker.Accept(c, r.Hashes)
	if err != nil {
		return err
	}
	defer a.End("") // whatever happens
	failed := map[string][]uint64{}
	var reasons []string
	var removed []uint64
	found := h.find(a.Hashes())
	for i, hash := range a.Hashes() {
		why := found[i].why
		if why == "" {
			st := one(found[i].key)
			if st == wire.StatusMiss && found[i].part {
				st = wire.StatusOK // it has left with another one of its group
			}
			why = outcomeReason(st)
		}
		if why == "" {
			removed = append(removed, hash)
			continue
		}
		if failed[why] == nil {
			reasons = append(reasons, why)
		}
		failed[why] = append(failed[why], hash)
	}
	if len(removed) > 0 {
		a.Report(hints.StageRemoved, "", removed...)
	}
	for _, why := range reasons {
		a.Report(hints.StageFailed, why, failed[why]...)
	}
	if len(removed) == 0 && len(reasons) == 1 {
		a.End(reasons[0])
	}
	return nil
}

// foundKey is what is known of a hash here.
type foundKey struct {
	key  hints.Key
	why  string // there is none
	part bool   // its block is here, and one of a group
}

func (h *hinted) find(hashes []uint64) []foundKey {
	found := make([]foundKey, len(hashes))
	for i, hash := range hashes {
		f := &found[i]
		if f.key, f.why = h.keyOf(hash); f.why == "" {
			var r wire.Resolved
			f.part = h.e.records.Lookup(f.key.Namespace, f.key.Key, &r) == wire.StatusOK && r.Parts > 1
		}
	}
	return found
}

// keyOf finds the key that has a hash here, or why there is none.
func (h *hinted) keyOf(hash uint64) (hints.Key, string) {
	switch key, err := h.adapter.FromRouter(hash); {
	case err == nil:
		return key, ""
	case errors.Is(err, hints.ErrNotFound):
		return key, reasonNotFound
	case errors.Is(err, hints.ErrAmbiguous):
		return key, outcomeReason(wire.StatusAmbiguous)
	default:
		return key, reasonAdapter
	}
}

func (h *hinted) invalidate(k hints.Key) wire.Status {
	return h.e.records.Invalidate(k.Namespace, &wire.Wanted{Key: k.Key})
}

func (h *hinted) evict(k hints.Key) wire.Status { return h.e.records.Expel(k.Namespace, k.Key) }

// guard keeps panics of an adapter from its callers: they count as failures.
type guard struct{ faults *atomic.Uint64 }

var errAdapterPanic = errors.New("the key adapter panicked")

func (g guard) caught(f func()) {
	if recover() != nil {
		g.faults.Add(1)
		f()
	}
}

// guardedAdapter is an adapter under guard.
type guardedAdapter struct {
	hints.KeyAdapter
	guard
}

func (g *guardedAdapter) ToRouter(namespace string, key []byte) (hash uint64, ok bool) {
	defer g.caught(func() { hash, ok = 0, false })
	return g.KeyAdapter.ToRouter(namespace, key)
}

func (g *guardedAdapter) FromRouter(hash uint64) (k hints.Key, err error) {
	defer g.caught(func() { k, err = hints.Key{}, errAdapterPanic })
	return g.KeyAdapter.FromRouter(hash)
}

// Resolve makes the adapter a peer.Resolver.
func (h *hinted) Resolve(hash uint64) (namespace string, key []byte, st wire.Status) {
	k, why := h.keyOf(hash)
	switch why {
	case "":
		return k.Namespace, k.Key, wire.StatusOK
	case reasonNotFound:
		return "", nil, wire.StatusMiss
	case reasonAdapter:
		return "", nil, wire.StatusAdapter
	}
	return "", nil, wire.StatusAmbiguous
}
