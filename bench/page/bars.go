package page

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kvcr-go/kvcr/bench"
)

func number(v float64) string { return bench.Number(v) }

// bars is a chart of groups of values that are compared with each other.
type bars struct {
	label  string // of the value, with its unit
	groups []group
}

type group struct {
	name string
	bars []bar
}

type bar struct {
	name          string
	style         style
	value, lo, hi float64
}

// Geometry of a bar chart.
const (
	barWidth   = 520.0 // of the whole drawing
	barStep    = 19.0  // from one bar to the next
	barRise    = 13.0
	groupSpace = 26.0 // above a group, where its name stands
	axisSpace  = 44.0 // below all
	sideSpace  = 8.0
)

type drawnBars struct {
	Width, Height float64
	Left, Base    float64
	Label         string
	LabelAt       float64
	LabelX        float64
	Ticks         []drawnTick
	Groups        []drawnGroup
}

type drawnGroup struct {
	Name      string
	At        float64
	Top, Base float64 // of its bars
	Bars      []drawnBar
}

type drawnBar struct {
	Name, Class, Value, Title, Whisker string
	Y, Rise, Width                     float64
	TextY, ValueX                      float64
}

func (c *bars) draw() (d drawnBars, ok bool) {
	top, names, values := 0.0, 0.0, 0.0
	groups := c.groups[:0:0]
	for _, g := range c.groups {
		g.bars = slices.DeleteFunc(slices.Clone(g.bars), func(b bar) bool { return !drawable(b.value, false) || b.value < 0 })
		if len(g.bars) == 0 {
			continue
		}
		groups = append(groups, g)
		for i := range g.bars {
			b := &g.bars[i]
			if !drawable(b.lo, false) || !drawable(b.hi, false) {
				b.lo, b.hi = b.value, b.value
			}
			top = max(top, b.value, b.hi)
			names = max(names, textWidth(b.name))
			values = max(values, textWidth(number(b.value)))
		}
	}
	if len(groups) == 0 {
		return d, false
	}
	d = drawnBars{Width: barWidth, Left: names + 2*sideSpace, Label: c.label}
	ticks := linearTicks(top, 4)
	right := d.Width - values - 2*sideSpace // the value of the longest bar fits
	x := scale{hi: ticks[len(ticks)-1].value, from: d.Left, to: right}
	y := 0.0
	for _, g := range groups {
		out := drawnGroup{Name: g.name, At: y + groupSpace - fontSize*0.7}
		y += groupSpace
		if g.name == "" {
			y -= groupSpace - sideSpace
		}
		out.Top = y - 3
		for _, b := range g.bars {
			at := x.at(b.value)
			out.Bars = append(out.Bars, drawnBar{
				Name: b.name, Class: b.style.class(), Value: number(b.value), Title: fmt.Sprintf("%s: %s (%s to %s)", b.name, number(b.value), number(b.lo), number(b.hi)),
				Y: y, Rise: barRise, Width: max(1, at-d.Left), TextY: y + barRise/2,
				ValueX: max(at, x.at(b.hi)) + sideSpace*0.75,
			})
			if b.lo < b.hi {
				mid := y + barRise/2
				out.Bars[len(out.Bars)-1].Whisker = fmt.Sprintf("M%.1f %.1fH%.1fM%.1f %.1fv6M%.1f %.1fv6", x.at(b.lo), mid, x.at(b.hi), x.at(b.lo), mid-3, x.at(b.hi), mid-3)
			}
			y += barStep
		}
		out.Base = y - (barStep - barRise) + 3
		d.Groups = append(d.Groups, out)
	}
	d.Base = y + 2
	d.Height = d.Base + axisSpace
	d.LabelAt = d.Base + axisSpace - fontSize*0.6
	d.LabelX = d.Width / 2
	for _, t := range apart(ticks, x, func(s string) float64 { return textWidth(s) + charWidth }) {
		d.Ticks = append(d.Ticks, drawnTick{x.at(t.value), d.Base + lineHeight, t.label})
	}
	return d, true
}

// sortBars puts KVCR first and the others by value, the best of them first.
func sortBars(bs []bar, higher bool) {
	slices.SortStableFunc(bs, func(a, b bar) int {
		if a.style.ours != b.style.ours {
			return map[bool]int{true: -1, false: 1}[a.style.ours]
		}
		if a.style.ours {
			return cmp.Compare(a.style.n, b.style.n)
		}
		if higher {
			return cmp.Compare(b.value, a.value)
		}
		return cmp.Compare(a.value, b.value)
	})
}
