package shard

import (
	"sync/atomic"
	"unsafe"
)

// MaxKey is the longest key in bytes.
const MaxKey = 1024

// MaxRecords is the largest number of blocks of one shard: an id must fit in
// the leader field of a word.
const MaxRecords = pinMask - 1

// inlineKey is the longest key that a hot record holds.
const inlineKey = 40

// hot is what a hit reads: one cache line.
//
//	 0  word   state, claims, generation
//	 8  last   access tick of the latest reader
//	12  size   bytes of the payload (of its first piece, when it has more)
//	16  desc   where the first piece lies, and the key's length
//	24  key    the key, or the first 40 bytes of a longer one
type hot struct {
	word word
	last atomic.Uint32
	size uint32
	desc desc
	key  [inlineKey]byte
}

// cold is what removal and transfers read; the policy's node of 16 bytes lies
// in a table of its own.
//
//	 0  sum    XXH3-64 of the payload, when desc says so; once the record is
//	           FREE, the link of the return stack or of the free list
//	 8  side   offset / 16 of the key's rest and further pieces, 0 none
//	12  group  leader: first member; member: next member; 0 none
type cold struct {
	sum   uint64
	side  uint32
	group uint32
}

const (
	_ = uint(64 - unsafe.Sizeof(hot{}))
	_ = uint(unsafe.Sizeof(hot{}) - 64)
	_ = uint(16 - unsafe.Sizeof(cold{}))
	_ = uint(unsafe.Sizeof(cold{}) - 16)
)

// desc packs where the first piece lies and what the record holds.
//
//	63   62  58 57   53 52    42 41          0
//	+---+------+-------+--------+------------+
//	|sum| pool |pieces | keylen | offset/16  |
//	+---+------+-------+--------+------------+
type desc uint64

const (
	// MaxPools and MaxPieces follow from the bits of desc.
	MaxPools  = 31
	MaxPieces = 31

	offBits     = 42
	keyShift    = offBits
	pieceShift  = 53
	poolShift   = 58
	sumFlag     = desc(1) << 63
	granule     = 16
	keyLenMask  = 1<<11 - 1
	fiveBitMask = 31
)

func makeDesc(off uint64, keyLen, pieces, pool int) desc {
	return desc(off/granule) | desc(keyLen)<<keyShift | desc(pieces)<<pieceShift | desc(pool)<<poolShift
}

func (d desc) off() uint64  { return uint64(d) & (1<<offBits - 1) * granule }
func (d desc) keyLen() int  { return int(d>>keyShift) & keyLenMask }
func (d desc) pieces() int  { return int(d>>pieceShift) & fiveBitMask }
func (d desc) pool() int    { return int(d>>poolShift) & fiveBitMask }
func (d desc) hasSum() bool { return d&sumFlag != 0 }

// A side region entry holds what does not fit: the further pieces, 8 bytes
// each (a desc of its own, without key), then the key's bytes from the 41st.
const pieceBytes = 8

func sideBytes(keyLen, pieces int) int {
	n := (pieces - 1) * pieceBytes
	if keyLen > inlineKey {
		n += keyLen - inlineKey
	}
	return n
}
