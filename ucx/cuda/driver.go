package cuda

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Driver is an open driver library with a context on each device in use. All
// its methods may be called from any goroutine.
type Driver struct {
	api     api
	opts    Options
	about   Info
	devices []*device // in use, in the order of Options.Devices

	bell    *os.File      // eventfd that notices ring
	watched chan struct{} // closed when the watcher has ended
	issuers sync.WaitGroup
	single  atomic.Bool   // the call for many copies was refused
	slow    atomic.Uint64 // Stats.SlowNotifications

	mu      sync.Mutex
	memory  regions // device memory
	hosts   regions // registered host memory
	parts   []part  // by number of notice
	live    int     // batches whose Done has not returned
	flying  int     // parts in flight
	calls   int     // calls of the methods below inside the driver
	counts  Stats   // only the counters
	hostUse int64   // bytes registered or being registered
	closing bool
	closed  chan struct{} // made by the first Close, closed when all is given back
	closeIs error         // what could not be given back; valid when closed is closed

	unsettled int // batches that ended Unsettled
	turns     int // of the watcher: it rests while nothing is in flight
}

// lostError says which device was lost.
type lostError struct {
	device int
	cause  error
}

func (e *lostError) Error() string {
	return fmt.Sprintf("cuda: device %d lost: %v: only a new process can use it again", e.device, e.cause)
}
func (e *lostError) Unwrap() error        { return e.cause }
func (e *lostError) Is(target error) bool { return target == ErrDeviceLost }

// Probe opens the driver library only to say what it finds: no context is made,
// so devices stay as they are. It may take seconds on machines with many
// devices. Info has the library's name also when the error is not nil.
func Probe(o Options) (Info, error) {
	o = o.withDefaults()
	a, err := openLibrary(o.Library)
	if err != nil {
		return Info{Library: o.Library}, err
	}
	return a.info()
}

// Open opens the driver library, and a context and streams on each device in
// use. It may take seconds. The caller must Close the Driver.
func Open(o Options) (*Driver, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	a, err := openLibrary(o.Library)
	if err != nil {
		return nil, err
	}
	about, err := a.info()
	if err != nil {
		return nil, err
	}
	if o.Devices == nil {
		for i := range about.Devices {
			o.Devices = append(o.Devices, i)
		}
	}
	if len(o.Devices) == 0 {
		return nil, fmt.Errorf("%w: %s finds none", ErrNoDevice, o.Library)
	}
	d := &Driver{api: a, opts: o, about: about, watched: make(chan struct{})}
	for _, n := range o.Devices {
		if n >= len(about.Devices) {
			d.abandon()
			return nil, fmt.Errorf("%w: %d of %d", ErrNoDevice, n, len(about.Devices))
		}
		dev := &device{Device: about.Devices[n], queue: make(chan *batch, o.MaxBatches)}
		if dev.ctx, err = a.retain(n); err != nil {
			d.abandon()
			return nil, err
		}
		dev.batches = a.batches(n)
		d.devices = append(d.devices, dev)
		for i := range dev.streams {
			if dev.streams[i], err = a.stream(dev.ctx); err != nil {
				d.abandon()
				return nil, err
			}
		}
	}
	perDevice := o.MaxBatches * maxStreams
	d.parts = make([]part, perDevice*len(d.devices))
	fd, err := a.openBoard(len(d.parts))
	if err != nil {
		d.abandon()
		return nil, err
	}
	d.bell = os.NewFile(uintptr(fd), "cuda notices")
	for i, dev := range d.devices {
		for id := range perDevice {
			dev.notices = append(dev.notices, uint32(i*perDevice+id))
		}
		d.issuers.Add(1)
		go d.issueAll(dev)
	}
	go d.watch()
	return d, nil
}

// release gives a device's streams and context back. A notice that was seen may
// have come from a call that has not returned yet, and still uses the eventfd:
// each stream is waited for.
func (d *Driver) release(dev *device) (errs error) {
	for _, s := range dev.streams {
		if s != 0 {
			errs = errors.Join(errs, d.api.synchronize(dev.ctx, s), d.api.destroy(dev.ctx, s))
		}
	}
	return errors.Join(errs, d.api.release(dev.Index))
}

// abandon undoes a part of Open.
func (d *Driver) abandon() {
	for _, dev := range d.devices {
		d.release(dev) // the error of Open is the one to tell
	}
}

// Info is what the driver said at Open.
func (d *Driver) Info() Info {
	i := d.about
	i.Devices = append([]Device(nil), i.Devices...)
	return i
}

// Devices are the devices in use.
func (d *Driver) Devices() []Device {
	var out []Device
	for _, dev := range d.devices {
		out = append(out, dev.Device)
	}
	return out
}

// Stats is a snapshot of the counters.
func (d *Driver) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.counts
	s.UnsettledBatches = d.unsettled
	s.SlowNotifications = d.slow.Load()
	s.Registered = d.hostUse
	for _, r := range d.memory.list {
		if r.owned {
			s.Allocated += int64(r.size)
		}
	}
	for _, dev := range d.devices {
		s.InFlight += dev.live
		s.BatchCall = s.BatchCall || d.api.batches(dev.Index) && !d.single.Load()
		if dev.lost != nil {
			s.LostDevices++
		}
	}
	return s
}

func (d *Driver) device(n int) (*device, error) {
	for _, dev := range d.devices {
		if dev.Index == n {
			return dev, nil
		}
	}
	return nil, fmt.Errorf("%w: %d is not in use", ErrNoDevice, n)
}

// enterLocked keeps Close from giving back what a call works with; leave ends it.
func (d *Driver) enterLocked() error {
	if d.closing {
		return ErrClosed
	}
	d.calls++
	return nil
}

func (d *Driver) leave() {
	d.mu.Lock()
	d.calls--
	d.mu.Unlock()
}

// Close ends the Driver: batches that the driver library does not have yet, or
// not all of, end with ErrClosed; others run to their end; then what was
// allocated or registered is given back. It waits at most Options.CloseTimeout and then reports a
// BusyError; the rest goes on, and another Close waits for it again. Memory
// that a lost device may still touch stays registered, and Close reports a
// BusyError that is ErrDeviceLost too.
//
// Any goroutine may call it, any number of times, Done functions aside.
func (d *Driver) Close() error {
	d.mu.Lock()
	if !d.closing {
		d.closing = true
		d.closed = make(chan struct{})
		for _, dev := range d.devices {
			close(dev.queue)
		}
		go d.shutdown()
	}
	d.mu.Unlock()
	t := time.NewTimer(d.opts.CloseTimeout)
	defer t.Stop()
	select {
	case <-d.closed:
		return d.closeIs
	case <-t.C:
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return &BusyError{What: "the driver", InFlight: d.live + d.calls, Unsettled: d.unsettled}
}

// shutdown waits until nothing is in flight and gives everything back.
func (d *Driver) shutdown() {
	defer close(d.closed)
	d.issuers.Wait()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		d.mu.Lock()
		idle := d.live == 0 && d.calls == 0
		d.mu.Unlock()
		if idle {
			break
		}
		time.Sleep(pause)
	}
	d.closeIs = d.giveBack()
}

// giveBack runs alone, Stats aside: no batch, no call, no issuer is left.
func (d *Driver) giveBack() (errs error) {
	for _, r := range d.memory.list {
		if dev, err := d.device(r.device); err == nil && r.owned {
			errs = errors.Join(errs, unlessLost(d.api.free(dev.ctx, DevicePtr(r.base))))
		}
	}
	// Lost devices first: with its context gone, a device writes no more, and
	// the memory it worked on may be given back too.
	gone := true
	for _, dev := range d.devices {
		if dev.lost != nil {
			d.release(dev) // reports the loss once more
			active, err := d.api.active(dev.Index)
			gone = gone && err == nil && !active
		}
	}
	var kept []*region
	for _, r := range d.hosts.list {
		if r.unsettled > 0 && !gone {
			kept = append(kept, r)
			continue
		}
		errs = errors.Join(errs, unlessLost(d.unregister(r, r.size)))
	}
	for _, dev := range d.devices {
		if dev.lost == nil {
			errs = errors.Join(errs, d.release(dev))
		}
	}
	d.mu.Lock()
	if gone {
		d.unsettled = 0
	}
	d.memory.list, d.hosts.list, d.hostUse = nil, kept, 0
	for _, r := range kept {
		d.hostUse += int64(r.size)
	}
	unsettled := d.unsettled
	d.mu.Unlock()

	d.bell.Close()
	<-d.watched
	if unsettled > 0 {
		// A notice may still come: it finds its list, and an eventfd nobody
		// reads. Both are left to the end of the process.
		return errors.Join(errs, &BusyError{What: "memory", InFlight: unsettled, Unsettled: unsettled})
	}
	d.api.closeBoard()
	return errs
}

// unlessLost drops what a lost device says to being tidied up.
func unlessLost(err error) error {
	if errors.Is(err, ErrDeviceLost) {
		return nil
	}
	return err
}
