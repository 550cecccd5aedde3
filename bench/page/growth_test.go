package page

import (
	"encoding/xml"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/kvcr-go/kvcr/bench"
)

// The SVG is well-formed, stands alone, needs no variables, and draws every part of
// every sweep but the collector.
func TestWriteScale(t *testing.T) {
	var b strings.Builder
	if err := WriteScale(&b, sample()); err != nil {
		t.Fatal(err)
	}
	svg := b.String()
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("no XML: %v", err)
		}
	}
	for _, want := range []string{"Cost of a request against nodes", "against blocks", "against requests", "planner, exponent 0.00", "total, exponent 0.84", ">1,000<", ">384<", ">100,000<"} {
		if !strings.Contains(svg, want) {
			t.Errorf("no %q", want)
		}
	}
	for _, bad := range []string{`var\(`, `<script`, `NaN`, `Inf\b`, `ZgotmplZ`, `%!`, `collector`, `:;`, `fill:}`} {
		if found := regexp.MustCompile(bad).FindString(svg); found != "" {
			t.Errorf("there is %q", found)
		}
	}
	if n := strings.Count(svg, `class="series `); n != 3*7 {
		t.Errorf("%d series, want 7 in each of 3 charts", n)
	}
	// The legend tells each of them, within the drawing.
	if n := strings.Count(svg, `<g class="s-`); n != 3*7 {
		t.Errorf("%d entries of legends, want 7 for each of 3 charts", n)
	}
	for _, class := range []string{"s-ours", "s-limit", "s-0", "s-7"} {
		if !regexp.MustCompile(`\.` + class + ` \.line,\.` + class + ` \.whisker\{stroke:#[0-9a-f]{6}\}`).MatchString(svg) {
			t.Errorf("no colour of class %s", class)
		}
	}
}

func TestWriteScaleOfNothing(t *testing.T) {
	var b strings.Builder
	if err := WriteScale(&b, []bench.Row{{Suite: "engine", Name: "scale"}}); err == nil || b.Len() > 0 {
		t.Errorf("%v, %d bytes written", err, b.Len())
	}
}
