package kvcr

import "github.com/kvcr-go/kvcr/shard"

// View is a claim on a block: its bytes in place. It stays valid, and the bytes
// unchanged, until Release, on any goroutine, even after the key was replaced,
// deleted or evicted, and after Close.
//
// A View is released once, through one variable: copies share the claim, and a
// second release through a copy takes another reader's claim away (checking
// builds find it). The zero View is released.
type View struct {
	p    *part
	c    shard.Claim
	b    []byte
	hold bool
	drop bool // the block leaves with the last View, see hints' no_retain
}

// Bytes returns the block's bytes, those of its first piece if it has several.
// The caller must not write to them, nor read them after Release.
func (v *View) Bytes() []byte { return v.b }

// Len is the number of payload bytes, all pieces together.
func (v *View) Len() int {
	if v.p == nil {
		return 0
	}
	return v.p.Len(v.c)
}

// Pieces is the number of pieces.
func (v *View) Pieces() int {
	if v.p == nil {
		return 0
	}
	return v.p.Shard.Pieces(v.c)
}

// Piece returns the i-th piece and the name of its pool.
func (v *View) Piece(i int) (b []byte, pool string) {
	b, n := v.p.Shard.Piece(v.c, i)
	if len(v.p.ns.cfg.Pools) > 0 {
		pool = v.p.ns.cfg.Pools[n].Name
	}
	return b, pool
}

// Verify compares the bytes with the checksum made when they were written. It
// is true for blocks without one.
func (v *View) Verify() bool { return v.p == nil || v.p.Shard.Verify(v.c) }

// Generation identifies this life of the block's memory: another number means
// that the block was written anew.
func (v *View) Generation() uint32 {
	if v.p == nil {
		return 0
	}
	return v.p.Shard.Generation(v.c)
}

// Again returns a second View of the same block, with a claim of its own. It is
// the zero View when v is.
func (v *View) Again() View {
	if v.p == nil || v.p.ns.unmapped.Load() {
		return View{}
	}
	c, ok := v.p.Again(v.c)
	if !ok {
		return View{}
	}
	return View{p: v.p, c: c, b: v.b, drop: v.drop}
}

// Release ends the claim. A second Release is ErrReleased and changes nothing.
func (v *View) Release() error {
	p := v.p
	if p == nil || p.ns.unmapped.Load() {
		return ErrReleased
	}
	c, hold, drop := v.c, v.hold, v.drop
	*v = View{}
	var err error
	if drop {
		return p.e.releaseDropped(p, c)
	}
	if hold {
		err = p.Unhold(c)
	} else {
		err = p.Release(c)
	}
	if p.e.closed.Load() {
		p.e.settle()
	}
	return err
}
