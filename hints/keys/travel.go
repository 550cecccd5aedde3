package keys

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"unicode/utf8"

	"github.com/kvcr-go/kvcr/hints"
)

// A description on its way from one Table to another, little-endian:
//
//	version  u8   1
//	flags    u8   1: there is a parent; else the block begins a chain
//	              2: there is a local hash; never beside tokens, from which it follows
//	size     u32  tokens of a block; 0: not told
//	parent   u64  if flagged
//	local    u64  if flagged
//	lora     u16 length, then UTF-8
//	salt     u16 length, then UTF-8: the cache namespace
//	tokens   u16 count; if not 0, u8 width, then each in width bytes: 1 to 4, as many
//	         as the largest needs
//	media    u8 count, then u64 each
//
// Nothing follows. Of one description there is one encoding: with its tokens where the
// limit allows, else with the local hash in place of tokens and media.
const (
	travelVersion = 1

	travelParent = 1
	travelLocal  = 2
)

// AppendDescription implements hints.Describer: what the host has told of a block, or a
// peer; else the parent that the engine names, of a key that has the rest. Nothing where
// limit does not even hold the hashes and names.
func (t *Table) AppendDescription(dst []byte, limit int, k hints.Key) []byte {
	s, hash, ok := t.lookup(k.Namespace, k.Key)
	if !ok {
		return dst
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	d, told := t.describing(s, hash, k.Key)
	if !told && !(d.HasParent && d.HasLocal) {
		return dst
	}
	if n := d.travelSize(); n > limit {
		d.Tokens, d.Media = nil, nil
		if d.travelSize() > limit {
			return dst
		}
	}
	return d.appendTravel(dst)
}

// tokenWidth is how many bytes each of tokens takes.
func tokenWidth(tokens []uint32) int {
	all := uint32(0)
	for _, t := range tokens {
		all |= t
	}
	return max(1, (bits.Len32(all)+7)/8)
}

// travelSize is how long the encoding is.
func (d *Description) travelSize() int {
	n := 1 + 1 + 4 + 2 + len(d.LoRA) + 2 + len(d.CacheNamespace) + 2 + 1 + 8*len(d.Media)
	if d.HasParent {
		n += 8
	}
	if len(d.Tokens) > 0 {
		n += 1 + tokenWidth(d.Tokens)*len(d.Tokens)
	} else if d.HasLocal {
		n += 8
	}
	return n
}

func (d *Description) appendTravel(dst []byte) []byte {
	le := binary.LittleEndian
	dst = slices.Grow(dst, d.travelSize())
	local := d.HasLocal && len(d.Tokens) == 0
	var flags byte
	if d.HasParent {
		flags |= travelParent
	}
	if local {
		flags |= travelLocal
	}
	dst = append(dst, travelVersion, flags)
	dst = le.AppendUint32(dst, uint32(d.BlockSize))
	if d.HasParent {
		dst = le.AppendUint64(dst, d.Parent)
	}
	if local {
		dst = le.AppendUint64(dst, d.Local)
	}
	for _, text := range [...]string{d.LoRA, d.CacheNamespace} {
		dst = le.AppendUint16(dst, uint16(len(text)))
		dst = append(dst, text...)
	}
	dst = le.AppendUint16(dst, uint16(len(d.Tokens)))
	if len(d.Tokens) > 0 {
		width := tokenWidth(d.Tokens)
		dst = append(dst, byte(width))
		var b [4]byte
		for _, t := range d.Tokens {
			le.PutUint32(b[:], t)
			dst = append(dst, b[:width]...)
		}
	}
	dst = append(dst, byte(len(d.Media)))
	for _, m := range d.Media {
		dst = le.AppendUint64(dst, m)
	}
	return dst
}

// travelReader takes a description apart. The first problem counts.
type travelReader struct {
	b   []byte
	err error
}

func (r *travelReader) bad(what string, value any, limit string) {
	if r.err == nil {
		r.err = travelError(what, value, limit, "update the older of the two nodes")
	}
}

func travelError(what string, value any, limit, fix string) error {
	return &Error{"description by a peer: " + what, value, limit, fix}
}

// take returns the next n bytes; if they are not there, as many zeros as any number has.
func (r *travelReader) take(n int, what string) []byte {
	if n > len(r.b) {
		r.bad(what, fmt.Sprintf("%d bytes", len(r.b)), fmt.Sprintf("%d bytes", n))
	}
	if r.err != nil {
		return make([]byte, min(n, 8))
	}
	p := r.b[:n]
	r.b = r.b[n:]
	return p
}

func (r *travelReader) u8(what string) byte    { return r.take(1, what)[0] }
func (r *travelReader) u16(what string) int    { return int(binary.LittleEndian.Uint16(r.take(2, what))) }
func (r *travelReader) u32(what string) uint32 { return binary.LittleEndian.Uint32(r.take(4, what)) }
func (r *travelReader) u64(what string) uint64 { return binary.LittleEndian.Uint64(r.take(8, what)) }

func (r *travelReader) text(what string) string {
	n := r.u16(what)
	if n > maxNameText {
		r.bad(what, fmt.Sprintf("%d bytes", n), fmt.Sprintf("at most %d", maxNameText))
	}
	if r.err != nil {
		return ""
	}
	p := r.take(n, what)
	if !utf8.Valid(p) {
		r.bad(what, fmt.Sprintf("%q", p), "UTF-8")
	}
	return string(p)
}

// parseTravel is the inverse of appendTravel; Description.check is to follow. What it returns has memory of its own, in
// proportion to b.
func parseTravel(b []byte) (d Description, err error) {
	r := travelReader{b: b}
	if v := r.u8("version"); v != travelVersion {
		r.bad("version", v, fmt.Sprint(travelVersion))
	}
	flags := r.u8("flags")
	if flags&^(travelParent|travelLocal) != 0 {
		r.bad("flags", flags, "parent, local hash")
	}
	d.BlockSize = int(r.u32("block size"))
	if d.HasParent = flags&travelParent != 0; d.HasParent {
		d.Parent = r.u64("parent")
	}
	if d.HasLocal = flags&travelLocal != 0; d.HasLocal {
		d.Local = r.u64("local hash")
	}
	d.LoRA, d.CacheNamespace = r.text("LoRA"), r.text("cache namespace")
	if n := r.u16("tokens"); n > 0 && r.err == nil {
		d.Tokens = r.tokens(n, &d)
	}
	if n := int(r.u8("media")); n > maxMedia {
		r.bad("media", n, fmt.Sprintf("at most %d", maxMedia))
	} else if p := r.take(8*n, "media"); n > 0 && r.err == nil {
		for ; len(p) > 0; p = p[8:] {
			d.Media = append(d.Media, binary.LittleEndian.Uint64(p))
		}
	}
	if len(r.b) > 0 {
		r.bad("end", fmt.Sprintf("%d bytes more", len(r.b)), "nothing behind the media")
	}
	if r.err != nil {
		return Description{}, r.err
	}
	return d, nil
}

func (r *travelReader) tokens(n int, d *Description) []uint32 {
	width := int(r.u8("token width"))
	switch {
	case width < 1 || width > 4:
		r.bad("token width", width, "1 to 4 bytes")
	case d.HasLocal:
		r.bad("local hash", d.Local, "none beside tokens")
	case d.BlockSize == 0:
		r.bad("block size", 0, "that of the tokens")
	}
	p := r.take(n*width, "tokens")
	if r.err != nil {
		return nil
	}
	tokens := make([]uint32, 0, n)
	for ; len(p) > 0; p = p[width:] {
		var b [4]byte
		copy(b[:], p[:width])
		tokens = append(tokens, binary.LittleEndian.Uint32(b[:]))
	}
	if w := tokenWidth(tokens); w != width {
		r.bad("token width", width, fmt.Sprintf("%d, which holds the largest", w))
	}
	return tokens
}

// TakeDescription implements hints.Describer. What the host has told of the block stays
// as it is; else the description is kept as one by Describe would be. It is refused
// where it cannot be that of the key. Failures: ErrInvalid.
func (t *Table) TakeDescription(k hints.Key, description []byte) error {
	d, err := parseTravel(description)
	if err == nil {
		err = d.check()
	}
	if err != nil {
		return err
	}
	s, hash, ok := t.lookup(k.Namespace, k.Key)
	if !ok {
		return unknownKey(k.Namespace, k.Key)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.follows(&d); err != nil {
		return err
	}
	if err := s.bearsOut(hash, k.Key, &d); err != nil {
		return err
	}
	t.note(s, hash, k.Key, &d, peer)
	return nil
}

// bearsOut reports what speaks against a description in the key itself. Of vLLM's
// digests there is little to tell by.
func (s *space) bearsOut(hash uint64, key []byte, d *Description) error {
	const fix = "compare the recipes of both nodes: hash, seed and block size"
	if d.HasParent && d.Parent == hash {
		return travelError("parent", d.Parent, "another block", fix)
	}
	local, has := s.style.Local(key)
	switch {
	case !has:
		local, has = d.Local, d.HasLocal
	case d.HasLocal && d.Local != local:
		return travelError("local hash", d.Local, fmt.Sprintf("%d, as the key says", local), fix)
	}
	if _, chained := s.style.(Dynamo); !chained || !has {
		return nil
	}
	if d.HasParent {
		local = Extend(d.Parent, local)
	}
	if local != hash {
		return travelError("place", fmt.Sprintf("that of block %d", local), fmt.Sprintf("that of block %d, by the key", hash), fix)
	}
	return nil
}

var _ hints.Describer = (*Table)(nil)
