package keys

import (
	"encoding/binary"
	"fmt"

	"github.com/kvcr-go/kvcr/hints"
)

// Style says how the keys of a namespace hold the hashes of routers. Its methods
// are pure functions, called from any goroutine.
type Style interface {
	// Hash returns the hash that routers know a key by. False: they do not know
	// such keys.
	Hash(key []byte) (uint64, bool)
	// HashOfPart returns the hash of the block that a key is any part of, also one
	// that routers do not know: engines name parents by another part than the one
	// that stands for the block.
	HashOfPart(key []byte) (uint64, bool)
	// Local returns the hash of the block's own tokens, if the key has it.
	Local(key []byte) (uint64, bool)
	// AppendKey appends the key with that hash. False: the hash alone does not
	// determine it.
	AppendKey(dst []byte, hash uint64) ([]byte, bool)
}

// Dynamo is the style of keys that are the sequence hash, as Dynamo computes it: 8
// bytes big-endian, and then what is configured here.
type Dynamo struct {
	// WithLocal: the local hash follows, 8 bytes big-endian. Such keys describe
	// themselves in events, and cannot be made from the hash alone.
	WithLocal bool
	// Suffix ends each key: the part, layer group or rank that the block is of.
	// Keys with another suffix are none that routers know, so that of the parts of
	// one block exactly one stands for it.
	Suffix string
}

func (d Dynamo) prefix() int {
	if d.WithLocal {
		return 16
	}
	return 8
}

// Hash implements Style.
func (d Dynamo) Hash(key []byte) (uint64, bool) {
	n := d.prefix()
	if len(key) != n+len(d.Suffix) || string(key[n:]) != d.Suffix {
		return 0, false
	}
	return binary.BigEndian.Uint64(key), true
}

// HashOfPart implements Style: with a Suffix, keys may have any.
func (d Dynamo) HashOfPart(key []byte) (uint64, bool) {
	if n := d.prefix(); len(key) < n || d.Suffix == "" && len(key) > n {
		return 0, false
	}
	return binary.BigEndian.Uint64(key), true
}

// Local implements Style.
func (d Dynamo) Local(key []byte) (uint64, bool) {
	if _, ok := d.Hash(key); !ok || !d.WithLocal {
		return 0, false
	}
	return binary.BigEndian.Uint64(key[8:]), true
}

// AppendKey implements Style.
func (d Dynamo) AppendKey(dst []byte, hash uint64) ([]byte, bool) {
	if d.WithLocal {
		return dst, false
	}
	return d.append(dst, hash, 0), true
}

// AppendBlockKey appends the key of a block of which both hashes are known.
func (d Dynamo) AppendBlockKey(dst []byte, seq, local uint64) []byte {
	return d.append(dst, seq, local)
}

func (d Dynamo) append(dst []byte, seq, local uint64) []byte {
	dst = binary.BigEndian.AppendUint64(dst, seq)
	if d.WithLocal {
		dst = binary.BigEndian.AppendUint64(dst, local)
	}
	return append(dst, d.Suffix...)
}

// VLLM is the style of keys that are vLLM's block hashes: a digest, and the id of
// the cache group in those of the kind BlockHashWithGroupId.
type VLLM struct {
	// DigestBytes is how long digests are, at least 8: 32 of SHA-256. 0: any.
	DigestBytes int
	// WithGroup: a group id of 4 bytes, big-endian, follows the digest.
	WithGroup bool
	// OnlyGroup restricts keys to those of Group: routers know no others. Without
	// it the keys of one block in two groups share a hash, which then is ambiguous.
	OnlyGroup bool
	Group     uint32
}

func (v VLLM) digest(key []byte) ([]byte, bool) {
	if v.WithGroup {
		n := len(key) - 4
		if n < 0 || v.OnlyGroup && binary.BigEndian.Uint32(key[n:]) != v.Group {
			return nil, false
		}
		key = key[:n]
	}
	return key, len(key) >= 8 && (v.DigestBytes == 0 || len(key) == v.DigestBytes)
}

// Hash implements Style.
func (v VLLM) Hash(key []byte) (uint64, bool) {
	d, ok := v.digest(key)
	if !ok {
		return 0, false
	}
	return Low64(d)
}

// HashOfPart implements Style: the group may be any.
func (v VLLM) HashOfPart(key []byte) (uint64, bool) {
	v.OnlyGroup = false
	return v.Hash(key)
}

// Local implements Style. A digest does not tell.
func (v VLLM) Local(key []byte) (uint64, bool) { return 0, false }

// AppendKey implements Style. A digest does not follow from its low bits.
func (v VLLM) AppendKey(dst []byte, hash uint64) ([]byte, bool) { return dst, false }

// AppendBlockKey appends the key of a block by its digest.
func (v VLLM) AppendBlockKey(dst, digest []byte, group uint32) []byte {
	dst = append(dst, digest...)
	if v.WithGroup {
		dst = binary.BigEndian.AppendUint32(dst, group)
	}
	return dst
}

// Direct is a hints.KeyAdapter for one namespace that computes and remembers
// nothing. It does not know what is resident: FromRouter returns the key that a
// hash stands for, or hints.ErrNotFound where the hash does not determine it.
type Direct struct {
	Namespace string
	Style     Style
}

// Encode implements hints.KeyAdapter.
func (d Direct) Encode(hash uint64) (hints.Key, bool) {
	key, ok := d.Style.AppendKey(nil, hash)
	if !ok {
		return hints.Key{}, false
	}
	return hints.Key{Namespace: d.Namespace, Key: key}, true
}

// ToRouter implements hints.KeyAdapter.
func (d Direct) ToRouter(namespace string, key []byte) (uint64, bool) {
	if namespace != d.Namespace {
		return 0, false
	}
	return d.Style.Hash(key)
}

// FromRouter implements hints.KeyAdapter.
func (d Direct) FromRouter(hash uint64) (hints.Key, error) {
	k, ok := d.Encode(hash)
	if !ok {
		return k, fmt.Errorf("%w: hash %d alone does not determine a key of namespace %q; use a Table", hints.ErrNotFound, hash, d.Namespace)
	}
	return k, nil
}
