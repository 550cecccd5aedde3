package cuda

import "fmt"

// batch is a Copy that was found sound, with its spans as the driver wants
// them. Fields below mu's line belong to Driver.mu once the batch is queued.
type batch struct {
	copy     Copy
	dev      *device
	bytes    int64
	pageable bool // some host memory is not registered

	// The copies: span i may have become several, cut where two registrations
	// meet, because the driver refuses a copy that spans two.
	host, mem, size []uint64
	regions         []*region // each once

	// Guarded by Driver.mu.
	open      int   // parts in flight, and one for the issuer while it is not through
	err       error // the first that was met
	unsettled bool
}

// plan checks c against the regions and lays it out. The caller holds the lock
// that guards both tables.
func plan(c Copy, memory, hosts *regions, maxSpans int, pageable bool) (*batch, error) {
	wrong := func(i int, err error, format string, args ...any) error {
		return &SpanError{Index: i, Err: err, Detail: fmt.Sprintf(format, args...)}
	}
	n := len(c.Host)
	switch {
	case c.Direction != ToDevice && c.Direction != ToHost:
		return nil, &OptionError{"Copy.Direction", c.Direction.String(), "ToDevice or ToHost"}
	case c.Done == nil:
		return nil, &OptionError{"Copy.Done", "nil", "a function"}
	case n != len(c.Mem):
		return nil, wrong(-1, ErrMismatch, "%d host spans, %d device spans", n, len(c.Mem))
	case n == 0:
		return nil, wrong(-1, ErrMismatch, "no spans")
	case n > maxSpans:
		return nil, &LimitError{What: "spans of a batch", Value: int64(n), Limit: int64(maxSpans),
			Fix: "submit several batches, or raise Options.MaxSpans", Err: ErrMismatch}
	}
	b := &batch{
		copy: c,
		host: make([]uint64, 0, n), mem: make([]uint64, 0, n), size: make([]uint64, 0, n),
	}
	for i, h := range c.Host {
		m := c.Mem[i]
		if int64(len(h)) != m.Size || m.Size <= 0 {
			return nil, wrong(i, ErrMismatch, "%d host bytes, %d device bytes", len(h), m.Size)
		}
		size := uint64(m.Size)
		r, _ := memory.find(uint64(m.Ptr), size)
		switch {
		case r == nil || r.leaving:
			return nil, wrong(i, ErrNotKnown, "%d bytes of device memory at %v: Alloc or Adopt them", m.Size, m.Ptr)
		case r.device != c.Device:
			return nil, wrong(i, ErrWrongDevice, "memory of device %d in a batch for device %d", r.device, c.Device)
		}
		b.use(r)
		addr := uint64(addrOf(h))
		hr, partly := hosts.find(addr, size)
		switch {
		case hr != nil && !hr.leaving:
			b.use(hr)
			b.cut(hr, addr, uint64(m.Ptr), size)
		case hr != nil || partly || !pageable:
			return nil, wrong(i, ErrNotKnown, "%d bytes of host memory: RegisterHost them", m.Size)
		default:
			b.pageable = true
			b.put(addr, uint64(m.Ptr), size)
		}
		b.bytes += m.Size
	}
	return b, nil
}

// use notes a region once. Batches touch few, and mostly the last again.
func (b *batch) use(r *region) {
	for i := len(b.regions) - 1; i >= 0; i-- {
		if b.regions[i] == r {
			return
		}
	}
	b.regions = append(b.regions, r)
}

func (b *batch) put(host, mem, size uint64) {
	b.host, b.mem, b.size = append(b.host, host), append(b.mem, mem), append(b.size, size)
}

// cut puts a span, cut at the borders of r's registrations.
func (b *batch) cut(r *region, host, mem, size uint64) {
	for {
		n := min(size, r.chunk-(host-r.base)%r.chunk)
		b.put(host, mem, n)
		if size -= n; size == 0 {
			return
		}
		host, mem = host+n, mem+n
	}
}

// parts is how many streams the batch goes to.
func (b *batch) parts() int { return min(maxStreams, max(1, len(b.size)/minSpans)) }

// part is what goes to the i-th of n streams.
func (b *batch) part(i, n int) (dst, src, size []uint64) {
	lo, hi := len(b.size)*i/n, len(b.size)*(i+1)/n
	dst, src = b.mem[lo:hi], b.host[lo:hi]
	if b.copy.Direction == ToHost {
		dst, src = src, dst
	}
	return dst, src, b.size[lo:hi]
}
