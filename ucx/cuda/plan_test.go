package cuda

import (
	"errors"
	"math"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRegionsFind(t *testing.T) {
	var rs regions
	for _, r := range []*region{{base: 300, size: 100}, {base: 100, size: 100}, {base: 200, size: 50}} {
		if !rs.add(r) {
			t.Fatalf("%d refused", r.base)
		}
	}
	for _, r := range []*region{{base: 50, size: 51}, {base: 199, size: 1}, {base: 240, size: 70}, {base: 0, size: 1000}, {base: 300, size: 100}} {
		if rs.add(r) {
			t.Errorf("%d+%d overlaps and was taken", r.base, r.size)
		}
	}
	for _, tt := range []struct {
		addr, size, base uint64
		partly           bool
	}{
		{100, 100, 100, false}, {150, 50, 100, false}, {199, 1, 100, false}, {200, 50, 200, false}, {399, 1, 300, false},
		{150, 51, 0, true}, {90, 20, 0, true}, {240, 70, 0, true}, {99, 1000, 0, true},
		{0, 100, 0, false}, {250, 50, 0, false}, {400, 1, 0, false}, {math.MaxUint64 - 3, 8, 0, false}, {399, math.MaxUint64 - 390, 0, false},
	} {
		r, partly := rs.find(tt.addr, tt.size)
		var base uint64
		if r != nil {
			base = r.base
		}
		if base != tt.base || partly != tt.partly {
			t.Errorf("find(%d, %d) = %d, %t, want %d, %t", tt.addr, tt.size, base, partly, tt.base, tt.partly)
		}
	}
	if rs.at(200) == nil || rs.at(201) != nil || rs.at(0) != nil {
		t.Error("at finds what does not begin there, or not what does")
	}
	rs.remove(rs.at(200))
	if r, _ := rs.find(220, 1); r != nil || len(rs.list) != 2 {
		t.Error("removed region is still there")
	}
}

// hostMemory is memory outside the Go heap, as an arena has it.
func hostMemory(t testing.TB, size int) []byte {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	return mem
}

func TestPlanRefuses(t *testing.T) {
	mem := hostMemory(t, 4<<12)
	known, foreign := mem[:2<<12], mem[2<<12:]
	memory, hosts := &regions{}, &regions{}
	memory.add(&region{base: 1 << 40, size: 1 << 20, device: 0})
	memory.add(&region{base: 1 << 41, size: 1 << 20, device: 1})
	memory.add(&region{base: 1 << 42, size: 1 << 20, device: 0, leaving: true})
	hosts.add(&region{base: uint64(addrOf(known)), size: uint64(len(known)), chunk: 1 << 12})
	span := func(p DevicePtr, n int64) []Span { return []Span{{p, n}} }
	done := func(Result) {}
	for _, tt := range []struct {
		name     string
		c        Copy
		pageable bool
		want     error
		index    int
	}{
		{"counts", Copy{ToHost, 0, [][]byte{known[:8], known[8:16]}, span(1<<40, 8), done}, false, ErrMismatch, -1},
		{"empty", Copy{ToHost, 0, nil, nil, done}, false, ErrMismatch, -1},
		{"sizes", Copy{ToHost, 0, [][]byte{known[:8]}, span(1<<40, 9), done}, false, ErrMismatch, 0},
		{"nothing", Copy{ToHost, 0, [][]byte{{}}, span(1<<40, 0), done}, false, ErrMismatch, 0},
		{"negative", Copy{ToHost, 0, [][]byte{known[:8]}, span(1<<40, -8), done}, false, ErrMismatch, 0},
		{"second span", Copy{ToHost, 0, [][]byte{known[:8], known[:8]}, []Span{{1 << 40, 8}, {1 << 39, 8}}, done}, false, ErrNotKnown, 1},
		{"over the end", Copy{ToDevice, 0, [][]byte{known[:8]}, span(1<<40+1<<20-4, 8), done}, false, ErrNotKnown, 0},
		{"another device", Copy{ToDevice, 0, [][]byte{known[:8]}, span(1<<41, 8), done}, false, ErrWrongDevice, 0},
		{"being freed", Copy{ToDevice, 0, [][]byte{known[:8]}, span(1<<42, 8), done}, false, ErrNotKnown, 0},
		{"host unknown", Copy{ToDevice, 0, [][]byte{foreign[:8]}, span(1<<40, 8), done}, false, ErrNotKnown, 0},
		{"host partly", Copy{ToDevice, 0, [][]byte{mem[2<<12-4:][:8]}, span(1<<40, 8), done}, true, ErrNotKnown, 0},
	} {
		_, err := plan(tt.c, memory, hosts, 2, tt.pageable)
		var se *SpanError
		if !errors.Is(err, tt.want) || !errors.As(err, &se) || se.Index != tt.index {
			t.Errorf("%s: %v, want %v at %d", tt.name, err, tt.want, tt.index)
		}
	}
	three := Copy{ToHost, 0, [][]byte{known[:1], known[1:2], known[2:3]}, []Span{{1 << 40, 1}, {1<<40 + 1, 1}, {1<<40 + 2, 1}}, done}
	var le *LimitError
	if _, err := plan(three, memory, hosts, 2, false); !errors.As(err, &le) || le.Value != 3 || le.Limit != 2 {
		t.Errorf("too many spans: %v", err)
	}
	var oe *OptionError
	three.Direction = 0
	if _, err := plan(three, memory, hosts, 3, false); !errors.As(err, &oe) {
		t.Errorf("no direction: %v", err)
	}
	three.Direction, three.Done = ToHost, nil
	if _, err := plan(three, memory, hosts, 3, false); !errors.As(err, &oe) {
		t.Errorf("nobody to tell: %v", err)
	}
	if b, err := plan(Copy{ToDevice, 0, [][]byte{foreign[:8]}, span(1<<40, 8), done}, memory, hosts, 2, true); err != nil || !b.pageable {
		t.Errorf("pageable: %v", err)
	}
}

// Copies never span two registrations, and together are the span.
func TestPlanCutsAtRegistrations(t *testing.T) {
	mem := hostMemory(t, 8<<12)
	memory, hosts := &regions{}, &regions{}
	memory.add(&region{base: 1 << 40, size: 1 << 20})
	hosts.add(&region{base: uint64(addrOf(mem)), size: uint64(len(mem)), chunk: 2 << 12})
	b, err := plan(Copy{ToHost, 0, [][]byte{mem[100 : 100+5<<12], mem[6<<12:]}, []Span{{1 << 40, 5 << 12}, {1<<40 + 1<<19, 2 << 12}}, func(Result) {}}, memory, hosts, 9, false)
	if err != nil {
		t.Fatal(err)
	}
	base := uint64(addrOf(mem))
	wantHost := []uint64{base + 100, base + 2<<12, base + 4<<12, base + 6<<12}
	wantSize := []uint64{2<<12 - 100, 2 << 12, 1<<12 + 100, 2 << 12}
	wantMem := []uint64{1 << 40, 1<<40 + 2<<12 - 100, 1<<40 + 4<<12 - 100, 1<<40 + 1<<19}
	if !slices.Equal(b.host, wantHost) || !slices.Equal(b.size, wantSize) || !slices.Equal(b.mem, wantMem) || len(b.regions) != 2 {
		t.Errorf("host %v\nsize %v\nmem %v, %d regions", b.host, b.size, b.mem, len(b.regions))
	}
	dst, src, _ := b.part(0, 1)
	if !slices.Equal(dst, wantHost) || !slices.Equal(src, wantMem) {
		t.Error("the sides are the wrong way round")
	}
}

func TestPartsCoverABatch(t *testing.T) {
	for n, want := range map[int]int{1: 1, 64: 1, 127: 1, 128: 2, 191: 2, 192: 3, 256: 4, 10000: 4} {
		b := &batch{copy: Copy{Direction: ToDevice}}
		for i := range n {
			b.put(uint64(i), uint64(i)+1e6, 1)
		}
		if b.parts() != want {
			t.Errorf("%d spans in %d parts, want %d", n, b.parts(), want)
		}
		var all []uint64
		for i := range want {
			dst, src, size := b.part(i, want)
			if len(dst) != len(src) || len(dst) != len(size) || n >= minSpans && len(dst) < minSpans {
				t.Errorf("%d spans: part %d has %d", n, i, len(dst))
			}
			all = append(all, src...)
		}
		if !slices.Equal(all, b.host) {
			t.Errorf("%d spans: parts are not the whole", n)
		}
	}
}
