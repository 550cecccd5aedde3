package arena

import (
	"fmt"
	"strconv"
	"strings"
)

// Off is a byte distance from the base of one arena: not a length, not a slot
// number. It means the same in every process that maps the arena.
type Off uint64

// Pages says what kind of pages back an arena. The zero Pages is PagesAuto.
type Pages int

// The kinds of pages. PagesAuto tries explicit huge pages, the largest first,
// then transparent huge pages, then base pages. The sizes beyond 1 GiB and
// 2 MiB exist on arm64 (512 MiB is the level above base pages of 64 KiB).
const (
	PagesAuto Pages = iota
	PagesHuge1G
	PagesHuge2M
	PagesTHP  // base pages that the kernel may join to huge ones (madvise)
	PagesBase // the kernel's ordinary pages, 4 to 64 KiB
	PagesHuge16G
	PagesHuge512M
	PagesHuge32M
	pagesEnd
)

// hugeKinds lists the explicit huge pages, largest first: the order in which
// PagesAuto tries them.
var hugeKinds = []Pages{PagesHuge16G, PagesHuge1G, PagesHuge512M, PagesHuge32M, PagesHuge2M}

var pagesNames = [pagesEnd]string{
	PagesAuto: "auto", PagesHuge1G: "1G", PagesHuge2M: "2M", PagesTHP: "thp",
	PagesBase: "base", PagesHuge16G: "16G", PagesHuge512M: "512M", PagesHuge32M: "32M",
}

// hugeBytes returns the size of one explicit huge page of kind p, 0 for the
// other kinds.
func (p Pages) hugeBytes() int64 {
	switch p {
	case PagesHuge16G:
		return 16 << 30
	case PagesHuge1G:
		return 1 << 30
	case PagesHuge512M:
		return 512 << 20
	case PagesHuge32M:
		return 32 << 20
	case PagesHuge2M:
		return 2 << 20
	}
	return 0
}

// String returns the name that ParsePages reads.
func (p Pages) String() string { return enumName("Pages", int(p), pagesNames[:]) }

// ParsePages reads auto, 16G, 1G, 512M, 32M, 2M, thp or base, in any case.
// The error is an *OptionError.
func ParsePages(s string) (Pages, error) {
	n, err := enumParse("pages", s, pagesNames[:])
	return Pages(n), err
}

// MarshalText and UnmarshalText make JSON and configuration files carry names.
func (p Pages) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what ParsePages reads.
func (p *Pages) UnmarshalText(b []byte) (err error) { *p, err = ParsePages(string(b)); return err }

// Backing says what kind of object the memory belongs to. The zero Backing is
// Anonymous.
type Backing int

// The kinds of backing.
const (
	Anonymous Backing = iota // private to this process
	Memfd                    // shareable by passing its descriptor
	File                     // a file on tmpfs or hugetlbfs
	backingEnd
)

var backingNames = [backingEnd]string{Anonymous: "anonymous", Memfd: "memfd", File: "file"}

// String returns the name that ParseBacking reads.
func (b Backing) String() string { return enumName("Backing", int(b), backingNames[:]) }

// ParseBacking reads anonymous, memfd or file, in any case. The error is an
// *OptionError.
func ParseBacking(s string) (Backing, error) {
	n, err := enumParse("backing", s, backingNames[:])
	return Backing(n), err
}

// MarshalText makes JSON and configuration files carry names.
func (b Backing) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText reads what ParseBacking reads.
func (b *Backing) UnmarshalText(t []byte) (err error) {
	*b, err = ParseBacking(string(t))
	return err
}

// NUMAMode says how memory is spread over memory nodes. The zero NUMAMode
// leaves it to the kernel.
type NUMAMode int

// The modes.
const (
	NUMADefault    NUMAMode = iota // the policy of the process: usually the node of first touch
	NUMABind                       // only the named nodes
	NUMAInterleave                 // page by page over the named nodes
	NUMAPreferred                  // the named nodes while they have room
	numaEnd
)

var numaNames = [numaEnd]string{
	NUMADefault: "default", NUMABind: "bind",
	NUMAInterleave: "interleave", NUMAPreferred: "preferred",
}

// String returns the name that ParseNUMAMode reads.
func (m NUMAMode) String() string { return enumName("NUMAMode", int(m), numaNames[:]) }

// ParseNUMAMode reads default, bind, interleave or preferred, in any case. The
// error is an *OptionError.
func ParseNUMAMode(s string) (NUMAMode, error) {
	n, err := enumParse("NUMA mode", s, numaNames[:])
	return NUMAMode(n), err
}

// MarshalText makes JSON and configuration files carry names.
func (m NUMAMode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads what ParseNUMAMode reads.
func (m *NUMAMode) UnmarshalText(b []byte) (err error) {
	*m, err = ParseNUMAMode(string(b))
	return err
}

// NUMA is a memory policy. Nodes are node numbers; none means every node the
// process may use. Nodes outside its cpuset are left out and reported.
type NUMA struct {
	Mode  NUMAMode
	Nodes []int
}

func enumName(typ string, v int, names []string) string {
	if v < 0 || v >= len(names) {
		return fmt.Sprintf("%s(%d)", typ, v)
	}
	return names[v]
}

func enumParse(field, s string, names []string) (int, error) {
	for i, n := range names {
		if strings.EqualFold(strings.TrimSpace(s), n) {
			return i, nil
		}
	}
	return 0, &OptionError{Field: field, Value: strconv.Quote(s), Fix: "use one of " + strings.Join(names, ", ")}
}
