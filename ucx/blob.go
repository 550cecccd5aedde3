package ucx

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Addresses and keys travel in an envelope, little endian:
//
//	0  magic "ucxb"
//	4  kind   1 address, 2 key
//	5  version 1
//	6  reserved, zero
//	8  length of the body
//	12 CRC-32C of bytes 0 to 11 and of the body
//	16 body
//
// The body of an address is what UCX made. The body of a key is
//
//	0  memory type
//	1  reserved, zero
//	4  number of parts
//	8  for each part: address u64, length u64, rkey length u32, rkey
const (
	blobHeader  = 16
	blobVersion = 1
	blobAddress = 1
	blobKey     = 2

	// maxBlob is far above what UCX makes: an address is a few hundred bytes for
	// each device, a part of a key below a hundred.
	maxBlob = 1 << 20
	// blobSlack zero bytes follow every body handed to UCX, which reads by the
	// lengths it finds inside.
	blobSlack = 4096
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func sealBlob(kind byte, body []byte) []byte {
	b := make([]byte, blobHeader, blobHeader+len(body))
	copy(b, "ucxb")
	b[4], b[5] = kind, blobVersion
	binary.LittleEndian.PutUint32(b[8:], uint32(len(body)))
	b = append(b, body...)
	binary.LittleEndian.PutUint32(b[12:], blobSum(b))
	return b
}

func blobSum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:12], castagnoli), castagnoli, b[blobHeader:])
}

// openBlob returns the body of a blob, which it does not copy.
func openBlob(kind byte, b []byte) ([]byte, error) {
	switch {
	case len(b) < blobHeader || string(b[:4]) != "ucxb":
		return nil, fmt.Errorf("%w: %d bytes without the mark", ErrBlob, len(b))
	case len(b) > maxBlob:
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrBlob, len(b), maxBlob)
	case b[5] != blobVersion || b[6] != 0 || b[7] != 0:
		return nil, fmt.Errorf("%w: version %d, known is %d", ErrBlob, b[5], blobVersion)
	case b[4] != kind:
		return nil, fmt.Errorf("%w: kind %d, want %d", ErrBlob, b[4], kind)
	case uint64(binary.LittleEndian.Uint32(b[8:])) != uint64(len(b)-blobHeader) || len(b) == blobHeader:
		return nil, fmt.Errorf("%w: %d bytes do not hold a body of %d", ErrBlob, len(b), binary.LittleEndian.Uint32(b[8:]))
	case binary.LittleEndian.Uint32(b[12:]) != blobSum(b):
		return nil, fmt.Errorf("%w: checksum", ErrBlob)
	}
	return b[blobHeader:], nil
}

// keyPart is one registration of UCX behind a region, in the order of addresses.
type keyPart struct {
	addr, length uint64
	rkey         []byte
}

func sealKey(typ MemoryType, parts []keyPart) []byte {
	body := make([]byte, 8, 128)
	body[0] = byte(typ)
	binary.LittleEndian.PutUint32(body[4:], uint32(len(parts)))
	for _, p := range parts {
		body = binary.LittleEndian.AppendUint64(body, p.addr)
		body = binary.LittleEndian.AppendUint64(body, p.length)
		body = binary.LittleEndian.AppendUint32(body, uint32(len(p.rkey)))
		body = append(body, p.rkey...)
	}
	return sealBlob(blobKey, body)
}

// openKey parses a key. Its parts are one unbroken range of addresses; their
// rkeys alias b.
func openKey(b []byte) (MemoryType, []keyPart, error) {
	body, err := openBlob(blobKey, b)
	if err != nil {
		return 0, nil, err
	}
	if len(body) < 8 || body[0] >= byte(memoryTypes) || body[1]|body[2]|body[3] != 0 {
		return 0, nil, fmt.Errorf("%w: head of a key", ErrBlob)
	}
	const least = 8 + 8 + 4 + 1
	n := uint64(binary.LittleEndian.Uint32(body[4:]))
	rest := body[8:]
	if n == 0 || n > uint64(len(rest)/least) {
		return 0, nil, fmt.Errorf("%w: %d parts in %d bytes", ErrBlob, n, len(rest))
	}
	parts := make([]keyPart, 0, n)
	for range n {
		if len(rest) < least {
			return 0, nil, fmt.Errorf("%w: key cut short", ErrBlob)
		}
		p := keyPart{addr: binary.LittleEndian.Uint64(rest), length: binary.LittleEndian.Uint64(rest[8:])}
		size := uint64(binary.LittleEndian.Uint32(rest[16:]))
		rest = rest[20:]
		if size == 0 || size > uint64(len(rest)) || p.length == 0 || p.addr+p.length < p.addr {
			return 0, nil, fmt.Errorf("%w: part of a key", ErrBlob)
		}
		if k := len(parts); k > 0 && parts[k-1].addr+parts[k-1].length != p.addr {
			return 0, nil, fmt.Errorf("%w: parts of a key with a gap", ErrBlob)
		}
		p.rkey, rest = rest[:size:size], rest[size:]
		parts = append(parts, p)
	}
	if len(rest) != 0 {
		return 0, nil, fmt.Errorf("%w: %d bytes after a key", ErrBlob, len(rest))
	}
	return MemoryType(body[0]), parts, nil
}
