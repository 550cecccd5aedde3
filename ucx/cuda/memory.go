package cuda

import (
	"context"
	"fmt"
	"os"
)

// PointerInfo asks the driver about an address or DevicePtr. Memory it does not
// know is Unregistered, which is no error.
func (d *Driver) PointerInfo(ptr uintptr) (PointerInfo, error) {
	d.mu.Lock()
	err := d.enterLocked()
	d.mu.Unlock()
	if err != nil {
		return PointerInfo{}, err
	}
	defer d.leave()
	return d.api.pointer(d.devices[0].ctx, ptr)
}

// Alloc reserves memory of a device. Its contents are undefined. Free or Close
// gives it back. It may block for milliseconds.
func (d *Driver) Alloc(device int, size int64) (DevicePtr, error) {
	if size <= 0 {
		return 0, &OptionError{"size", fmt.Sprint(size), "at least 1 byte"}
	}
	d.mu.Lock()
	dev, err := d.device(device)
	if err == nil {
		err = dev.lost
	}
	if err == nil {
		err = d.enterLocked()
	}
	d.mu.Unlock()
	if err != nil {
		return 0, err
	}
	defer d.leave()
	p, err := d.api.alloc(dev.ctx, size)
	if err != nil {
		return 0, fmt.Errorf("cuda: %d bytes of device %d: %w", size, device, err)
	}
	d.mu.Lock()
	ok := d.memory.add(&region{base: uint64(p), size: uint64(size), device: device, owned: true})
	d.mu.Unlock()
	if !ok {
		d.api.free(dev.ctx, p) // the error below matters more
		return 0, fmt.Errorf("%w: the driver gave out %v, which was adopted and since freed by its owner: Forget it first", ErrBusy, p)
	}
	return p, nil
}

// Free gives back what Alloc reserved. ErrBusy while copies use it.
func (d *Driver) Free(p DevicePtr) error {
	r, err := d.retire(&d.memory, p, true)
	if err != nil {
		return err
	}
	defer d.leave()
	dev, err := d.device(r.device)
	if err == nil {
		err = d.api.free(dev.ctx, p)
	}
	d.drop(&d.memory, r)
	return err
}

// Adopt makes device memory of somebody else, such as an inference engine in
// this process, known for copies, and reports whose it is. It must be device
// memory of one device in use, all of it. The owner must not free it before
// Forget returned nil.
func (d *Driver) Adopt(p DevicePtr, size int64) (device int, err error) {
	if p == 0 || size <= 0 || uint64(size) > -uint64(p) {
		return 0, &OptionError{"memory", fmt.Sprintf("%d bytes at %v", size, p), "a range of at least 1 byte"}
	}
	d.mu.Lock()
	err = d.enterLocked()
	d.mu.Unlock()
	if err != nil {
		return 0, err
	}
	defer d.leave()
	// Memory mapped in pieces has an answer for each piece.
	end := uint64(p) + uint64(size)
	for at := uint64(p); at < end; {
		info, err := d.api.pointer(d.devices[0].ctx, uintptr(at))
		switch {
		case err != nil:
			return 0, err
		case info.Type != DeviceMemory:
			return 0, fmt.Errorf("%w: %v is %v memory", ErrWrongType, DevicePtr(at), info.Type)
		case at != uint64(p) && info.Device != device:
			return 0, fmt.Errorf("%w: device %d at %v, device %d at %v", ErrWrongDevice, device, p, info.Device, DevicePtr(at))
		}
		device = info.Device
		next := uint64(info.Base) + uint64(info.Size)
		if next <= at {
			return 0, fmt.Errorf("%w: the driver does not say where the memory at %v ends", ErrWrongType, DevicePtr(at))
		}
		at = next
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.device(device); err != nil {
		return device, err
	}
	if !d.memory.add(&region{base: uint64(p), size: uint64(size), device: device}) {
		return device, fmt.Errorf("%w: some of %d bytes at %v are known already: Forget or Free them first", ErrBusy, size, p)
	}
	return device, nil
}

// Forget ends what Adopt began. ErrBusy while copies use the memory.
func (d *Driver) Forget(p DevicePtr) error {
	r, err := d.retire(&d.memory, p, false)
	if err != nil {
		return err
	}
	d.drop(&d.memory, r)
	d.leave()
	return nil
}

// RegisterHost locks mem in place and makes it known to all devices, so that
// they copy it unaided. It goes chunk by chunk (Options.HostChunk), calls
// progress after each when that is not nil, and looks at ctx between them. On
// an error nothing stays registered.
//
// The caller must pass whole pages outside the Go heap that stay mapped until
// Unregister or Close returned nil.
func (d *Driver) RegisterHost(ctx context.Context, mem []byte, progress func(done, total int64)) error {
	page := uintptr(os.Getpagesize())
	if len(mem) == 0 || addrOf(mem)%page != 0 || uintptr(len(mem))%page != 0 {
		return &OptionError{"host memory", fmt.Sprintf("%d bytes at %#x", len(mem), addrOf(mem)), fmt.Sprintf("whole pages of %d bytes", page)}
	}
	size := int64(len(mem))
	r := &region{base: uint64(addrOf(mem)), size: uint64(size), chunk: uint64(d.opts.HostChunk), leaving: true} // until it is all there
	d.mu.Lock()
	dev, err := d.registrarLocked(r, size)
	d.mu.Unlock()
	if err != nil {
		return err
	}
	defer d.leave()
	for done := uint64(0); done < r.size; {
		n := min(r.chunk, r.size-done)
		err := ctx.Err()
		if err == nil {
			d.mu.Lock()
			if d.closing {
				err = ErrClosed
			}
			d.mu.Unlock()
		}
		if err == nil {
			err = d.api.register(dev.ctx, uintptr(r.base+done), int64(n))
		}
		if err != nil {
			d.unregister(r, done) // the error below matters more
			d.drop(&d.hosts, r)
			return fmt.Errorf("cuda: registering host memory, %d of %d bytes done: %w", done, size, err)
		}
		if done += n; progress != nil {
			progress(int64(done), size)
		}
	}
	d.mu.Lock()
	r.leaving = false
	d.mu.Unlock()
	return nil
}

// registrarLocked books r, and picks the device to register it with.
func (d *Driver) registrarLocked(r *region, size int64) (*device, error) {
	if d.closing {
		return nil, ErrClosed
	}
	if size > d.opts.HostLimit-d.hostUse {
		return nil, &LimitError{What: "registered host bytes", Value: d.hostUse + size, Limit: d.opts.HostLimit,
			Fix: "register less, or raise Options.HostLimit", Err: ErrOutOfMemory}
	}
	for _, dev := range d.devices {
		if dev.lost != nil {
			continue
		}
		r.device = dev.Index
		if !d.hosts.add(r) {
			return nil, fmt.Errorf("%w: some of %d bytes of host memory are registered already", ErrBusy, size)
		}
		d.hostUse += size
		return dev, d.enterLocked()
	}
	return nil, d.devices[0].lost
}

// Unregister ends what RegisterHost began; mem is the same slice. ErrBusy while
// copies use it, which for good is so after the loss of a device that may still
// do.
func (d *Driver) Unregister(mem []byte) error {
	r, err := d.retire(&d.hosts, DevicePtr(addrOf(mem)), false)
	if err != nil {
		return err
	}
	defer d.leave()
	err = d.unregister(r, r.size)
	d.drop(&d.hosts, r)
	return err
}

// unregister undoes the first n bytes of r's registrations and returns the
// first error.
func (d *Driver) unregister(r *region, n uint64) (first error) {
	dev, err := d.device(r.device)
	if err != nil {
		return err
	}
	for at := uint64(0); at < n; at += r.chunk {
		if err := d.api.unregister(dev.ctx, uintptr(r.base+at)); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// retire finds the region that begins at p and closes it to new copies. The
// caller must drop it and leave.
func (d *Driver) retire(set *regions, p DevicePtr, owned bool) (*region, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := set.at(uint64(p))
	switch {
	case d.closing:
		return nil, ErrClosed
	case r == nil || r.owned != owned || r.leaving:
		return nil, fmt.Errorf("%w: nothing to give back begins at %v", ErrNotKnown, p)
	case r.inFlight > 0:
		return nil, &BusyError{What: fmt.Sprintf("the memory at %v", p), InFlight: r.inFlight, Unsettled: r.unsettled}
	}
	r.leaving = true
	return r, d.enterLocked()
}

// drop takes a region out of its table, whatever the driver said.
func (d *Driver) drop(set *regions, r *region) {
	d.mu.Lock()
	defer d.mu.Unlock()
	set.remove(r)
	if set == &d.hosts {
		d.hostUse -= int64(r.size)
	}
}
