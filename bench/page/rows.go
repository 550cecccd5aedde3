package page

import (
	"maps"
	"slices"
	"strings"

	"github.com/kvcr-go/kvcr/bench"
)

// rows are those of one suite, in the order in which they were measured.
type rows []bench.Row

// named are the rows of some results.
func (rs rows) named(names ...string) rows {
	return rs.where(func(r bench.Row) bool { return slices.Contains(names, r.Name) })
}

func (rs rows) where(keep func(bench.Row) bool) rows {
	var out rows
	for _, r := range rs {
		if keep(r) {
			out = append(out, r)
		}
	}
	return out
}

// with are the rows that have a parameter with this value, as text.
func (rs rows) with(param, value string) rows {
	return rs.where(func(r bench.Row) bool { return text(r, param) == value })
}

// values are the different values of a parameter, as text, in order.
func (rs rows) values(param string) []string {
	return different(rs, func(r bench.Row) string { return text(r, param) })
}

// different are the different answers of rows, in order.
func different(rs rows, of func(bench.Row) string) []string {
	var out []string
	for _, r := range rs {
		if v := of(r); !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

// text is a parameter as text, "" when there is none.
func text(r bench.Row, param string) string {
	v, ok := r.Params[param]
	if !ok {
		return ""
	}
	return bench.ParamText(v)
}

// num is a parameter as a number. Rows that were stored have float64, others what
// the suite gave.
func num(r bench.Row, param string) (float64, bool) {
	switch v := r.Params[param].(type) {
	case float64:
		return v, true
	case int:
		return float64(v), true
	}
	return 0, false
}

// say writes one parameter for people.
func say(r bench.Row, param string) string {
	v, ok := num(r, param)
	switch {
	case ok && param == "size" && r.Suite == "scale":
		return short(v) // of something else than bytes
	case ok && param == "size":
		return bytesOf(v)
	case ok && param == "percentile" && v == 100:
		return "max"
	case ok && param == "percentile":
		return "p" + trim(v)
	case ok && (param == "capacity" || param == "read"):
		return trim(v) + " %"
	case ok:
		return trim(v)
	}
	return text(r, param)
}

// question is what a row answers, without its name and some parameters.
func question(r bench.Row, without ...string) string {
	var parts []string
	for _, p := range slices.Sorted(maps.Keys(r.Params)) {
		if slices.Contains(without, p) {
			continue
		}
		switch p {
		case "size":
			parts = append(parts, say(r, p))
		case "op", "proto", "net", "route", "form", "trace", "keys", "stat":
			parts = append(parts, text(r, p))
		default:
			parts = append(parts, p+" "+say(r, p))
		}
	}
	return strings.Join(parts, ", ")
}

// spread is a row's value with the smallest and largest of its runs.
func spread(r bench.Row) (value, lo, hi float64) {
	if len(r.Runs) == 0 {
		return r.Value, r.Value, r.Value
	}
	return r.Value, slices.Min(r.Runs), slices.Max(r.Runs)
}

// perNano turns nanoseconds for each operation into operations in a nanosecond's
// multiple: factor 1000 gives millions a second.
func perNano(r bench.Row, factor float64) (value, lo, hi float64) {
	v, l, h := spread(r)
	return factor / v, factor / h, factor / l
}

// barOf is a row as a bar.
func barOf(st *styles, r bench.Row, of func(bench.Row) (v, lo, hi float64)) bar {
	v, lo, hi := of(r)
	return bar{name: r.Impl, style: st.of(r.Impl), value: v, lo: lo, hi: hi}
}

// better says which way a value improves.
func better(r bench.Row) string {
	if r.Better == bench.Higher {
		return "more is better"
	}
	return "less is better"
}

// seriesOf makes one series of the rows, x being a parameter.
func seriesOf(name string, s style, rs rows, x string, of func(bench.Row) (v, lo, hi float64)) series {
	out := series{name: name, style: s}
	for _, r := range rs {
		if at, ok := num(r, x); ok {
			v, lo, hi := of(r)
			out.points = append(out.points, point{at, v, lo, hi})
		}
	}
	return out
}

// ticksOf names the values of a parameter on an axis.
func ticksOf(rs rows, param string) []tick {
	var ticks []tick
	for _, r := range rs {
		if v, ok := num(r, param); ok && !slices.ContainsFunc(ticks, func(t tick) bool { return t.value == v }) {
			ticks = append(ticks, tick{v, strings.TrimSuffix(say(r, param), " %")})
		}
	}
	slices.SortFunc(ticks, func(a, b tick) int { return int(a.value - b.value) })
	return ticks
}
