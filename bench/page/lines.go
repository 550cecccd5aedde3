package page

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// lines is a chart of values against something: series of points.
type lines struct {
	xLabel, yLabel string
	xLog, yLog     bool
	// xTicks names places of the x axis; nil: round numbers.
	xTicks []tick
	series []series
}

type series struct {
	name   string
	style  style
	points []point // by x
	loose  bool    // no line between them
}

// point is a value with the smallest and largest of its runs.
type point struct{ x, y, lo, hi float64 }

// Geometry of a line chart.
const (
	lineWidth, lineRise = 520.0, 310.0 // of the whole drawing
	bottomSpace         = 48.0
	topSpace            = 12.0
	rightSpace          = 26.0 // half of the last label of the x axis fits
	markRadius          = 3.6
)

// What the template draws. Places are numbers, written with a tenth.
type drawnLines struct {
	Width, Height          float64
	Left, Right, Top, Base float64 // of the plot
	XTicks, YTicks         []drawnTick
	XLabel, YLabel         string
	XLabelAt, YLabelAt     float64
	Series                 []drawnSeries
}

type drawnTick struct {
	At, TextAt float64
	Label      string
}

type drawnSeries struct {
	Name  string
	Class string
	// Path is the line, empty when points are loose.
	Path  string
	Loose bool
	// Swatch is the marker in the legend.
	Swatch string
	Marks  []drawnMark
}

type drawnMark struct {
	Path    string
	Whisker string
	Title   string
}

// draw lays the chart out. ok is false when there is nothing to show.
func (l *lines) draw() (d drawnLines, ok bool) {
	xs, ys := l.extent()
	if len(xs) == 0 {
		return d, false
	}
	d = drawnLines{Width: lineWidth, Height: lineRise, Top: topSpace, Base: lineRise - bottomSpace, XLabel: l.xLabel, YLabel: l.yLabel}
	d.Right = d.Width - rightSpace

	var yTicks []tick
	y := scale{log: l.yLog, from: d.Base, to: d.Top}
	if l.yLog {
		yTicks = logTicks(slices.Min(ys), slices.Max(ys))
		y.lo = yTicks[0].value
	} else {
		yTicks = linearTicks(slices.Max(ys), 5)
	}
	y.hi = yTicks[len(yTicks)-1].value
	yTicks = apart(yTicks, y, func(string) float64 { return lineHeight })
	widest := 0.0
	for _, t := range yTicks {
		widest = max(widest, textWidth(t.label))
	}
	const gap = 8
	d.YLabelAt = fontSize                    // its middle
	d.Left = 2*fontSize + gap + widest + gap // label, gap, ticks, gap
	d.XLabelAt = d.Height - fontSize*0.7     // below the ticks

	x := scale{log: l.xLog, from: d.Left, to: d.Right, lo: slices.Min(xs), hi: slices.Max(xs)}
	xTicks := l.xTicks
	if xTicks == nil {
		if l.xLog {
			xTicks = logTicks(x.lo, x.hi)
		} else {
			xTicks = linearTicks(x.hi, 6)
		}
		x.lo, x.hi = xTicks[0].value, xTicks[len(xTicks)-1].value
	}
	xTicks = slices.DeleteFunc(slices.Clone(xTicks), func(t tick) bool { return t.value < x.lo || t.value > x.hi })
	if x.lo == x.hi { // one place: in the middle
		if l.xLog {
			x.lo, x.hi = x.lo/2, x.hi*2
		} else {
			x.lo, x.hi = x.lo-1, x.hi+1
		}
	}
	xTicks = apart(xTicks, x, func(s string) float64 { return textWidth(s) + 2*charWidth })
	for _, t := range xTicks {
		d.XTicks = append(d.XTicks, drawnTick{x.at(t.value), d.Base + lineHeight + 2, t.label})
	}
	for _, t := range yTicks {
		d.YTicks = append(d.YTicks, drawnTick{y.at(t.value), d.Left - gap, t.label})
	}
	for _, s := range l.series {
		d.Series = append(d.Series, l.drawSeries(s, x, y, d))
	}
	return d, true
}

func (l *lines) drawSeries(s series, x, y scale, d drawnLines) drawnSeries {
	out := drawnSeries{Name: s.name, Class: s.style.class(), Loose: s.loose, Swatch: s.style.mark(17, 6, markRadius)}
	var path strings.Builder
	for i, p := range s.points {
		move := 'L'
		if i == 0 {
			move = 'M'
		}
		px, py := x.at(p.x), y.at(p.y)
		fmt.Fprintf(&path, "%c%.1f %.1f", move, px, py)
		m := drawnMark{
			Path:  s.style.mark(px, py, markRadius),
			Title: fmt.Sprintf("%s: %s at %s", s.name, number(p.y), l.nameOf(p.x)),
		}
		if p.lo < p.hi {
			m.Whisker = fmt.Sprintf("M%.1f %.1fV%.1f", px, y.at(p.lo), y.at(p.hi))
			m.Title += fmt.Sprintf(" (%s to %s)", number(p.lo), number(p.hi))
		}
		out.Marks = append(out.Marks, m)
	}
	if len(s.points) == 1 && s.style.limit {
		py := y.at(s.points[0].y)
		path.Reset()
		fmt.Fprintf(&path, "M%.1f %.1fL%.1f %.1f", d.Left, py, d.Right, py)
	}
	if !s.loose {
		out.Path = path.String()
	}
	return out
}

// nameOf is what the axis calls a place, or its number.
func (l *lines) nameOf(x float64) string {
	for _, t := range l.xTicks {
		if t.value == x {
			return t.label
		}
	}
	return trim(x)
}

// extent lists the values on both axes that can be drawn, and drops the others: a
// logarithm needs more than zero.
func (l *lines) extent() (xs, ys []float64) {
	kept := l.series[:0:0]
	for _, s := range l.series {
		s.points = slices.DeleteFunc(slices.Clone(s.points), func(p point) bool {
			return !drawable(p.x, l.xLog) || !drawable(p.y, l.yLog)
		})
		if len(s.points) == 0 {
			continue
		}
		slices.SortStableFunc(s.points, func(a, b point) int { return int(math.Copysign(1, a.x-b.x)) })
		for i := range s.points {
			p := &s.points[i]
			if !drawable(p.lo, l.yLog) || !drawable(p.hi, l.yLog) {
				p.lo, p.hi = p.y, p.y
			}
			xs, ys = append(xs, p.x), append(ys, p.y, p.lo, p.hi)
		}
		kept = append(kept, s)
	}
	l.series = kept
	return xs, ys
}

func drawable(v float64, log bool) bool {
	return !math.IsNaN(v) && !math.IsInf(v, 0) && (!log || v > 0)
}
