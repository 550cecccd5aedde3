package events

import "sync"

// ring keeps the last batches of a publisher for replay.
type ring struct {
	steps, limit int // bounds, of batches and of bytes

	mu    sync.Mutex
	wires [][]byte // message i has sequence first+i and lies at (head+i) mod len
	first uint64
	head  int
	count int
	bytes int
}

func newRing(steps, limit int) *ring { return &ring{steps: steps, limit: limit} }

// add keeps a message, whose sequence follows that of the last one, and lets go of the
// oldest ones beyond the bounds.
func (r *ring) add(wire []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count == len(r.wires) && r.count < r.steps {
		grown := make([][]byte, min(r.steps, max(64, 2*r.count)))
		n := copy(grown, r.wires[r.head:])
		copy(grown[n:], r.wires[:r.head])
		r.wires, r.head = grown, 0
	}
	for r.count > 0 && (r.count == r.steps || r.bytes+len(wire) > r.limit) {
		r.bytes -= len(r.wires[r.head])
		r.wires[r.head] = nil
		r.head = (r.head + 1) % len(r.wires)
		r.first++
		r.count--
	}
	r.wires[(r.head+r.count)%len(r.wires)] = wire
	r.count++
	r.bytes += len(wire)
}

// get returns the oldest message from seq on, if there is one.
func (r *ring) get(seq uint64) (wire []byte, at uint64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at = max(seq, r.first)
	if at-r.first >= uint64(r.count) {
		return nil, 0, false
	}
	return r.wires[(r.head+int(at-r.first))%len(r.wires)], at, true
}

// end returns the sequence after the last one.
func (r *ring) end() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.first + uint64(r.count)
}
