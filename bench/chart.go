package bench

import (
	"cmp"
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Chart shows usable-prefix hit ratios against capacity.
type Chart struct {
	Title  string
	Curves []Curve
}

const (
	chartWidth  = 22 * vg.Centimeter
	chartHeight = 14 * vg.Centimeter
)

// look of a curve. Colours are the palette of Okabe and Ito, which people with
// colour-blindness can tell apart; shapes differ for prints without colour.
type look struct {
	color  color.Color
	glyph  draw.GlyphDrawer
	dashes []vg.Length
	width  vg.Length
}

var looks = map[string]look{
	ours:       {color.RGBA{0xd5, 0x5e, 0x00, 0xff}, draw.CircleGlyph{}, nil, vg.Points(3)},
	"lru":      {color.RGBA{0x56, 0xb4, 0xe9, 0xff}, draw.SquareGlyph{}, nil, vg.Points(1.5)},
	"tail-lru": {color.RGBA{0x00, 0x72, 0xb2, 0xff}, draw.TriangleGlyph{}, nil, vg.Points(1.5)},
	"s3fifo":   {color.RGBA{0x00, 0x9e, 0x73, 0xff}, draw.PyramidGlyph{}, nil, vg.Points(1.5)},
	"belady":   {color.RGBA{0x55, 0x55, 0x55, 0xff}, draw.CrossGlyph{}, []vg.Length{vg.Points(5), vg.Points(4)}, vg.Points(1.5)},
}

// WriteSVG draws the chart as SVG.
func (c *Chart) WriteSVG(w io.Writer) error {
	canvas := vgsvg.New(chartWidth, chartHeight)
	if err := c.draw(canvas); err != nil {
		return err
	}
	_, err := canvas.WriteTo(w)
	return err
}

func (c *Chart) draw(canvas vg.CanvasSizer) error {
	p, err := c.plot()
	if err != nil {
		return fmt.Errorf("bench: chart: %w", err)
	}
	const margin = 8 // points
	p.Draw(draw.Crop(draw.New(canvas), margin, -margin, margin, -margin))
	return nil
}

func (c *Chart) plot() (*plot.Plot, error) {
	p := plot.New()
	p.BackgroundColor = color.White
	p.Title.Text = c.Title
	p.Title.TextStyle.Font.Size = vg.Points(15)
	p.Title.Padding = vg.Points(10)
	p.X.Label.Text = "capacity, % of the trace's different blocks (log scale)"
	p.Y.Label.Text = "usable-prefix hits, % of blocks asked for"
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Label.TextStyle.Font.Size = vg.Points(12)
		a.Label.Padding = vg.Points(6)
		a.Tick.Label.Font.Size = vg.Points(11)
	}
	p.X.Scale = plot.LogScale{}
	grid := plotter.NewGrid()
	grid.Vertical.Color = color.Gray{0xe4}
	grid.Horizontal.Color = color.Gray{0xe4}
	p.Add(grid)

	lo, hi, top := math.Inf(1), math.Inf(-1), 0.0
	keys := map[string][]plot.Thumbnailer{}
	for _, curve := range c.ordered(false) {
		xys := make(plotter.XYs, len(curve.Ratios))
		for i, r := range curve.Ratios {
			xys[i] = plotter.XY{X: r.Percent, Y: r.Prefix}
			lo, hi, top = min(lo, r.Percent), max(hi, r.Percent), max(top, r.Prefix)
		}
		line, points, err := plotter.NewLinePoints(xys)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", curve.Label, err)
		}
		l := looks[curve.Impl]
		line.Color, line.Width, line.Dashes = l.color, l.width, l.dashes
		points.Color, points.Shape, points.Radius = l.color, l.glyph, vg.Points(3.5)
		p.Add(line, points)
		keys[curve.Impl] = []plot.Thumbnailer{line, points}
	}
	for _, curve := range c.ordered(true) {
		p.Legend.Add(curve.Label, keys[curve.Impl]...)
	}
	// In the lower right, where nothing is drawn since hit ratios rise with
	// capacity; text after its line, so that a viewer's wider font (SVG carries
	// names of fonts only) runs into empty space.
	p.Legend.Left = true
	p.Legend.TextStyle.Font.Size = vg.Points(12)
	p.Legend.ThumbnailWidth = vg.Points(36)
	p.Legend.Padding = vg.Points(3)
	p.Legend.XOffs, p.Legend.YOffs = chartWidth*6/10, vg.Points(12)

	var ticks plot.ConstantTicks
	for _, r := range c.Curves[0].Ratios {
		ticks = append(ticks, plot.Tick{Value: r.Percent, Label: fmt.Sprintf("%g", r.Percent)})
	}
	p.X.Tick.Marker = ticks
	p.X.Min, p.X.Max = lo, hi
	p.Y.Min, p.Y.Max = 0, max(10, math.Ceil(top/10)*10)
	var levels plot.ConstantTicks
	for y := 0.0; y <= p.Y.Max; y += 10 {
		levels = append(levels, plot.Tick{Value: y, Label: fmt.Sprintf("%g", y)})
	}
	p.Y.Tick.Marker = levels
	return p, nil
}

// ordered returns the curves with ours first, for the legend, or last, so that
// it is drawn over the others.
func (c *Chart) ordered(oursFirst bool) []Curve {
	curves := slices.Clone(c.Curves)
	slices.SortStableFunc(curves, func(a, b Curve) int {
		order := cmp.Compare(rank(a), rank(b))
		if oursFirst {
			return -order
		}
		return order
	})
	return curves
}

func rank(c Curve) int {
	if c.Impl == ours {
		return 1
	}
	return 0
}
