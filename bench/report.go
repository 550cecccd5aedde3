package bench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// ours is the name under which KVCR appears among implementations.
const ours = "kvcr"

// Param is one named parameter of a result.
type Param struct {
	Name  string
	Value any // a string or a number
}

// Better says which way a value improves.
type Better string

// The two ways.
const (
	Lower  Better = "lower"
	Higher Better = "higher"
)

// Series is what one implementation reached, one value for each round.
type Series struct {
	Impl string
	// Rival marks the implementations that a bar compares KVCR with.
	Rival bool
	// Note says what else must be known to read the values.
	Note string
	Runs []float64
	cpu  []float64 // of each run, where Note tells their median
}

// Median is the middle of the runs, the mean of the two middle ones.
func (s *Series) Median() float64 {
	if len(s.Runs) == 0 {
		return math.NaN()
	}
	r := slices.Sorted(slices.Values(s.Runs))
	n := len(r)
	return (r[(n-1)/2] + r[n/2]) / 2
}

// Result is one question put to several implementations.
type Result struct {
	Suite, Name string
	Params      []Param
	Unit        string
	Better      Better
	Bar         Bar
	Also        []Bar // further ones
	Series      []*Series
	// Across: results that differ in their last parameter only make the columns of
	// one table.
	Across bool
	// Tabled results are in one of the report's Tables, and have none of their own.
	Tabled bool

	without string // why a bar's rival was not measured
}

// series returns the series of impl, a new one if there is none.
func (r *Result) series(impl string) *Series {
	if s := r.find(impl); s != nil {
		return s
	}
	s := &Series{Impl: impl}
	r.Series = append(r.Series, s)
	return s
}

func (r *Result) find(impl string) *Series {
	for _, s := range r.Series {
		if s.Impl == impl {
			return s
		}
	}
	return nil
}

// factor is how many times as good a is as b.
func (r *Result) factor(a, b float64) float64 {
	if r.Better == Higher {
		return a / b
	}
	return b / a
}

// Report is the outcome of one or more suites.
type Report struct {
	Results []*Result
	// Tables of a suite's own, for people; they come before those of results.
	Tables []Table
	// LeftOut says what could not be measured here, and why.
	LeftOut []string
	// Absent are bars whose results could not be measured here.
	Absent []Unmeasured
	// Conditions of the run become a row of their own; nil: none.
	Conditions *Conditions
	// Suite is their suite.
	Suite string
	// Own writes the results in place of WriteText's tables, for a suite whose results
	// are no comparisons; nil: tables.
	Own func(w io.Writer) error
	// Workers that times for each operation are of.
	workers int
}

// Table is figures side by side, with what they come to.
type Table struct {
	Title string
	Align string // as WriteColumns takes it
	Rows  [][]string
	Notes []string
}

// leftOut notes once what cannot be measured.
func (rep *Report) leftOut(why string) {
	if !slices.Contains(rep.LeftOut, why) {
		rep.LeftOut = append(rep.LeftOut, why)
	}
}

// result returns the result with this name and these parameters, a new one
// like r if there is none yet.
func (rep *Report) result(r Result) *Result {
	for _, have := range rep.Results {
		if have.Suite == r.Suite && have.Name == r.Name && slices.Equal(have.Params, r.Params) {
			return have
		}
	}
	rep.Results = append(rep.Results, &r)
	return &r
}

// Row is one line of the JSON form: one implementation's answer.
type Row struct {
	Suite  string         `json:"suite"`
	Name   string         `json:"name"`
	Params map[string]any `json:"params"`
	Impl   string         `json:"impl"`
	Value  float64        `json:"value"` // median of Runs
	Unit   string         `json:"unit"`
	Better Better         `json:"better"`
	Runs   []float64      `json:"runs"`
	// Rival and Bars, those of ours, are there so that stored results can be judged
	// again: see Judge.
	Rival bool  `json:"rival,omitempty"`
	Bars  []Bar `json:"bars,omitempty"`
}

// Rows lists every implementation's answer.
func (rep *Report) Rows() []Row {
	rows := []Row{} // an empty report is [] in JSON
	unmeasured := slices.Clone(rep.Absent)
	for _, r := range rep.Results {
		bars, _, open := r.judged()
		unmeasured = append(unmeasured, open...)
		params := map[string]any{}
		for _, p := range r.Params {
			params[p.Name] = p.Value
		}
		for _, s := range r.Series {
			if len(s.Runs) == 0 {
				continue // the suite ended before it
			}
			row := Row{Suite: r.Suite, Name: r.Name, Params: params, Impl: s.Impl, Value: s.Median(), Unit: r.Unit, Better: r.Better, Runs: s.Runs, Rival: s.Rival}
			if s.Impl == ours {
				row.Bars = bars
			}
			rows = append(rows, row)
		}
	}
	if rep.Conditions != nil {
		c := *rep.Conditions
		c.LeftOut, c.Workers = append(c.LeftOut, rep.LeftOut...), max(c.Workers, rep.workers)
		c.Unmeasured = append(c.Unmeasured, unmeasured...)
		rows = append(rows, c.row(rep.Suite))
	}
	return rows
}

// WriteJSON writes the rows as one indented array.
func (rep *Report) WriteJSON(w io.Writer) error { return WriteRows(w, rep.Rows()) }

// WriteText writes a table for each result, one for each row of results that
// differ in their last parameter only when that is one of curves, then how many
// bars were reached.
func (rep *Report) WriteText(w io.Writer) error {
	if rep.Own != nil {
		return rep.Own(w)
	}
	var b strings.Builder
	passed, judged := 0, 0
	var missed []string
	unmeasured := slices.Clone(rep.Absent)
	for _, t := range rep.Tables {
		fmt.Fprintf(&b, "%s\n", t.Title)
		WriteColumns(&b, t.Align, t.Rows) // a strings.Builder takes everything
		for _, n := range t.Notes {
			fmt.Fprintf(&b, "  %s\n", n)
		}
		b.WriteByte('\n')
	}
	for i := 0; i < len(rep.Results); {
		n := rep.row(i)
		results := rep.Results[i : i+n]
		i += n
		r := results[0]
		if n > 1 {
			r = &Result{Suite: r.Suite, Name: r.Name, Params: r.Params[:len(r.Params)-1], Unit: r.Unit, Better: r.Better}
		}
		switch {
		case r.Tabled && len(r.bars()) == 0:
			continue
		case r.Tabled:
			fmt.Fprintf(&b, "%s\n", r.title())
		default:
			fmt.Fprintf(&b, "%s   %s, %s is better\n", r.title(), r.Unit, r.Better)
			if n > 1 {
				across(&b, results)
			} else {
				r.table(&b)
			}
		}
		for _, r := range results {
			_, verdicts, open := r.judged()
			unmeasured = append(unmeasured, open...)
			for _, j := range verdicts {
				judged++
				word, text := "pass", j.String()
				if j.Outcome == Reached {
					passed++
				} else {
					word = "MISS"
					missed = append(missed, r.title())
				}
				if n > 1 {
					text = fmt.Sprintf("at %v: %s", r.Params[len(r.Params)-1].Value, text)
				}
				fmt.Fprintf(&b, "  %s  %s\n", word, text)
			}
		}
		b.WriteByte('\n')
	}
	if judged > 0 {
		fmt.Fprintf(&b, "%d of %d bars reached\n", passed, judged)
		for _, m := range missed {
			fmt.Fprintf(&b, "  missed: %s\n", m)
		}
	}
	for _, u := range unmeasured {
		fmt.Fprintf(&b, "  not measured: %s, %s: %s\n", u.What, u.Bar, u.Why)
	}
	for _, why := range rep.LeftOut {
		fmt.Fprintf(&b, "left out: %s\n", why)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// curves are parameters whose values make columns of one table wherever they are the
// last of a result.
var curves = []string{"capacity", "percentile"}

// row is how many results from i on differ in such a parameter only.
func (rep *Report) row(i int) int {
	first := rep.Results[i]
	last := len(first.Params) - 1
	if last < 0 || !first.Across && !slices.Contains(curves, first.Params[last].Name) {
		return 1
	}
	n := 1
	for _, r := range rep.Results[i+1:] {
		if r.Suite != first.Suite || r.Name != first.Name || len(r.Params) != last+1 || !slices.Equal(r.Params[:last], first.Params[:last]) {
			break
		}
		n++
	}
	return n
}

// across writes one line for each implementation and one column for each of
// results.
func across(b *strings.Builder, results []*Result) {
	last := len(results[0].Params) - 1
	head := []string{"", results[0].Params[last].Name}
	for _, r := range results {
		head = append(head, fmt.Sprint(r.Params[last].Value))
	}
	rows := [][]string{head}
	for _, s := range results[0].Series {
		row := []string{"", s.Impl}
		for _, r := range results {
			row = append(row, Number(r.series(s.Impl).Median()))
		}
		rows = append(rows, append(row, s.Note))
	}
	WriteColumns(b, "ll"+strings.Repeat("r", len(results))+"l", rows) // a strings.Builder takes everything
}

func (r *Result) title() string {
	parts := []string{r.Suite, r.Name}
	for _, p := range r.Params {
		parts = append(parts, p.Name+"="+ParamText(p.Value))
	}
	return strings.Join(parts, " ")
}

func (r *Result) table(b *strings.Builder) {
	us := r.find(ours)
	rows := [][]string{{"", "impl", "median", "min", "max", "kvcr is", ""}}
	for _, s := range r.Series {
		lo, hi := math.NaN(), math.NaN()
		if len(s.Runs) > 0 {
			lo, hi = slices.Min(s.Runs), slices.Max(s.Runs)
		}
		times := ""
		if us != nil && s != us {
			if f := r.factor(us.Median(), s.Median()); !math.IsNaN(f) && !math.IsInf(f, 0) {
				times = fmt.Sprintf("%.2fx", f)
			}
		}
		rows = append(rows, []string{"", s.Impl, Number(s.Median()), Number(lo), Number(hi), times, s.Note})
	}
	WriteColumns(b, "llrrrrl", rows) // a strings.Builder takes everything
}

// Number prints a value with about four significant digits and no exponent.
func Number(v float64) string {
	a := math.Abs(v)
	switch {
	case math.IsNaN(v):
		return "-"
	case a >= 1000 || v == math.Trunc(v):
		return group(int64(math.Round(v)))
	case a >= 100:
		return fmt.Sprintf("%.1f", v)
	case a >= 1:
		return fmt.Sprintf("%.2f", v)
	default:
		return fmt.Sprintf("%.4f", v)
	}
}

// group prints n with a comma after each three digits.
func group(n int64) string {
	s := fmt.Sprint(n)
	first := 0
	if n < 0 {
		first = 1
	}
	for i := len(s) - 3; i > first; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// WriteColumns writes rows as aligned columns. align has an l or r for each
// column; a row may be shorter.
func WriteColumns(w io.Writer, align string, rows [][]string) error {
	width := make([]int, len(align))
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			if align[i] == 'r' {
				cell = pad + cell
			} else {
				cell += pad
			}
			if i > 0 {
				line.WriteString("  ")
			}
			line.WriteString(cell)
		}
		b.WriteString(strings.TrimRight(line.String(), " "))
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}
