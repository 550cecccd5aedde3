package page

import (
	"maps"
	"slices"

	"github.com/kvcr-go/kvcr/bench"
)

// table has a line for each question of one name and a column for each
// implementation.
type table struct {
	Name, Unit, Better string
	Params, Impls      []string
	Lines              []tableLine
	// Long ones are shown when asked for.
	Long bool
}

const longTable = 16 // lines; arbitrary

type tableLine struct {
	Params []string
	Cells  []cell
}

type cell struct {
	Value, Range string
	Ours         bool
}

// tables are those of all names, one for each unit.
func tables(rs rows) (out []table) {
	for _, name := range different(rs, func(r bench.Row) string { return r.Name }) {
		of := rs.named(name)
		for _, unit := range different(of, func(r bench.Row) string { return r.Unit }) {
			out = append(out, tableOf(of.where(func(r bench.Row) bool { return r.Unit == unit })))
		}
	}
	return out
}

func tableOf(rs rows) table {
	t := table{Name: rs[0].Name, Unit: rs[0].Unit, Better: better(rs[0]), Impls: rs.impls()}
	for _, r := range rs {
		for _, p := range slices.Sorted(maps.Keys(r.Params)) {
			if !slices.Contains(t.Params, p) {
				t.Params = append(t.Params, p)
			}
		}
	}
	ask := func(r bench.Row) string { return r.Title() }
	for _, q := range different(rs, ask) {
		of := rs.where(func(r bench.Row) bool { return ask(r) == q })
		var line tableLine
		for _, p := range t.Params {
			line.Params = append(line.Params, say(of[0], p))
		}
		for _, impl := range t.Impls {
			c := cell{Ours: impl == "kvcr"}
			if same := of.impl(impl); len(same) > 0 {
				v, lo, hi := spread(same[0])
				c.Value = number(v)
				if lo < hi {
					c.Range = number(lo) + " – " + number(hi)
				}
			}
			line.Cells = append(line.Cells, c)
		}
		t.Lines = append(t.Lines, line)
	}
	t.Long = len(t.Lines) > longTable
	return t
}
