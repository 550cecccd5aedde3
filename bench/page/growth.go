package page

import (
	"fmt"
	"html/template"
	"io"
	"regexp"
	"strings"

	"github.com/kvcr-go/kvcr/bench"
)

// sweepLabels are the x axes of suite scale.
var sweepLabels = map[string]string{
	"nodes":    "nodes, each with as many requests",
	"blocks":   "blocks of a prompt",
	"requests": "requests",
}

// growth is the chart of one sweep of suite scale: both axes logarithmic, so that a cost
// which is a power of the size is a line, whose slope is its exponent.
func growth(rs rows, name string) (title, note string, l lines) {
	of := rs.named("scale").with("sweep", name)
	exponents := rs.named("scale-exponent").with("sweep", name)
	l = lines{xLabel: sweepLabels[name], yLabel: "processor time for each request, µs", xLog: true, yLog: true, xTicks: ticksOf(of, "size")}
	if l.xLabel == "" {
		l.xLabel = name
	}
	for i, part := range of.values("part") {
		s := nth(i)
		switch part {
		case "total":
			s = style{ours: true}
		case "simulation": // no part of the product
			s = limit(i)
		case "collector": // neither, and by fits and starts
			continue
		}
		label := part
		if e := exponents.with("part", part); len(e) > 0 {
			label += fmt.Sprintf(", exponent %.2f", e[0].Value)
		}
		l.series = append(l.series, seriesOf(label, s, of.with("part", part), "size", spread))
	}
	return "Cost of a request against " + name, "Grey, dashed: what the simulation spends beside the product.", l
}

// scaleFigures expects scale {sweep, part, size} and scale-exponent {sweep, part}.
func scaleFigures(rs rows, f *figures) {
	for _, name := range rs.named("scale").values("sweep") {
		title, note, l := growth(rs, name)
		f.lines(title, note, l)
	}
	times := rs.named("scale-latency").with("sweep", "nodes")
	l := lines{xLabel: sweepLabels["nodes"], yLabel: "virtual time, µs", xLog: true, yLog: true, xTicks: ticksOf(times, "size")}
	for i, stat := range times.values("stat") {
		l.series = append(l.series, seriesOf(stat, nth(i), times.with("stat", stat), "size", spread))
	}
	f.lines("From a hint to its data", "", l)
}

// WriteScale draws the sweeps of suite scale as one SVG that needs nothing else, one
// below the other.
func WriteScale(w io.Writer, all []bench.Row) error {
	rs := rows(all).where(func(r bench.Row) bool { return r.Suite == "scale" })
	d := svgPage{Width: lineWidth + 2*svgMargin}
	y := svgMargin
	for _, name := range rs.named("scale").values("sweep") {
		title, _, l := growth(rs, name)
		drawn, ok := l.draw()
		if !ok {
			continue
		}
		c := svgChart{Title: title, TitleAt: y + 14, Lines: drawn}
		y += 14 + 2*lineHeight
		x := svgMargin
		for _, s := range drawn.Series {
			need := swatchWidth + textWidth(s.Name) + 2*charWidth
			if x+need > d.Width-svgMargin && x > svgMargin {
				x, y = svgMargin, y+1.2*lineHeight
			}
			c.Legend = append(c.Legend, svgLegend{s, x, y - 6})
			x += need
		}
		c.At = y + lineHeight
		y = c.At + drawn.Height + lineHeight
		d.Charts = append(d.Charts, c)
	}
	if len(d.Charts) == 0 {
		return fmt.Errorf("page: no figures of suite scale to draw")
	}
	d.Height = y
	d.Style = svgStyle
	return pageTemplate.ExecuteTemplate(w, "svg", d)
}

const (
	svgMargin   = 20.0
	swatchWidth = 40.0
)

// svgPage is an SVG of its own, with charts one below the other.
type svgPage struct {
	Width, Height float64
	Style         template.CSS
	Charts        []svgChart
}

type svgChart struct {
	Title       string
	TitleAt, At float64
	Legend      []svgLegend
	Lines       drawnLines
}

type svgLegend struct {
	drawnSeries
	X, Y float64
}

// svgStyle is what the page says of charts, in its light colours: not all that show SVG
// know variables.
var svgStyle = func() template.CSS {
	light := map[string]string{}
	for _, m := range regexp.MustCompile(`--(\w+): (#[0-9a-f]+)`).FindAllStringSubmatch(pageText, -1) {
		if _, ok := light[m[1]]; !ok { // the dark ones come after them
			light[m[1]] = m[2]
		}
	}
	var b strings.Builder
	b.WriteString("text{font:12px system-ui,Roboto,\"Liberation Sans\",Arial,sans-serif;fill:" + light["text"] + "}.title{font-size:15px;font-weight:600}.axis{fill:" + light["soft"] + "}" +
		".back{fill:" + light["card"] + "}.grid{stroke:" + light["grid"] + ";fill:none}.base{stroke:" + light["soft"] + ";fill:none}" +
		".line{fill:none;stroke-width:1.7;stroke-linejoin:round}.mark{stroke:" + light["card"] + ";stroke-width:.8}.whisker{fill:none;opacity:.7}.s-ours .line{stroke-width:2.8}" +
		".d1 .line{stroke-dasharray:7 4}.d2 .line{stroke-dasharray:2.5 3.5}.d3 .line{stroke-dasharray:10 3 2 3}")
	ink := func(class, colour string) {
		fmt.Fprintf(&b, ".%s .line,.%s .whisker{stroke:%s}.%s .mark{fill:%s}", class, class, colour, class, colour)
	}
	ink("s-ours", light["ours"])
	ink("s-limit", light["limit"])
	for i := range colours {
		ink(fmt.Sprintf("s-%d", i), light[fmt.Sprintf("c%d", i)])
	}
	return template.CSS(b.String())
}()
