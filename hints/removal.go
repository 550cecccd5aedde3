package hints

import "fmt"

// Removal is the payload of kv.invalidate and kv.evict, which are about blocks of this
// engine alone:
//
//	block_hashes  list of hashes, as in Transfer
//	lower_tiers   truth value, default false; of kv.evict: copies in files go as
//	              well. kv.invalidate always means all tiers, or a block that is
//	              no longer valid could come back from a file.
//
// Other fields are ignored, a source too. Neither needs a request.
//
// There are no generations in it, which routers do not know. What is meant is the block
// that has the hash when the action is served: the handler notes its generation then,
// and a block that was stored anew before the removal reaches it stays.
type Removal struct {
	Hashes     []uint64 // they may repeat (see Distinct)
	LowerTiers bool
}

// Reset empties r but for the memory of its hashes.
func (r *Removal) Reset() { *r = Removal{Hashes: r.Hashes[:0]} }

func parseRemoval(r *Removal, p Value, lim *Limits) (err error) {
	if r.Hashes, err = p.Field("block_hashes").AppendHashes(r.Hashes, lim.Hashes); err != nil {
		return err
	}
	r.LowerTiers, err = p.Field("lower_tiers").flag("lower_tiers")
	return err
}

func checkRemoval(r *Removal, lim *Limits) error { return checkHashes(r.Hashes, lim) }

// checkHashes checks hashes that came decoded.
func checkHashes(hashes []uint64, lim *Limits) error {
	if len(hashes) == 0 {
		return &Rejection{MissingHashes, "block_hashes is empty"}
	}
	if len(hashes) > lim.Hashes {
		return &Rejection{LimitExceeded, fmt.Sprintf("%d hashes, limit %d (raise Limits.Hashes)", len(hashes), lim.Hashes)}
	}
	return nil
}

// InvalidateType is kv.invalidate: the blocks are no longer valid. LowerTiers is always
// true for its handler.
func InvalidateType(handle func(*Call, *Removal) error) Type[Removal] {
	return Type[Removal]{
		Name: TypeInvalidate, Version: version, Parse: parseRemoval, Check: checkRemoval,
		Handle: func(c *Call, r *Removal) error {
			return handle(c, &Removal{Hashes: r.Hashes, LowerTiers: true})
		},
	}
}

// EvictType is kv.evict: the blocks are not worth their memory.
func EvictType(handle func(*Call, *Removal) error) Type[Removal] {
	return Type[Removal]{Name: TypeEvict, Version: version, Parse: parseRemoval, Check: checkRemoval, Handle: handle}
}
