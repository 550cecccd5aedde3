package bench

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"gonum.org/v1/plot/vg/vgimg"
)

func sampleCurves() []Curve {
	mk := func(impl, label string, bound bool, ys ...float64) Curve {
		c := Curve{Impl: impl, Label: label, Bound: bound}
		for i, y := range ys {
			c.Ratios = append(c.Ratios, Ratio{Percents[i], y, y})
		}
		return c
	}
	return []Curve{
		mk("lru", "LRU", false, 5.2, 7.9, 19.5, 27.8, 34.5, 36.3),
		mk("tail-lru", "tail-first LRU", false, 5.2, 7.9, 19.6, 27.9, 34.5, 36.3),
		mk("s3fifo", "S3-FIFO", false, 7.7, 11.2, 19.0, 24.4, 32.8, 36.2),
		mk("belady", "Belady (bound)", true, 24.6, 31.4, 36.6, 36.6, 36.6, 36.6),
		mk(ours, "kvcr (density)", false, 10.0, 13.6, 21.9, 28.9, 34.3, 36.3),
	}
}

func TestChartSVG(t *testing.T) {
	c := Chart{Title: "conversation", Curves: sampleCurves()}
	var b bytes.Buffer
	if err := c.WriteSVG(&b); err != nil {
		t.Fatal(err)
	}
	svg := b.String()
	want := []string{"conversation", "capacity", "usable-prefix hits", ">50<", ">5<"}
	for _, curve := range c.Curves {
		want = append(want, curve.Label, hex(t, curve.Impl))
	}
	for _, w := range want {
		if !strings.Contains(svg, w) {
			t.Errorf("the SVG has no %q", w)
		}
	}
	// It is named first, whatever the order of the curves.
	if strings.Index(svg, "kvcr (density)") > strings.Index(svg, "Belady (bound)") {
		t.Error("the legend does not begin with kvcr")
	}
	// The curve of the cache under test lies over the others.
	for _, m := range Models() {
		if mine, other := strings.Index(svg, hex(t, ours)), strings.Index(svg, hex(t, m.Name)); mine < other {
			t.Errorf("kvcr is drawn at byte %d, before %s at %d", mine, m.Name, other)
		}
	}
}

// hex is the colour of impl as SVG writes it.
func hex(t *testing.T, impl string) string {
	t.Helper()
	r, g, b, _ := looks[impl].color.RGBA()
	const digits = "0123456789ABCDEF"
	out := "#"
	for _, v := range []uint32{r, g, b} {
		out += string(digits[v>>12]) + string(digits[v>>8&15])
	}
	return out
}

// TestChartPixels renders the chart and looks for each curve's colour.
func TestChartPixels(t *testing.T) {
	canvas := vgimg.NewWith(vgimg.UseWH(chartWidth, chartHeight), vgimg.UseDPI(120))
	c := Chart{Title: "conversation: usable-prefix hits", Curves: sampleCurves()}
	if err := c.draw(canvas); err != nil {
		t.Fatal(err)
	}
	if path := os.Getenv("BENCH_CHART_PNG"); path != "" {
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := (vgimg.PngCanvas{Canvas: canvas}).WriteTo(f); err != nil {
			t.Fatal(err)
		}
	}
	img := canvas.Image()
	seen := map[[3]uint32]int{}
	for y := img.Bounds().Min.Y; y < img.Bounds().Max.Y; y++ {
		for x := img.Bounds().Min.X; x < img.Bounds().Max.X; x++ {
			r, g, b, _ := img.At(x, y).RGBA()
			seen[[3]uint32{r, g, b}]++
		}
	}
	for _, curve := range c.Curves {
		r, g, b, _ := looks[curve.Impl].color.RGBA()
		if n := seen[[3]uint32{r, g, b}]; n < 30 {
			t.Errorf("%s: %d pixels of its colour", curve.Label, n)
		}
	}
}

func TestEveryImplementationHasALook(t *testing.T) {
	names := []string{ours}
	for _, m := range Models() {
		names = append(names, m.Name)
	}
	for _, n := range names {
		if looks[n].color == nil || looks[n].glyph == nil {
			t.Errorf("%s has no colour or shape in charts", n)
		}
	}
}
