package server

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/wire/resp"
)

// pairs makes two keys of one stem live and die together. LMCache's classic
// connectors store a chunk as STEMkv_bytes and STEMmetadata, in two SETs; a cache
// that evicts or shows only one of them makes the client see a chunk that is not
// there.
//
// The first part that arrives waits under a key of its own, which no client can
// name, and is seen by nobody. With the second, both become one group of the
// engine (which needs a chained namespace): visible at once, evicted and deleted
// together. A part whose partner never comes leaves as other blocks do.
type pairs struct{ suffixes [2][]byte }

// ErrPairs: pairs need a chained namespace and two different suffixes.
var ErrPairs = errors.New("pairs need a chained namespace and two different suffixes, none the end of the other")

// waitingPrefix begins the keys of parts that wait.
const waitingPrefix = "\x00pair\x00"

func newPairs(suffixes [2]string) *pairs {
	if suffixes == [2]string{} {
		return nil
	}
	return &pairs{[2][]byte{[]byte(suffixes[0]), []byte(suffixes[1])}}
}

// check says whether pairs can work in a namespace of this kind.
func (p *pairs) check(kind string) error {
	a, b := p.suffixes[0], p.suffixes[1]
	if kind != kvcr.Chained.String() || len(a) == 0 || len(b) == 0 || bytes.HasSuffix(a, b) || bytes.HasSuffix(b, a) {
		return fmt.Errorf("%w: %q and %q in a %s namespace", ErrPairs, a, b, kind)
	}
	return nil
}

// partner returns the other key of a pair; false when key is none of a pair. A
// suffix alone, without a stem, is an ordinary key.
func (p *pairs) partner(key []byte) ([]byte, bool) {
	if p == nil {
		return nil, false
	}
	for i, suffix := range p.suffixes {
		if len(key) > len(suffix) && bytes.HasSuffix(key, suffix) {
			return append(append([]byte(nil), key[:len(key)-len(suffix)]...), p.suffixes[1-i]...), true
		}
	}
	return nil, false
}

func waitingKey(key []byte) []byte { return append([]byte(waitingPrefix), key...) }

// target is the key under which a SET of key is written.
func (c *respConn) target(s *session, key []byte) []byte {
	if _, ok := s.srv.pairs.partner(key); ok {
		return waitingKey(key)
	}
	return key
}

// join makes a pair of key, whose value has just been written to wait, and its
// partner, if that waits too.
func (c *respConn) join(s *session, key []byte) error {
	partner, ok := s.srv.pairs.partner(key)
	if !ok {
		return nil
	}
	mine, there := s.h.Get(waitingKey(key))
	if !there {
		return nil // evicted this moment, as any block may be
	}
	defer mine.Release()
	theirs, there := s.h.Get(waitingKey(partner))
	if !there {
		return nil
	}
	defer theirs.Release()
	// A pair that is resident is replaced: a group of the same keys would win as
	// the first commit.
	for _, k := range [][]byte{key, partner} {
		if _, err := s.h.Delete(k); err != nil {
			return err
		}
	}
	parts := []kvcr.Item{{Key: partner, Value: theirs.Bytes()}, {Key: key, Value: mine.Bytes()}}
	for _, r := range s.h.DepositGroup(parts, kvcr.DepositOptions{}) {
		if err := r.Err(); err != nil {
			return err
		}
	}
	return c.forgetWaiting(s, key, partner)
}

// forgetWaiting drops parts that wait.
func (c *respConn) forgetWaiting(s *session, keys ...[]byte) error {
	for _, k := range keys {
		if _, err := s.h.Delete(waitingKey(k)); err != nil {
			return err
		}
	}
	return nil
}

// reserved refuses keys that are ours.
func (c *respConn) reserved(s *session, key []byte) bool {
	if s.srv.pairs == nil || !bytes.HasPrefix(key, []byte(waitingPrefix)) {
		return false
	}
	s.out.text = resp.AppendError(s.out.text, "ERR keys that begin with \\x00pair\\x00 are the node's own")
	return true
}
