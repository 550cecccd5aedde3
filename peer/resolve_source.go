package peer

import (
	"fmt"
	"log/slog"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/kvcr-go/kvcr/wire"
)

// Resolver knows which keys have which hashes: the adapter of the host program.
type Resolver interface {
	// Resolve returns the key that has a hash, with StatusOK: the one that the node
	// may have a block of. Failures: StatusMiss, StatusAmbiguous for several. Any
	// other status, a panic, and a key or namespace that cannot be one (1 to
	// wire.MaxKey bytes; at most wire.MaxName bytes of UTF-8) are StatusAdapter for
	// that hash, and are counted (Stats.AdapterFailures).
	//
	// It is called from several goroutines at a time. It must not block, since others
	// wait meanwhile. The key is not kept: it is copied before the next call.
	Resolve(hash uint64) (namespace string, key []byte, status wire.Status)
}

// Describer is a Resolver that also describes blocks, for the Resolver's counterpart in
// the process that asks (Resolution.Description). What it says is opaque here.
type Describer interface {
	// AppendDescription appends what there is to say of a block that was resolved, at
	// most limit bytes. More than that, and a panic, count as Stats.AdapterFailures,
	// and the block goes without. It is called as Resolve is.
	AppendDescription(dst []byte, limit int, namespace string, key []byte) []byte
}

// LookupRecords is the block table as hashes are resolved.
type LookupRecords interface {
	// Lookup describes the complete block that the table itself has under a key: the
	// fields of r after Key. It claims nothing, is no access as far as eviction goes,
	// and does not wait for other calls. Failures: StatusMiss, StatusClosed.
	Lookup(namespace string, key []byte, r *wire.Resolved) wire.Status
}

// AnswerHashes is a source's answer to a request of dest. failures counts the hashes
// that the resolver could not tell, or not describe, and fault is what one of them was
// like.
//
// Source and destination that are one process are told so before anything is looked
// up.
func AnswerHashes(self Incarnation, resolver Resolver, rec LookupRecords, m *wire.ResolveHashes) (answer *wire.HashesResolved, failures int, fault string) {
	answer = &wire.HashesResolved{Source: uint64(self), Dest: m.Dest, Items: make([]wire.Resolved, len(m.Hashes))}
	describer, _ := resolver.(Describer)
	for i, hash := range m.Hashes {
		r := &answer.Items[i]
		if Incarnation(m.Dest) == self {
			r.Status = wire.StatusSelf
			continue
		}
		if what := resolveOne(resolver, hash, r); what != "" {
			*r = wire.Resolved{Status: wire.StatusAdapter}
			failures, fault = failures+1, what
		}
		if r.Status != wire.StatusOK {
			continue
		}
		if s := rec.Lookup(r.Namespace, r.Key, r); s != wire.StatusOK {
			*r = wire.Resolved{Status: s}
			continue
		}
		if describer == nil {
			continue
		}
		if what := describeOne(describer, r); what != "" {
			r.Description = nil
			failures, fault = failures+1, what
		}
	}
	return answer, failures, fault
}

// resolveOne asks the resolver for one key. fault is not empty when that has failed.
func resolveOne(resolver Resolver, hash uint64, r *wire.Resolved) (fault string) {
	defer func() {
		if p := recover(); p != nil {
			fault = fmt.Sprintf("panic: %v", p)
		}
	}()
	namespace, key, status := resolver.Resolve(hash)
	switch {
	case status == wire.StatusMiss || status == wire.StatusAmbiguous:
		*r = wire.Resolved{Status: status}
		return ""
	case status != wire.StatusOK:
		return "status " + status.String()
	case len(key) == 0 || len(key) > wire.MaxKey:
		return fmt.Sprintf("a key of %d bytes; 1 to %d are possible", len(key), wire.MaxKey)
	case len(namespace) > wire.MaxName || !utf8.ValidString(namespace):
		return fmt.Sprintf("a namespace that cannot be one: %.40q", namespace)
	}
	*r = wire.Resolved{Namespace: namespace, Key: append([]byte(nil), key...)}
	return ""
}

// describeOne has a block described. fault is not empty when that has failed.
func describeOne(d Describer, r *wire.Resolved) (fault string) {
	defer func() {
		if p := recover(); p != nil {
			fault = fmt.Sprintf("panic: %v", p)
		}
	}()
	r.Description = d.AppendDescription(nil, wire.MaxDescription, r.Namespace, r.Key)
	if n := len(r.Description); n > wire.MaxDescription {
		return fmt.Sprintf("a description of %d bytes; %d are possible", n, wire.MaxDescription)
	}
	return ""
}

// Bounds of what a source resolves at a time: of one destination, as many as its own
// bounds (destResolves, ResolveLimits.Window) allow by two endpoints of this node, also
// when it has just connected anew; and of all. More is answered StatusBusy, and asked
// again.
const (
	sourceResolves = 64
	nodeResolves   = 1024
)

// resolves are the requests that are being answered. Neither the event loop nor the
// links wait for them: what a link has to do may take its time.
type resolves struct {
	crew crew

	mu   sync.Mutex
	now  map[resolveID]struct{}
	each map[Incarnation]int // requests of one destination
}

type resolveID struct {
	conn *control
	id   uint64
}

// begin notes a request. Busy: there are too many; again: it is being answered.
func (r *resolves) begin(id resolveID, of Incarnation) (busy, again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.now[id]; ok {
		return false, true
	}
	if len(r.now) >= nodeResolves || r.each[of] >= sourceResolves {
		return true, false
	}
	if r.now == nil {
		r.now, r.each = map[resolveID]struct{}{}, map[Incarnation]int{}
	}
	r.now[id] = struct{}{}
	r.each[of]++
	return false, false
}

func (r *resolves) end(id resolveID, of Incarnation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.now, id)
	if r.each[of]--; r.each[of] == 0 {
		delete(r.each, of)
	}
}

// resolve answers a request for hashes. It is called by the event loop.
func (l *sourceLink) resolve(c *control, id uint64, m *wire.ResolveHashes) {
	n := l.node
	say := func(s wire.Status) { c.write((&wire.StatusReply{Status: s}).Append(nil, id)) }
	switch dest := Incarnation(m.Dest); {
	case dest != l.who && dest != n.cfg.Self:
		say(wire.StatusIncarnation)
		return
	case n.cfg.Resolver == nil && dest != n.cfg.Self:
		say(wire.StatusUnsupported)
		return
	}
	which := resolveID{c, id}
	switch busy, again := n.resolves.begin(which, l.who); {
	case busy:
		say(wire.StatusBusy)
		return
	case again: // the answer is on its way
		return
	}
	n.resolves.crew.push(func() {
		defer n.resolves.end(which, l.who)
		if n.closing.Load() || c.ended.Load() {
			return
		}
		answer, failures, fault := AnswerHashes(n.cfg.Self, n.cfg.Resolver, n.cfg.Records, m)
		n.count.hashes.Add(uint64(len(m.Hashes)))
		if failures > 0 {
			n.count.adapter.Add(uint64(failures))
			n.complain(failures, fault)
		}
		c.write(answer.Append(nil, id))
	})
}

// complain tells of a resolver that fails, once in a second at most.
func (n *Node) complain(failures int, fault string) {
	level := slog.LevelDebug
	now, last := int64(n.Now()), n.complained.Load()
	if (last == 0 || now-last >= int64(time.Second)) && n.complained.CompareAndSwap(last, now) {
		level = slog.LevelWarn
	}
	n.log.Log(n.ctx, level, "the key adapter failed: hashes are not resolved, or not described", "hashes", failures, "one of them", fault, "failures", n.count.adapter.Load())
}
