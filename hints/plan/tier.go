package plan

import (
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"
)

// tier is the edges of one tier, and who owns them.
//
// Chains lie in chunks: up to 64 edges, each from the hash of the one before it. A
// chunk begins where a chain leaves what was there, or where the chunk before it is
// full; it never moves and is never split. Where a chain goes on from an edge is,
// first, the next edge of its chunk, otherwise a chunk whose parent is the edge's
// hash: heads finds those by parent and first local hash. nodes finds the edges that
// lead to a hash.
//
// An edge lives while it has an owner. A dead one stays in its chunk, and in nodes,
// because the edge after it may live, until the chunk dies or is rewritten; stored
// again, it lives again in its place.
//
//	T1  at most one live edge has a given parent hash and local hash
//	T2  an owner owns at most one edge to a given hash
//	T3  every chunk has an owner, is in heads, and each of its edges is in nodes
//
// Writers hold mu. Lookups hold nothing: hashes, parent and place of a chunk do not
// change while it is reachable; what changes is one word each (A: published by an
// atomic store, after what it makes reachable):
//
//	owned  who owns which edges
//	shape  grows when an edge is appended, after its hashes are written
//	next   a chunk that goes on from the last edge
//
// What leaves the index goes through a limbo. T1 does not hold for a lookup that runs
// beside a rewriting: it may meet the edge in both places, and both are right.
type tier struct {
	epochs *epochs
	mu     sync.Mutex

	chunks slabs[chunkSlab]
	blocks blocks
	recs   records
	nodes  table // edge numbers, by external hash
	heads  table // chunk numbers, by parent and first local hash

	spare    []uint32 // chunks of no use
	gone     limbo[goneThing]
	unmoving int // no rewriting while above 0: somebody goes over the chunks in parts

	// twins counts the edges in nodes beyond the first to their hash. While it is 0, a
	// hash has one edge, and lookups need not look for others.
	twins atomic.Int64

	// moves counts rewritings. A lookup that missed an edge looks again if there was
	// one meanwhile: it may have looked for the edge where it was not yet, and then
	// where it was no more.
	//
	//	(M) the edge's new place, moves.Add, then its old place dies
	//	    pairs with  not found anywhere, then moves.Load
	moves    atomic.Uint64
	inSearch func() // of tests: called by a lookup that is about to look at a chunk

	maxEdges int
	seed     uint64 // of the tables' hashes
	pairs    []int  // by slot: edges owned
	allPairs int
	live     int // edges that live

	cur       openChunk
	untouched int    // how much of the event in hand touch has left
	touched   uint64 // what touch has read, which keeps its loads
}

// chunk is a piece of a chain. Its number is its place in tier.chunks; 0 is none.
type chunk struct {
	owned  atomic.Uint64 // (A)
	parent uint64        // external hash before its first edge
	base   uint32        // in blocks
	shape  atomic.Uint32 // (A) edges | units<<8 | shapeRoot; 0: of no use
	next   atomic.Uint32 // (A) chunk, or 0
	prev   uint32        // the chunk whose next it is; the writer's
}

const chunkBytes = 32

const shapeRoot = 1 << 16 // its parent is the root

func (c *chunk) len() int   { return int(c.shape.Load() & 0xff) }
func (c *chunk) units() int { return int(c.shape.Load() >> 8 & 0xff) }
func (c *chunk) cap() int   { return c.units() * unitBlocks }
func (c *chunk) root() bool { return c.shape.Load()&shapeRoot != 0 }

const chunkSlabLen = 256

type chunkSlab [chunkSlabLen]chunk

// edge numbers an edge: its chunk, and its place in it. The number 0 is none.
type edge uint32

const (
	edgeBits  = 6
	maxChunks = 1 << (32 - edgeBits)
)

func edgeOf(id uint32, at int) edge { return edge(id<<edgeBits | uint32(at)) }
func (e edge) chunk() uint32        { return uint32(e >> edgeBits) }
func (e edge) at() int              { return int(e & (1<<edgeBits - 1)) }

// goneThing is memory that was taken out of a tier.
type goneThing struct {
	id     uint32 // a chunk with its blocks, or
	record uint32 // a record, if id is 0
}

func newTier(e *epochs, maxEdges int) *tier {
	t := &tier{epochs: e, maxEdges: maxEdges, seed: rand.Uint64()}
	t.nodes.hashOf = func(n uint32) uint64 { return t.nodeHash(t.hash(edge(n))) }
	t.heads.hashOf = func(n uint32) uint64 {
		c := t.chunk(n)
		locals, _ := t.blocks.of(c.base, 1)
		return t.headHash(c.root(), c.parent, locals[0])
	}
	t.gone.again = limboBatch
	return t
}

func (t *tier) chunk(id uint32) *chunk {
	return &t.chunks.get(id / chunkSlabLen)[id%chunkSlabLen]
}

// hash returns the external hash that an edge leads to.
func (t *tier) hash(e edge) uint64 {
	_, hashes := t.blocks.of(t.chunk(e.chunk()).base, e.at()+1)
	return hashes[e.at()]
}

// Hashes are mixed anew: those of an engine need not be even, and one that knows the
// mixing could make many fall on one place of a table; hence the seed. The mixing is
// the multiplication of 64 by 64 bits of wyhash (Wang Yi), and so are the constants.
const (
	mix1 = 0xa0761d6478bd642f
	mix2 = 0xe7037ed1a0b428db
	mix3 = 0x8ebc6af09c88c6e3
)

func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

func (t *tier) nodeHash(hash uint64) uint64 { return mix(hash^t.seed, mix2) }

func (t *tier) headHash(root bool, parent, local uint64) uint64 {
	if root {
		return mix(local^t.seed, mix3)
	}
	return mix(mix(parent^t.seed, mix1)^local, mix3)
}

// isHead reports whether a chunk begins with the edge (parent, local).
func (t *tier) isHead(c *chunk, root bool, parent, local uint64) bool {
	if c.root() != root || c.parent != parent {
		return false
	}
	locals, _ := t.blocks.of(c.base, 1)
	return locals[0] == local
}

func (t *tier) lives(c *chunk, at int) bool {
	return t.recs.live(owned(c.owned.Load()))>>at&1 != 0
}

// node returns an edge that leads to a hash, or 0.
func (t *tier) node(hash uint64) edge {
	p := t.nodes.probe(t.nodeHash(hash))
	for n := p.next(); n != 0; n = p.next() {
		if t.hash(edge(n)) == hash {
			return edge(n)
		}
	}
	return 0
}

func (t *tier) bytes() int64 {
	return t.blocks.bytes() + t.recs.bytes() + t.nodes.bytes + t.heads.bytes +
		int64(t.chunks.len())*chunkSlabLen*chunkBytes +
		int64(cap(t.spare))*4 + int64(cap(t.gone.queue))*16 + int64(cap(t.pairs))*8
}
