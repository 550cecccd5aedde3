package arena

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// kernel is what an arena needs from the system. Tests replace single fields to
// refuse a call, and root to show another /proc and /sys.
type kernel struct {
	root      string // "/", or a directory that stands for it when files are read
	page      int64  // bytes of a base page
	mapRegion func(length, align, guard, flags, fd int) (region, error)
	madvise   func(b []byte, advice int) error
	mbind     func(b []byte, mode int, mask []uint64) error
	mlock     func(b []byte) error
	fallocate func(fd int, mode uint32, off, n int64) error
	memfd     func(name string, flags int) (int, error)
	memlock   func() (soft, hard uint64) // RLIMIT_MEMLOCK
}

var realKernel = &kernel{
	root:      "/",
	page:      int64(os.Getpagesize()),
	mapRegion: mapRegion,
	madvise:   unix.Madvise,
	mbind:     mbind,
	mlock:     unix.Mlock,
	fallocate: unix.Fallocate,
	memfd:     unix.MemfdCreate,
	memlock: func() (soft, hard uint64) {
		var r unix.Rlimit
		if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r) != nil {
			return 0, 0
		}
		return r.Cur, r.Max
	},
}

func (o *Options) validate() error {
	var errs []error
	bad := func(field string, value any, fix string) {
		errs = append(errs, &OptionError{Field: field, Value: fmt.Sprint(value), Fix: fix})
	}
	if o.Size < 1 || o.Size > 1<<46 {
		bad("Size", o.Size, "use 1 byte to 64 TiB")
	}
	if o.Pages < 0 || o.Pages >= pagesEnd {
		bad("Pages", int(o.Pages), "use one of the Pages constants")
	}
	if o.Backing < 0 || o.Backing >= backingEnd {
		bad("Backing", int(o.Backing), "use one of the Backing constants")
	}
	if (o.Path != "") != (o.Backing == File) {
		bad("Path", fmt.Sprintf("%q", o.Path), "File backing needs a path, the others take none")
	}
	if o.NUMA.Mode < 0 || o.NUMA.Mode >= numaEnd {
		bad("NUMA.Mode", int(o.NUMA.Mode), "use one of the NUMAMode constants")
	}
	if o.NUMA.Mode == NUMADefault && len(o.NUMA.Nodes) > 0 {
		bad("NUMA.Nodes", o.NUMA.Nodes, "choose a mode for them: bind, interleave or preferred")
	}
	for _, n := range o.NUMA.Nodes {
		if n < 0 || n > maxNode {
			bad("NUMA.Nodes", n, fmt.Sprintf("node numbers are 0 to %d", maxNode))
		}
	}
	if o.PrefaultThreads < 0 {
		bad("PrefaultThreads", o.PrefaultThreads, "use 0 for the default or a positive number")
	}
	return errors.Join(errs...)
}

func (k *kernel) mapArena(o Options) (*Arena, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	m := &mapping{k: k, o: &o, fd: -1}
	m.place = Placement{Name: o.Name, Size: o.Size, Backing: o.Backing}
	if o.Backing == File {
		return m.mapFile()
	}
	var short []string // why larger pages were not had
	order := hugeOrder(&o)
	if len(order) > 0 && !slices.ContainsFunc(order, k.hugeKnown) && o.Pages == PagesAuto {
		short = append(short, "explicit huge pages: this kernel has none")
	}
	for _, kind := range order {
		if o.Pages != kind && !k.hugeKnown(kind) {
			continue // a size of another architecture, which nobody asked for
		}
		why, err := m.hugeUsable(kind)
		if why == "" {
			if err = m.build(kind); err == nil {
				return m.finish(short), nil
			}
			var lock *LockError
			if errors.As(err, &lock) {
				return nil, err
			}
			why = err.Error()
		}
		if o.Strict && o.Pages == kind {
			return nil, &PagesError{Want: kind, Size: o.Size, Why: why, Err: err}
		}
		short = append(short, kind.String()+": "+why)
	}
	return m.plain(short, "")
}

// hugeOrder returns the explicit huge pages to try for o, in order. A kind that
// nobody asked for by name must not waste more than an eighth of the arena.
func hugeOrder(o *Options) (kinds []Pages) {
	for _, kind := range hugeKinds {
		size := kind.hugeBytes()
		switch {
		case o.Pages == kind:
			kinds = append(kinds, kind)
		case o.Pages != PagesAuto && o.Pages.hugeBytes() < size:
			// smaller pages, transparent ones or none were asked for
		case roundUp(o.Size, size)-o.Size <= o.Size/8:
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// mapping is an arena being made. Between builds it holds nothing.
type mapping struct {
	k     *kernel
	o     *Options
	place Placement
	r     region
	fd    int  // -1 without one
	file  file // valid when Backing is File
	heap  bool // the memory is the Go heap's
	disk  bool // the file is on a file system that is not memory
}

func (m *mapping) hugeUsable(kind Pages) (why string, err error) {
	if onHeap && m.o.Backing == Anonymous {
		return "race builds keep anonymous memory on the Go heap", nil
	}
	return m.k.hugeShort(kind, roundUp(m.o.Size, kind.hugeBytes())), nil
}

// plain maps without explicit huge pages: transparent ones where they can be
// had and were not excluded, else base pages.
func (m *mapping) plain(short []string, mountHuge string) (*Arena, error) {
	kind := PagesBase
	if m.o.Pages != PagesBase {
		why := m.k.thpShort(m.o.Backing, m.o.Size, mountHuge)
		if onHeap && m.o.Backing == Anonymous {
			why = "race builds keep anonymous memory on the Go heap"
		}
		switch {
		case why == "":
			kind = PagesTHP
		case m.o.Strict && m.o.Pages == PagesTHP:
			m.drop()
			return nil, &PagesError{Want: PagesTHP, Size: m.o.Size, Why: why}
		case m.o.Pages != PagesAuto || m.o.Size >= PagesHuge2M.hugeBytes():
			// An arena too small for any of this was not short of anything.
			short = append(short, "thp: "+why)
		}
	}
	if err := m.checkLimit(); err != nil {
		m.drop()
		return nil, err
	}
	if err := m.build(kind); err != nil {
		return nil, err
	}
	return m.finish(short), nil
}

// checkLimit refuses what would end in the kernel killing this process or
// another: an arena above what the process may ever use, and one that is taken
// at once and above what the machine has left. Explicit huge pages do not come
// here: they are set aside already. Nor do files on a disk: the kernel can write
// their pages back.
func (m *mapping) checkLimit() error {
	o := m.o
	if m.disk {
		return nil
	}
	if limit, source := m.k.memoryLimit(); o.Size > limit {
		return &SizeError{Size: o.Size, Limit: limit, Source: source}
	}
	if o.Backing != Anonymous || o.Prefault || o.Lock {
		if left := m.k.memInfo("MemAvailable"); left > 0 && o.Size > left {
			return &SizeError{Size: o.Size, Limit: left, Source: "memory available on the machine now"}
		}
	}
	return nil
}

func (m *mapping) finish(short []string) *Arena {
	if len(short) > 0 {
		m.place.Reasons = append([]string{"not on larger pages: " + strings.Join(short, "; ")}, m.place.Reasons...)
	}
	a := &Arena{mem: m.r.mem[:m.o.Size:m.o.Size], fd: m.fd, place: m.place}
	held := *m
	a.release = held.drop
	return a
}

// drop gives back everything the mapping holds. It may be called at any point
// of a build, and again.
func (m *mapping) drop() error {
	err := m.r.unmap()
	m.r = region{}
	if m.fd >= 0 {
		if m.o.Backing == File {
			err = errors.Join(err, m.file.remove())
		} else {
			err = errors.Join(err, unix.Close(m.fd))
		}
		m.fd = -1
	}
	return err
}

// build maps the arena on pages of one kind. On an error it holds nothing.
func (m *mapping) build(kind Pages) (err error) {
	reasons, o, k := len(m.place.Reasons), m.o, m.k
	defer func() {
		if err != nil {
			_ = m.drop()
			m.place.Reasons = m.place.Reasons[:reasons]
		}
	}()
	pageBytes := kind.hugeBytes()
	huge := pageBytes > 0
	switch {
	case kind == PagesTHP:
		pageBytes = k.thpBytes()
	case kind == PagesBase:
		pageBytes = k.page
	}
	unit := k.page // what the mapping is a multiple of
	if huge {
		unit = pageBytes
	}
	length := roundUp(o.Size, unit)
	m.place.Pages, m.place.PageBytes, m.place.Mapped = kind, pageBytes, length
	m.place.HugeBytes, m.place.Prefaulted, m.place.Locked = 0, 0, false
	m.place.NUMA, m.place.Nodes = NUMADefault, nil

	if err := m.object(huge, pageBytes, length); err != nil {
		return err
	}
	if err := m.mapObject(kind, int(length), int(pageBytes)); err != nil {
		return err
	}
	if m.heap {
		if o.NUMA.Mode != NUMADefault {
			m.place.because("memory policy %s: not applied to the Go heap (race build)", o.NUMA.Mode)
		}
	} else {
		if err := k.madvise(m.r.mem, unix.MADV_DONTFORK); err != nil {
			return m.fail("madvise(MADV_DONTFORK)", err)
		}
		if err := m.adviseTHP(kind); err != nil {
			return err
		}
		k.spread(m.r.mem, o.NUMA, &m.place) // before the first touch
	}
	if m.fd >= 0 {
		if err := m.reserve(length); err != nil {
			return err
		}
	}
	if o.Prefault || huge {
		if err := k.populate(m.r.mem, pageBytes, o.PrefaultThreads, m.heap, o.Progress); err != nil {
			return m.fail("populate", err)
		}
		m.place.Prefaulted = length
	}
	if o.Lock {
		if err := m.lock(); err != nil {
			return err
		}
	}
	return m.measureHuge(length)
}

// object makes the memfd, of length bytes and closed to any change of that
// length, so that no holder of the descriptor can cut memory away under us.
// Files exist already, anonymous memory needs nothing.
func (m *mapping) object(huge bool, pageBytes, length int64) error {
	switch m.o.Backing {
	case Memfd:
		name := "kvcr-" + cleanName(m.o.Name)
		flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
		if huge {
			flags |= unix.MFD_HUGETLB | bits.TrailingZeros64(uint64(pageBytes))<<unix.MFD_HUGE_SHIFT
		}
		fd, err := m.k.memfd(name, flags|unix.MFD_NOEXEC_SEAL)
		if err == unix.EINVAL {
			fd, err = m.k.memfd(name, flags) // before Linux 6.3
		}
		if err != nil {
			return m.fail("memfd_create", err)
		}
		m.fd = fd
	case File:
		m.fd = m.file.fd
		m.place.Path = m.file.path
	default:
		return nil
	}
	if err := unix.Ftruncate(m.fd, length); err != nil {
		return m.fail("ftruncate", err)
	}
	if m.o.Backing == Memfd {
		if _, err := unix.FcntlInt(uintptr(m.fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
			return m.fail("seal", err)
		}
	}
	return nil
}

func (m *mapping) mapObject(kind Pages, length, pageBytes int) (err error) {
	align, guard := pageBytes, int(m.k.page)
	if m.heap = onHeap && m.o.Backing == Anonymous; m.heap {
		m.r = heapRegion(length, align)
		m.place.GoHeap = true
		return nil
	}
	flags := unix.MAP_SHARED
	if m.o.Backing == Anonymous {
		flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	}
	if kind.hugeBytes() > 0 {
		// The kernel aligns these itself, and their pages cannot be guards. The
		// flags are made anew for each kind: a size left in them would make the
		// next, smaller kind fail.
		guard = 0
		if m.o.Backing == Anonymous {
			flags |= unix.MAP_HUGETLB | bits.TrailingZeros(uint(pageBytes))<<unix.MAP_HUGE_SHIFT
		}
	}
	if m.r, err = m.k.mapRegion(length, align, guard, flags, m.fd); err != nil {
		if m.o.Backing == File && err == unix.ENOMEM && kind.hugeBytes() > 0 {
			// A hugetlbfs mapping reserves its pages when it is made.
			free, _ := m.k.hugeFree(int64(pageBytes))
			return &SpaceError{Need: int64(length), Free: free * int64(pageBytes), Path: m.where(), Err: err}
		}
		return m.fail("mmap", err)
	}
	return nil
}

func (m *mapping) adviseTHP(kind Pages) error {
	switch kind {
	case PagesTHP:
		if err := m.k.madvise(m.r.mem, unix.MADV_HUGEPAGE); err != nil {
			why := "madvise(MADV_HUGEPAGE): " + err.Error()
			if m.o.Strict && m.o.Pages == PagesTHP {
				return &PagesError{Want: PagesTHP, Size: m.o.Size, Why: why, Err: err}
			}
			m.place.because("thp: %s", why)
			m.place.Pages, m.place.PageBytes = PagesBase, m.k.page
		}
	case PagesBase:
		if m.o.Pages == PagesBase {
			// Asked for by name: keep the kernel from joining them where that
			// is its default. A kernel without huge pages refuses the advice.
			_ = m.k.madvise(m.r.mem, unix.MADV_NOHUGEPAGE)
		}
	}
	return nil
}

// reserveChunk bounds one fallocate: the kernel undoes the whole call when a
// signal arrives, and a long call would be undone again and again.
const reserveChunk = 32 << 20

// reserve takes every block of the file or memfd now. Without it a full file
// system shows at the first use of a page, as SIGBUS.
func (m *mapping) reserve(length int64) error {
	chunk := max(reserveChunk, m.place.PageBytes)
	for at := int64(0); at < length; {
		n := min(chunk, length-at)
		switch err := m.k.fallocate(m.fd, 0, at, n); err {
		case nil:
			at += n
		case unix.EINTR:
		case unix.ENOSPC, unix.ENOMEM, unix.EDQUOT:
			// What was free before our own part of it: drop takes that back.
			free := m.k.memInfo("MemAvailable")
			if m.o.Backing == File {
				free = freeSpace(m.fd)
			}
			if free >= 0 {
				free += at
			}
			return &SpaceError{Need: length, Free: free, Path: m.where(), Err: err}
		case unix.EOPNOTSUPP:
			return m.fail("fallocate", fmt.Errorf("%w: the file system cannot reserve blocks; use tmpfs or hugetlbfs", err))
		default:
			return m.fail("fallocate", err)
		}
	}
	return nil
}

// lock keeps the memory resident, or says why not.
func (m *mapping) lock() error {
	soft, hard := m.k.memlock()
	if m.heap {
		m.place.because("not locked: the Go heap is not (race build)")
		return nil
	}
	if err := m.k.mlock(m.r.mem); err != nil {
		_ = unix.Munlock(m.r.mem) // it may have locked a part
		e := &LockError{Want: m.place.Mapped, Soft: soft, Hard: hard, Err: err}
		if m.o.LockStrict {
			return e
		}
		m.place.because("not locked: %s", e.why())
		return nil
	}
	m.place.Locked, m.place.Prefaulted = true, m.place.Mapped
	return nil
}

// measureHuge fills in HugeBytes. Strict transparent huge pages that were
// touched and are not there are refused: the advice alone promises nothing.
func (m *mapping) measureHuge(length int64) error {
	switch kind := m.place.Pages; {
	case kind.hugeBytes() > 0:
		m.place.HugeBytes = length
	case kind == PagesTHP && m.place.Prefaulted > 0:
		n, err := (&Arena{mem: m.r.mem, place: m.place}).HugeBytes()
		if err != nil {
			m.place.because("huge pages in use are unknown: %v", err)
			return nil
		}
		m.place.HugeBytes = n
		if n > 0 {
			return nil
		}
		why := "the kernel joined no pages (memory is fragmented, or the process has switched them off)"
		if m.o.Strict && m.o.Pages == PagesTHP {
			return &PagesError{Want: PagesTHP, Size: m.o.Size, Why: why}
		}
		m.place.because("thp: %s", why)
	}
	return nil
}

// mapFile maps a file. Its file system decides about explicit huge pages.
func (m *mapping) mapFile() (*Arena, error) {
	f, dir, removed, err := createFile(m.o)
	if err != nil {
		return nil, err
	}
	m.file, m.fd, m.place.Removed = f, f.fd, removed
	// Before anything is taken, and before the machine's memory is looked at:
	// a small file system is the more precise answer.
	if free := freeSpace(f.fd); free >= 0 && free < m.o.Size {
		_ = m.drop()
		return nil, &SpaceError{Need: m.o.Size, Free: free, Path: f.path}
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(f.fd, &st); err != nil {
		_ = m.drop()
		return nil, m.failAt("statfs", f.path, err)
	}
	switch int64(st.Type) {
	case unix.HUGETLBFS_MAGIC:
		for _, kind := range hugeKinds {
			if kind.hugeBytes() != int64(st.Bsize) {
				continue
			}
			if m.o.Strict && m.o.Pages != PagesAuto && m.o.Pages != kind {
				_ = m.drop()
				return nil, &PagesError{Want: m.o.Pages, Size: m.o.Size, Why: fmt.Sprintf("%s has pages of %s", dir, byteString(int64(st.Bsize)))}
			}
			if err := m.build(kind); err != nil {
				return nil, err
			}
			var short []string
			if want := m.o.Pages.hugeBytes(); want > kind.hugeBytes() {
				short = []string{fmt.Sprintf("%s: %s has pages of %s", m.o.Pages, dir, byteString(int64(st.Bsize)))}
			}
			return m.finish(short), nil
		}
		_ = m.drop()
		return nil, m.failAt("statfs", f.path, fmt.Errorf("hugetlbfs with pages of %d bytes: not a size we know", st.Bsize))
	case unix.TMPFS_MAGIC:
	default:
		m.disk = true
		m.place.because("%s is neither tmpfs nor hugetlbfs: the kernel writes changed pages to it", dir)
	}
	var short []string
	if m.o.Pages.hugeBytes() > 0 {
		why := dir + " is not a hugetlbfs mount"
		if m.o.Strict {
			_ = m.drop()
			return nil, &PagesError{Want: m.o.Pages, Size: m.o.Size, Why: why}
		}
		short = append(short, m.o.Pages.String()+": "+why)
	}
	return m.plain(short, m.k.mountHuge(dir))
}

// where names the memory object in errors.
func (m *mapping) where() string {
	if m.o.Backing == File {
		return m.file.path
	}
	return "memfd:kvcr-" + cleanName(m.o.Name)
}

func (m *mapping) fail(op string, err error) error { return m.failAt(op, m.place.Path, err) }

func (m *mapping) failAt(op, path string, err error) error {
	return &MapError{Name: m.o.Name, Op: op, Size: m.o.Size, Path: path, Err: err}
}

// roundUp returns the smallest multiple of unit, a power of two, not below n.
func roundUp(n, unit int64) int64 { return (n + unit - 1) &^ (unit - 1) }
