package scene

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/kvcr-go/kvcr/hints/plan"
)

//go:embed picture.svg
var pictureText string

// html/template escapes what names of members and prompts may have in them.
var pictureTemplate = template.Must(template.New("picture").Parse(pictureText))

// Geometry of the picture, in pixels.
const (
	margin      = 20.0
	labelWidth  = 190.0 // of the owners' names
	blocksWidth = 820.0 // of all blocks of a prompt
	laneHeight  = 9.0
	fetchHeight = 14.0
	laneGap     = 2.0
	rowPad      = 8.0 // above and below the lanes of a row
	rowLeast    = 2*rowPad + 28
	titleHeight = 34.0
	axisHeight  = 46.0
	panelGap    = 18.0
	charWidth   = 5.9 // of the small text, about: fonts differ
	// mostRows bounds a panel: owners beyond, which are not alike, are not drawn.
	mostRows = 200
	// leastCell is how wide a block must be for lines between blocks.
	leastCell = 7.0
)

type (
	picture struct {
		Width, Height float64
		Panels        []panel
		Legend        []legendItem
	}
	panel struct {
		X, TitleY    float64
		Title        string
		AxisX, AxisY float64
		Axis         string
		Stripes      []box
		Ticks        []tick
		Rows         []rowText
		Bars         []bar
		Cells        []string
		Arrows       []arrow
		Fetches      []fetchBar
		Fronts       []front
	}
	box  struct{ X, Y, W, H float64 }
	tick struct {
		X, Top, Bottom, TextY float64
		Label                 int
	}
	rowText struct {
		X, NameY, AboutY float64
		Name, About      string
	}
	bar struct {
		box
		Class, Title string
	}
	arrow struct {
		Class, Line, Tip string
		X, Y             float64
	}
	fetchBar struct {
		bar
		Text, TextClass, Anchor string
		TextX, TextY            float64
	}
	front struct {
		X, Top, Bottom float64
		Mark           string
	}
	legendItem struct {
		box
		Class, Text, Mark               string
		MarkX, MarkBottom, TextX, TextY float64
	}
)

// tierClasses are the tiers' classes in the picture.
var tierClasses = [4]string{"device", "host", "disk", "external"}

// WriteSVG draws answers: a panel for each prompt, a row for each owner (one for several
// that are alike), what they hold of the prompt's blocks in each tier, and what targets
// fetch from whom.
func (s *Scene) WriteSVG(w io.Writer, answers []Answer) error {
	pic := picture{Width: 2*margin + labelWidth + blocksWidth}
	y := margin
	used := map[string]bool{}
	for i := range answers {
		d := &drawing{s: s, a: &answers[i], used: used}
		pic.Panels = append(pic.Panels, d.draw(y))
		y = d.bottom + panelGap
	}
	pic.Legend, y = legend(used, y)
	pic.Height = round(y + margin)
	return pictureTemplate.Execute(w, pic)
}

// round keeps a tenth of a pixel.
func round(v float64) float64 { return math.Round(v*10) / 10 }

// drawing is one panel in the making.
type drawing struct {
	s      *Scene
	a      *Answer
	used   map[string]bool // classes, for the legend
	panel  panel
	tiers  []int // that anybody has blocks in
	rows   []*row
	bottom float64

	arrowsAt []float64
}

// row is owners that are alike.
type row struct {
	owners []plan.Owner
	has    [4][]span
	target *Target
	about  string

	top, height float64
	lanes       map[int]float64 // top of each tier's
	fetchTop    float64
}

func (d *drawing) x(block int) float64 {
	return margin + labelWidth + blocksWidth*float64(block)/float64(len(d.a.Prompt.Locals))
}

func (d *drawing) draw(top float64) panel {
	p := &d.panel
	p.X, p.TitleY = margin, round(top+18)
	p.Title = d.a.Prompt.Name + ": " + d.s.sizeOf(d.a.Prompt)
	left := d.group()
	if left > 0 {
		p.Title += fmt.Sprintf(" (%s not drawn)", countOf(left, "more owner"))
	}
	y := top + titleHeight
	first := y
	for i, r := range d.rows {
		d.place(r, y)
		if i%2 == 0 {
			p.Stripes = append(p.Stripes, box{margin, round(y), labelWidth + blocksWidth, round(r.height)})
		}
		y += r.height
	}
	d.ticks(first, y)
	for _, r := range d.rows {
		d.holdings(r)
	}
	d.fetches()
	d.bottom = y + axisHeight
	return *p
}

// group makes rows of owners, targets first; it returns how many owners there was no
// room for.
func (d *drawing) group() (left int) {
	targets := map[plan.Owner]*Target{}
	for i := range d.a.Targets {
		targets[d.a.Targets[i].Owner] = &d.a.Targets[i]
	}
	seen := map[string]*row{}
	for _, wantTargets := range []bool{true, false} {
		for _, v := range d.a.owners {
			t := targets[v.owner]
			if (t != nil) != wantTargets {
				continue
			}
			about := d.about(v.owner, t)
			key := fmt.Sprint(about, v.has)
			if t != nil {
				for _, f := range t.Fetches {
					key += fmt.Sprint(f.Source, f.From, f.To)
				}
			}
			if r := seen[key]; r != nil {
				r.owners = append(r.owners, v.owner)
				continue
			}
			if len(d.rows) == mostRows {
				left++
				continue
			}
			r := &row{owners: []plan.Owner{v.owner}, has: v.has, target: t, about: about}
			seen[key] = r
			d.rows = append(d.rows, r)
		}
	}
	for tier := range tierClasses {
		if slices.ContainsFunc(d.rows, func(r *row) bool { return len(r.has[tier]) > 0 }) {
			d.tiers = append(d.tiers, tier)
			d.used[tierClasses[tier]] = true
		}
	}
	return left
}

// about says in a few words what an owner is.
func (d *drawing) about(o plan.Owner, t *Target) string {
	i := slices.IndexFunc(d.s.members, func(m plan.Member) bool { return m.Owner == o })
	m := &d.s.members[i]
	var parts []string
	switch {
	case t == nil:
	case t.Frontier == len(d.a.Prompt.Locals):
		parts = append(parts, "has all")
	case t.Frontier == 0:
		parts = append(parts, "has nothing yet")
	default:
		parts = append(parts, fmt.Sprintf("has the first %d", t.Frontier))
	}
	if t != nil && len(t.Fetches) == 0 && t.Frontier < len(d.a.Prompt.Locals) {
		parts = append(parts, "finds no source")
	}
	switch {
	case m.Endpoint == "" && t == nil:
		parts = append(parts, "no endpoint: no source")
	case m.Endpoint != "" && t == nil:
		parts = append(parts, "source")
	case m.Endpoint != "":
		parts = append(parts, "also a source")
	}
	if m.HasAttached {
		parts = append(parts, "attached to "+d.s.Name(plan.Owner{Worker: m.Attached}))
	}
	if m.Type != "aggregated" && m.Type != "agg" {
		parts = append(parts, m.Type)
	}
	return strings.Join(parts, ", ")
}

// place lays a row's lanes out.
func (d *drawing) place(r *row, top float64) {
	r.top, r.lanes = top, map[int]float64{}
	y := top + rowPad
	for _, tier := range d.tiers {
		if tier > 1 && len(r.has[tier]) == 0 {
			continue // few have blocks there
		}
		r.lanes[tier] = y
		y += laneHeight + laneGap
	}
	if r.target != nil {
		r.fetchTop = y
		y += fetchHeight + laneGap
	}
	r.height = max(y-laneGap+rowPad-top, rowLeast)
	name := d.s.Name(r.owners[0])
	if n := len(r.owners); n > 1 {
		name = fmt.Sprintf("%s and %d like it", name, n-1)
	}
	d.panel.Rows = append(d.panel.Rows, rowText{margin + 6, round(top + r.height/2 - 2), round(top + r.height/2 + 12), cut(name, 25), cut(r.about, 32)})
}

// cut shortens a text to n letters.
func cut(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

func (d *drawing) ticks(top, bottom float64) {
	n := len(d.a.Prompt.Locals)
	step := 1
	for n/step > 16 {
		step *= 2
	}
	for at := 0; at <= n; at += step {
		if at+step > n && at != n && d.x(n)-d.x(at) > 30 {
			d.panel.Ticks = append(d.panel.Ticks, tick{round(d.x(n)), round(top), round(bottom), round(bottom + 14), n})
		}
		d.panel.Ticks = append(d.panel.Ticks, tick{round(d.x(at)), round(top), round(bottom), round(bottom + 14), at})
	}
	d.panel.Axis, d.panel.AxisX, d.panel.AxisY = "blocks of the prompt, from 0", round(margin+labelWidth+blocksWidth/2), round(bottom+30)
}

func (d *drawing) holdings(r *row) {
	cell := blocksWidth / float64(len(d.a.Prompt.Locals))
	for _, tier := range d.tiers {
		y := r.lanes[tier]
		for _, sp := range r.has[tier] {
			d.panel.Bars = append(d.panel.Bars, bar{
				box{round(d.x(sp.from)), round(y), round(max(1, d.x(sp.to)-d.x(sp.from))), laneHeight},
				tierClasses[tier], fmt.Sprintf("%s, %s: %s", d.s.Name(r.owners[0]), tierTitles[tier], blocks(sp.from, sp.to)),
			})
			if cell < leastCell {
				continue
			}
			var lines strings.Builder
			for b := sp.from + 1; b < sp.to; b++ {
				fmt.Fprintf(&lines, "M%.1f %.1fv%g", d.x(b), y, laneHeight)
			}
			if lines.Len() > 0 {
				d.panel.Cells = append(d.panel.Cells, lines.String())
			}
		}
	}
}

// fetches draws what targets have and what they fetch. Arrows stand beside each other.
func (d *drawing) fetches() {
	of := map[plan.Owner]*row{}
	for _, r := range d.rows {
		for _, o := range r.owners {
			of[o] = r
		}
	}
	all := 0
	for _, r := range d.rows {
		if r.target != nil {
			all += len(r.target.Fetches)
		}
	}
	nth := 0
	for _, r := range d.rows {
		if r.target == nil {
			continue
		}
		x := d.x(r.target.Frontier)
		d.panel.Fronts = append(d.panel.Fronts, front{round(x), round(r.top + rowPad - 3), round(r.fetchTop + fetchHeight), downward(x, r.top+rowPad-3)})
		d.used["frontier"] = true
		for _, f := range r.target.Fetches {
			nth++
			class := strings.ReplaceAll(f.Kind, " ", "-")
			d.used[class] = true
			d.fetch(r, &f, class)
			if from := of[f.Source]; from != nil {
				d.arrow(from, r, d.free(d.x(f.From), d.x(f.To), float64(nth)/float64(all+1)), class)
			}
		}
	}
}

// arrowGap is how far apart arrows stand where there is room.
const arrowGap = 10.0

// free is a place for an arrow between from and to, at that part of the way or as near
// to it as other arrows let it.
func (d *drawing) free(from, to, part float64) float64 {
	want := from + (to-from)*part
	for shift := 0.0; shift < to-from; shift += arrowGap / 2 {
		for _, x := range []float64{want + shift, want - shift} {
			taken := slices.ContainsFunc(d.arrowsAt, func(at float64) bool { return math.Abs(at-x) < arrowGap })
			if x > from && x < to && !taken {
				d.arrowsAt = append(d.arrowsAt, x)
				return x
			}
		}
	}
	return want
}

// downward is a small triangle that points down to y.
func downward(x, y float64) string {
	return fmt.Sprintf("M%.1f %.1fl-4.5 -5.5h9z", x, y+2)
}

func (d *drawing) fetch(r *row, f *Fetch, class string) {
	from, to := d.x(f.From), d.x(f.To)
	b := fetchBar{bar: bar{
		box{round(from), round(r.fetchTop), round(max(1, to-from)), fetchHeight}, class,
		fmt.Sprintf("%s fetches %s from %s at %s", d.s.Name(r.owners[0]), blocks(f.From, f.To), d.s.Name(f.Source), f.Endpoint),
	}}
	text := fmt.Sprintf("%s from %s", countOf(f.To-f.From, "block"), d.s.Name(f.Source))
	width := charWidth * float64(len([]rune(text)))
	b.Text, b.TextY = text, round(r.fetchTop+fetchHeight-3.5)
	switch right := margin + labelWidth + blocksWidth; {
	case width+8 <= to-from:
		b.TextClass, b.Anchor, b.TextX = "in", "start", round(from+5)
	case f.Kind == KindPart: // its neighbours are in the way
		b.Text = ""
	case to+5+width <= right:
		b.TextClass, b.Anchor, b.TextX = "beside", "start", round(to+5)
	default:
		b.TextClass, b.Anchor, b.TextX = "beside", "end", round(from-5)
	}
	d.panel.Fetches = append(d.panel.Fetches, b)
}

// arrow leads from what the source holds to the target's fetch.
func (d *drawing) arrow(from, to *row, x float64, class string) {
	start := from.top + from.height/2
	for _, tier := range []int{1, 0} { // from the host's lane, where it has one
		if y, ok := from.lanes[tier]; ok && len(from.has[tier]) > 0 {
			start = y + laneHeight/2
			break
		}
	}
	end, tip := to.fetchTop+fetchHeight+1, 6.0 // upwards, to the lower edge
	if from.top < to.top {
		end, tip = to.fetchTop-1, -6.0
	}
	d.panel.Arrows = append(d.panel.Arrows, arrow{
		class, fmt.Sprintf("M%.1f %.1fV%.1f", x, start, end+tip*0.8),
		fmt.Sprintf("M%.1f %.1fl-4 %.1fh8z", x, end, tip), round(x), round(start),
	})
}

// legend explains the classes that were used.
func legend(used map[string]bool, y float64) (items []legendItem, bottom float64) {
	x := margin + labelWidth
	for _, l := range []struct{ class, text string }{
		{"device", "held on the device"}, {"host", "held on the host"}, {"disk", "held on disk (no source)"}, {"external", "held outside (no source)"},
		{"frontier", "frontier: what the target has itself ends here"},
		{"root-prefix", "fetch: the source holds all from the root"}, {"continuation", "fetch: the source holds on from the frontier"}, {"part", "fetch from one of several sources"},
	} {
		if !used[l.class] {
			continue
		}
		width := 18 + 6 + charWidth*float64(len(l.text)) + 16
		if x+width > 2*margin+labelWidth+blocksWidth {
			x, y = margin+labelWidth, y+20
		}
		it := legendItem{box: box{round(x), round(y), 18, 10}, Class: l.class, Text: l.text, TextX: round(x + 24), TextY: round(y + 9)}
		if l.class == "frontier" {
			it.MarkX, it.MarkBottom, it.Mark = round(x+9), round(y+11), downward(x+9, y)
		}
		items = append(items, it)
		x += width
	}
	return items, y + 16
}
