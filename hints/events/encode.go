package events

// Form is how events are written inside a batch.
type Form uint8

// The forms.
const (
	Maps   Form = iota // keys and values, as engines have it now
	Arrays             // values in order, as older releases had it
)

// AppendBatch appends the batch to dst as engines write it: an array of time, events
// and rank. Events of kind Unknown and Malformed are left out. With Arrays, an event
// that the array form cannot say (objects, or a salt besides an adapter) is a map: who
// reads one form reads the other.
func AppendBatch(dst []byte, b *Batch, form Form) []byte {
	n := 0
	for i := range b.Events {
		if b.Events[i].Kind <= Ignored {
			n++
		}
	}
	dst = append(dst, 0x93)
	dst = appendFloat(dst, b.TS)
	dst = appendList(dst, n)
	for i := range b.Events {
		ev := &b.Events[i]
		if ev.Kind > Ignored {
			continue
		}
		if form == Arrays && len(ev.MM) == 0 && (ev.CacheSalt == "" || ev.LoraName == "") {
			dst = appendEventArray(dst, ev)
		} else {
			dst = appendEventMap(dst, ev)
		}
	}
	if b.HasRank {
		return appendUint(dst, uint64(b.Rank))
	}
	return append(dst, 0xc0)
}

func appendEventMap(dst []byte, ev *Event) []byte {
	head := len(dst)
	dst = appendMap(dst, 1)
	dst = appendText(appendText(dst, "type"), ev.Kind.String())
	keys := 1
	if ev.Kind == BlockStored || ev.Kind == BlockRemoved {
		dst = appendHashes(appendText(dst, "block_hashes"), ev.Hashes)
		keys++
	}
	if ev.Kind == BlockStored {
		dst = appendParent(appendText(dst, "parent_block_hash"), ev)
		dst = appendTokens(appendText(dst, "token_ids"), ev)
		dst = appendUint(appendText(dst, "block_size"), uint64(ev.BlockSize))
		dst = appendLoraID(appendText(dst, "lora_id"), ev)
		keys += 4
	}
	if ev.Kind == BlockStored || ev.Kind == BlockRemoved {
		dst = appendTextOrNil(appendText(dst, "medium"), ev.Medium)
		keys++
	}
	if ev.Kind == BlockStored {
		dst = appendTextOrNil(appendText(dst, "lora_name"), ev.LoraName)
		keys++
	}
	// The rest is left out where it has no value.
	optional := func(key, value string) {
		if value != "" {
			dst = appendText(appendText(dst, key), value)
			keys++
		}
	}
	if len(ev.MM) > 0 {
		dst = appendObjects(appendText(dst, "block_mm_infos"), ev)
		keys++
	}
	if ev.HasGroup {
		dst = appendUint(appendText(dst, "group_idx"), uint64(ev.Group))
		keys++
	}
	optional("kv_cache_spec_kind", ev.SpecKind)
	if ev.HasWindow {
		dst = appendUint(appendText(dst, "kv_cache_spec_sliding_window"), uint64(ev.Window))
		keys++
	}
	optional("locality", ev.Locality)
	optional("source_kind", ev.SourceKind)
	optional("cache_salt", ev.CacheSalt)
	dst[head] = 0x80 | byte(keys) // never more than 15
	return dst
}

func appendEventArray(dst []byte, ev *Event) []byte {
	head := len(dst)
	dst = appendList(dst, 1)
	dst = appendText(dst, ev.Kind.String())
	n := 1
	switch ev.Kind {
	case BlockStored:
		dst = appendHashes(dst, ev.Hashes)
		dst = appendParent(dst, ev)
		dst = appendTokens(dst, ev)
		dst = appendUint(dst, uint64(ev.BlockSize))
		dst = appendLoraID(dst, ev)
		dst = appendTextOrNil(dst, ev.Medium)
		if ev.CacheSalt != "" {
			dst = appendText(appendText(appendMap(dst, 1), "cache_salt"), ev.CacheSalt)
		} else {
			dst = appendTextOrNil(dst, ev.LoraName)
		}
		dst = append(dst, 0xc0) // extra keys
		n = 9
	case BlockRemoved:
		dst = appendHashes(dst, ev.Hashes)
		dst = appendTextOrNil(dst, ev.Medium)
		n = 3
	case AllBlocksCleared:
		if ev.SourceKind != "" {
			dst = appendText(dst, ev.SourceKind)
			n = 2
		}
		dst[head] = 0x90 | byte(n)
		return dst
	}
	// The tail stops after the last element that has a value; from the fourth on
	// readers know by their number what they are.
	tail := 0
	switch {
	case ev.Kind == Ignored:
	case ev.SourceKind != "":
		tail = 5
	case ev.Locality != "":
		tail = 4
	case ev.HasWindow && !ev.HasGroup:
		tail = 4 // else the window would pass for a group
	case ev.HasWindow:
		tail = 3
	case ev.SpecKind != "":
		tail = 2
	case ev.HasGroup:
		tail = 1
	}
	for i := range tail {
		switch {
		case i == 0 && ev.HasGroup:
			dst = appendUint(dst, uint64(ev.Group))
		case i == 1:
			dst = appendTextOrNil(dst, ev.SpecKind)
		case i == 2 && ev.HasWindow:
			dst = appendUint(dst, uint64(ev.Window))
		case i == 3:
			dst = appendTextOrNil(dst, ev.Locality)
		case i == 4:
			dst = appendTextOrNil(dst, ev.SourceKind)
		default:
			dst = append(dst, 0xc0)
		}
	}
	dst[head] = 0x90 | byte(n+tail) // 14 at most
	return dst
}

func appendHashes(dst []byte, hashes []uint64) []byte {
	dst = appendList(dst, len(hashes))
	for _, h := range hashes {
		dst = appendUint(dst, h)
	}
	return dst
}

func appendParent(dst []byte, ev *Event) []byte {
	if !ev.HasParent {
		return append(dst, 0xc0)
	}
	return appendUint(dst, ev.Parent)
}

func appendTokens(dst []byte, ev *Event) []byte {
	if ev.Bigram && len(ev.Tokens) > 1 {
		dst = appendList(dst, len(ev.Tokens)-1)
		for i, t := range ev.Tokens[1:] {
			dst = appendUint(append(dst, 0x92), uint64(ev.Tokens[i]))
			dst = appendUint(dst, uint64(t))
		}
		return dst
	}
	dst = appendList(dst, len(ev.Tokens))
	for _, t := range ev.Tokens {
		dst = appendUint(dst, uint64(t))
	}
	return dst
}

func appendLoraID(dst []byte, ev *Event) []byte {
	if !ev.HasLoraID {
		return append(dst, 0xc0)
	}
	return appendInt(dst, ev.LoraID)
}

// appendObjects writes one element for each block; ev.MM is in their order.
func appendObjects(dst []byte, ev *Event) []byte {
	dst = appendList(dst, len(ev.Hashes))
	mm := ev.MM
	for block := range ev.Hashes {
		n := 0
		for n < len(mm) && mm[n].Block == uint32(block) {
			n++
		}
		if n == 0 {
			dst = append(dst, 0xc0)
			continue
		}
		dst = appendList(appendText(appendMap(dst, 1), "mm_objects"), n)
		for _, o := range mm[:n] {
			dst = appendUint(appendText(appendMap(dst, 2), "mm_hash"), o.Hash)
			dst = appendList(appendText(dst, "offsets"), 0)
		}
		mm = mm[n:]
	}
	return dst
}
