package peer

import (
	"bytes"

	"github.com/kvcr-go/kvcr/internal/blockcopy"
	"github.com/kvcr-go/kvcr/internal/points"
	"github.com/kvcr-go/kvcr/wire"
)

// copyJob is one Post. It waits in shmRoute.copiers until one takes it.
type copyJob struct {
	d     *shmDest
	m     *shmMap
	p     Post
	taken bool // guarded by d.mu
}

// run copies one block, unless it was closed meanwhile.
func (j *copyJob) run() {
	d := j.d
	id := item{j.p.Op, j.p.Index}
	d.mu.Lock()
	if d.jobs[id] != j {
		d.mu.Unlock()
		return
	}
	j.taken = true
	j.m.busy++
	mem := j.m.mem
	d.mu.Unlock()
	points.At("copy", uint64(d.s.Peer))
	status := copyBlock(d.s.Memory, mem, &j.p)
	points.At("copied", uint64(d.s.Peer))
	d.mu.Lock()
	delete(d.jobs, id)
	j.m.busy--
	d.unmapLocked(j.m)
	d.mu.Unlock()
	d.s.Event(Landed{j.p.Op, j.p.Index, status})
}

// copyBlock copies a block's pieces from the source's memory to the slot, and
// compares sums. What the offer says is a peer's word: it is checked before it is
// used.
func copyBlock(memory Memory, mem []byte, p *Post) wire.Status {
	o := p.Offer
	dst := memory.SlotBytes(p.Slot)
	if len(o.Offsets) != len(dst) {
		return wire.StatusSource
	}
	left := o.Size
	for i, b := range dst {
		n := min(uint64(len(b)), left)
		if n > uint64(len(mem)) || o.Offsets[i] > uint64(len(mem))-n {
			return wire.StatusSource
		}
		dst[i] = b[:n]
		left -= n
	}
	if left > 0 {
		return wire.StatusTooLarge
	}
	if o.Flags&wire.OfferSum != 0 && len(dst) == 1 && blockcopy.Fused(dst[0]) {
		status := copyFused(dst[0], mem[o.Offsets[0]:][:len(dst[0])], o.Sum)
		if status == wire.StatusOK {
			memory.SlotSummed(p.Slot, o.Sum)
		}
		return status
	}
	for i, b := range dst {
		blockcopy.Copy(b, mem[o.Offsets[i]:][:len(b)])
	}
	if o.Flags&wire.OfferSum != 0 && memory.SlotSum(p.Slot) != o.Sum {
		return wire.StatusChecksum
	}
	return wire.StatusOK
}

// copyFused copies and sums in one pass. The sum must be that of the slot, not of
// what the source's memory holds at another moment: a fused copy loads each byte
// once, but for the last ones, which are compared.
func copyFused(dst, src []byte, sum uint64) wire.Status {
	const tail = 64
	got := blockcopy.CopySum(dst, src)
	if end := len(dst) - min(tail, len(dst)); got != sum || !bytes.Equal(dst[end:], src[end:]) {
		return wire.StatusChecksum
	}
	return wire.StatusOK
}
