package bench

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Bar is what a result has to reach. The zero Bar asks for nothing.
type Bar struct {
	// Times: at least so many times as good as the best rival.
	Times float64 `json:"times,omitempty"`
	// Of is an implementation that Times is of in place of the best rival: a limit of
	// the machine, which nobody is meant to pass.
	Of string `json:"of,omitempty"`
	// Limit: not worse than this value. Used when HasLimit is set.
	Limit    float64 `json:"limit,omitempty"`
	HasLimit bool    `json:"has_limit,omitempty"`
}

// asks says in words what the bar asks for.
func (b Bar) asks(better Better) string {
	switch {
	case b.HasLimit && better == Higher:
		return "at least " + Number(b.Limit)
	case b.HasLimit:
		return "at most " + Number(b.Limit)
	}
	return fmt.Sprintf("%.2fx %s", b.Times, cmp.Or(b.Of, "the best of the others"))
}

// Outcome says what became of a bar.
type Outcome string

// The outcomes.
const (
	Reached     Outcome = "reached"
	Missed      Outcome = "missed"
	NotMeasured Outcome = "not measured"
)

// Unmeasured is a bar that a run did not come to judge.
type Unmeasured struct {
	What string `json:"what"` // the question, with its parameters
	Bar  string `json:"bar"`  // what it asks for
	Why  string `json:"why"`
}

// Judgement is what became of one bar.
type Judgement struct {
	Suite   string
	What    string // the question, with its parameters, without the suite
	Bar     string // what it asks for
	Outcome Outcome
	// Got is what was reached. Of a bar that was not measured it says why.
	Got string
	// Off is by how much a bar was missed, "" unless it was.
	Off string
	// Rough: the run was a quick one, whose figures are for orientation.
	Rough bool
}

// standing is one implementation's, as a bar sees it.
type standing struct {
	impl  string
	value float64
	rival bool
}

// judge says what became of a bar. NotMeasured: there is no answer of ours, or none
// to compare it with.
func (b Bar) judge(better Better, answers []standing) (j Judgement) {
	j = Judgement{Bar: b.asks(better), Outcome: NotMeasured, Got: "nothing to compare it with was measured"}
	factor := func(a, b float64) float64 { // how many times as good a is as b
		if better == Higher {
			return a / b
		}
		return b / a
	}
	of := func(impl string) *standing {
		if i := slices.IndexFunc(answers, func(a standing) bool { return a.impl == impl }); i >= 0 {
			return &answers[i]
		}
		return nil
	}
	us := of(ours)
	switch {
	case us == nil:
		j.Got = "the suite ended before it"
		return j
	case b.HasLimit:
		j.Got, j.Outcome = Number(us.value), Reached
		if better == Higher && !(us.value >= b.Limit) || better != Higher && !(us.value <= b.Limit) { // no number, either
			j.Outcome = Missed
			switch {
			case b.Limit == 0:
				j.Off = "none is allowed"
			case better == Higher:
				j.Off = percentOf(1-us.value/b.Limit) + " under"
			case us.value > 2*b.Limit:
				j.Off = fmt.Sprintf("%.1f times that", us.value/b.Limit)
			default:
				j.Off = percentOf(us.value/b.Limit-1) + " over"
			}
		}
		return j
	}
	best := of(b.Of)
	if b.Of == "" {
		for i := range answers {
			if a := &answers[i]; a.rival && (best == nil || factor(a.value, best.value) > 1) {
				best = a
			}
		}
		if best != nil {
			j.Bar += " (" + best.impl + ")"
		}
	}
	if best == nil {
		return j
	}
	f := factor(us.value, best.value)
	j.Got, j.Outcome = fmt.Sprintf("%.2fx", f), Reached
	if !(f >= b.Times) {
		j.Outcome, j.Off = Missed, percentOf(1-f/b.Times)+" short"
	}
	if pool := of(poolName); pool != nil {
		j.Got += fmt.Sprintf("; %s %.2fx", poolName, factor(pool.value, best.value))
	}
	return j
}

func percentOf(part float64) string {
	if part < 0.095 {
		return fmt.Sprintf("%.1f %%", 100*part)
	}
	return fmt.Sprintf("%.0f %%", 100*part)
}

// String is one line: what is asked for, and what was got.
func (j *Judgement) String() string {
	if j.Off == "" {
		return j.Bar + ": " + j.Got
	}
	return fmt.Sprintf("%s: %s, %s", j.Bar, j.Got, j.Off)
}

// bars are those of the result.
func (r *Result) bars() []Bar {
	if r.Bar == (Bar{}) {
		return r.Also
	}
	return append([]Bar{r.Bar}, r.Also...)
}

func (r *Result) standings() (out []standing) {
	for _, s := range r.Series {
		if len(s.Runs) > 0 {
			out = append(out, standing{s.Impl, s.Median(), s.Rival})
		}
	}
	return out
}

// judged are the bars of the result that something can be said of, and the others.
func (r *Result) judged() (bars []Bar, verdicts []Judgement, open []Unmeasured) {
	for _, b := range r.bars() {
		j := b.judge(r.Better, r.standings())
		if j.Outcome == NotMeasured {
			open = append(open, Unmeasured{r.rowTitle(), j.Bar, cmp.Or(r.without, j.Got)})
			continue
		}
		bars, verdicts = append(bars, b), append(verdicts, j)
	}
	return bars, verdicts, open
}

// rowTitle is the title that the result's rows have.
func (r *Result) rowTitle() string {
	row := Row{Suite: r.Suite, Name: r.Name, Params: map[string]any{}}
	for _, p := range r.Params {
		row.Params[p.Name] = p.Value
	}
	return row.Title()
}

// absent notes a result that has a bar and cannot be measured here.
func (rep *Report) absent(r Result, why string) {
	for _, b := range r.bars() {
		rep.Absent = append(rep.Absent, Unmeasured{r.rowTitle(), b.asks(r.Better), why})
	}
}

// Unjudge takes away all bars: why is said of each.
func (rep *Report) Unjudge(why string) {
	for i := range rep.Absent {
		rep.Absent[i].Why = why
	}
	for _, r := range rep.Results {
		rep.absent(*r, why)
		r.Bar, r.Also = Bar{}, nil
	}
}

// Judge says what became of every bar that stored rows tell of, suite by suite in the
// order of the rows.
func Judge(rows []Row) (out []Judgement) {
	answers, rough := map[string][]standing{}, map[string]bool{}
	var suites []string
	for _, r := range rows {
		title := r.Title()
		answers[title] = append(answers[title], standing{r.Impl, r.Value, r.Rival})
		if !slices.Contains(suites, r.Suite) {
			suites = append(suites, r.Suite)
		}
		if c, err := ConditionsOf(r); r.Name == RunName && err == nil {
			rough[r.Suite] = c.Quick || c.Smoke
		}
	}
	for _, suite := range suites {
		add := func(j Judgement, what string) {
			j.Suite, j.What, j.Rough = suite, strings.TrimPrefix(what, suite+" "), rough[suite]
			out = append(out, j)
		}
		judged := map[Unmeasured]bool{} // without a reason: another file's run may not have measured it
		for _, r := range rows {
			if r.Suite != suite || r.Impl != ours {
				continue
			}
			for _, b := range r.Bars {
				judged[Unmeasured{What: r.Title(), Bar: b.asks(r.Better)}] = true
				add(b.judge(r.Better, answers[r.Title()]), r.Title())
			}
		}
		for _, r := range rows {
			if r.Suite != suite || r.Name != RunName {
				continue
			}
			c, err := ConditionsOf(r)
			if err != nil {
				continue // page and comparison say so
			}
			for _, u := range c.Unmeasured {
				if judged[Unmeasured{What: u.What, Bar: u.Bar}] {
					continue
				}
				add(Judgement{Bar: u.Bar, Outcome: NotMeasured, Got: u.Why}, u.What)
			}
		}
	}
	return out
}

// CountBars says how many bars there are of each outcome, in words.
func CountBars(all []Judgement) string {
	if why := noneJudged(all); why != "" {
		return fmt.Sprintf("%d bars, none judged: %s", len(all), why)
	}
	if len(all) == 0 {
		return "these results tell of no bars"
	}
	n := map[Outcome]int{}
	rough := false
	for _, j := range all {
		n[j.Outcome]++
		rough = rough || j.Rough
	}
	text := fmt.Sprintf("%d bars: %d reached, %d missed, %d not measured", len(all), n[Reached], n[Missed], n[NotMeasured])
	if rough {
		text += "; a quick run's figures are for orientation"
	}
	return text
}

// noneJudged is the one reason for which no bar at all was judged, "" when there is
// none.
func noneJudged(all []Judgement) string {
	why := ""
	for _, j := range all {
		if j.Outcome != NotMeasured || why != "" && j.Got != why {
			return ""
		}
		why = j.Got
	}
	return why
}

// WriteBars prints a line for each bar, under its suite, and how many there are; that
// alone when none was judged, as in a smoke run.
func WriteBars(w io.Writer, all []Judgement) error {
	if why := noneJudged(all); why != "" || len(all) == 0 {
		_, err := fmt.Fprintln(w, CountBars(all))
		return err
	}
	rows := [][]string{{"bars"}}
	suite := ""
	for i := range all {
		j := &all[i]
		if j.Suite != suite {
			suite = j.Suite
			rows = append(rows, []string{suite})
		}
		rows = append(rows, []string{"", string(j.Outcome), j.What, j.String()})
	}
	// Suites have lines of their own: a long name makes no column wide.
	var b strings.Builder
	for len(rows) > 0 {
		if len(rows[0]) == 1 {
			fmt.Fprintln(&b, rows[0][0])
			rows = rows[1:]
			continue
		}
		n := slices.IndexFunc(rows, func(r []string) bool { return len(r) == 1 })
		if n < 0 {
			n = len(rows)
		}
		WriteColumns(&b, "llll", rows[:n]) // a strings.Builder takes everything
		rows = rows[n:]
	}
	fmt.Fprintln(&b, CountBars(all))
	_, err := io.WriteString(w, b.String())
	return err
}
