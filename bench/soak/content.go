package soak

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// headBytes of each value say what it is: the key's number, the version, and the
// length of the whole.
const headBytes = 16

// idOf is a key's number: that of the content of its values.
func idOf(key []byte) uint64 { return xxhash.Sum64(key) }

// sizeOf is the length of a value in bytes. Blocks have version 0, and sizes that a
// node holds some hundreds of.
func sizeOf(id uint64, version uint32) int {
	x := mix(id ^ uint64(version)*0x9e3779b97f4a7c15)
	n := int(x >> 32)
	kind := x % 100
	if version == 0 {
		switch {
		case kind < 50:
			return 4<<10 + n%64
		case kind < 90:
			return 48<<10 + n%(32<<10)
		}
		return 256<<10 + n%(256<<10)
	}
	switch {
	case kind < 40:
		return headBytes + n%200
	case kind < 70:
		return 2<<10 + n%(4<<10)
	case kind < 95:
		return 60<<10 + n%(16<<10)
	}
	return 600<<10 + n%(1<<20) // several chunks
}

// appendValue appends the value of a key's version to dst.
func appendValue(dst []byte, id uint64, version uint32) []byte {
	size := sizeOf(id, version)
	at := len(dst)
	dst = append(dst, make([]byte, size)...)
	v := dst[at:]
	binary.LittleEndian.PutUint64(v, id)
	binary.LittleEndian.PutUint32(v[8:], version)
	binary.LittleEndian.PutUint32(v[12:], uint32(size))
	for i := headBytes; i < size; i += 8 {
		w := mix(id + uint64(version)<<40 + uint64(i))
		if size-i >= 8 {
			binary.LittleEndian.PutUint64(v[i:], w)
			continue
		}
		for j := i; j < size; j++ {
			v[j], w = byte(w), w>>8
		}
	}
	return dst
}

// check says which version of a key got is, and how many of its bytes are wrong. Of
// one that does not say what it is, all are. scratch is the checker's own, to be
// given again.
func check(got []byte, id uint64, scratch []byte) (version uint32, wrong int, _ []byte) {
	if len(got) < headBytes || binary.LittleEndian.Uint64(got) != id {
		return 0, max(1, len(got)), scratch
	}
	version = binary.LittleEndian.Uint32(got[8:])
	if sizeOf(id, version) != len(got) {
		return version, len(got), scratch
	}
	scratch = appendValue(scratch[:0], id, version)
	for i := range got {
		if got[i] != scratch[i] {
			wrong++
		}
	}
	return version, wrong, scratch
}

// mix is the finalizer of splitmix64, a bijection.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
