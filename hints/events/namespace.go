package events

// namespaces remembers the cache namespace of blocks that have one: engines name it
// with the first block of a chain only, and the blocks after it inherit it.
//
// Blocks without a namespace are not remembered: they are nearly all. A chain whose
// beginning was not seen therefore passes for one without, which costs the router a
// wrong guess; engines keep their caches apart by themselves.
type namespaces struct {
	limit     int
	count     int
	forgotten uint64
	workers   map[Worker]map[uint64]space
}

// space is the namespace of one block of one worker.
type space struct {
	name   string // empty: it has been seen with two
	places uint8  // bits by tier: where the worker has the block
}

// elsewhere is the place of blocks that are in no tier of the worker's.
const elsewhere = 1 << 7

// store learns from a BlockStored and returns the namespace of its blocks. False:
// they follow a block that has been seen with two, so nobody knows.
func (s *namespaces) store(w Worker, ev *Event, place uint8) (string, bool) {
	blocks := s.workers[w]
	if ev.CacheSalt == "" && len(blocks) == 0 {
		return "", true // nearly always
	}
	name := ev.CacheSalt
	if name == "" && ev.HasParent {
		parent, known := blocks[ev.Parent]
		if known && parent.name == "" {
			return "", false
		}
		name = parent.name
	}
	for _, h := range ev.Hashes {
		have, known := blocks[h]
		switch {
		case known && have.name != name:
			have.name = ""
		case known:
		case name == "":
			continue
		case s.count >= s.limit:
			s.forgotten++
			continue
		default:
			have.name = name
			s.count++
		}
		if blocks == nil {
			if s.workers == nil {
				s.workers = map[Worker]map[uint64]space{}
			}
			blocks = map[uint64]space{}
			s.workers[w] = blocks
		}
		have.places |= place
		blocks[h] = have
	}
	return name, true
}

// remove forgets blocks that have left the last place that they were in. One that has
// been seen with two namespaces stays as it is: the next holder may be of either.
func (s *namespaces) remove(w Worker, hashes []uint64, place uint8) {
	blocks := s.workers[w]
	if len(blocks) == 0 {
		return
	}
	for _, h := range hashes {
		have, known := blocks[h]
		if !known || have.name == "" {
			continue
		}
		if have.places &^= place; have.places != 0 {
			blocks[h] = have
			continue
		}
		delete(blocks, h)
		s.count--
	}
	if len(blocks) == 0 {
		delete(s.workers, w)
	}
}

func (s *namespaces) clear(w Worker) {
	s.count -= len(s.workers[w])
	delete(s.workers, w)
}
