package keys

import (
	"math/bits"
	"slices"
)

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
// the garbage collector walks. It takes memory up to its limit and keeps it; at the
// limit chunks that nothing lies in go from one size to another.
type tokenStore struct {
	limit, bytes int64
	idle         int            // chunks that nothing lies in
	classes      [15]tokenClass // by log2 of the slot's tokens, up to MaxBlockTokens
}

type tokenClass struct {
	chunks [][]uint32 // nil: given away
	used   []uint16   // slots of each
	holes  []uint32   // chunks that were given away
	free   []uint32   // slots from 1
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
	per := uint32(tokenChunk >> class)
	if len(c.free) == 0 {
		if s.bytes+4*tokenChunk > s.limit && !s.reclaim() {
			return tokenRef{}, false
		}
		s.bytes += 4 * tokenChunk
		s.idle++
		c.grow(per)
	}
	slot := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	if used := &c.used[(slot-1)/per]; *used == 0 {
		s.idle--
		*used = 1
	} else {
		*used++
	}
	r := tokenRef{slot, n}
	copy(s.get(r), tokens)
	return r, true
}

// grow adds a chunk of so many slots.
func (c *tokenClass) grow(per uint32) {
	at := uint32(len(c.chunks))
	if n := len(c.holes); n > 0 {
		at = c.holes[n-1]
		c.holes = c.holes[:n-1]
		c.chunks[at] = make([]uint32, tokenChunk)
	} else {
		c.chunks, c.used = append(c.chunks, make([]uint32, tokenChunk)), append(c.used, 0)
	}
	for slot := (at + 1) * per; slot > at*per; slot-- {
		c.free = append(c.free, slot)
	}
}

// reclaim gives up the chunks that nothing lies in, and reports whether there were any:
// else sizes that are out of use would keep their memory from others for ever.
func (s *tokenStore) reclaim() bool {
	if s.idle == 0 {
		return false
	}
	for class := range s.classes {
		c := &s.classes[class]
		per := uint32(tokenChunk >> class)
		gone := false
		for at, chunk := range c.chunks {
			if chunk != nil && c.used[at] == 0 {
				c.chunks[at], gone = nil, true
				c.holes = append(c.holes, uint32(at))
				s.bytes -= 4 * tokenChunk
			}
		}
		if gone {
			c.free = slices.DeleteFunc(c.free, func(slot uint32) bool { return c.chunks[(slot-1)/per] == nil })
		}
	}
	s.idle = 0
	return true
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
	if r.n == 0 {
		return
	}
	class := classOf(r.n)
	c := &s.classes[class]
	c.free = append(c.free, r.slot)
	used := &c.used[(r.slot-1)/uint32(tokenChunk>>class)]
	if *used--; *used == 0 {
		s.idle++
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
