package keys

import "math/bits"

// tokenChunk is how many tokens are reserved at a time for one size of blocks: 64
// KiB. Arbitrary; small beside what is kept for any number of blocks worth it.
const tokenChunk = 16 << 10

// MaxBlockTokens is how many tokens one block may be described with.
const MaxBlockTokens = tokenChunk

// tokenRef names the tokens of one block. The zero tokenRef is none.
type tokenRef struct {
	slot uint32 // from 1
	n    uint32
}

// tokenStore keeps the tokens of blocks in slots of powers of two, outside of what
// the garbage collector walks. It takes memory up to its limit and keeps it.
type tokenStore struct {
	limit, bytes int64
	classes      [15]tokenClass // by log2 of the slot's tokens, up to MaxBlockTokens
}

type tokenClass struct {
	chunks [][]uint32
	free   []uint32
	fresh  uint32
}

func classOf(n uint32) int { return bits.Len32(n - 1) }

// put keeps a copy of tokens. False: the limit is reached.
func (s *tokenStore) put(tokens []uint32) (tokenRef, bool) {
	if len(tokens) == 0 {
		return tokenRef{}, true
	}
	n := uint32(len(tokens))
	class := classOf(n)
	c := &s.classes[class]
	each := uint32(1) << class
	var slot uint32
	if k := len(c.free); k > 0 {
		slot = c.free[k-1]
		c.free = c.free[:k-1]
	} else {
		if int(c.fresh) == len(c.chunks)*int(tokenChunk/each) {
			if s.bytes+4*tokenChunk > s.limit {
				return tokenRef{}, false
			}
			s.bytes += 4 * tokenChunk
			c.chunks = append(c.chunks, make([]uint32, tokenChunk))
		}
		c.fresh++
		slot = c.fresh
	}
	r := tokenRef{slot, n}
	copy(s.get(r), tokens)
	return r, true
}

// get returns the tokens in place.
func (s *tokenStore) get(r tokenRef) []uint32 {
	if r.n == 0 {
		return nil
	}
	class := classOf(r.n)
	each := uint32(1) << class
	per := tokenChunk / each
	chunk := s.classes[class].chunks[(r.slot-1)/per]
	at := (r.slot - 1) % per * each
	return chunk[at : at+r.n : at+each]
}

func (s *tokenStore) drop(r tokenRef) {
	if r.n > 0 {
		c := &s.classes[classOf(r.n)]
		c.free = append(c.free, r.slot)
	}
}

// names numbers strings while somebody uses them. 0 is the empty string.
type names struct {
	numbers map[string]uint32
	list    slots[name]
}

type name struct {
	text string
	uses int
}

func (n *names) use(text string) uint32 {
	if text == "" {
		return 0
	}
	id, ok := n.numbers[text]
	if !ok {
		id = n.list.take()
		n.list.at(id).text = text
		if n.numbers == nil {
			n.numbers = map[string]uint32{}
		}
		n.numbers[text] = id
	}
	n.list.at(id).uses++
	return id
}

func (n *names) text(id uint32) string {
	if id == 0 {
		return ""
	}
	return n.list.at(id).text
}

func (n *names) drop(id uint32) {
	if id == 0 {
		return
	}
	e := n.list.at(id)
	if e.uses--; e.uses == 0 {
		delete(n.numbers, e.text)
		n.list.put(id)
	}
}
