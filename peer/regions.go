package peer

import (
	"errors"
	"fmt"
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

// Regions is a registry of the host program's memory. The zero Regions is empty
// and ready. Its methods may be called from any goroutine.
type Regions struct {
	mu sync.Mutex
	by map[string]*registered
}

type registered struct {
	Region
	users int
}

// Register makes a region known under its label. Mem must stay mapped, and must
// not be resized, until Deregister has returned nil.
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
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.by[g.Label] != nil {
		return &RegionError{g.Label, "deregister it first", ErrRegionExists}
	}
	if r.by == nil {
		r.by = map[string]*registered{}
	}
	r.by[g.Label] = &registered{Region: g}
	return nil
}

// Deregister forgets a region. It fails with ErrRegionBusy while spans of it are
// acquired.
func (r *Regions) Deregister(label string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.by[label]
	if g == nil {
		return &RegionError{label, "it was not registered", ErrNoRegion}
	}
	if g.users > 0 {
		return &RegionError{label, fmt.Sprintf("%d spans are in use; wait for their operations", g.users), ErrRegionBusy}
	}
	delete(r.by, label)
	return nil
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
		if g == nil {
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
