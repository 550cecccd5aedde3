package scene

import (
	"fmt"
	"math"
	"slices"

	"github.com/kvcr-go/kvcr/hints/keys"
)

type jsonPrompt struct {
	Name           string   `json:"name"`
	LocalHashes    []uint64 `json:"local_hashes"`
	Tokens         []uint32 `json:"tokens"`
	HashIDs        []uint64 `json:"hash_ids"`
	LoRA           string   `json:"lora"`
	CacheNamespace string   `json:"cache_namespace"`
}

func (r *reading) addPrompt(a *at[jsonPrompt]) error {
	v := &a.v
	if v.Name == "" {
		v.Name = fmt.Sprintf("prompt %d", len(r.Prompts)+1)
	}
	if slices.ContainsFunc(r.Prompts, func(p Prompt) bool { return p.Name == v.Name }) {
		return a.sub(".name").bad(quoted(v.Name), "is taken by another prompt", "give each its own")
	}
	given := 0
	for _, n := range []int{len(v.LocalHashes), len(v.Tokens), len(v.HashIDs)} {
		if n > 0 {
			given++
		}
	}
	if given != 1 {
		return &Error{a.f.name, a.line, a.field, "", "must have local_hashes, tokens or hash_ids, one of them", ""}
	}
	h := keys.Hasher{BlockSize: r.BlockSize, Seed: keys.BlockSeed(v.LoRA, v.CacheNamespace)}
	p := Prompt{Name: v.Name}
	switch {
	case len(v.LocalHashes) > 0:
		if v.LoRA != "" || v.CacheNamespace != "" {
			return &Error{a.f.name, a.line, a.field, "", "local_hashes have lora and cache_namespace in them", "leave those out"}
		}
		p.Locals = v.LocalHashes
	case len(v.Tokens) > 0:
		if len(v.Tokens) < r.BlockSize {
			return a.sub(".tokens").bad(fmt.Sprintf("%d tokens", len(v.Tokens)), fmt.Sprintf("must be one block of %d tokens at least", r.BlockSize), "give more, or another block_size")
		}
		p.Locals = h.AppendLocals(nil, v.Tokens, nil)
	default:
		if err := r.expand(a, &h, &p); err != nil {
			return err
		}
	}
	if len(p.Locals) > MaxBlocks {
		return a.bad(fmt.Sprintf("%d blocks", len(p.Locals)), fmt.Sprintf("must be at most %d", MaxBlocks), "leave some out")
	}
	for i, local := range p.Locals {
		if i == 0 {
			p.Hashes = append(p.Hashes, local)
		} else {
			p.Hashes = append(p.Hashes, keys.Extend(p.Hashes[i-1], local))
		}
	}
	r.Prompts = append(r.Prompts, p)
	return nil
}

// expand makes blocks of the ids of a trace: each stands for idTokens tokens that are
// all the id, as the router's benchmark has it.
func (r *reading) expand(a *at[jsonPrompt], h *keys.Hasher, p *Prompt) error {
	ids := a.v.HashIDs
	for i, id := range ids {
		if id > math.MaxUint32 {
			return a.sub(".hash_ids[%d]", i).bad(id, "must be 0 to 2^32-1: it stands for a token", "")
		}
	}
	n := len(ids) * r.idTokens / r.BlockSize
	if n == 0 || n > MaxBlocks {
		return a.sub(".hash_ids").bad(fmt.Sprintf("%d ids", len(ids)), fmt.Sprintf("make %d blocks of %d tokens, must be 1 to %d", n, r.BlockSize, MaxBlocks), "")
	}
	block := make([]uint32, r.BlockSize)
	for b := range n {
		for i := range block {
			block[i] = uint32(ids[(b*r.BlockSize+i)/r.idTokens])
		}
		p.Locals = append(p.Locals, h.Local(block, nil))
	}
	return nil
}
