package kvcr

import "github.com/kvcr-go/kvcr/wire"

// Lookup describes the complete block of a key: the fields of o after Key. See
// peer.LookupRecords. It waits for no other call: neither mu nor, but for an index
// that is being changed at that very moment, a shard's token is taken. It also fails
// with StatusBadKey, and with StatusClosed.
func (r *Records) Lookup(namespace string, key []byte, o *wire.Resolved) wire.Status {
	r.looking.RLock()
	defer r.looking.RUnlock()
	if r.e.closed.Load() {
		return wire.StatusClosed
	}
	p, hash, st := r.place(namespace, key)
	if st != wire.StatusOK {
		return st
	}
	b, ok := p.Look(hash, key)
	if !ok {
		return wire.StatusMiss
	}
	o.Generation, o.Size, o.Pools, o.Parts, o.Part = b.Generation, uint64(b.Size), b.Pools, 0, 0
	if b.Parts > 1 {
		o.Parts, o.Part = uint16(b.Parts), uint16(b.Part)
	}
	return wire.StatusOK
}
