package arena

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const hugeMask = 0x3f << unix.MAP_HUGE_SHIFT

// hugeTree is a /sys with the given free pages, by size in kB, and THP switch.
func hugeTree(free map[int]int, thp string) map[string]string {
	files := map[string]string{
		"proc/meminfo":      hostMem,
		"proc/self/status":  "Name:\tx\nMems_allowed_list:\t0\n",
		"proc/self/cgroup":  "",
		"proc/self/ignored": "",
	}
	for kb, n := range free {
		dir := fmt.Sprintf("sys/kernel/mm/hugepages/hugepages-%dkB/", kb)
		files[dir+"free_hugepages"] = strconv.Itoa(n) + "\n"
		files[dir+"resv_hugepages"] = "0\n"
		files[dir+"nr_overcommit_hugepages"] = "0\n"
		files[dir+"surplus_hugepages"] = "0\n"
	}
	if thp != "" {
		files["sys/kernel/mm/transparent_hugepage/enabled"] = thp + "\n"
		files["sys/kernel/mm/transparent_hugepage/shmem_enabled"] = thp + "\n"
		files["sys/kernel/mm/transparent_hugepage/hpage_pmd_size"] = "2097152\n"
	}
	return files
}

// spy records the flags of every mapping and lets base pages stand for huge
// ones, of which a test machine has none. refuse lists the huge sizes whose
// mapping fails.
func (k *kernel) spy(refuse ...int64) *[]int {
	var seen []int
	k.mapRegion = func(length, align, guard, flags, fd int) (region, error) {
		seen = append(seen, flags)
		if flags&unix.MAP_HUGETLB != 0 {
			size := int64(1) << (flags & hugeMask >> unix.MAP_HUGE_SHIFT)
			if guard != 0 || length%int(size) != 0 {
				return region{}, fmt.Errorf("length %d and guard %d for pages of %d", length, guard, size)
			}
			if slices.Contains(refuse, size) {
				return region{}, unix.ENOMEM
			}
			return mapRegion(length, align, guard, flags&^(unix.MAP_HUGETLB|hugeMask)|unix.MAP_NORESERVE, fd)
		}
		return mapRegion(length, align, guard, flags, fd)
	}
	k.madvise = func(b []byte, advice int) error {
		if advice == unix.MADV_POPULATE_WRITE && len(b) >= 32<<20 {
			return nil // do not really take a gigabyte
		}
		return unix.Madvise(b, advice)
	}
	return &seen
}

func TestHugeOrder(t *testing.T) {
	for _, tt := range []struct {
		pages Pages
		size  int64
		want  []Pages
	}{
		{PagesAuto, 1, nil},
		{PagesAuto, 2<<20 + 1, nil},
		{PagesAuto, 2 << 20, []Pages{PagesHuge2M}},
		{PagesAuto, 31<<20 + 1, []Pages{PagesHuge32M, PagesHuge2M}},
		{PagesAuto, 1 << 30, []Pages{PagesHuge1G, PagesHuge512M, PagesHuge32M, PagesHuge2M}},
		{PagesAuto, 1<<30 + 1<<29, []Pages{PagesHuge512M, PagesHuge32M, PagesHuge2M}},
		{PagesAuto, 16 << 30, hugeKinds},
		{PagesHuge1G, 1, []Pages{PagesHuge1G}},
		{PagesHuge1G, 16 << 30, []Pages{PagesHuge1G, PagesHuge512M, PagesHuge32M, PagesHuge2M}},
		{PagesHuge2M, 16 << 30, []Pages{PagesHuge2M}},
		{PagesTHP, 16 << 30, nil},
		{PagesBase, 16 << 30, nil},
	} {
		if got := hugeOrder(&Options{Pages: tt.pages, Size: tt.size}); !slices.Equal(got, tt.want) {
			t.Errorf("%v, %d: %v, want %v", tt.pages, tt.size, got, tt.want)
		}
	}
}

func TestPlacementFallback(t *testing.T) {
	if onHeap {
		t.Skip("race build: anonymous memory is on the Go heap")
	}
	const auto = "always [madvise] never"
	none := map[int]int{2048: 0, 1048576: 0}
	plenty := map[int]int{2048: 4096, 1048576: 4}
	tests := []struct {
		name    string
		free    map[int]int
		thp     string
		refuse  []int64
		o       Options
		want    Pages
		reasons []string // each in the one line about pages; none: no such line
		tried   []int64  // sizes of the mappings, 0 for plain ones
	}{
		{"none reserved", none, auto, nil, Options{Size: 1 << 30}, PagesTHP,
			[]string{"1G: 1 needed, 0 free", "2M: 512 needed, 0 free", "nr_hugepages"}, []int64{0}},
		{"none reserved, no THP", none, "always madvise [never]", nil, Options{Size: 1 << 30}, PagesBase,
			[]string{"1G: ", "2M: ", "thp: switched off"}, []int64{0}},
		{"kernel without any", nil, "", nil, Options{Size: 1 << 30}, PagesBase,
			[]string{"explicit huge pages: this kernel has none", "thp: this kernel has none"}, []int64{0}},
		{"1 GiB", plenty, auto, nil, Options{Size: 2 << 30}, PagesHuge1G, nil, []int64{1 << 30}},
		{"not enough of 1 GiB", map[int]int{2048: 4096, 1048576: 1}, auto, nil, Options{Size: 2 << 30}, PagesHuge2M,
			[]string{"1G: 2 needed, 1 free"}, []int64{2 << 20}},
		{"not a multiple of 1 GiB", plenty, auto, nil, Options{Size: 1<<30 + 4096}, PagesHuge2M, nil, []int64{2 << 20}},
		{"1 GiB refused, sizes dropped", plenty, auto, []int64{1 << 30}, Options{Size: 1 << 30}, PagesHuge2M,
			[]string{"1G: arena: mmap"}, []int64{1 << 30, 2 << 20}},
		{"both refused", plenty, auto, []int64{1 << 30, 2 << 20}, Options{Size: 1 << 30}, PagesTHP,
			[]string{"1G: arena: mmap", "2M: arena: mmap"}, []int64{1 << 30, 2 << 20, 0}},
		{"strict", plenty, auto, nil, Options{Size: 64 << 20, Pages: PagesHuge2M, Strict: true}, PagesHuge2M, nil, []int64{2 << 20}},
		{"rounded up", plenty, auto, nil, Options{Size: 64<<20 + 1, Pages: PagesHuge2M, Strict: true}, PagesHuge2M, nil, []int64{2 << 20}},
		{"base by name", plenty, auto, nil, Options{Size: 64 << 20, Pages: PagesBase, Strict: true}, PagesBase, nil, []int64{0}},
		{"thp by name", plenty, auto, nil, Options{Size: 64 << 20, Pages: PagesTHP, Strict: true}, PagesTHP, nil, []int64{0}},
		{"strict means nothing with auto", none, auto, nil, Options{Size: 64 << 20, Strict: true}, PagesTHP,
			[]string{"2M: 32 needed, 0 free"}, []int64{0}},
		{"too small to care", plenty, auto, nil, Options{Size: 4096}, PagesBase, nil, []int64{0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			k := tree(t, hugeTree(tt.free, tt.thp))
			seen := k.spy(tt.refuse...)
			a, err := k.mapArena(tt.o)
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			p := a.Placement()
			if p.Pages != tt.want {
				t.Errorf("pages %v, want %v; %v", p.Pages, tt.want, p)
			}
			if h := tt.want.hugeBytes(); h > 0 && (p.PageBytes != h || p.Mapped%h != 0 || p.HugeBytes != p.Mapped || p.Prefaulted != p.Mapped) {
				t.Errorf("placement %+v", p)
			}
			a.Bytes(Off(tt.o.Size)-1, 1)[0] = 1
			if len(tt.reasons) == 0 && len(p.Reasons) > 0 {
				t.Errorf("reasons %q, want none", p.Reasons)
			}
			for _, want := range tt.reasons {
				if len(p.Reasons) != 1 || !strings.Contains(p.Reasons[0], want) {
					t.Errorf("reasons %q, want one with %q", p.Reasons, want)
				}
			}
			var tried []int64
			for _, f := range *seen {
				if f&unix.MAP_HUGETLB == 0 && f&hugeMask != 0 {
					t.Errorf("flags %#x: a size without huge pages", f)
				}
				size := int64(0)
				if f&unix.MAP_HUGETLB != 0 {
					size = 1 << (f & hugeMask >> unix.MAP_HUGE_SHIFT)
				}
				tried = append(tried, size)
			}
			if !slices.Equal(tried, tt.tried) {
				t.Errorf("tried %v, want %v", tried, tt.tried)
			}
		})
	}
}

func TestStrictRefuses(t *testing.T) {
	for _, tt := range []struct {
		name string
		free map[int]int
		thp  string
		o    Options
	}{
		{"2M", map[int]int{2048: 3}, "[always] madvise never", Options{Size: 8 << 20, Pages: PagesHuge2M}},
		{"1G", nil, "[always] madvise never", Options{Size: 1 << 30, Pages: PagesHuge1G}},
		{"memfd 2M", map[int]int{2048: 0}, "[always] madvise never", Options{Size: 8 << 20, Pages: PagesHuge2M, Backing: Memfd}},
		{"thp off", nil, "always madvise [never]", Options{Size: 8 << 20, Pages: PagesTHP}},
		{"thp too small", nil, "[always] madvise never", Options{Size: 1 << 20, Pages: PagesTHP}},
		{"thp of memfd", nil, "always madvise [never]", Options{Size: 8 << 20, Pages: PagesTHP, Backing: Memfd}},
		{"file not on hugetlbfs", nil, "", Options{Size: 1 << 20, Pages: PagesHuge2M, Backing: File, Path: t.TempDir()}},
		{"thp of file", nil, "[always] madvise never", Options{Size: 8 << 20, Pages: PagesTHP, Backing: File, Path: t.TempDir()}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := tree(t, hugeTree(tt.free, tt.thp))
			tt.o.Strict = true
			before := len(openFDs())
			a, err := k.mapArena(tt.o)
			var pe *PagesError
			if !errors.As(err, &pe) || pe.Want != tt.o.Pages || pe.Size != tt.o.Size || pe.Why == "" {
				t.Fatalf("%v, %v, want a *PagesError", a, err)
			}
			if now := openFDs(); len(now) != before {
				t.Errorf("left open: %v", now)
			}
			if tt.o.Backing == File {
				if left, _ := os.ReadDir(tt.o.Path); len(left) > 0 {
					t.Errorf("left behind: %v", left)
				}
			}
			tt.o.Strict = false // the same without the demand starts
			a, err = k.mapArena(tt.o)
			if err != nil {
				t.Fatal(err)
			}
			if p := a.Placement(); p.Pages != PagesBase && p.Pages != PagesTHP || len(p.Reasons) == 0 {
				t.Errorf("placement %+v", p)
			}
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestHugeFree(t *testing.T) {
	files := hugeTree(map[int]int{2048: 10}, "")
	dir := "sys/kernel/mm/hugepages/hugepages-2048kB/"
	files[dir+"resv_hugepages"] = "4"
	files[dir+"nr_overcommit_hugepages"] = "5"
	files[dir+"surplus_hugepages"] = "3"
	k := tree(t, files)
	if n, ok := k.hugeFree(2 << 20); n != 8 || !ok {
		t.Errorf("%d, %t, want 8: 10 free - 4 reserved + 5 on demand - 3 made", n, ok)
	}
	if _, ok := k.hugeFree(1 << 30); ok {
		t.Error("pages of 1 GiB are there")
	}
}

// TestHugePages runs on machines with reserved pages.
func TestHugePages(t *testing.T) {
	free, ok := realKernel.hugeFree(2 << 20)
	if !ok || free < 8 {
		t.Skipf("%d free huge pages of 2 MiB, 8 needed", free)
	}
	for _, b := range []Backing{Anonymous, Memfd} {
		if onHeap && b == Anonymous {
			continue
		}
		a := mustMap(t, Options{Size: 15 << 20, Backing: b, Pages: PagesHuge2M, Strict: true})
		p := a.Placement()
		if p.Pages != PagesHuge2M || p.Mapped != 16<<20 {
			t.Errorf("%v: %v", b, p)
		}
		if n, err := a.HugeBytes(); err != nil || n != 16<<20 {
			t.Errorf("%v: the kernel says %d, %v", b, n, err)
		}
		_, err := Map(Options{Size: (free + 1) << 21, Backing: b, Pages: PagesHuge2M, Strict: true})
		var pe *PagesError
		if !errors.As(err, &pe) {
			t.Errorf("%v: more than there are: %v", b, err)
		}
		a.Close()
	}
}

func TestTransparentHugePages(t *testing.T) {
	if onHeap {
		t.Skip("race build: anonymous memory is on the Go heap")
	}
	if why := realKernel.thpShort(Anonymous, 8<<20, ""); why != "" {
		t.Skip("no transparent huge pages of 2 MiB here: " + why)
	}
	a := mustMap(t, Options{Size: 8 << 20, Pages: PagesTHP, Strict: true, Prefault: true})
	p := a.Placement()
	if p.Pages != PagesTHP || p.HugeBytes == 0 {
		t.Errorf("placement %v", p)
	}
	if at := addressOf(a.Bytes(0, 1)); at%uintptr(p.PageBytes) != 0 {
		t.Errorf("base %#x is not at a multiple of a huge page", at)
	}
	b := mustMap(t, Options{Size: 8 << 20, Pages: PagesBase, Prefault: true})
	if n, err := b.HugeBytes(); n != 0 || err != nil {
		t.Errorf("base pages: %d bytes on huge ones, %v", n, err)
	}
}

func TestTHPRefused(t *testing.T) {
	if onHeap {
		t.Skip("race build: anonymous memory is on the Go heap")
	}
	k := tree(t, hugeTree(nil, "[always] madvise never"))
	k.madvise = func(b []byte, advice int) error {
		if advice == unix.MADV_HUGEPAGE {
			return unix.EINVAL
		}
		return unix.Madvise(b, advice)
	}
	a, err := k.mapArena(Options{Size: 8 << 20, Pages: PagesTHP})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if p := a.Placement(); p.Pages != PagesBase || p.PageBytes != k.page || !strings.Contains(p.String(), "MADV_HUGEPAGE") {
		t.Errorf("placement %v", p)
	}
	_, err = k.mapArena(Options{Size: 8 << 20, Pages: PagesTHP, Strict: true})
	var pe *PagesError
	if !errors.As(err, &pe) || !errors.Is(err, unix.EINVAL) {
		t.Errorf("strict: %v", err)
	}
}

// TestLargeBasePages: kernels with base pages of 64 KiB, huge ones of 512 MiB.
func TestLargeBasePages(t *testing.T) {
	files := hugeTree(map[int]int{2048: 0, 524288: 0, 16777216: 0}, "[always] madvise never")
	files["sys/kernel/mm/transparent_hugepage/hpage_pmd_size"] = "536870912\n"
	k := tree(t, files)
	k.page = 64 << 10
	for _, b := range []Backing{Anonymous, Memfd} {
		a, err := k.mapArena(Options{Size: 100<<10 + 1, Backing: b, Prefault: true})
		if err != nil {
			t.Fatal(err)
		}
		if p := a.Placement(); p.Pages != PagesBase || p.PageBytes != 64<<10 || p.Mapped != 128<<10 {
			t.Errorf("%v: %v", b, p)
		}
		if at := addressOf(a.Bytes(0, 1)); at%(64<<10) != 0 {
			t.Errorf("%v: base %#x", b, at)
		}
		a.Close()
	}
	// Larger than a huge page of 2 MiB, smaller than the one this kernel has.
	a, err := k.mapArena(Options{Size: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if p := a.Placement(); p.Pages != PagesBase || !strings.Contains(p.String(), "512 MiB") && !onHeap {
		t.Errorf("placement %v", p)
	}
}

// TestMapFails refuses one call after the other: the error says which, and
// nothing stays mapped or open.
func TestMapFails(t *testing.T) {
	boom := unix.EFAULT
	refuse := func(advice int, err error) func(*kernel) {
		return func(k *kernel) {
			k.madvise = func(b []byte, a int) error {
				if a == advice {
					return err
				}
				return unix.Madvise(b, a)
			}
		}
	}
	tests := []struct {
		name  string
		set   func(*kernel)
		op    string
		memfd bool // the call is made for memfds only
	}{
		{"mmap", func(k *kernel) {
			k.mapRegion = func(int, int, int, int, int) (region, error) { return region{}, boom }
		}, "mmap", false},
		{"dontfork", refuse(unix.MADV_DONTFORK, boom), "madvise(MADV_DONTFORK)", false},
		{"populate", refuse(unix.MADV_POPULATE_WRITE, boom), "populate", false},
		{"memfd", func(k *kernel) { k.memfd = func(string, int) (int, error) { return -1, boom } }, "memfd_create", true},
		{"fallocate", func(k *kernel) { k.fallocate = func(int, uint32, int64, int64) error { return boom } }, "fallocate", true},
		{"fallocate unknown", func(k *kernel) {
			k.fallocate = func(int, uint32, int64, int64) error { return unix.EOPNOTSUPP }
		}, "fallocate", true},
	}
	for _, tt := range tests {
		for _, b := range []Backing{Anonymous, Memfd} {
			if b == Anonymous && (tt.memfd || onHeap) {
				continue
			}
			t.Run(tt.name+"/"+b.String(), func(t *testing.T) {
				k := *realKernel
				tt.set(&k)
				var regions []region
				inner := k.mapRegion
				k.mapRegion = func(length, align, guard, flags, fd int) (region, error) {
					r, err := inner(length, align, guard, flags, fd)
					if err == nil {
						regions = append(regions, r)
					}
					return r, err
				}
				before := openFDs()
				a, err := k.mapArena(Options{Name: "n", Size: 4 << 20, Backing: b, Prefault: true})
				var me *MapError
				if !errors.As(err, &me) || me.Op != tt.op || me.Size != 4<<20 || me.Name != "n" {
					t.Fatalf("%v, %v, want a *MapError of %s", a, err, tt.op)
				}
				if tt.op != "fallocate" && !errors.Is(err, boom) {
					t.Errorf("%v hides its cause", err)
				}
				for _, r := range regions {
					if mapped(addressOf(r.mem), int64(len(r.mem))) {
						t.Error("still mapped")
					}
				}
				if now := openFDs(); len(now) != len(before) {
					t.Errorf("open before %v and after %v", before, now)
				}
			})
		}
	}
}

// TestReserveInPieces: a reservation that a signal interrupts is tried again,
// and one that fails in the middle is one error and leaves nothing.
func TestReserveInPieces(t *testing.T) {
	k := *realKernel
	calls, end := 0, int64(0)
	k.fallocate = func(fd int, mode uint32, off, n int64) error {
		calls++
		if calls%2 == 1 {
			return unix.EINTR
		}
		if off != end {
			t.Errorf("offset %d, want %d", off, end)
		}
		end = off + n
		return unix.Fallocate(fd, mode, off, n)
	}
	a, err := k.mapArena(Options{Size: 100 << 20, Backing: Memfd})
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
	if end != 100<<20 || calls != 2*4 {
		t.Errorf("reserved to %d in %d calls", end, calls)
	}
	k.fallocate = func(fd int, mode uint32, off, n int64) error {
		if off > 0 {
			return unix.ENOSPC
		}
		return unix.Fallocate(fd, mode, off, n)
	}
	dir := t.TempDir()
	for _, o := range []Options{{Backing: Memfd, Name: "x"}, {Backing: File, Path: dir}} {
		o.Size = 100 << 20
		before := len(openFDs())
		_, err = k.mapArena(o)
		var se *SpaceError
		if !errors.As(err, &se) || se.Need != 100<<20 || !errors.Is(err, unix.ENOSPC) || se.Free < 32<<20 || se.Path == "" {
			t.Errorf("%v: %v, want a *SpaceError", o.Backing, err)
		}
		if now := openFDs(); len(now) != before {
			t.Errorf("left open: %v", now)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestPrefaultProgress(t *testing.T) {
	for _, old := range []bool{false, true} { // true: a kernel without MADV_POPULATE_WRITE
		k := *realKernel
		if old {
			k.madvise = func(b []byte, advice int) error {
				if advice == unix.MADV_POPULATE_WRITE {
					return unix.EINVAL
				}
				return unix.Madvise(b, advice)
			}
		}
		// Neither is guarded: the race detector sees a call from elsewhere.
		var last int64
		calls := 0
		a, err := k.mapArena(Options{Size: 200 << 20, Prefault: true, PrefaultThreads: 3, Pages: PagesBase,
			Progress: func(done, total int64) {
				calls++
				if done <= last || total != 200<<20 {
					t.Errorf("done %d after %d of %d", done, last, total)
				}
				last = done
			}})
		if err != nil {
			t.Fatal(err)
		}
		if last != 200<<20 || calls != 4 {
			t.Errorf("old %t: done %d in %d calls, want all in 4", old, last, calls)
		}
		if !onHeap {
			missing := make([]byte, 200<<20/os.Getpagesize())
			residency(t, a.Bytes(0, 200<<20), missing)
			if i := bytes.IndexByte(missing, 0); i >= 0 {
				t.Errorf("old %t: page %d is not resident", old, i)
			}
		}
		a.Close()
	}
}

// residency fills vec with mincore's answer, one byte a page.
func residency(t *testing.T, b, vec []byte) {
	t.Helper()
	if _, _, e := unix.Syscall(unix.SYS_MINCORE, addressOf(b), uintptr(len(b)), addressOf(vec)); e != 0 {
		t.Fatal("mincore: ", e)
	}
	for i := range vec {
		vec[i] &= 1
	}
}

// TestTouchMissing: a page that cannot be had is an error, not a dead process.
func TestTouchMissing(t *testing.T) {
	fd, err := unix.MemfdCreate("short", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	page := os.Getpagesize()
	if err := unix.Ftruncate(fd, int64(page)); err != nil {
		t.Fatal(err)
	}
	r, err := mapRegion(4*page, page, page, unix.MAP_SHARED, fd)
	if err != nil {
		t.Fatal(err)
	}
	defer r.unmap()
	if err := touch(r.mem[:page]); err != nil {
		t.Errorf("the page that is there: %v", err)
	}
	if err := touch(r.mem); err == nil {
		t.Error("touching pages past the end of the object succeeded")
	}
	k := *realKernel
	for _, touchOnly := range []bool{false, true} {
		if err := k.populate(r.mem, int64(page), 2, touchOnly, nil); err == nil || !strings.Contains(err.Error(), "pages cannot be had") {
			t.Errorf("populate (touch %t): %v", touchOnly, err)
		}
	}
}

func TestNUMA(t *testing.T) {
	type call struct {
		mode int
		mask []uint64
	}
	tests := []struct {
		name    string
		allowed string
		refuse  []int // modes refused with EINVAL
		want    NUMA
		calls   []call
		mode    NUMAMode
		nodes   []int
		reason  string
	}{
		{"default", "0", nil, NUMA{}, nil, NUMADefault, nil, ""},
		{"bind one of two", "0-1", nil, NUMA{NUMABind, []int{1}}, []call{{unix.MPOL_BIND, []uint64{2}}}, NUMABind, []int{1}, ""},
		{"interleave eight", "0-7", nil, NUMA{NUMAInterleave, nil}, []call{{unix.MPOL_INTERLEAVE, []uint64{0xff}}}, NUMAInterleave, []int{0, 1, 2, 3, 4, 5, 6, 7}, ""},
		{"order and repeats", "0-7", nil, NUMA{NUMAInterleave, []int{5, 2, 5}}, []call{{unix.MPOL_INTERLEAVE, []uint64{0x24}}}, NUMAInterleave, []int{2, 5}, ""},
		{"beyond one word", "0,64-70", nil, NUMA{NUMABind, []int{0, 70}}, []call{{unix.MPOL_BIND, []uint64{1, 1 << 6}}}, NUMABind, []int{0, 70}, ""},
		{"cpuset of one node", "1", nil, NUMA{NUMAInterleave, []int{0, 1}}, []call{{unix.MPOL_INTERLEAVE, []uint64{2}}}, NUMAInterleave, []int{1}, "memory nodes [0]: this process may use only [1]"},
		{"none allowed", "1", nil, NUMA{NUMABind, []int{0}}, nil, NUMADefault, nil, "memory nodes [0]"},
		{"cpuset, all", "2-3", nil, NUMA{NUMABind, nil}, []call{{unix.MPOL_BIND, []uint64{12}}}, NUMABind, []int{2, 3}, ""},
		{"prefer one", "0-1", nil, NUMA{NUMAPreferred, []int{1}}, []call{{unix.MPOL_PREFERRED, []uint64{2}}}, NUMAPreferred, []int{1}, ""},
		{"prefer many", "0-3", nil, NUMA{NUMAPreferred, []int{1, 2}}, []call{{unix.MPOL_PREFERRED_MANY, []uint64{6}}}, NUMAPreferred, []int{1, 2}, ""},
		{"prefer many, old kernel", "0-3", []int{unix.MPOL_PREFERRED_MANY}, NUMA{NUMAPreferred, []int{1, 2}},
			[]call{{unix.MPOL_PREFERRED_MANY, []uint64{6}}, {unix.MPOL_PREFERRED, []uint64{2}}}, NUMAPreferred, []int{1}, "memory nodes [2]: this kernel prefers one"},
		{"refused", "0-1", []int{unix.MPOL_BIND}, NUMA{NUMABind, []int{0}}, []call{{unix.MPOL_BIND, []uint64{1}}}, NUMADefault, nil, "mbind"},
		{"unreadable", "x", nil, NUMA{NUMABind, []int{0}}, nil, NUMADefault, nil, "node list"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			files := hugeTree(nil, "")
			files["proc/self/status"] = "Name:\tx\nMems_allowed:\tff\nMems_allowed_list:\t" + tt.allowed + "\n"
			k := tree(t, files)
			var calls []call
			k.mbind = func(b []byte, mode int, mask []uint64) error {
				if len(b) != 1<<20 {
					t.Errorf("mbind of %d bytes", len(b))
				}
				calls = append(calls, call{mode, mask})
				if slices.Contains(tt.refuse, mode) {
					return unix.EPERM
				}
				return nil
			}
			a, err := k.mapArena(Options{Size: 1 << 20, Backing: Memfd, NUMA: tt.want})
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			p := a.Placement()
			if !reflect.DeepEqual(calls, tt.calls) {
				t.Errorf("calls %v, want %v", calls, tt.calls)
			}
			if p.NUMA != tt.mode || !slices.Equal(p.Nodes, tt.nodes) {
				t.Errorf("in effect: %v %v, want %v %v", p.NUMA, p.Nodes, tt.mode, tt.nodes)
			}
			if got := strings.Join(p.Reasons, "; "); !strings.Contains(got, tt.reason) || (tt.reason == "") != (got == "") {
				t.Errorf("reasons %q, want %q", got, tt.reason)
			}
		})
	}
}

// TestNUMAHere asks the kernel what it made of the policy.
func TestNUMAHere(t *testing.T) {
	nodes, err := realKernel.allowedNodes()
	if err != nil {
		t.Skip("no memory nodes here: ", err)
	}
	a := mustMap(t, Options{Size: 1 << 20, Backing: Memfd, NUMA: NUMA{NUMABind, nodes[:1]}, Prefault: true})
	p := a.Placement()
	if s := p.String(); p.NUMA != NUMABind && (strings.Contains(s, "not permitted") || strings.Contains(s, "not implemented")) {
		t.Skip("mbind is refused here: ", p.Reasons)
	}
	maps, err := os.ReadFile("/proc/self/numa_maps")
	if err != nil {
		t.Skip("no /proc/self/numa_maps")
	}
	want := fmt.Sprintf("%x bind:%d ", addressOf(a.Bytes(0, 1)), nodes[0])
	if !strings.Contains(string(maps), want) {
		t.Errorf("numa_maps lacks %q", want)
	}
}

// TestMapRegion: alignment beyond what mmap gives by itself, and nothing kept
// that was mapped only for the sake of it.
func TestMapRegion(t *testing.T) {
	page := os.Getpagesize()
	fd, err := unix.MemfdCreate("kvcr-region", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, int64(4*page)); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Pwrite(fd, []byte("first"), 0); err != nil {
		t.Fatal(err)
	}
	const align = 1 << 30
	before := vmSize(t)
	var regions []region
	for range 4 {
		anon, err1 := mapRegion(4*page, align, page, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE, -1)
		of, err2 := mapRegion(4*page, align, page, unix.MAP_SHARED, fd)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		regions = append(regions, anon, of)
		if string(of.mem[:5]) != "first" {
			t.Errorf("the region begins with %q", of.mem[:5])
		}
	}
	for _, r := range regions {
		if len(r.mem) != 4*page || cap(r.mem) != 4*page || addressOf(r.mem)%align != 0 || !mapped(addressOf(r.mem), int64(4*page)) {
			t.Errorf("%d bytes at %#x", len(r.mem), addressOf(r.mem))
		}
		r.mem[4*page-1] = 1
	}
	if grown := vmSize(t) - before; grown > align/4 {
		t.Errorf("8 regions of %d bytes take %d bytes of address space", 4*page, grown)
	}
	for _, r := range regions {
		if err := r.unmap(); err != nil {
			t.Error(err)
		}
	}
}

// vmSize returns the address space of this process in bytes.
func vmSize(t *testing.T) int64 {
	t.Helper()
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip("no /proc/self/statm")
	}
	n, err := strconv.ParseInt(strings.Fields(string(statm))[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n * int64(os.Getpagesize())
}

func TestLock(t *testing.T) {
	a := mustMap(t, Options{Size: 1 << 20, Backing: Memfd, Lock: true})
	p := a.Placement()
	if !p.Locked {
		t.Skip("locking is refused here: ", p.Reasons)
	}
	status, _ := os.ReadFile("/proc/self/status")
	_, l, _ := strings.Cut(string(status), "VmLck:")
	if n, err := strconv.Atoi(strings.Fields(l)[0]); err != nil || n < 1024 {
		t.Errorf("VmLck %d kB, %v", n, err)
	}
	if p.Prefaulted != 1<<20 {
		t.Errorf("prefaulted %d", p.Prefaulted)
	}
}

func childLockLimit([]string) error {
	// As an ordinary user: root may lock whatever the limit says.
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 64 << 10, Max: 64 << 10}); err != nil {
		return err
	}
	if os.Getuid() == 0 {
		if err := syscall.Setuid(65534); err != nil {
			return err
		}
	}
	o := Options{Name: "pool", Size: 8 << 20, Backing: Memfd, Lock: true}
	a, err := Map(o)
	if err != nil {
		return fmt.Errorf("not strict: %w", err)
	}
	p := a.Placement()
	if p.Locked || len(p.Reasons) == 0 || !strings.Contains(p.String(), "64 KiB") || !strings.Contains(p.String(), "8 MiB") {
		return fmt.Errorf("placement does not say limit and size: %v", p)
	}
	a.Bytes(0, 1)[0] = 1
	if err := a.Close(); err != nil {
		return err
	}
	o.LockStrict = true
	_, err = Map(o)
	var le *LockError
	if !errors.As(err, &le) || le.Soft != 64<<10 || le.Hard != 64<<10 || le.Want != 8<<20 {
		return fmt.Errorf("strict: %v, want a *LockError", err)
	}
	if m := ourMappings(); len(m) > 0 {
		return fmt.Errorf("strict refusal left %v", m)
	}
	o.Size = 32 << 10 // fits
	if a, err = Map(o); err != nil || !a.Placement().Locked {
		return fmt.Errorf("32 KiB under a limit of 64 KiB: %v", err)
	}
	return a.Close()
}

func TestLockLimit(t *testing.T) {
	if out, err := child("lock-limit").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func TestLockStrictRefused(t *testing.T) {
	k := *realKernel
	k.mlock = func([]byte) error { return unix.ENOMEM }
	k.memlock = func() (soft, hard uint64) { return 64 << 10, ^uint64(0) }
	before := len(openFDs())
	_, err := k.mapArena(Options{Size: 4 << 20, Backing: Memfd, Lock: true, LockStrict: true})
	var le *LockError
	if !errors.As(err, &le) || !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), "64 KiB") || !strings.Contains(err.Error(), "unlimited") {
		t.Errorf("%v, want a *LockError with both limits", err)
	}
	if now := openFDs(); len(now) != before {
		t.Errorf("left open: %v", now)
	}
}

func TestHugeInSmaps(t *testing.T) {
	const text = `7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Size:               4096 kB
AnonHugePages:      2048 kB
VmFlags: rd wr hg
7f0000400000-7f0000800000 rw-s 00000000 00:01 5 /memfd:kvcr-x (deleted)
ShmemPmdMapped:     4096 kB
Shared_Hugetlb:        0 kB
7f0000800000-7f0000c00000 rw-p 00000000 00:00 0 [anon: a-b]
AnonHugePages:      4096 kB
`
	if got := hugeInSmaps([]byte(text), 0x7f0000000000, 0x7f0000800000); got != 6<<20 {
		t.Errorf("%d, want 6 MiB", got)
	}
	if got := hugeInSmaps([]byte(text), 0x7f0000800000, 0x7f0000c00000); got != 4<<20 {
		t.Errorf("%d, want 4 MiB", got)
	}
}

func TestMountHuge(t *testing.T) {
	k := tree(t, map[string]string{"proc/self/mountinfo": "1 0 0:1 / / rw - ext4 /dev/x rw\n" +
		"2 1 0:2 / /dev/shm rw - tmpfs tmpfs rw,size=1g\n" +
		"3 2 0:3 / /dev/shm/huge rw - tmpfs tmpfs rw,huge=advise,size=1g\n"})
	for path, want := range map[string]string{"/dev/shm": "", "/dev/shm/huge": "advise", "/dev/shm/huge/x": "advise", "/dev/shm/hugely": "", "/etc": ""} {
		if got := k.mountHuge(path); got != want {
			t.Errorf("mountHuge(%s) = %q, want %q", path, got, want)
		}
	}
	for opt, ok := range map[string]bool{"always": true, "advise": true, "within_size": true, "never": false, "": false} {
		k := tree(t, hugeTree(nil, "[always] madvise never"))
		if why := k.thpShort(File, 8<<20, opt); (why == "") != ok {
			t.Errorf("huge=%s: %q", opt, why)
		}
	}
}
