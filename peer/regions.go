package peer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Conditions of registered regions.
var (
	// ErrRegion: the description does not describe memory that is there.
	ErrRegion = errors.New("bad region")
	// ErrRegionExists: the label is registered.
	ErrRegionExists = errors.New("region is registered")
	// ErrNoRegion: no region goes by that label, or it has no such element.
	ErrNoRegion = errors.New("no such region or element")
	// ErrRegionBusy: transfers use the region.
	ErrRegionBusy = errors.New("region in use")
)

// RegionError says what is wrong with a region or a reference. Unwrap gives the
// condition.
type RegionError struct {
	Label  string
	Detail string // the value, the limit and the fix
	Err    error
}

func (e *RegionError) Error() string {
	return fmt.Sprintf("peer: region %q: %v: %s", e.Label, e.Err, e.Detail)
}

func (e *RegionError) Unwrap() error { return e.Err }

// Region describes memory of the host program's that transfers may read or write:
// Count elements of Size bytes, Stride bytes apart from start to start. What lies
// between elements is never touched.
//
// Host memory is given as Mem; the registry keeps it reachable. Memory of a
// device is given by Device and Addr, its address there, and Mem is nil.
type Region struct {
	// Label is "pool" or "pool:part"; "pool:*" serves every part of the pool that
	// has no region of its own.
	Label  string
	Mem    []byte
	Device int     // -1: host memory
	Addr   uintptr // of device memory
	Size   int     // bytes of one element
	Stride int     // bytes; 0: Size
	Count  int     // elements; 0: one
}

// Extent is the length of a region in bytes, gaps included.
func (r *Region) Extent() int { return r.Size + (r.Count-1)*r.Stride }

// MemoryRef names one element of a registered region.
type MemoryRef struct {
	Label   string
	Element int
}

// Span is memory that a reference stands for: host bytes, or Len bytes of a
// device from Addr.
type Span struct {
	Host   []byte // nil for device memory
	Device int
	Addr   uintptr
	Len    int
}

// Slice is n bytes of a span from at.
func (s Span) Slice(at, n int) Span {
	if s.Host != nil {
		return Span{Host: s.Host[at : at+n : at+n], Device: -1, Len: n}
	}
	return Span{Device: s.Device, Addr: s.Addr + uintptr(at), Len: n}
}

// Regions is a registry of the host program's memory. The zero Regions is empty
// and ready. Its methods may be called from any goroutine.
type Regions struct {
	// change is held while regions come and go, so that watchers hear of one change
	// after the other. It is taken before mu.
	change   sync.Mutex
	watchers []RegionWatcher // guarded by change

	mu sync.Mutex
	by map[string]*registered
}

type registered struct {
	Region
	users   int
	leaving bool // found by nobody any more
}

// RegionWatcher has something of its own for each region, such as a registration
// with a transport. Its methods must not call those of Regions.
type RegionWatcher interface {
	// RegionRegistered: the region is there. It may block while memory is pinned.
	RegionRegistered(g Region)
	// RegionLeaving ends what RegionRegistered began, or refuses and keeps it: the
	// region then stays. Nobody acquires spans of it meanwhile.
	RegionLeaving(g Region) error
}

// Watch tells w of every region, those there already and those to come, until
// Unwatch.
func (r *Regions) Watch(w RegionWatcher) {
	r.change.Lock()
	defer r.change.Unlock()
	r.watchers = append(r.watchers, w)
	r.mu.Lock()
	var all []Region
	for _, g := range r.by {
		all = append(all, g.Region)
	}
	r.mu.Unlock()
	for _, g := range all {
		w.RegionRegistered(g)
	}
}

// Unwatch tells w nothing more. It must have ended what it began.
func (r *Regions) Unwatch(w RegionWatcher) {
	r.change.Lock()
	defer r.change.Unlock()
	r.watchers = slices.DeleteFunc(r.watchers, func(x RegionWatcher) bool { return x == w })
}

// Register makes a region known under its label. Mem must stay mapped, and must
// not be resized, until Deregister has returned nil. Memory of a device that engines
// make known to UCX is pinned before Register returns.
func (r *Regions) Register(g Region) error {
	bad := func(format string, args ...any) error {
		return &RegionError{g.Label, fmt.Sprintf(format, args...), ErrRegion}
	}
	if g.Stride == 0 {
		g.Stride = g.Size
	}
	if g.Count == 0 {
		g.Count = 1
	}
	if g.Mem != nil {
		g.Device = -1
	}
	switch {
	case g.Label == "" || strings.HasSuffix(g.Label, ":") || strings.HasPrefix(g.Label, ":"):
		return bad("the label is pool, pool:part or pool:*")
	case g.Size <= 0 || g.Count < 0:
		return bad("Size is %d and Count %d: both must be positive", g.Size, g.Count)
	case g.Stride < g.Size:
		return bad("Stride is %d, less than the %d bytes of an element: elements would overlap", g.Stride, g.Size)
	case g.Count > 1 && g.Stride > (1<<62)/g.Count:
		return bad("Count %d of Stride %d is more than an address space", g.Count, g.Stride)
	case g.Device < 0 && len(g.Mem) != g.Extent():
		return bad("Mem has %d bytes, Size, Stride and Count make %d", len(g.Mem), g.Extent())
	case g.Device >= 0 && g.Addr == 0:
		return bad("device memory needs its address")
	}
	r.change.Lock()
	defer r.change.Unlock()
	r.mu.Lock()
	if r.by[g.Label] != nil {
		r.mu.Unlock()
		return &RegionError{g.Label, "deregister it first", ErrRegionExists}
	}
	if r.by == nil {
		r.by = map[string]*registered{}
	}
	r.by[g.Label] = &registered{Region: g}
	r.mu.Unlock()
	for _, w := range r.watchers {
		w.RegionRegistered(g)
	}
	return nil
}

// Deregister forgets a region, and has its watchers end their registrations of it.
// It fails with ErrRegionBusy while spans of it are acquired, or a watcher's
// transport may still touch it: then everything is as before.
func (r *Regions) Deregister(label string) error {
	r.change.Lock()
	defer r.change.Unlock()
	g, err := r.leave(label)
	if err != nil {
		return err
	}
	for i, w := range r.watchers {
		if err := w.RegionLeaving(g.Region); err != nil {
			for _, told := range r.watchers[:i] {
				told.RegionRegistered(g.Region)
			}
			r.mu.Lock()
			g.leaving = false
			r.mu.Unlock()
			return &RegionError{label, err.Error() + "; wait for the transfer's end", ErrRegionBusy}
		}
	}
	r.mu.Lock()
	delete(r.by, label)
	r.mu.Unlock()
	return nil
}

// leave hides a region that nobody uses.
func (r *Regions) leave(label string) (*registered, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.by[label]
	if g == nil {
		return nil, &RegionError{label, "it was not registered", ErrNoRegion}
	}
	if g.users > 0 {
		return nil, &RegionError{label, fmt.Sprintf("%d spans are in use; wait for their operations", g.users), ErrRegionBusy}
	}
	g.leaving = true
	return g, nil
}

// Acquire resolves references, all or none, and keeps their regions registered
// until release is called, once.
func (r *Regions) Acquire(refs []MemoryRef) (spans []Span, release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	spans = make([]Span, 0, len(refs))
	used := make([]*registered, 0, len(refs))
	for _, ref := range refs {
		g := r.find(ref.Label)
		if g == nil || g.leaving {
			return nil, nil, &RegionError{ref.Label, "register it first", ErrNoRegion}
		}
		if ref.Element < 0 || ref.Element >= g.Count {
			return nil, nil, &RegionError{ref.Label, fmt.Sprintf("element %d of %d", ref.Element, g.Count), ErrNoRegion}
		}
		at := ref.Element * g.Stride
		s := Span{Device: g.Device, Len: g.Size}
		if g.Device < 0 {
			s.Host = g.Mem[at : at+g.Size : at+g.Size]
		} else {
			s.Addr = g.Addr + uintptr(at)
		}
		spans, used = append(spans, s), append(used, g)
	}
	for _, g := range used {
		g.users++
	}
	return spans, sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, g := range used {
			g.users--
		}
	}), nil
}

// find is the region of a label: its own, or that of all parts of its pool.
func (r *Regions) find(label string) *registered {
	if g := r.by[label]; g != nil {
		return g
	}
	if pool, _, ok := strings.Cut(label, ":"); ok {
		return r.by[pool+":*"]
	}
	return nil
}

// Labels lists what is registered, for stats.
func (r *Regions) Labels() (labels []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l := range r.by {
		labels = append(labels, l)
	}
	return labels
}
