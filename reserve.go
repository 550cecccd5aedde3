package kvcr

import "github.com/kvcr-go/kvcr/shard"

// Reservation is memory for one block that the caller writes in place: Reserve,
// fill Bytes, then Commit or Abort. It belongs to its Handle's goroutine, until
// Attach hands it to another one. An
// open reservation holds its memory until one of the two, also over Close.
type Reservation struct {
	h    *Handle
	p    *part
	r    shard.Reserved
	put  shard.Put
	b    []byte
	done bool
}

// Reserve takes memory for a value of size bytes that Commit will store under
// key as Set does.
func (h *Handle) Reserve(key []byte, size int) (*Reservation, error) {
	return h.reserve("reserve", key, size, true)
}

// ReserveDeposit is Reserve for a value that Commit stores as Deposit does.
func (h *Handle) ReserveDeposit(key []byte, size int) (*Reservation, error) {
	return h.reserve("reserve", key, size, false)
}

func (h *Handle) reserve(op string, key []byte, size int, set bool) (*Reservation, error) {
	if err := h.enter(); err != nil {
		return nil, &OpError{Op: op, Err: err}
	}
	defer h.exit()
	if err := h.checkPut(op, key, size); err != nil {
		return nil, err
	}
	hash := h.e.hash(key)
	p := h.ns.part(hash)
	l, err := h.lane(p)
	if err != nil {
		return nil, &OpError{Op: op, Err: err}
	}
	sh := shard.Shape{Size: size}
	r, why := l.Reserve(key, sh, h.takeReads(p))
	if why != ReasonOK {
		return nil, opError(op, why)
	}
	return &Reservation{
		h: h, p: p, r: r, b: p.Bytes(r.Claim()),
		put: shard.Put{Hash: hash, Key: append([]byte(nil), key...), Shape: sh, Set: set, Sum: h.ns.sums},
	}, nil
}

// Attach hands the reservation to another handle of the same namespace, whose
// goroutine may commit or abort it from here on. The caller must be the present
// one's.
func (r *Reservation) Attach(h *Handle) error {
	if h.ns != r.h.ns {
		return &OpError{Op: "attach", Err: ErrNamespace, Detail: h.ns.cfg.Name}
	}
	r.h = h
	return nil
}

// Bytes is the memory to fill. The caller must not touch it after Commit or
// Abort.
func (r *Reservation) Bytes() []byte { return r.b }

// Commit stores the block. The reservation ends whatever the answer.
func (r *Reservation) Commit() error {
	o, err := r.commit()
	if err != nil {
		return err
	}
	return opError("commit", o.Reason)
}

// CommitAbsent stores the block unless its key is resident, whatever Reserve was
// asked for, and reports whether it did. The reservation ends whatever the
// answer.
func (r *Reservation) CommitAbsent() (stored bool, err error) {
	r.put.Set = false
	o, err := r.commit()
	if err != nil || o.Old || o.Reason == ReasonLayout { // another length is resident, too
		return false, err
	}
	return o.Reason == ReasonOK, opError("commit", o.Reason)
}

func (r *Reservation) commit() (o shard.Outcome, err error) {
	if r.done {
		return o, &OpError{Op: "commit", Err: ErrReleased}
	}
	if err := r.h.enter(); err != nil {
		if err == ErrClosed {
			r.abandon()
		}
		return o, &OpError{Op: "commit", Err: err}
	}
	defer r.h.exit()
	r.done, r.b = true, nil
	l, err := r.h.lane(r.p)
	if err != nil {
		return o, &OpError{Op: "commit", Err: err}
	}
	r.h.countPut(r.put.Set)
	return l.CommitReserved(r.r, &r.put), nil
}

// Abort gives the memory back.
func (r *Reservation) Abort() error {
	if r.done {
		return &OpError{Op: "abort", Err: ErrReleased}
	}
	if err := r.h.enter(); err != nil {
		if err == ErrClosed {
			r.abandon()
			return nil
		}
		return &OpError{Op: "abort", Err: err}
	}
	defer r.h.exit()
	r.done, r.b = true, nil
	l, err := r.h.lane(r.p)
	if err != nil {
		return &OpError{Op: "abort", Err: err}
	}
	l.Abort(r.r)
	return nil
}

// abandon ends a reservation after its handle or engine was closed.
func (r *Reservation) abandon() {
	r.done, r.b = true, nil
	r.p.Abandon(r.r)
	if r.h.e.closed.Load() {
		r.h.e.settle()
	}
}
