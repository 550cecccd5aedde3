package wire

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
)

// Layout is what both ends must agree on about a namespace.
type Layout struct {
	Kind   string // flat or chained
	Pools  []LayoutPool
	Recipe string // how keys are made; empty: not said
}

// LayoutPool is a pool of fixed slots.
type LayoutPool struct {
	Name      string
	SlotBytes uint64
}

// Describe writes the layout as PROTOCOL.md says: a line for each field, its name,
// an equals sign and its value. Two layouts are the same when these texts are, and
// Fingerprint of the text is what both ends compare.
func (l Layout) Describe() string {
	var b strings.Builder
	b.WriteString("kind=" + l.Kind)
	for _, p := range l.Pools {
		fmt.Fprintf(&b, "\npool %q slot bytes=%d", p.Name, p.SlotBytes)
	}
	if l.Recipe != "" {
		b.WriteString("\nhash recipe=" + l.Recipe)
	}
	return b.String()
}

// Fingerprint is that of a layout's description.
func Fingerprint(description string) [32]byte { return sha256.Sum256([]byte(description)) }

const (
	maxDifferences = 4   // that are named
	maxFieldBytes  = 64  // of a name or a value that are shown
	maxFields      = 256 // of a description that are looked at
)

// LayoutDifference says in words how a client's layout differs from the node's:
// each field that differs, with both values. It knows nothing of what fields
// there are, so that either side may have some that the other's version lacks.
func LayoutDifference(yours, nodes string) string {
	if yours == "" {
		return "no description was sent; the node's is " + show(strings.ReplaceAll(nodes, "\n", "; "), MaxText/2)
	}
	a, b := fieldsOf(yours), fieldsOf(nodes)
	mine := map[string]string{}
	for _, f := range a {
		mine[f.name] = f.value
	}
	theirs := map[string]bool{}
	var out []string
	n := 0
	differ := func(name, yours, nodes string) {
		if n++; n <= maxDifferences {
			out = append(out, fmt.Sprintf("%s: yours %s, node's %s", show(name, maxFieldBytes), show(yours, maxFieldBytes), show(nodes, maxFieldBytes)))
		}
	}
	for _, f := range b {
		theirs[f.name] = true
		switch v, ok := mine[f.name]; {
		case !ok:
			differ(f.name, "none", f.value)
		case v != f.value:
			differ(f.name, v, f.value)
		}
	}
	for _, f := range a {
		if !theirs[f.name] {
			differ(f.name, f.value, "none")
		}
	}
	for i := 0; n == 0 && i < min(len(a), len(b)); i++ {
		if a[i].name != b[i].name { // the same fields in another order
			differ("field "+strconv.Itoa(i+1), a[i].name, b[i].name)
			break
		}
	}
	switch {
	case n == 0:
		return "the descriptions are alike: your fingerprint is not that of your description"
	case n > maxDifferences:
		out = append(out, fmt.Sprintf("and %d more", n-maxDifferences))
	}
	return strings.Join(out, "; ")
}

type layoutField struct{ name, value string }

// fieldsOf reads a description, whoever wrote it: a line without an equals sign is
// a field without a value, and what follows maxFields lines is not read.
func fieldsOf(description string) (out []layoutField) {
	for line := range strings.SplitSeq(description, "\n") {
		if len(out) == maxFields {
			break
		}
		i := strings.LastIndexByte(line, '=')
		if i < 0 {
			out = append(out, layoutField{line, ""})
		} else {
			out = append(out, layoutField{line[:i], line[i+1:]})
		}
	}
	return out
}

// show is a part of a description fit to be shown: short, and without what a
// terminal would obey.
func show(s string, limit int) string {
	cut := clip(s, limit)
	text := strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '?'
		}
		return r
	}, cut)
	if len(cut) < len(s) {
		text += "..."
	}
	return text
}
