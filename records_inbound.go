package kvcr

import (
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/shard"
	"github.com/kvcr-go/kvcr/wire"
)

// inbound is what must be known of an operation's items to put a chain and its
// groups together: items are reserved in their order, one describes the next.
type inbound struct {
	last     int // item reserved last, -1 for none
	lastKey  []byte
	lastPart bool // it is a part of a group and not the last one
	chain    *inChain
	group    groupLook
	whole    uint32 // lookExists: the group
	// resident are the checksums offered of what is resident here, by the keys'
	// hashes, until a hold is asked for.
	resident map[uint64]offeredSum
	missing  []waited // parents that it has made inbounds.waiting know
}

type offeredSum struct {
	sum uint64
	has bool
}

// waited is a parent that blocks wait for.
type waited struct {
	p   *part
	key string
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
	// waiting are blocks that were committed before their parent, which may be of
	// another operation: a long chain is fetched by several.
	waiting map[waited][]shard.Child
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
		for _, w := range x.ops[x.order[x.next]].missing {
			delete(x.waiting, w)
		}
		delete(x.ops, x.order[x.next])
		x.order[x.next] = op
		x.next = (x.next + 1) % maxInbound
	}
	in := &inbound{last: -1}
	x.ops[op] = in
	return in
}

// exists takes note of an offered block that is resident here. Of two keys with one
// hash nothing is known.
func (in *inbound) exists(hash uint64, o *wire.Offered) {
	if in.resident == nil {
		in.resident = map[uint64]offeredSum{}
	}
	_, twice := in.resident[hash]
	in.resident[hash] = offeredSum{o.Sum, o.Flags&wire.OfferSum != 0 && !twice}
}

// arrived takes note of a committed block: missing is the key of a parent that
// was not there, nil if none is.
func (x *inbounds) arrived(s *inSlot, missing []byte) {
	if len(x.waiting) > 0 {
		delete(x.waiting, waited{s.p, string(s.key)})
	}
	if missing == nil {
		return
	}
	w := waited{s.p, string(missing)}
	if x.waiting[w] == nil {
		in := x.get(s.op)
		in.missing = append(in.missing, w)
	}
	x.waiting[w] = append(x.waiting[w], shard.Child{Hash: s.a.Hash, Key: s.key})
}
