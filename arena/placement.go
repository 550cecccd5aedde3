package arena

import (
	"fmt"
	"slices"
	"strings"
)

// Placement says what an arena got from the system, and for each thing it did
// not get, why.
type Placement struct {
	Name    string  `json:"name,omitempty"`
	Size    int64   `json:"size_bytes"`
	Mapped  int64   `json:"mapped_bytes"` // Size rounded up to whole pages
	Backing Backing `json:"backing"`
	Path    string  `json:"path,omitempty"` // of the file

	// Removed names the files of dead processes that were removed first.
	Removed []string `json:"removed_files,omitempty"`

	Pages     Pages `json:"pages"`      // never PagesAuto
	PageBytes int64 `json:"page_bytes"` // for THP the size of a joined page

	// HugeBytes is how much of the memory was on huge pages when Map returned.
	// Transparent huge pages appear at first touch, so that without Prefault it
	// is 0 for them; Arena.HugeBytes reads it again.
	HugeBytes int64 `json:"huge_bytes"`

	NUMA  NUMAMode `json:"numa"`
	Nodes []int    `json:"nodes,omitempty"` // in effect, when NUMA is not default

	Locked     bool  `json:"locked"`
	Prefaulted int64 `json:"prefaulted_bytes"`

	// GoHeap is true in race builds, where anonymous arenas are Go memory.
	// Such memory must not be registered with devices.
	GoHeap bool `json:"go_heap,omitempty"`

	// Reasons has one sentence for each thing asked for and not obtained.
	Reasons []string `json:"reasons,omitempty"`
}

func (p *Placement) because(format string, args ...any) {
	p.Reasons = append(p.Reasons, fmt.Sprintf(format, args...))
}

func (p Placement) clone() Placement {
	p.Nodes = slices.Clone(p.Nodes)
	p.Removed, p.Reasons = slices.Clone(p.Removed), slices.Clone(p.Reasons)
	return p
}

// String returns one line for logs.
func (p Placement) String() string {
	var b strings.Builder
	if p.Name != "" {
		b.WriteString(p.Name + ": ")
	}
	fmt.Fprintf(&b, "%s %s", byteString(p.Size), p.Backing)
	if p.Path != "" {
		b.WriteString(" " + p.Path)
	}
	fmt.Fprintf(&b, ", %s pages of %s", p.Pages, byteString(p.PageBytes))
	if p.HugeBytes > 0 {
		fmt.Fprintf(&b, " (%s huge)", byteString(p.HugeBytes))
	}
	if p.NUMA != NUMADefault {
		fmt.Fprintf(&b, ", %s nodes %v", p.NUMA, p.Nodes)
	}
	if p.Locked {
		b.WriteString(", locked")
	}
	if p.Prefaulted > 0 {
		fmt.Fprintf(&b, ", %s prefaulted", byteString(p.Prefaulted))
	}
	if p.GoHeap {
		b.WriteString(", Go heap")
	}
	if len(p.Reasons) > 0 {
		b.WriteString("; " + strings.Join(p.Reasons, "; "))
	}
	return b.String()
}
