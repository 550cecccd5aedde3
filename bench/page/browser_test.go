//go:build linux

package page

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/kvcr-go/kvcr/internal/browser"
)

// What a browser makes of the page: every chart is drawn and labelled, and no label
// lies on another one.
const inspect = `(() => {
  const faults = [], charts = [...document.querySelectorAll('svg.chart')];
  const shown = t => t.textContent.trim() !== '';
  for (const svg of charts) {
    const figure = svg.closest('figure'), title = figure.querySelector('h3').textContent.trim();
    const fault = what => faults.push(title + ': ' + what);
    const texts = [...svg.querySelectorAll('text')].filter(shown), frame = svg.getBoundingClientRect();
    if (!title) fault('no title');
    if (!svg.querySelector('.xlabel')?.textContent.trim()) fault('no label of the x axis');
    if (svg.querySelectorAll('text.axis').length < 2) fault('under two ticks');
    const lines = [...svg.querySelectorAll('g.series path.line')], bars = [...svg.querySelectorAll('rect.bar')];
    const marks = [...svg.querySelectorAll('path.mark')];
    if (lines.length + bars.length + marks.length === 0) fault('nothing is drawn');
    if (!bars.length && !svg.querySelector('.ylabel')?.textContent.trim()) fault('no label of the y axis');
    if (!bars.length && figure.querySelectorAll('ul.legend li').length !== svg.querySelectorAll('g.series').length) fault('the legend lacks a series');
    for (const p of [...marks, ...bars]) if (!(p.getTotalLength() > 0)) fault('an empty shape');
    for (const p of svg.querySelectorAll('path, rect')) if (/NaN|Infinity|undefined/.test(p.outerHTML)) fault('no number: ' + p.outerHTML);
    const boxes = texts.map(t => ({text: t.textContent.trim(), r: t.getBoundingClientRect()}));
    boxes.forEach(({text, r}, i) => {
      if (/NaN|undefined/.test(text)) fault('the text ' + text);
      if (r.left < frame.left - 1 || r.right > frame.right + 1 || r.top < frame.top - 1 || r.bottom > frame.bottom + 1) fault(text + ' lies outside');
      for (const o of boxes.slice(i + 1)) {
        const w = Math.min(r.right, o.r.right) - Math.max(r.left, o.r.left), h = Math.min(r.bottom, o.r.bottom) - Math.max(r.top, o.r.top);
        if (w > 1 && h > 2) fault(text + ' lies on ' + o.text);
      }
    });
  }
  // Contrast of what is read or drawn against what is behind it.
  const rgb = c => c.match(/[\d.]+/g).slice(0, 3).map(Number);
  const light = c => rgb(c).map(v => (v /= 255, v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)).reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
  const against = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  const card = getComputedStyle(document.querySelector('figure')).backgroundColor;
  const check = (selector, property, least) => document.querySelectorAll(selector).forEach(e => {
    const c = getComputedStyle(e)[property], ratio = against(c, card);
    if (ratio < least) faults.push(selector + ' ' + c + ' has a contrast of ' + ratio.toFixed(1) + ' on ' + card);
  });
  check('svg.chart text', 'fill', 4.5); check('td', 'color', 4.5); check('td small', 'color', 4.5); check('figcaption p', 'color', 4.5);
  check('path.line', 'stroke', 3); check('rect.bar', 'fill', 3);
  if (document.documentElement.scrollWidth > innerWidth) faults.push('the page is wider than the window');
  // What charts have to show: what their legend names, and what their axes are.
  const shows = (title, xlabel, ...legend) => {
    const f = [...document.querySelectorAll('figure')].filter(f => f.querySelector('h3').textContent.includes(title));
    if (!f.length) { faults.push('no chart of ' + title); return; }
    for (const c of f) {
      const names = [...c.querySelectorAll('ul.legend li')].map(li => li.textContent).join('|');
      if (!c.querySelector('.xlabel').textContent.includes(xlabel)) faults.push(title + ': the x axis is not ' + xlabel);
      for (const n of legend) if (!names.includes(n)) faults.push(title + ': the legend has no ' + n + ' but ' + names);
    }
  };
  shows('Hit ratio against capacity', 'capacity', 'kvcr', 'LRU', 'S3-FIFO', 'Belady');
  shows('Bandwidth of puts', 'block size', 'kvcr', 'limit: ');
  shows('Bandwidth of deliveries', 'block size', 'kvcr', 'limit: ');
  shows('Bandwidth of fetches', 'block size', 'kvcr', 'limit: ');
  shows('Bandwidth of reads', 'value size', 'kvcr', 'limit: ');
  shows('Latency of a 64 B get', 'percentile, by nines', 'kvcr', 'otter');
  shows('Latency of a 64 B GET', 'percentile, by nines', 'kvcr', 'redis');
  shows('Where the time of a request goes', 'percentile, by nines', 'issue lag', 'queue', 'service', 'from scheduled to finished');
  shows('Planner cost against sources', 'sources', 'p50', 'p99');
  shows('Cost of a request against nodes', 'nodes', 'planner, exponent', 'total, exponent');
  shows('Values of 64 B', 'more is better');
  if (document.querySelectorAll('section.bars tr').length < 7) faults.push('no table of bars');
  check('section.bars .outcome', 'color', 4.5);
  return JSON.stringify({charts: charts.length, figures: document.querySelectorAll('figure').length, lines: document.querySelectorAll('svg.chart path.line').length,
    bars: document.querySelectorAll('rect.bar').length, card, faults: [...new Set(faults)]});
})()`

func TestPageInBrowser(t *testing.T) {
	html := written(t, sample())
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			w.Write([]byte(html))
		} else if r.URL.Path != "/favicon.ico" {
			t.Errorf("the page asks for %s", r.URL.Path)
		}
	}))
	defer s.Close()
	b := browser.Open(t, s.URL+"/")
	cards := map[string]bool{}
	for _, scheme := range []string{"light", "dark"} {
		b.Call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}})
		for _, width := range []int{1280, 420} {
			b.Call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false})
			b.Await("the page is there", `document.querySelectorAll('figure').length > 0 && innerWidth === `+map[int]string{1280: "1280", 420: "420"}[width])
			var got struct {
				Charts, Figures, Lines, Bars int
				Card                         string
				Faults                       []string
			}
			if err := json.Unmarshal([]byte(b.Eval(inspect)), &got); err != nil {
				t.Fatal(err)
			}
			if got.Charts < 35 || got.Figures != got.Charts || got.Lines < 50 || got.Bars < 200 {
				t.Errorf("%s, %d wide: %d charts in %d figures with %d lines and %d bars", scheme, width, got.Charts, got.Figures, got.Lines, got.Bars)
			}
			for _, f := range got.Faults {
				t.Errorf("%s, %d wide: %s", scheme, width, f)
			}
			cards[got.Card] = true
		}
	}
	if len(cards) != 2 {
		t.Errorf("light and dark have the same background: %v", cards)
	}
	if len(b.Failures) > 0 {
		t.Errorf("the console says %q", b.Failures)
	}
}
