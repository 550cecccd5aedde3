package page

import (
	"fmt"
	"strings"
)

// style tells a series from the others of a chart by colour, dash and marker.
type style struct {
	ours  bool
	limit bool
	n     int // of the implementation, within its suite
}

// colours beside ours and that of limits: the page has a class for each.
const colours = 8

func (s style) class() string {
	switch {
	case s.ours:
		return fmt.Sprintf("s-ours d%d", s.n)
	case s.limit:
		return fmt.Sprintf("s-limit d%d", 1+s.n%(dashes-1)) // never solid
	}
	return fmt.Sprintf("s-%d d%d", s.n%colours, s.n/colours%dashes)
}

// dashes is how many kinds of lines there are; d0 is solid.
const dashes = 4

// mark is a path around x and y whose shape is the series' own.
func (s style) mark(x, y, r float64) string {
	shape := s.n % 5
	if s.ours && s.n == 0 {
		shape = 0
	}
	switch shape {
	case 1: // square
		return fmt.Sprintf("M%.1f %.1fh%.1fv%.1fh%.1fz", x-r, y-r, 2*r, 2*r, -2*r)
	case 2: // triangle
		return fmt.Sprintf("M%.1f %.1fl%.1f %.1fh%.1fz", x, y-1.2*r, 1.2*r, 2.2*r, -2.4*r)
	case 3: // diamond
		return fmt.Sprintf("M%.1f %.1fl%.1f %.1fl%.1f %.1fl%.1f %.1fz", x, y-1.4*r, 1.4*r, 1.4*r, -1.4*r, 1.4*r, -1.4*r, -1.4*r)
	case 4: // triangle upside down
		return fmt.Sprintf("M%.1f %.1fl%.1f %.1fh%.1fz", x, y+1.2*r, 1.2*r, -2.2*r, -2.4*r)
	}
	return fmt.Sprintf("M%.1f %.1fa%.1f %.1f 0 1 0 %.1f 0a%.1f %.1f 0 1 0 %.1f 0z", x-r, y, r, r, 2*r, r, r, -2*r)
}

// styles gives each implementation of a suite its style, in order of appearance.
type styles struct{ numbers map[string]int }

// of is the style of an implementation: one name of KVCR, a limit of the machine,
// or another one.
func (st *styles) of(impl string) style {
	if name, ok := strings.CutPrefix(impl, "kvcr"); ok {
		// kvcr itself is solid, its other names are dashed.
		for i, n := range []string{"", "-pool", "-again"} {
			if name == n {
				return style{ours: true, n: i}
			}
		}
		return style{ours: true, n: dashes - 1}
	}
	if st.numbers == nil {
		st.numbers = map[string]int{}
	}
	n, ok := st.numbers[impl]
	if !ok {
		n = len(st.numbers)
		st.numbers[impl] = n
	}
	return style{n: n}
}

// nth is the style of what is no implementation: the n-th series of a chart.
func nth(n int) style { return style{n: n} }

func limit(n int) style { return style{limit: true, n: n} }
