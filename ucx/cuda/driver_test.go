//go:build linux && cgo && ucx

package cuda

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// fixture is a Driver with device memory and registered host memory, both cut
// into n slots.
type fixture struct {
	*Driver
	t    testing.TB
	dev  int
	slot int
	dptr DevicePtr
	mem  []byte
}

func newFixture(t testing.TB, d *Driver, dev, n, slot int) *fixture {
	t.Helper()
	f := &fixture{Driver: d, t: t, dev: dev, slot: slot, mem: hostMemory(t, n*slot)}
	var err error
	if f.dptr, err = d.Alloc(dev, int64(n*slot)); err != nil {
		t.Fatal(err)
	}
	if err := d.RegisterHost(context.Background(), f.mem, nil); err != nil {
		t.Fatal(err)
	}
	// The memory is unmapped by a cleanup of hostMemory, which would come
	// before that of the Driver.
	t.Cleanup(func() {
		if err := d.Unregister(f.mem); err != nil && !errors.Is(err, ErrClosed) && !errors.Is(err, ErrNotKnown) && !errors.Is(err, ErrBusy) {
			t.Errorf("Unregister: %v", err)
		}
	})
	return f
}

func (f *fixture) host(i int) []byte { return f.mem[i*f.slot : (i+1)*f.slot] }
func (f *fixture) span(i int) Span {
	return Span{f.dptr + DevicePtr(i*f.slot), int64(f.slot)}
}

// copyOf is a batch between host slots and device slots of the same list.
func (f *fixture) copyOf(dir Direction, host, mem []int, done func(Result)) Copy {
	c := Copy{Direction: dir, Device: f.dev, Done: done}
	for i := range host {
		c.Host, c.Mem = append(c.Host, f.host(host[i])), append(c.Mem, f.span(mem[i]))
	}
	return c
}

// start submits and returns where the result comes.
func (f *fixture) start(dir Direction, host, mem []int) <-chan Result {
	f.t.Helper()
	out := make(chan Result, 2)
	if err := f.Submit(f.copyOf(dir, host, mem, func(r Result) { out <- r })); err != nil {
		f.t.Fatal(err)
	}
	return out
}

func (f *fixture) wait(out <-chan Result) Result {
	f.t.Helper()
	select {
	case r := <-out:
		return r
	case <-time.After(20 * time.Second):
		f.t.Fatal("no result within 20 s")
		return Result{}
	}
}

func (f *fixture) copy(dir Direction, host, mem []int) {
	f.t.Helper()
	r := f.wait(f.start(dir, host, mem))
	if want := int64(len(host) * f.slot); r.Err != nil || r.Bytes != want || r.Unsettled {
		f.t.Fatalf("%v: %+v, want %d bytes", dir, r, want)
	}
}

func seq(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// fill gives each slot bytes that tell it from every other.
func (f *fixture) fill(seed byte) {
	for i := range len(f.mem) / f.slot {
		for k, s := 0, f.host(i); k < len(s); k++ {
			s[k] = seed + byte(i) + byte(i>>8)*31 + byte(k)*7 + byte(k>>8)
		}
	}
}

func TestDevices(t *testing.T) {
	d := openAny(t, Options{})
	info := d.Info()
	if info.Version < 10000 || info.Library == "" || len(info.Devices) == 0 || len(d.Devices()) != len(info.Devices) {
		t.Fatalf("info %+v, devices %v", info, d.Devices())
	}
	for i, dev := range d.Devices() {
		if dev.Index != i || dev.Name == "" || dev.Memory < 1<<30 {
			t.Errorf("device %d: %+v", i, dev)
		}
	}
	t.Logf("CUDA %s, %+v", info.VersionString(), d.Devices())
	if _, err := d.Alloc(len(info.Devices), 1); !errors.Is(err, ErrNoDevice) {
		t.Errorf("memory of a device that is not there: %v", err)
	}
	o := Options{Library: info.Library, Devices: []int{len(info.Devices)}}
	if _, err := Open(o); !errors.Is(err, ErrNoDevice) {
		t.Errorf("Open of a device that is not there: %v", err)
	}
}

func TestPointerInfo(t *testing.T) {
	d := openAny(t, Options{})
	f := newFixture(t, d, 0, 4, 64<<10)
	size := int64(4 * 64 << 10)
	stranger := hostMemory(t, 4096)
	for _, tt := range []struct {
		name string
		ptr  uintptr
		want PointerInfo
	}{
		{"device", uintptr(f.dptr), PointerInfo{DeviceMemory, 0, uintptr(f.dptr), size}},
		{"inside device", uintptr(f.dptr) + 70000, PointerInfo{DeviceMemory, 0, uintptr(f.dptr), size}},
		{"host", addrOf(f.mem) + 5, PointerInfo{Host, 0, addrOf(f.mem), size}},
		{"unregistered", addrOf(stranger), PointerInfo{}},
		{"nil", 0, PointerInfo{}},
	} {
		got, err := d.PointerInfo(tt.ptr)
		if err != nil || got != tt.want {
			t.Errorf("%s: %+v, %v, want %+v", tt.name, got, err, tt.want)
		}
	}
	if err := d.Free(f.dptr); err != nil {
		t.Fatal(err)
	}
	if got, err := d.PointerInfo(uintptr(f.dptr)); err != nil || got.Type != Unregistered {
		t.Errorf("after Free: %+v, %v", got, err)
	}
}

// Bytes arrive where they belong, through any number of spans, in any order of
// slots, cut by registrations or not.
func TestCopiesCarryBytes(t *testing.T) {
	const n, slot = 300, 12 << 10
	d := openAny(t, Options{HostChunk: 64 << 10}) // 64 KiB is no multiple of a slot: spans are cut
	f := newFixture(t, d, 0, n, slot)
	for _, count := range []int{1, 2, 63, 64, 128, 200, n} {
		f.fill(byte(count))
		want := bytes.Clone(f.mem)
		mem := rand.Perm(n)[:count]
		f.copy(ToDevice, seq(count), mem)
		clear(f.mem)
		back := rand.Perm(n)[:count]
		f.copy(ToHost, back, mem)
		for i, k := range back {
			if !bytes.Equal(f.host(k), want[i*slot:(i+1)*slot]) {
				t.Fatalf("%d spans: slot %d came back as something else", count, i)
			}
		}
		other := map[int]bool{}
		for _, k := range back {
			other[k] = true
		}
		for i := range n {
			if !other[i] && bytes.ContainsFunc(f.host(i), func(r rune) bool { return r != 0 }) {
				t.Fatalf("%d spans: slot %d was written and should not have been", count, i)
			}
		}
	}
	s := d.Stats()
	if s.Batches != 14 || s.Failed != 0 || s.Spans != 2*(1+2+63+64+128+200+n) || s.ToHost != s.ToDevice || s.ToHost != s.Spans/2*slot || s.InFlight != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestPageableMemory(t *testing.T) {
	d := openAny(t, Options{Pageable: true})
	p, err := d.Alloc(0, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{Driver: d, t: t, slot: 8 << 10, dptr: p, mem: hostMemory(t, 1<<20)}
	f.fill(3)
	want := bytes.Clone(f.mem)
	f.copy(ToDevice, seq(128), seq(128))
	clear(f.mem)
	f.copy(ToHost, seq(128), seq(128))
	if !bytes.Equal(f.mem, want) {
		t.Error("other bytes came back")
	}
}

func TestSubmitRefusesStrangers(t *testing.T) {
	d := openAny(t, Options{})
	f := newFixture(t, d, 0, 4, 4096)
	called := func(Result) { t.Error("Done of a batch that was refused") }
	c := f.copyOf(ToHost, seq(2), seq(2), called)
	c.Mem = c.Mem[:1]
	if err := d.Submit(c); !errors.Is(err, ErrMismatch) {
		t.Errorf("counts differ: %v", err)
	}
	c = f.copyOf(ToHost, seq(2), seq(2), called)
	c.Device = len(d.Devices())
	if err := d.Submit(c); !errors.Is(err, ErrNoDevice) {
		t.Errorf("no such device: %v", err)
	}
	c = f.copyOf(ToHost, seq(2), seq(2), called)
	c.Host[1] = hostMemory(t, 4096)
	var se *SpanError
	if err := d.Submit(c); !errors.Is(err, ErrNotKnown) || !errors.As(err, &se) || se.Index != 1 {
		t.Errorf("host memory not registered: %v", err)
	}
	if s := d.Stats(); s.InFlight != 0 || s.Batches != 0 {
		t.Errorf("stats %+v", s)
	}
	if err := d.Free(f.dptr); err != nil {
		t.Errorf("refused batches hold memory: %v", err)
	}
}

// Notices ring: a batch does not wait until somebody looks after it.
func TestResultsComeAtOnce(t *testing.T) {
	d := openAny(t, Options{Devices: []int{0}})
	f := newFixture(t, d, 0, 4, 4096)
	const n = 40
	start := time.Now()
	for range n {
		f.copy(ToDevice, seq(4), seq(4))
	}
	if took := time.Since(start); took > n*watchPeriod/2 {
		t.Errorf("%d batches took %v", n, took)
	}
}

// Another Driver stands for an engine in the same process.
func TestAdoptedMemory(t *testing.T) {
	d := openAny(t, Options{})
	engine, err := Open(Options{Library: d.Info().Library})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	p, err := engine.Alloc(0, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, d, 0, 16, 4096)
	f.fill(1)
	want := bytes.Clone(f.mem)
	f.dptr = p + 4096
	c := f.copyOf(ToDevice, seq(16), seq(16), func(Result) { t.Error("Done of a batch that was refused") })
	if err := d.Submit(c); !errors.Is(err, ErrNotKnown) {
		t.Fatalf("memory of somebody else: %v", err)
	}
	if dev, err := d.Adopt(p+4096, 64<<10); err != nil || dev != 0 {
		t.Fatalf("Adopt: device %d, %v", dev, err)
	}
	f.copy(ToDevice, seq(16), seq(16))
	clear(f.mem)
	f.copy(ToHost, seq(16), seq(16))
	if !bytes.Equal(f.mem, want) {
		t.Error("other bytes came back")
	}
	if _, err := d.Adopt(p+5000, 10); !errors.Is(err, ErrBusy) {
		t.Errorf("adopted twice: %v", err)
	}
	if err := d.Free(p + 4096); !errors.Is(err, ErrNotKnown) {
		t.Errorf("Free of memory of somebody else: %v", err)
	}
	if err := d.Forget(p + 4096); err != nil {
		t.Error(err)
	}
	if err := d.Forget(p + 4096); !errors.Is(err, ErrNotKnown) {
		t.Errorf("forgotten twice: %v", err)
	}
	for name, tt := range map[string]struct {
		p    DevicePtr
		size int64
	}{
		"host":         {DevicePtr(addrOf(f.mem)), 4096},
		"stranger":     {DevicePtr(addrOf(hostMemory(t, 4096))), 4096},
		"over its end": {p, 1<<20 + 1<<32},
	} {
		if _, err := d.Adopt(tt.p, tt.size); !errors.Is(err, ErrWrongType) {
			t.Errorf("Adopt of memory: %s: %v", name, err)
		}
	}
}

func TestRegisterHostLimits(t *testing.T) {
	d := openAny(t, Options{HostLimit: 64 << 10, HostChunk: 16 << 10})
	mem := hostMemory(t, 128<<10)
	ctx := context.Background()
	var le *LimitError
	if err := d.RegisterHost(ctx, mem, nil); !errors.As(err, &le) || le.Limit != 64<<10 || !errors.Is(err, ErrOutOfMemory) {
		t.Errorf("above the limit: %v", err)
	}
	var oe *OptionError
	for _, bad := range [][]byte{nil, mem[1:4097], mem[:100]} {
		if err := d.RegisterHost(ctx, bad, nil); !errors.As(err, &oe) {
			t.Errorf("%d bytes: %v", len(bad), err)
		}
	}
	var steps []int64
	if err := d.RegisterHost(ctx, mem[:40<<10], func(done, total int64) { steps = append(steps, done, total) }); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(steps); got != "[16384 40960 32768 40960 40960 40960]" {
		t.Errorf("progress %s", got)
	}
	if err := d.RegisterHost(ctx, mem[36<<10:60<<10], nil); !errors.Is(err, ErrBusy) {
		t.Errorf("registered twice: %v", err)
	}
	if n := d.Stats().Registered; n != 40<<10 {
		t.Errorf("%d bytes registered", n)
	}
	if err := d.Unregister(mem[4096:]); !errors.Is(err, ErrNotKnown) {
		t.Errorf("Unregister of a part: %v", err)
	}
	if err := d.Unregister(mem[:40<<10]); err != nil {
		t.Error(err)
	}
	stop, cancel := context.WithCancel(ctx)
	err := d.RegisterHost(stop, mem[:64<<10], func(int64, int64) { cancel() })
	if !errors.Is(err, context.Canceled) || d.Stats().Registered != 0 {
		t.Errorf("cancelled: %v, %d bytes registered", err, d.Stats().Registered)
	}
	if err := d.RegisterHost(ctx, mem[:64<<10], nil); err != nil {
		t.Errorf("again after it was cancelled: %v", err)
	}
	if err := d.Unregister(mem[:64<<10]); err != nil {
		t.Error(err)
	}
}

// Many goroutines at once, on every device, each sure of its own slots.
func TestConcurrentBatches(t *testing.T) {
	const workers, rounds, per, slot = 6, 12, 70, 4096
	d := openAny(t, Options{HostChunk: 64 << 10})
	var wg sync.WaitGroup
	for w := range workers {
		dev := w % len(d.Devices())
		f := newFixture(t, d, dev, per, slot)
		wg.Add(1)
		go func() {
			defer wg.Done()
			for r := range rounds {
				f.fill(byte(w*rounds + r))
				want := bytes.Clone(f.mem)
				for _, dir := range []Direction{ToDevice, ToHost} {
					out := make(chan Result, 2)
					err := d.Submit(f.copyOf(dir, seq(per), seq(per), func(r Result) { out <- r }))
					if err == nil {
						err = (<-out).Err
					}
					if err != nil {
						t.Errorf("worker %d: %v", w, err)
						return
					}
					if dir == ToDevice {
						clear(f.mem)
					}
				}
				if !bytes.Equal(f.mem, want) {
					t.Errorf("worker %d, round %d: other bytes came back", w, r)
					return
				}
			}
		}()
	}
	wg.Wait()
}

func TestClosedDriver(t *testing.T) {
	d := openAny(t, Options{})
	f := newFixture(t, d, 0, 4, 4096)
	f.copy(ToDevice, seq(4), seq(4))
	var wg sync.WaitGroup
	for range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := d.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}()
	}
	wg.Wait()
	if err := d.Close(); err != nil {
		t.Errorf("Close again: %v", err)
	}
	_, alloc := d.Alloc(0, 1)
	_, info := d.PointerInfo(0)
	_, adopt := d.Adopt(f.dptr, 1)
	for name, err := range map[string]error{
		"Alloc": alloc, "PointerInfo": info, "Adopt": adopt, "Free": d.Free(f.dptr), "Forget": d.Forget(f.dptr),
		"RegisterHost": d.RegisterHost(context.Background(), hostMemory(t, 4096), nil), "Unregister": d.Unregister(f.mem),
		"Submit": d.Submit(f.copyOf(ToHost, seq(1), seq(1), func(Result) {})),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
	if s := d.Stats(); s.Registered != 0 || s.Allocated != 0 {
		t.Errorf("stats %+v", s)
	}
}
