package cuda

import (
	"errors"
	"os"
	"time"
)

// watchPeriod is how often streams with copies in flight are asked whether they
// are well. It bounds how late the loss of a device is told; on a device that
// is well nobody waits for it. 50 ms is arbitrary: a query costs about 1 us.
const watchPeriod = 50 * time.Millisecond

// device is one GPU in use.
type device struct {
	Device
	ctx     uintptr
	streams [maxStreams]uintptr // all made at Open
	queue   chan *batch         // as long as MaxBatches, so that a send never blocks
	batches bool                // use the call for many copies; the issuer's own

	// Guarded by Driver.mu.
	notices []uint32 // numbers free for parts
	live    int      // batches queued or in flight
	flying  int      // parts in flight
	next    int      // stream of the next part: parts take turns
	lost    error    // why the device is of no use any more
}

// part is one stream's share of a batch, from its issue to its notice. The
// zero part is free.
type part struct {
	batch *batch
	dev   *device
}

// Submit starts a batch and returns; c.Done gets the result. An error means
// that nothing was started and Done will not be called: ErrMismatch, ErrNotKnown
// or ErrWrongDevice for batches that can never be copied as they are, ErrBusy
// when MaxBatches are under way, ErrDeviceLost, ErrClosed.
//
// Any goroutine may call it. It does not block, and does not enter C.
func (d *Driver) Submit(c Copy) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing {
		return ErrClosed
	}
	dev, err := d.device(c.Device)
	if err != nil {
		return err
	}
	if dev.lost != nil {
		return dev.lost
	}
	if dev.live == d.opts.MaxBatches {
		return &LimitError{What: "batches under way on one device", Value: int64(dev.live + 1), Limit: int64(d.opts.MaxBatches),
			Fix: "wait for one to end, or raise Options.MaxBatches", Err: ErrBusy}
	}
	b, err := plan(c, &d.memory, &d.hosts, d.opts.MaxSpans, d.opts.Pageable)
	if err != nil {
		return err
	}
	b.dev, b.open = dev, 1
	for _, r := range b.regions {
		r.inFlight++
	}
	dev.live++
	d.live++
	dev.queue <- b
	return nil
}

// issueAll hands the batches of one device to the driver until its queue is
// closed. A goroutine and not the caller of Submit, because the driver takes
// locks of its own, waits when its queue of work is full, and copies pageable
// memory itself.
func (d *Driver) issueAll(dev *device) {
	defer d.issuers.Done()
	for b := range dev.queue {
		err := d.issueBatch(dev, b)
		d.mu.Lock()
		d.endPartLocked(b, err)
	}
}

// issueBatch issues the parts of b, up to the first that is refused. What was
// issued before is not called back: b ends when that has ended.
func (d *Driver) issueBatch(dev *device, b *batch) error {
	n := b.parts()
	for i := range n {
		var is issue
		d.mu.Lock()
		if d.closing {
			d.mu.Unlock()
			return ErrClosed
		}
		if dev.lost != nil {
			d.mu.Unlock()
			return dev.lost
		}
		id := dev.notices[len(dev.notices)-1]
		dev.notices = dev.notices[:len(dev.notices)-1]
		d.parts[id] = part{b, dev}
		b.open++
		dev.flying++
		if d.flying++; d.flying == 1 {
			d.bell.SetReadDeadline(time.Now().Add(watchPeriod))
		}
		is.stream = dev.streams[dev.next]
		dev.next = (dev.next + 1) % maxStreams
		d.mu.Unlock()

		is.ctx, is.dir, is.notice = dev.ctx, b.copy.Direction, id
		is.batch = dev.batches && !b.pageable
		is.dst, is.src, is.size = b.part(i, n)
		got := d.api.issue(&is)
		if got.refused {
			dev.batches = false
			d.single.Store(true)
		}
		if !got.announced {
			d.settle(dev, is.stream, id)
		}
		if got.err != nil {
			if errors.Is(got.err, ErrDeviceLost) {
				d.lose(dev, got.err)
			}
			return got.err
		}
	}
	return nil
}

// settle ends a part whose notice the driver refused: it waits for the stream,
// which holds up the batches behind.
func (d *Driver) settle(dev *device, stream uintptr, id uint32) {
	if err := d.api.synchronize(dev.ctx, stream); err != nil {
		d.lose(dev, err) // nothing else makes a stream of ours fail
		return
	}
	d.slow.Add(1)
	d.noticed(id)
}

// watch waits for notices until the bell is closed.
func (d *Driver) watch() {
	defer close(d.watched)
	var ring [8]byte
	ids := make([]uint32, len(d.parts)) // room for all there can be
	for {
		_, err := d.bell.Read(ring[:])
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		for _, id := range ids[:d.api.take(ids)] {
			d.noticed(id)
		}
		if err != nil {
			d.examine()
		}
		d.mu.Lock()
		d.turns++
		var next time.Time // none: nothing is in flight, so nothing to look after
		if d.flying > 0 {
			next = time.Now().Add(watchPeriod)
		}
		d.bell.SetReadDeadline(next)
		d.mu.Unlock()
	}
}

// noticed ends part id. A part of a lost device has ended before.
func (d *Driver) noticed(id uint32) {
	d.mu.Lock()
	p := d.parts[id]
	if p.batch == nil {
		d.mu.Unlock()
		return
	}
	d.parts[id] = part{}
	p.dev.notices = append(p.dev.notices, id)
	p.dev.flying--
	d.flying--
	d.endPartLocked(p.batch, nil)
}

// endPartLocked ends a part of b, or its issue, and with the last of them b. It
// unlocks mu, because Done is called without.
func (d *Driver) endPartLocked(b *batch, err error) {
	if b.err == nil {
		b.err = err
	}
	if b.open--; b.open > 0 {
		d.mu.Unlock()
		return
	}
	d.counts.Batches++
	res := Result{Err: b.err, Unsettled: b.unsettled}
	if res.Err != nil {
		d.counts.Failed++
	} else {
		res.Bytes = b.bytes
		d.counts.Spans += uint64(len(b.copy.Mem))
		if b.copy.Direction == ToHost {
			d.counts.ToHost += uint64(b.bytes)
		} else {
			d.counts.ToDevice += uint64(b.bytes)
		}
	}
	for _, r := range b.regions {
		if b.unsettled {
			r.unsettled++
		} else {
			r.inFlight--
		}
	}
	if b.unsettled {
		d.unsettled++
	}
	b.dev.live--
	d.mu.Unlock()
	b.copy.Done(res)
	d.mu.Lock()
	d.live-- // only now: Close returns after the last Done
	d.mu.Unlock()
}

// examine asks every stream with work whether it is well.
func (d *Driver) examine() {
	for _, dev := range d.devices {
		d.mu.Lock()
		look := dev.flying > 0 && dev.lost == nil
		d.mu.Unlock()
		if !look {
			continue
		}
		for _, s := range dev.streams {
			if _, err := d.api.query(dev.ctx, s); err != nil {
				d.lose(dev, err)
				break
			}
		}
	}
}

// lose ends every part of a device that has failed. Their numbers are not used
// again: a notice may still come, and must not be taken for that of another.
func (d *Driver) lose(dev *device, cause error) {
	d.mu.Lock()
	if dev.lost == nil {
		dev.lost = &lostError{dev.Index, cause}
	}
	var ended []*batch
	for id, p := range d.parts {
		if p.dev == dev && p.batch != nil {
			d.parts[id] = part{}
			dev.flying--
			d.flying--
			p.batch.unsettled = true
			ended = append(ended, p.batch)
		}
	}
	lost := dev.lost
	d.mu.Unlock()
	for _, b := range ended {
		d.mu.Lock()
		d.endPartLocked(b, lost)
	}
}
