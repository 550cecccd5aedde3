package shard

import (
	"github.com/kvcr-go/kvcr/internal/blockcopy"
)

// What a handle does to a shard, through its lane.

// inPlace is the largest value copied under the token: one hold for reserve,
// copy and commit. Larger ones are copied between two holds.
const inPlace = 4 << 10

// Put describes one write.
type Put struct {
	Hash uint64
	Key  []byte
	// Value, or Pieces of a block of several (whole slots, in order of Layout).
	Value  []byte
	Pieces [][]byte
	Shape  Shape
	// Set replaces; otherwise deposit: the first commit wins.
	Set bool
	// NoEvict leaves the caller with a claim and a hold.
	NoEvict bool
	Sum     bool // carry a checksum
	// Chain: the resident parent (claimed by the caller), blocks of the whole
	// chain, whether this is its last one, and whether the parent it names is
	// missing.
	Parent      Claim
	ChainLen    uint32
	Tail        bool
	Unreachable bool
	// Follows: the parent is the block before this one in the same call. Member:
	// part of the group whose leader is the next Put that is not a Member.
	Follows, Member bool
}

// Outcome of one write.
type Outcome struct {
	Reason Reason
	Old    bool  // the key was resident: a deposit changed nothing, a set replaced its value
	Claim  Claim // with NoEvict
}

func (p *Put) flags() (f uint8) {
	set := func(on bool, bit uint8) {
		if on {
			f |= bit
		}
	}
	set(p.Set, flagSet)
	set(p.NoEvict, flagNoEvict)
	set(p.Tail, flagTail)
	set(p.Unreachable, flagUnreachable)
	set(p.Follows, flagFollows)
	set(p.Member, flagMember)
	return f
}

func (p *Put) commit(id uint32) request {
	return request{
		op: opCommit, flags: p.flags(), layout: p.Shape.Layout, chain: p.ChainLen, hash: p.Hash,
		id: id, parent: p.Parent.id, size: uint32(p.Shape.Size), keyLen: uint32(len(p.Key)),
	}
}

// existing is commit for a key whose block, id, the caller has claimed.
func (p *Put) existing(id uint32) request {
	r := p.commit(id)
	r.op = opExisting
	return r
}

// Put writes one block: reserve, copy, commit. reads is the number of lookups
// that the handle has made here since its last command.
func (l *Lane) Put(p *Put, reads uint32) Outcome {
	s := l.s
	if c, ok := s.deposited(p); ok {
		defer s.Release(c)
		r := p.existing(c.id)
		r.reads = reads + 1
		var out [1]reply
		l.do([]request{r}, out[:])
		if out[0].reason != Miss {
			return l.outcome(p, out[0])
		}
		reads = 0 // reported; the block has been removed since, and is written anew
	}
	if p.Shape.Size <= inPlace && p.Pieces == nil && l.enter() {
		return l.outcome(p, l.putInPlace(p, reads))
	}
	id, why := l.reserve(p.Shape, len(p.Key), reads)
	if why != OK {
		return Outcome{Reason: why}
	}
	s.fill(id, p)
	r := p.commit(id)
	return l.outcome(p, l.commit(&r))
}

// putInPlace writes one small block in one hold of the token, which it has and
// frees.
func (l *Lane) putInPlace(p *Put, reads uint32) (out reply) {
	s := l.s
	defer s.unlock(helpBudget)
	s.tick(reads + 1)
	s.closeRun(&l.run)
	if s.closed {
		return reply{reason: Closed}
	}
	if p.Set && !p.NoEvict && s.overwrite(p) {
		return reply{old: true}
	}
	if out.id, out.reason = s.reserve(p.Shape, len(p.Key)); out.reason == OK {
		s.fill(out.id, p)
		r := p.commit(out.id)
		out = s.commit(&l.run, &r)
	}
	return out
}

// deposited claims the block that a deposit would write if it is resident, with
// the same shape: then nothing has to make room for it. Any goroutine; a reader's
// look, so what it does not see is met again when the deposit is linked.
func (s *Shard) deposited(p *Put) (Claim, bool) {
	if p.Set {
		return Claim{}, false
	}
	c, ok, _ := s.Peek(p.Hash, p.Key)
	if ok && !s.hasShape(c.id, p.Shape) {
		s.Release(c)
		return Claim{}, false
	}
	return c, ok
}

func (l *Lane) outcome(p *Put, r reply) Outcome {
	o := Outcome{Reason: r.reason, Old: r.old}
	if p.NoEvict && r.reason == OK {
		o.Claim = l.s.ledger.note(Claim{id: r.id, lead: l.s.lead(r.id)})
	}
	return o
}

// reserve takes a record from the magazine or from the shard.
func (l *Lane) reserve(sh Shape, keyLen int, reads uint32) (uint32, Reason) {
	if n := l.s.recalls.Load(); n != l.recalls {
		l.recalls = n
		l.Recall()
	}
	if l.magN > 0 && l.magShape == sh && l.magKey == keyLen && !l.s.token.free() {
		l.magN--
		l.s.inMagazines.Add(-1)
		return l.mag[l.magN], OK
	}
	reqs := [1]request{{op: opReserve, size: uint32(sh.Size), layout: sh.Layout, keyLen: uint32(keyLen), reads: reads}}
	var out [1]reply
	l.do(reqs[:], out[:])
	return out[0].id, out[0].reason
}

// commit sends one commit; when it has to go through the ring, the completion
// brings a record for the magazine.
func (l *Lane) commit(r *request) reply {
	r.reads = 1 // the deposit itself is an access
	var out [1]reply
	if l.enter() {
		defer l.s.unlock(helpBudget)
		return l.exec(r)
	}
	sh := Shape{Size: int(r.size), Layout: r.layout}
	if r.flags&flagMember == 0 && r.size <= magazineBytes && (l.magN == 0 || l.magShape == sh && l.magKey == int(r.keyLen) && l.magN < magazine) {
		r.flags |= flagRefill
	}
	l.queue([]request{*r}, out[:])
	if out[0].refill != 0 {
		l.mag[l.magN], l.magShape, l.magKey = out[0].refill, sh, int(r.keyLen)
		l.magN++
	}
	return out[0]
}

// fill copies key and payload into a FILLING record. The record's reserver
// only; takes no token.
func (s *Shard) fill(id uint32, p *Put) {
	s.writeKey(id, p.Key)
	switch {
	case p.Pieces != nil:
		s.fillPieces(id, p)
	case p.Sum:
		s.setSum(id, blockcopy.CopySum(s.Bytes(Claim{id: id}), p.Value))
	default:
		blockcopy.Copy(s.Bytes(Claim{id: id}), p.Value)
	}
}

func (s *Shard) fillPieces(id uint32, p *Put) {
	for i, b := range p.Pieces {
		dst, _ := s.Piece(Claim{id: id}, i)
		blockcopy.Copy(dst, b)
	}
	if p.Sum {
		s.setSum(id, s.sumOf(Claim{id: id}))
	}
}

func (s *Shard) setSum(id uint32, sum uint64) {
	s.cold[id].sum = sum
	s.hot[id].desc |= sumFlag
}

func (s *Shard) writeKey(id uint32, key []byte) {
	h := &s.hot[id]
	n := copy(h.key[:], key)
	if n < len(key) {
		copy(s.longTail(id, h.desc), key[n:])
	}
}

// PutRun writes the blocks of one deposit: chains and groups. What is resident
// is claimed first and all other memory reserved next, so a deposit never evicts
// its own blocks; when memory runs out, the blocks so far are written and the
// rest is refused.
func (l *Lane) PutRun(puts []Put, outs []Outcome, reads uint32) {
	s := l.s
	found := s.findRun(puts)
	defer func() {
		for _, c := range found {
			if c.lead != 0 {
				s.Release(c)
			}
		}
	}()
	var reqs []request
	for i := range puts {
		if found[i].lead == 0 {
			p := &puts[i]
			reqs = append(reqs, request{op: opReserve, size: uint32(p.Shape.Size), layout: p.Shape.Layout, keyLen: uint32(len(p.Key))})
		}
	}
	reps := make([]reply, len(reqs))
	if len(reqs) > 0 {
		reqs[0].reads, reads = reads, 0
		l.do(reqs, reps)
	}
	// cmds are the commits, one for each block until the first that is refused.
	cmds := make([]request, 0, len(puts))
	var spare []request
	n, refused := len(puts), OK
	at := 0
	for i := range puts {
		var r request
		var got reply
		if found[i].lead != 0 {
			r = puts[i].existing(found[i].id)
		} else {
			got = reps[at]
			at++
			r = puts[i].commit(got.id)
		}
		if refused != OK {
			got.reason = refused
		}
		if got.reason != OK && refused == OK {
			n, refused = i, got.reason
		}
		if got.reason == OK {
			r.reads = 1
			cmds = append(cmds, r)
		} else if r.op == opCommit && got.id != 0 {
			spare = append(spare, request{op: opAbort, id: got.id})
		}
		outs[i].Reason = got.reason
	}
	for n > 0 && puts[n-1].Member { // no group in part
		n--
		outs[n].Reason = refused
		if cmds[n].op == opCommit {
			spare = append(spare, request{op: opAbort, id: cmds[n].id})
		}
	}
	cmds = cmds[:n]
	for i := range cmds {
		if cmds[i].op == opCommit {
			s.fill(cmds[i].id, &puts[i])
		}
		if i < n-1 {
			cmds[i].flags |= flagMore
		}
	}
	if n > 0 {
		cmds[0].reads += reads
	}
	all := append(cmds, spare...)
	if len(all) == 0 {
		return
	}
	done := make([]reply, len(all))
	l.do(all, done)
	for i := range n {
		outs[i] = l.outcome(&puts[i], done[i])
		if outs[i].Reason == Miss { // a hold on a block that was removed this moment
			outs[i].Reason = Aborted
		}
	}
}

// findRun claims the blocks of a deposit that are resident: found[i] is the
// claim of puts[i], zero for one that has to be written. A group counts as
// resident when all its parts are, in one group.
func (s *Shard) findRun(puts []Put) (found []Claim) {
	found = make([]Claim, len(puts))
	for first := 0; first < len(puts); {
		last := first
		for puts[last].Member {
			last++
		}
		whole := true
		for i := first; i <= last && whole; i++ {
			found[i], whole = s.deposited(&puts[i])
			whole = whole && found[i].lead == found[first].lead
		}
		for i := first; i <= last && !whole; i++ {
			if found[i].lead != 0 {
				s.Release(found[i])
				found[i] = Claim{}
			}
		}
		first = last + 1
	}
	return found
}

// Reserve takes memory for one block that the caller will fill in place.
func (l *Lane) Reserve(key []byte, sh Shape, reads uint32) (Reserved, Reason) {
	id, why := l.reserve(sh, len(key), reads)
	if why != OK {
		return Reserved{}, why
	}
	l.s.writeKey(id, key)
	return Reserved{id: id}, OK
}

// Reserved is a record in state FILLING, its reserver's until Commit or Abort.
type Reserved struct{ id uint32 }

// Claim lets the reserver reach the pieces as a reader would.
func (r Reserved) Claim() Claim { return Claim{id: r.id} }

// CommitReserved links a record that the caller has filled. p gives hash and
// flags; its value is not used.
func (l *Lane) CommitReserved(r Reserved, p *Put) Outcome {
	if p.Sum {
		l.s.setSum(r.id, l.s.sumOf(r.Claim()))
	}
	req := p.commit(r.id)
	return l.outcome(p, l.commit(&req))
}

// Abort gives a reservation back.
func (l *Lane) Abort(r Reserved) {
	var out [1]reply
	l.do([]request{{op: opAbort, id: r.id}}, out[:])
}

// Delete removes a key; Miss when it is not here.
func (l *Lane) Delete(hash uint64, key []byte, reads uint32) Reason {
	l.key = key
	var out [1]reply
	l.do([]request{{op: opDelete, hash: hash, reads: reads}}, out[:])
	l.key = nil
	return out[0].reason
}

// DeleteGeneration removes a key if its block is still the one of that
// generation; Miss when it is not.
func (l *Lane) DeleteGeneration(hash uint64, key []byte, generation uint32, reads uint32) Reason {
	l.key = key
	var out [1]reply
	l.do([]request{{op: opDeleteGeneration, hash: hash, id: generation, reads: reads}}, out[:])
	l.key = nil
	return out[0].reason
}

// Ask claims a key's block by way of the token holder, for a reader whose
// probes kept failing.
func (l *Lane) Ask(hash uint64, key []byte, reads uint32) (Claim, bool) {
	l.key = key
	var out [1]reply
	l.do([]request{{op: opClaim, hash: hash, reads: reads}}, out[:])
	l.key = nil
	if out[0].reason != OK {
		return Claim{}, false
	}
	c := Claim{id: out[0].id, lead: l.s.lead(out[0].id)}
	l.s.touch(c.lead)
	return l.s.ledger.note(c), true
}

// Unhold ends a no_evict hold and its claim.
func (s *Shard) Unhold(c Claim) error {
	if c.lead == 0 || !s.ledger.strike(c) {
		return ErrReleased
	}
	s.Do(func() {
		if s.held[c.lead] != 0 {
			s.unhold(c.lead)
		}
	})
	s.unclaim(c.lead)
	return nil
}

// Drain closes the shard: no command succeeds after it and every resident block
// is retired. What readers still claim or writers still fill lives on until
// Lingering says 0.
func (s *Shard) Drain() {
	s.Do(func() {
		s.closed = true
		s.closeRun(nil)
		s.sink = nil
		s.clearMoves()
		s.takeReturned()
		gone := s.freeRecords
		for id := uint32(1); id <= s.freshRec; id++ {
			if pins, ok := s.hot[id].word.retire(true); ok && pins == 0 {
				gone += 1 + s.members(id)
			}
		}
		s.lingering = int(s.freshRec) - gone
	})
}

// Lingering is how many records of a drained shard are still in somebody's
// hands. A record counts until its last releaser has touched it for the last
// time, so at 0 the memory may go. One caller at a time.
func (s *Shard) Lingering() int {
	for id := s.returned.Swap(0); id != 0; id = uint32(s.cold[id].sum) {
		s.lingering -= 1 + s.members(id)
	}
	return s.lingering
}

// members is the number of other records in the group that id leads.
func (s *Shard) members(id uint32) (n int) {
	for m := s.cold[id].group; m != 0; m = s.cold[m].group {
		n++
	}
	return n
}

// Abandon gives a reservation back after the shard was drained.
func (s *Shard) Abandon(r Reserved) {
	s.cold[r.id].group = 0
	w := &s.hot[r.id].word
	w.Store(nextFree(w.Load()))
	s.pushReturned(r.id)
}
