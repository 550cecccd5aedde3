package page

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/kvcr-go/kvcr/bench"
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"places": func(v float64) string { return fmt.Sprintf("%.1f", v) },
	"sub":    func(a, b float64) float64 { return a - b },
	// down moves text that begins at a line's middle to where its foot has to be.
	"down": func(y float64) float64 { return y + 0.35*fontSize },
	"half": func(a, b float64) float64 { return (a + b) / 2 },
}).Parse(pageText))

// section is one suite.
type section struct {
	Name, Title string
	Figures     []figure
	Tables      []table
	Run         *conditions
}

// conditions are those of a suite, for people.
type conditions struct {
	bench.Conditions
	When, Lasted string
	Notes        []string
	// LeftOut are behind a click when there are many.
	LeftOut []string
}

// machine is one on which suites ran.
type machine struct {
	Suites []string
	Facts  [][2]string
}

// barLines are what became of the bars of one suite.
type barLines struct {
	Suite, Count string
	Missed       bool // some
	Lines        []barLine
}

type barLine struct{ Class, Outcome, What, Bar, Got string }

type pageData struct {
	Bars     []barLines
	BarCount string
	Machines []machine
	Sections []section
	Dates    string
}

// Write shows rows, in the schema of the bench suites, as one HTML page.
func Write(w io.Writer, all []bench.Row) error {
	var data pageData
	for _, s := range inOrder(all) {
		rs := rows(all).where(func(r bench.Row) bool { return r.Suite == s.name })
		sec := section{Name: s.name, Title: s.title}
		f := &figures{styles: &styles{}}
		for _, r := range rs.named(bench.RunName) {
			c, err := bench.ConditionsOf(r)
			if err != nil {
				return fmt.Errorf("page: suite %s: how it was run: %w", s.name, err)
			}
			sec.Run = conditionsOf(c)
			f.workers = c.Workers
			data.addMachine(s.name, c)
		}
		rs = rs.where(func(r bench.Row) bool { return r.Name != bench.RunName })
		s.figures(rs, f)
		sec.Figures, sec.Tables = f.list, tables(rs)
		data.Sections = append(data.Sections, sec)
	}
	data.addBars(bench.Judge(all))
	return pageTemplate.Execute(w, data)
}

// addBars shows what became of every bar. Where none was judged there is a line only.
func (d *pageData) addBars(all []bench.Judgement) {
	if len(all) == 0 {
		return
	}
	d.BarCount = bench.CountBars(all)
	if !slices.ContainsFunc(all, func(j bench.Judgement) bool { return j.Outcome != bench.NotMeasured }) {
		return
	}
	classes := map[bench.Outcome]string{bench.Reached: "reached", bench.Missed: "missed", bench.NotMeasured: "open"}
	for _, s := range inOrder(rowsOf(all)) {
		of := barLines{Suite: s.name}
		n := map[bench.Outcome]int{}
		for _, j := range all {
			if j.Suite == s.name {
				n[j.Outcome]++
				l := barLine{classes[j.Outcome], string(j.Outcome), j.What, j.Bar, j.Got}
				if j.Off != "" {
					l.Got += ", " + j.Off
				}
				of.Lines = append(of.Lines, l)
			}
		}
		var counts []string
		for _, outcome := range []bench.Outcome{bench.Reached, bench.Missed, bench.NotMeasured} {
			if n[outcome] > 0 {
				counts = append(counts, fmt.Sprintf("%d %s", n[outcome], outcome))
			}
		}
		of.Count, of.Missed = strings.Join(counts, ", "), n[bench.Missed] > 0
		d.Bars = append(d.Bars, of)
	}
}

// rowsOf stand for the suites of bars, to put them in order.
func rowsOf(all []bench.Judgement) (out []bench.Row) {
	for _, j := range all {
		out = append(out, bench.Row{Suite: j.Suite})
	}
	return out
}

// inOrder are the suites that rows have: those known here, then others.
func inOrder(all []bench.Row) (out []suite) {
	names := different(all, func(r bench.Row) string { return r.Suite })
	for _, s := range suites {
		if slices.Contains(names, s.name) {
			out = append(out, s)
		}
	}
	for _, n := range names {
		if !slices.ContainsFunc(suites, func(s suite) bool { return s.name == n }) {
			out = append(out, suite{n, n, everyFigure})
		}
	}
	return out
}

// manyLeftOut notes are more than one wants to read before the charts; arbitrary.
const manyLeftOut = 2

func conditionsOf(c bench.Conditions) *conditions {
	out := &conditions{Conditions: c, When: c.Date.Format("2 January 2006, 15:04 MST"), Lasted: c.Took.Round(time.Second / 10).String()}
	add := func(given bool, note string) {
		if given {
			out.Notes = append(out.Notes, note)
		}
	}
	add(c.Smoke, "A smoke run: everything was as small as it can be, and nothing was measured.")
	add(c.Quick && !c.Smoke, "A quick run: figures are for orientation.")
	add(len(c.Profiles) > 0, fmt.Sprintf("Profiles were taken meanwhile (%v), which cost time.", c.Profiles))
	add(c.Error != "", "The suite ended early: "+c.Error)
	if len(c.LeftOut) > manyLeftOut {
		out.LeftOut = c.LeftOut
		return out
	}
	for _, why := range c.LeftOut {
		add(true, "Left out: "+why)
	}
	return out
}

// addMachine describes the machine of a suite, unless one like it is there already.
func (d *pageData) addMachine(suite string, c bench.Conditions) {
	m := machine{Suites: []string{suite}, Facts: [][2]string{
		{"processor", c.CPU}, {"processors used", fmt.Sprint(c.CPUs)}, {"memory", bytesOf(float64(c.MemoryBytes))}, {"kernel", c.Kernel},
		{"huge pages", c.HugePages}, {"Go", c.Go}, {"revision", c.Revision},
	}}
	for i := range d.Machines {
		if slices.Equal(d.Machines[i].Facts, m.Facts) {
			d.Machines[i].Suites = append(d.Machines[i].Suites, suite)
			return
		}
	}
	d.Machines = append(d.Machines, m)
}
