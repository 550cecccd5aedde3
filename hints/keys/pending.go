package keys

// pendingRecord is a record of a block that is not resident, and its place in a list.
type pendingRecord struct {
	key          string // number of the namespace, two bytes, and the key
	id           uint32
	older, newer uint32
}

// pendingList is a list of pendingRecords, oldest first, that lie in slots of their
// own: container/list would take two allocations for each.
type pendingList struct {
	oldest, newest uint32
	n              int
}

// Len is how many are in the list.
func (l *pendingList) Len() int { return l.n }

// add puts a record at the new end.
func (l *pendingList) add(in *slots[pendingRecord], at uint32) {
	p := in.at(at)
	p.older, p.newer = l.newest, 0
	if l.newest != 0 {
		in.at(l.newest).newer = at
	} else {
		l.oldest = at
	}
	l.newest = at
	l.n++
}

// remove takes a record out.
func (l *pendingList) remove(in *slots[pendingRecord], at uint32) {
	p := in.at(at)
	if p.older != 0 {
		in.at(p.older).newer = p.newer
	} else {
		l.oldest = p.newer
	}
	if p.newer != 0 {
		in.at(p.newer).older = p.older
	} else {
		l.newest = p.older
	}
	l.n--
}
