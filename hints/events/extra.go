package events

import (
	"encoding/binary"
	"encoding/hex"

	"github.com/zeebo/xxh3"
)

// saltPrefix marks a cache namespace among the extra keys of a block, which vLLM has
// for adapters, salts and multimodal objects alike. Dynamo puts it there.
const saltPrefix = "dynamo-cache-salt:"

// extraKeys reads what went into the hashes of the blocks besides tokens: a list with
// one element for each block, nil or a list of keys. A key may be the identifier of a
// multimodal object (64 hexadecimal digits, or any text that comes in a pair with an
// offset); in the first block, a namespace. objects is false where the event names its
// objects by other means.
//
// Source: vLLM's BlockStored.extra_keys, as Dynamo's zmq_wire/extra_keys.rs reads it.
func (d *Decoder) extraKeys(ev *Event, objects bool) fault {
	r := &d.r
	if r.isNil() {
		return ""
	}
	n, f := r.list()
	if f != "" {
		return f
	}
	from := len(d.mm)
	for block := range n {
		if r.isNil() {
			continue
		}
		keys, f := r.list()
		if f != "" {
			return f
		}
		adapter := ev.LoraName // once: a salt may be called like the adapter
		for range keys {
			if f := d.extraKey(ev, uint32(block), &adapter, objects); f != "" {
				return f
			}
		}
	}
	if objects && len(d.mm) > from {
		ev.MM = d.mm[from:len(d.mm):len(d.mm)]
	}
	return ""
}

func (d *Decoder) extraKey(ev *Event, block uint32, adapter *string, objects bool) fault {
	r := &d.r
	at := r.pos
	if n, f := r.list(); f == "" && n == 2 {
		p, f := r.text()
		if f == "" {
			if objects && len(p) > 0 {
				d.mm = append(d.mm, MM{block, objectHash(p)})
			}
			return r.skip()
		}
	}
	r.pos = at
	p, f := r.text()
	switch {
	case f != "":
		r.pos = at
		return r.skip()
	case *adapter != "" && string(p) == *adapter:
		*adapter = ""
	case block == 0 && ev.CacheSalt == "" && len(p) > len(saltPrefix) && string(p[:len(saltPrefix)]) == saltPrefix:
		ev.CacheSalt = d.name(p[len(saltPrefix):])
	case objects && len(p) == 64:
		if h, ok := digestHash(p); ok {
			d.mm = append(d.mm, MM{block, h})
		}
	}
	return ""
}

// mmInfos reads a list with one element for each block, nil or a map whose
// mm_objects have an mm_hash each.
func (d *Decoder) mmInfos(ev *Event) fault {
	r := &d.r
	n, f := r.list()
	if f != "" {
		return f
	}
	from := len(d.mm)
	for block := range n {
		if r.isNil() {
			continue
		}
		if f := d.mmInfo(uint32(block)); f != "" {
			return f
		}
	}
	ev.MM = d.mm[from:len(d.mm):len(d.mm)]
	return ""
}

func (d *Decoder) mmInfo(block uint32) fault {
	r := &d.r
	return r.fields(func(key []byte) fault {
		if string(key) != "mm_objects" {
			return r.skip()
		}
		n, f := r.list()
		for ; f == "" && n > 0; n-- {
			f = d.mmObject(block)
		}
		return f
	})
}

func (d *Decoder) mmObject(block uint32) fault {
	r := &d.r
	return r.fields(func(key []byte) fault {
		if string(key) != "mm_hash" {
			return r.skip()
		}
		h, f := r.hash()
		if f == "" {
			d.mm = append(d.mm, MM{block, h})
		}
		return f
	})
}

// objectHash returns the router's hash of the identifier of a multimodal object.
func objectHash(id []byte) uint64 {
	if h, ok := digestHash(id); ok {
		return h
	}
	return xxh3.Hash(id)
}

// digestHash returns the first 64 bits of a digest of 64 hexadecimal digits.
func digestHash(id []byte) (uint64, bool) {
	var digest [32]byte
	if len(id) != 64 {
		return 0, false
	}
	if _, err := hex.Decode(digest[:], id); err != nil {
		return 0, false
	}
	return binary.BigEndian.Uint64(digest[:]), true
}
