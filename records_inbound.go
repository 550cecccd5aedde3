package kvcr

import (
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/shard"
)

// inbound is what must be known of an operation's items to put a chain and its
// groups together: items are reserved in their order, one describes the next.
type inbound struct {
	last     int // item reserved last, -1 for none
	lastKey  []byte
	lastPart bool // it is a part of a group and not the last one
	chain    *inChain
	group    groupLook
	resident uint32 // lookExists: the group
	// waiting are blocks that were committed before their parent, by its key.
	waiting map[string][]shard.Child
}

// inChain is a run of items of which each is the parent of the next.
type inChain struct {
	length uint32 // up to its last item
	last   int
}

// groupLook says how the parts of the group under way are treated: all of them as
// the first one was.
type groupLook uint8

const (
	lookFirst   groupLook = iota
	lookExists            // the first part is resident in a group: so must the others be
	lookReserve           // memory is being reserved
	lookFailed
)

// inbounds are the operations that reserved last. There is no end of an
// operation that everybody would tell, so the oldest makes room; what it loses is
// that blocks find late parents.
type inbounds struct {
	ops   map[peer.OpID]*inbound
	order []peer.OpID // a ring
	next  int
}

// maxInbound bounds the operations remembered. More than a few hundred are not
// under way at a time.
const maxInbound = 1024

// get returns an operation's, made at the first use.
func (x *inbounds) get(op peer.OpID) *inbound {
	if in := x.ops[op]; in != nil {
		return in
	}
	if len(x.order) < maxInbound {
		x.order = append(x.order, op)
	} else {
		delete(x.ops, x.order[x.next])
		x.order[x.next] = op
		x.next = (x.next + 1) % maxInbound
	}
	in := &inbound{last: -1}
	x.ops[op] = in
	return in
}

// arrived takes note of a committed block: missing is the key of a parent that
// was not there, nil if none is.
func (in *inbound) arrived(key []byte, hash uint64, missing []byte) {
	delete(in.waiting, string(key))
	if missing == nil {
		return
	}
	if in.waiting == nil {
		in.waiting = map[string][]shard.Child{}
	}
	in.waiting[string(missing)] = append(in.waiting[string(missing)], shard.Child{Hash: hash, Key: key})
}
