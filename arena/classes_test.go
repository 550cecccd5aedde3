package arena

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// newClasses makes an allocator with something else before and after its region
// and table.
func newClasses(t testing.TB, size int64, max int) (*Classes, *Arena) {
	t.Helper()
	const base = 3 * runPage
	a := mustMap(t, Options{Size: base + size + runPage})
	table := mustMap(t, Options{Size: 64 + ClassesTableBytes(size) + 64})
	return NewClasses(a, base, size, table, 64, max), a
}

// check panics unless the invariants R1 to R5 and C1 to C4 hold. It believes
// nothing the allocator remembers and recomputes it from the descriptors.
func (c *Classes) check() {
	r := &c.runs
	must := func(ok bool, format string, args ...any) {
		if !ok {
			panic("invariant broken: " + fmt.Sprintf(format, args...))
		}
	}
	freeRuns := map[uint32]uint32{} // page to length, by walking the table
	slabs := map[uint32]int{}
	var freePages uint32
	free := c.size
	for p, lastFree := uint32(0), false; int(p) < len(r.desc); {
		d := r.desc[p]
		switch d & descType {
		case descFree:
			n := uint32(d)
			must(!lastFree, "R2: free runs touch at %d", p)
			must(n > 0 && int(p+n) <= len(r.desc) && r.desc[p+n-1] == desc(n), "R1: free run of %d at %d", n, p)
			for i := p + 1; i+1 < p+n; i++ {
				must(r.desc[i] == 0, "R1: page %d inside a free run is %#x", i, r.desc[i])
			}
			freeRuns[p] = n
			freePages += n
			p += n
		case descRun, descSlab:
			n := r.length(p, uint32(len(r.desc)))
			if d&descType == descSlab {
				must(n == slabPages, "R1: slab of %d pages at %d", n, p)
				slabs[p] = int(d&descValue) - 1
			} else {
				must(d&descValue != 0, "R1: run without owner at %d", p)
				free -= int64(n) * runPage
			}
			p += n
		default:
			must(false, "R1: page %d is %#x, inside of nothing", p, d)
		}
		lastFree = d&descType == descFree
	}
	must(r.free == freePages, "R5: %d pages free, %d remembered", freePages, r.free)
	listed := 0
	for row := range r.heads {
		must((r.rows>>row&1 == 1) == (r.bins[row] != 0), "R4: row %d", row)
		for col, head := range r.heads[row] {
			must((r.bins[row]>>col&1 == 1) == (head != 0), "R4: bin %d/%d", row, col)
			prev := uint32(0)
			for p := head; p != 0; p = r.link(p-1, linkNext) {
				n, ok := freeRuns[p-1]
				must(ok, "R3: page %d is listed and no free run", p-1)
				gotRow, gotCol := binOf(n)
				must(gotRow == row && gotCol == col, "R3: run of %d in bin %d/%d", n, row, col)
				must(r.link(p-1, linkPrev) == prev, "R3: back link of %d", p-1)
				prev = p
				listed++
			}
		}
	}
	must(listed == len(freeRuns), "R3: %d of %d free runs listed", listed, len(freeRuns))

	inList, empties := map[uint32]bool{}, map[int]int{}
	for k := range classes {
		prev := uint32(0)
		for p := c.partial[k]; p != 0; p = c.slab(p - 1).get(slabNext) {
			must(slabs[p-1] == k && !inList[p-1], "C1: page %d in the list of class %d", p-1, k)
			must(c.slab(p-1).get(slabPrev) == prev, "C1: back link of slab %d", p-1)
			inList[p-1] = true
			prev = p
		}
	}
	for page, k := range slabs {
		cl, s := classes[k], c.slab(page)
		fresh, used := s.get(slabFresh), uint32(0)
		must(int(s.get(slabClass)) == k && fresh <= cl.slots, "slab %d: class %d, fresh %d", page, s.get(slabClass), fresh)
		freeSlots := map[uint32]bool{}
		for top := s.get(slabTop); top != 0; top = s.get(cl.first + (top-1)*cl.size) {
			must(top <= fresh && !freeSlots[top-1], "slab %d: free slot %d", page, top-1)
			freeSlots[top-1] = true
		}
		for i := range cl.slots {
			owner := s.get(slabOwners + 4*i)
			must((owner == 0) == (i >= fresh || freeSlots[i]), "C3: slab %d slot %d owner %d", page, i, owner)
			if owner != 0 {
				used++
			}
		}
		must(used == s.get(slabUsed), "C3: slab %d has %d used, remembers %d", page, used, s.get(slabUsed))
		must(inList[page] == (used > 0 && used < cl.slots), "C1: slab %d with %d of %d used, in list: %t", page, used, cl.slots, inList[page])
		if used == 0 {
			empties[k]++
			must(c.empty[k] == page+1, "C2: slab %d of class %d is unused, kept is %d", page, k, c.empty[k])
		} else {
			free -= slabBytes - int64((cl.slots-used)*cl.size)
		}
	}
	for k, p := range c.empty {
		must((p != 0) == (empties[k] == 1), "C2: class %d keeps %d, has %d", k, p, empties[k])
	}
	must(free == c.freeBytes, "C4: %d bytes free, %d remembered", free, c.freeBytes)
	if r.free == uint32(len(r.desc)) {
		must(len(freeRuns) == 1, "R2: all free in %d runs", len(freeRuns))
	}
}

func TestClassSizes(t *testing.T) {
	var sizes []uint32
	for k, cl := range classes {
		sizes = append(sizes, cl.size)
		if cl.size%smallUnit != 0 || cl.first%64 != 0 || cl.first < slabOwners+4*cl.slots || cl.first+cl.slots*cl.size > slabBytes {
			t.Errorf("class %d does not fit: %+v", k, cl)
		}
		if left := slabBytes - cl.first - cl.slots*cl.size; left >= cl.size+4+64 {
			t.Errorf("class %d leaves %d bytes: %+v", k, left, cl)
		}
	}
	want := []uint32{16, 32, 48, 64, 80, 112, 144, 192, 240, 304, 384, 480, 608, 768, 960, 1200, 1504, 1888, 2048}
	if !slices.Equal(sizes, want) {
		t.Errorf("sizes %v, want %v", sizes, want)
	}
	if len(classes) > len(Classes{}.partial) {
		t.Errorf("%d classes, room for %d", len(classes), len(Classes{}.partial))
	}
	c, _ := newClasses(t, slabBytes, slabBytes)
	for n := 1; n <= 3*runPage; n++ {
		got := c.Round(n)
		if got < n || (n > 64 && n <= smallMax && got-n > n/4+smallUnit) || (n > smallMax && got != (n+4095)/4096*4096) {
			t.Fatalf("Round(%d) = %d", n, got)
		}
		if n <= smallMax {
			if k := slices.IndexFunc(want, func(s uint32) bool { return int(s) >= n }); got != int(want[k]) {
				t.Fatalf("Round(%d) = %d, the smallest class is %d", n, got, want[k])
			}
		}
	}
}

func TestBins(t *testing.T) {
	last := -1
	for n := uint32(1); n <= 1<<17; n++ {
		row, col := binOf(n)
		if bin := row*16 + col; bin < last || (n < 16 && bin != int(n)) {
			t.Fatalf("binOf(%d) = %d after %d", n, bin, last)
		} else {
			last = bin
		}
	}
	if row, col := binOf(uint32(maxPages)); row >= binRows || col > 15 {
		t.Errorf("binOf(max) = %d, %d", row, col)
	}
}

// model is what the allocator should have handed out.
type model struct {
	c     *Classes
	a     *Arena
	base  Off
	size  int64
	owner uint32
	live  map[uint32]value // by owner
}

type value struct {
	off Off
	n   int
}

func newModel(t testing.TB, size int64, max int) *model {
	c, a := newClasses(t, size, max)
	return &model{c: c, a: a, base: c.base, size: size, live: map[uint32]value{}}
}

// alloc allocates n bytes and checks that they are inside, aligned, and
// nobody else's; the whole of what was taken is filled with the owner's mark.
func (m *model) alloc(fail func(string, ...any), n int) bool {
	m.owner++
	off, ok := m.c.Alloc(n, m.owner)
	if !ok {
		return false
	}
	room := m.c.Round(n)
	if off < m.base || off+Off(room) > m.base+Off(m.size) {
		fail("Alloc(%d) = %#x, outside", n, off)
	}
	if align := Off(smallUnit); n > smallMax && off%runPage != 0 || off%align != 0 {
		fail("Alloc(%d) = %#x, unaligned", n, off)
	}
	if n <= smallMax && room%64 == 0 && off%64 != 0 {
		fail("Alloc(%d) = %#x, slots of %d bytes not in whole lines", n, off, room)
	}
	m.live[m.owner] = value{off, n}
	m.fill(m.owner)
	return true
}

func (m *model) fill(owner uint32) {
	v := m.live[owner]
	mem := m.a.Bytes(v.off, m.c.Round(v.n))
	for i := 0; i < len(mem); i += 4 {
		binary.NativeEndian.PutUint32(mem[i:], owner)
	}
}

// free checks that nobody wrote to the value, then frees it.
func (m *model) free(fail func(string, ...any), owner uint32) {
	v := m.live[owner]
	mem := m.a.Bytes(v.off, m.c.Round(v.n))
	for i := 0; i < len(mem); i += 4 {
		if got := binary.NativeEndian.Uint32(mem[i:]); got != owner {
			fail("value of %d (%d bytes at %#x) has %d at %d", owner, v.n, v.off, got, i)
			return
		}
	}
	if got := m.c.Owner(v.off, v.n); got != owner {
		fail("Owner(%#x, %d) = %d, want %d", v.off, v.n, got, owner)
	}
	m.c.Free(v.off, v.n)
	delete(m.live, owner)
}

func (m *model) rename(owner uint32) {
	v := m.live[owner]
	delete(m.live, owner)
	m.owner++
	m.live[m.owner] = v
	m.c.SetOwner(v.off, v.n, m.owner)
	m.fill(m.owner)
}

// window returns the owners that a window of n bytes around off must visit,
// from the model's own view: what overlaps, and what shares a slab with it.
func (m *model) window(off Off, n int) (owners []uint32, ok bool) {
	want := int64(slabPages)
	if n > smallMax {
		want = int64(1) << bits.Len64((uint64(n)-1)/runPage)
	}
	lo := int64(off-m.base) / runPage / want * want * runPage
	hi := lo + want*runPage
	if hi > m.size {
		return nil, false
	}
	for owner, v := range m.live {
		from := int64(v.off - m.base)
		to := from + int64(m.c.Round(v.n))
		if v.n <= smallMax {
			from = int64(m.c.runs.start(uint32(from/runPage))) * runPage
			to = from + slabBytes
		}
		if from < hi && to > lo {
			owners = append(owners, owner)
		}
	}
	slices.Sort(owners)
	return owners, true
}

// sizes the model draws: every class, pages and their neighbours, large ones.
func drawSize(t *rapid.T, max int) int {
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		return rapid.IntRange(1, 300).Draw(t, "small")
	case 1:
		return rapid.IntRange(1, smallMax).Draw(t, "slot")
	case 2:
		return min(rapid.IntRange(1, 40).Draw(t, "pages")*runPage+rapid.IntRange(-1, 1).Draw(t, "edge"), max)
	}
	return rapid.IntRange(smallMax+1, max).Draw(t, "large")
}

func (m *model) owners() []uint32 {
	owners := make([]uint32, 0, len(m.live))
	for o := range m.live {
		owners = append(owners, o)
	}
	slices.Sort(owners)
	return owners
}

func TestClasses(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		slabs := rapid.Int64Range(1, 20).Draw(rt, "slabs")
		size := slabs * slabBytes
		max := int(rapid.Int64Range(slabBytes, size).Draw(rt, "max"))
		m := newModel(t, size, max)
		m.run(rt.Fatalf, rt, max)
	})
}

func (m *model) run(fail func(string, ...any), rt *rapid.T, max int) {
	for range rapid.IntRange(1, 120).Draw(rt, "ops") {
		switch op := rapid.IntRange(0, 9).Draw(rt, "op"); {
		case op < 5:
			n := drawSize(rt, max)
			for range rapid.IntRange(1, 30).Draw(rt, "times") {
				if !m.alloc(fail, n) {
					break
				}
			}
		case op < 8:
			owners := m.owners()
			for range rapid.IntRange(1, 40).Draw(rt, "frees") {
				if len(owners) == 0 {
					break
				}
				i := rapid.IntRange(0, len(owners)-1).Draw(rt, "which")
				m.free(fail, owners[i])
				owners = slices.Delete(owners, i, i+1)
			}
		case op == 8:
			if owners := m.owners(); len(owners) > 0 {
				m.rename(rapid.SampledFrom(owners).Draw(rt, "owner"))
			}
		default:
			n := drawSize(rt, max)
			off := m.base + Off(rapid.Int64Range(0, m.size-1).Draw(rt, "off"))
			m.makeRoom(fail, off, n, rapid.Bool().Draw(rt, "free in visit"))
		}
		m.c.check()
	}
	m.freeAll(fail)
}

// makeRoom compares a window's owners with the model, evicts them, and checks
// that the allocation it was made for succeeds.
func (m *model) makeRoom(fail func(string, ...any), off Off, n int, inVisit bool) {
	want, fits := m.window(off, n)
	var got []uint32
	if ok := m.c.Window(off, n, func(owner uint32) bool { got = append(got, owner); return true }); ok != fits {
		fail("Window(%#x, %d) = %t, want %t", off, n, ok, fits)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		fail("Window(%#x, %d) visits %v, want %v", off, n, got, want)
	}
	if len(want) > 1 {
		visits := 0
		m.c.Window(off, n, func(uint32) bool { visits++; return visits < 2 })
		if visits != 2 {
			fail("Window went on for %d visits after it was told to stop at 2", visits)
		}
	}
	if !fits {
		return
	}
	if inVisit {
		m.c.Window(off, n, func(owner uint32) bool { m.free(fail, owner); return true })
	} else {
		for _, owner := range want {
			m.free(fail, owner)
		}
	}
	if left, _ := m.window(off, n); len(left) > 0 {
		fail("Window(%#x, %d), evicted in the visit: left %v", off, n, left)
	}
	m.c.check()
	if !m.alloc(fail, n) {
		fail("Alloc(%d) fails after its window at %#x was emptied", n, off)
	}
}

func (m *model) freeAll(fail func(string, ...any)) {
	for _, owner := range m.owners() {
		m.free(fail, owner)
	}
	m.c.check()
	if m.c.FreeBytes() != m.size || m.c.Size() != m.size {
		fail("FreeBytes %d of %d after everything was freed", m.c.FreeBytes(), m.c.Size())
	}
	m.c.Trim()
	m.c.check()
	if uint32(m.c.runs.desc[0]) != uint32(m.size/runPage) {
		fail("the region is not one free run: %#x", m.c.runs.desc[0])
	}
	for _, out := range [][]byte{m.a.Bytes(0, int(m.base)), m.a.Bytes(m.base+Off(m.size), runPage)} {
		if bytes.Count(out, []byte{0}) != len(out) {
			fail("bytes outside of the region were written to")
		}
	}
}

// FuzzClasses reads operations from bytes: size and a choice, two bytes each.
func FuzzClasses(f *testing.F) {
	f.Add([]byte{0, 1, 1, 200, 2, 3, 3, 9})
	f.Add(bytes.Repeat([]byte{1, 255, 2, 0}, 50))
	f.Add(bytes.Repeat([]byte{0, 40, 0, 41, 3, 7}, 40))
	const size = 8 * slabBytes
	f.Fuzz(func(t *testing.T, ops []byte) {
		m := newModel(t, size, size)
		ops = ops[:min(len(ops), 600)] // longer ones find nothing new, slowly
		for ; len(ops) >= 2; ops = ops[2:] {
			arg := int(ops[1])
			n := 1 + arg*8
			if ops[0]&0x80 != 0 {
				n = 1 + arg*2049
			}
			switch ops[0] & 3 {
			case 0, 1:
				m.alloc(t.Fatalf, n)
			case 2:
				if owners := m.owners(); len(owners) > 0 {
					m.free(t.Fatalf, owners[arg%len(owners)])
				}
			case 3:
				m.makeRoom(t.Fatalf, m.base+Off(int(ops[0])<<11), n, arg%2 == 0)
			}
			if len(ops)%8 < 2 {
				m.c.check()
			}
		}
		m.freeAll(t.Fatalf)
	})
}

// TestClassesChurn keeps a larger region full for a long time: what does not
// fit makes room by a window around a random value, as a cache does.
func TestClassesChurn(t *testing.T) {
	size, rounds := int64(512*slabBytes), 6000
	if testing.Short() || Checking {
		size, rounds = size/8, 400
	}
	m := newModel(t, size, 2<<20)
	rng := rand.New(rand.NewPCG(1, 2))
	var full, least int64
	least = size
	for i := range rounds {
		n := 1 + rng.IntN(smallMax)
		switch rng.IntN(4) {
		case 0:
			n = 1 + rng.IntN(2<<20)
		case 1:
			n = 1 + rng.IntN(64<<10)
		}
		if !m.alloc(t.Fatalf, n) {
			full++
			least = min(least, m.c.FreeBytes())
			owners := m.owners()
			m.makeRoom(t.Fatalf, m.live[owners[rng.IntN(len(owners))]].off, n, i%2 == 0)
		}
	}
	m.c.check()
	if full == 0 {
		t.Error("the region never was full")
	}
	t.Logf("%d values of %d did not fit at once; %.1f %% were free when it was fullest", full, rounds, 100*float64(least)/float64(size))
	m.freeAll(t.Fatalf)
}

// TestClassesExact: a region takes exactly the runs it has room for.
func TestClassesExact(t *testing.T) {
	c, _ := newClasses(t, 4*slabBytes, 4*slabBytes)
	if off, ok := c.Alloc(4*slabBytes, 1); !ok || off != c.base || c.FreeBytes() != 0 {
		t.Fatalf("the whole region: %#x, %t, %d free", off, ok, c.FreeBytes())
	}
	if _, ok := c.Alloc(1, 2); ok {
		t.Error("a byte more")
	}
	c.Free(c.base, 4*slabBytes)
	var offs []Off
	for {
		off, ok := c.Alloc(4096, 7)
		if !ok {
			break
		}
		offs = append(offs, off)
	}
	if len(offs) != 64 || c.FreeBytes() != 0 {
		t.Errorf("%d pages, %d bytes free, want 64 and 0", len(offs), c.FreeBytes())
	}
	// Every other page: half is free, and no run of two.
	for i := 0; i < 64; i += 2 {
		c.Free(offs[i], 4096)
	}
	c.check()
	if _, ok := c.Alloc(8192, 1); ok || c.FreeBytes() != 32*4096 {
		t.Errorf("a run of two among single pages: %t; %d free", ok, c.FreeBytes())
	}
	for i := 1; i < 64; i += 2 {
		c.Free(offs[i], 4096)
	}
	c.check()
	if _, ok := c.Alloc(4*slabBytes, 1); !ok {
		t.Error("pages did not join")
	}
}

// TestLastFit: a run is found even where its bin also holds shorter ones.
func TestLastFit(t *testing.T) {
	c, _ := newClasses(t, 4*slabBytes, 4*slabBytes)
	const n = 33 * runPage // shares a bin with 32
	off, ok := c.Alloc(n, 1)
	if _, ok2 := c.Alloc(31*runPage, 2); !ok || !ok2 {
		t.Fatal("the region is not empty")
	}
	c.Free(off, n)
	if again, ok := c.Alloc(n, 1); !ok || again != off {
		t.Errorf("Alloc of the only free run, of just that length: %#x, %t", again, ok)
	}
}

// TestWindowFits: 48 pages have one place for a window of 32.
func TestWindowFits(t *testing.T) {
	c, _ := newClasses(t, 3*slabBytes, 3*slabBytes)
	for page, want := range map[Off]bool{0: true, 31: true, 32: false, 47: false} {
		if got := c.Window(c.base+page*runPage, 17*runPage, func(uint32) bool { return true }); got != want {
			t.Errorf("window of 32 pages around page %d of 48: %t, want %t", page, got, want)
		}
		if !c.Window(c.base+page*runPage, 1, func(uint32) bool { return true }) {
			t.Errorf("window of a slab around page %d does not fit", page)
		}
	}
}

// TestKeptSlabs: slabs kept unused do not stand in a larger value's way.
func TestKeptSlabs(t *testing.T) {
	c, _ := newClasses(t, 4*slabBytes, 4*slabBytes)
	for _, n := range []int{16, 100, 1000, 2048} {
		off, ok := c.Alloc(n, 1)
		if !ok {
			t.Fatalf("Alloc(%d)", n)
		}
		c.Free(off, n)
	}
	c.check()
	if c.FreeBytes() != 4*slabBytes {
		t.Errorf("%d free", c.FreeBytes())
	}
	if off, ok := c.Alloc(4*slabBytes, 1); !ok || off != c.base {
		t.Errorf("the whole region: %#x, %t", off, ok)
	}
	c.check()
}

func TestClassesPanics(t *testing.T) {
	a := mustMap(t, Options{Size: 4 * slabBytes})
	table := mustMap(t, Options{Size: ClassesTableBytes(4 * slabBytes)})
	for name, f := range map[string]func(){
		"no size":        func() { NewClasses(a, 0, 0, table, 0, 1) },
		"odd size":       func() { NewClasses(a, 0, slabBytes+runPage, table, 0, 1) },
		"odd base":       func() { NewClasses(a, 16, slabBytes, table, 0, 1) },
		"region outside": func() { NewClasses(a, runPage, 4*slabBytes, table, 0, 1) },
		"table outside":  func() { NewClasses(a, 0, 4*slabBytes, table, 4, 1) },
		"no max":         func() { NewClasses(a, 0, slabBytes, table, 0, 0) },
		"large max":      func() { NewClasses(a, 0, slabBytes, table, 0, slabBytes+1) },
	} {
		if panics(f) == "" {
			t.Errorf("%s: no panic", name)
		}
	}
	c := NewClasses(a, 0, 4*slabBytes, table, 0, 3*slabBytes)
	small, _ := c.Alloc(100, 1)
	large, _ := c.Alloc(3*runPage, 2)
	nop := func(uint32) bool { return true }
	for name, f := range map[string]func(){
		"owner 0":             func() { c.Alloc(1, 0) },
		"owner too large":     func() { c.Alloc(1, 1<<29) },
		"set owner 0":         func() { c.SetOwner(small, 100, 0) },
		"no bytes":            func() { c.Alloc(0, 1) },
		"negative bytes":      func() { c.Alloc(-1, 1) },
		"other class":         func() { c.Free(small, 200) },
		"not a slot's start":  func() { c.Free(small+16, 100) },
		"a slot never used":   func() { c.Free(small+112, 100) },
		"the slab's header":   func() { c.Free(small&^(runPage-1), 100) },
		"large as small":      func() { c.Free(large, 100) },
		"small as large":      func() { c.Free(small, 5000) },
		"fewer pages":         func() { c.Free(large, 2*runPage) },
		"more pages":          func() { c.Free(large, 4*runPage) },
		"many more pages":     func() { c.Free(large, 1<<40) },
		"inside a run":        func() { c.Free(large+runPage, 2*runPage) },
		"not a page's start":  func() { c.Free(large+16, 3*runPage) },
		"free memory":         func() { c.Free(large+8*runPage, runPage) },
		"outside":             func() { c.Free(4*slabBytes, 100) },
		"owner of free":       func() { c.Owner(large+8*runPage, runPage) },
		"window from outside": func() { c.Window(4*slabBytes, 1, nop) },
	} {
		if panics(f) == "" {
			t.Errorf("%s: no panic", name)
		}
		c.check() // a refused call changes nothing
	}
	if _, ok := c.Alloc(3*slabBytes+1, 1); ok {
		t.Error("a value above max was taken")
	}
	if c.Window(0, 5*slabBytes, nop) || c.Window(0, 1<<60, nop) {
		t.Error("a window larger than the region fits")
	}
	c.Free(small, 100)
	if msg := panics(func() { c.Free(small, 100) }); msg == "" {
		t.Error("small freed twice: no panic")
	}
	c.Free(large, 3*runPage)
	if msg := panics(func() { c.Free(large, 3*runPage) }); msg == "" {
		t.Error("large freed twice: no panic")
	}
	c.check()
}

// TestClassesBrokenLinks: a write to free memory is found when a link is read.
func TestClassesBrokenLinks(t *testing.T) {
	const bad = 0xdeadbeef
	c, a := newClasses(t, 4*slabBytes, 4*slabBytes)
	x, _ := c.Alloc(100, 1)
	y, _ := c.Alloc(100, 1)
	c.Free(x, 100)
	Cast[uint32](a, x, 1)[0] = bad
	if msg := panics(func() { c.Alloc(100, 1) }); !strings.Contains(msg, "0xdeadbeef") {
		t.Errorf("slot: panic %q", msg)
	}
	_ = y

	for which := range 2 {
		c, a = newClasses(t, 4*slabBytes, 4*slabBytes)
		var offs []Off
		for range 6 {
			off, _ := c.Alloc(runPage, 1)
			offs = append(offs, off)
		}
		c.Free(offs[1], runPage)
		c.Free(offs[3], runPage)
		Cast[uint32](a, offs[3], 2)[which] = bad
		msg := panics(func() {
			c.Alloc(runPage, 1) // takes the run away, whose links are then followed
			c.Alloc(runPage, 1)
		})
		if !strings.Contains(msg, "0xdeadbeef") {
			t.Errorf("run, link %d: panic %q", which, msg)
		}
	}
	// A link to a page that is there but not the neighbour.
	c, a = newClasses(t, 4*slabBytes, 4*slabBytes)
	var offs []Off
	for range 6 {
		off, _ := c.Alloc(runPage, 1)
		offs = append(offs, off)
	}
	c.Free(offs[1], runPage)
	c.Free(offs[3], runPage)
	Cast[uint32](a, offs[3], 2)[0] = 1
	if msg := panics(func() { c.Alloc(runPage, 1) }); !strings.Contains(msg, "does not know it") {
		t.Errorf("wrong neighbour: panic %q", msg)
	}
}

func TestClassesAllocate(t *testing.T) {
	c, _ := newClasses(t, 16*slabBytes, 16*slabBytes)
	for _, n := range []int{64, 4096, 65536} {
		if got := testing.AllocsPerRun(100, func() {
			x, _ := c.Alloc(n, 1)
			y, _ := c.Alloc(n, 2)
			c.SetOwner(x, n, 3)
			c.Window(x, n, func(uint32) bool { return true })
			c.Free(x, n)
			c.Free(y, n)
		}); got != 0 {
			t.Errorf("%d bytes: %v heap allocations", n, got)
		}
	}
}

// BenchmarkClasses frees and allocates one of 512 held values a turn, in random
// order, so that free runs do not simply come back.
func BenchmarkClasses(b *testing.B) {
	for _, n := range []int{64, 1000, 4096, 65536, 1 << 20} {
		b.Run(fmt.Sprintf("size=%d", n), func(b *testing.B) {
			const held = 512
			size := (int64(n)*held*5/4 + 64*slabBytes) / slabBytes * slabBytes
			a, err := Map(Options{Size: size})
			if err != nil {
				b.Fatal(err)
			}
			defer a.Close()
			c := NewClasses(a, 0, size, mustMap(b, Options{Size: ClassesTableBytes(size), Prefault: true}), 0, n)
			rng := rand.New(rand.NewPCG(1, 2))
			var at [held]Off
			for i := range at {
				at[i], _ = c.Alloc(n, 1)
			}
			b.ResetTimer()
			for range b.N {
				i := rng.IntN(held)
				c.Free(at[i], n)
				var ok bool
				if at[i], ok = c.Alloc(n, 1); !ok {
					b.Fatal("full")
				}
			}
		})
	}
}
