//go:build linux

package web

import (
	"context"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/publish"
	"github.com/kvcr-go/kvcr/internal/browser"
)

// TestPageInBrowser opens the page as a person does: numbers move, nothing
// fails in the console, a phone needs no sideways scrolling, and a node that
// goes away and comes back is told from one that is idle.
func TestPageInBrowser(t *testing.T) {
	f := newFake()
	f.eachTime = func(f *fake) {
		f.stats.Counts.Hits += 950
		f.stats.Counts.Misses += 50
		f.server.Commands[0].Calls += 1000
		h := *f.stats.Hints
		h.Submitted.Types = slices.Clone(h.Submitted.Types)
		h.Submitted.Types[0].Accepted += 3
		h.Outcomes.Stages[hints.StageEnd] += 3
		f.stats.Hints = &h
		told := *f.router.Published
		told.Stored += 7
		f.router.Published = &told
	}
	node := start(t, f, "127.0.0.1:0")
	defer func() { node.stop(t) }()
	b := browser.Open(t, "http://"+node.Addr().String()+"/")

	first := b.Number("ops-total", 11_200_317)
	second := b.Number("ops-total", first)
	b.Number("hits-total", 9_000_000)
	b.Number("hints-accepted", b.Number("hints-accepted", 25))
	b.Number("hints-kv.move-accepted", 27)
	b.Number("router-stored", b.Number("router-stored", 70_000))
	b.Await("rates are shown", `document.getElementById('ops-rate').textContent.match(/^[\d,]+$/) !== null && document.querySelector('#hit-chart .line') !== null`)
	if second <= first {
		t.Errorf("ops-total was %d, then %d", first, second)
	}
	for id, want := range map[string]string{
		"state": `^ready$`, "uptime": `^1 d 2 h$`, "version": `^v1\.2\.3-test$`,
		"hit-ratio": `^90\.0%$`, "hit-ratio-recent": `^95\.0%$`,
		"mem-percent": `^75\.0%$`, "mem-used": `^12\.0 GiB$`, "mem-capacity": `^16\.0 GiB$`, "mem-reserved": `^16\.2 GiB$`,
		"mem-go-limit": `^none$`, "blocks": `^260,000$`,
		"conns-open": `^42$`, "conns-max": `^10,000$`,
		"shared-clients": `^2$`, "shared-hits": `^1,400$`, "shared-lent": `^7\.0 GiB$`, "shared-claims": `^9$`, "shared-staging": `^48\.0 MiB$`, "shared-commits": `^77$`, "shared-dropped": `^1$`,
		"peers-in": `^1,234$`, "peers-out-bytes": `^56\.0 MiB$`, "peers-taken": `^11$`, "peers-given": `^13$`, "peers-kept": `^26$`, "peers-refused": `^3$`, "peers-quarantine": `^6\.0 MiB$`,
		"hints-rejected": `^8$`, "hints-malformed": `^6$`, "hints-advice": `^31$`, "hints-fetching": `^17$`, "hints-actions": `^2$`, "hints-blocks": `^300$`, "hints-bytes": `^12\.0 MiB$`, "hints-lost": `^4$`,
		"hints-kv.move-rejected": `^3$`, "hints-kv.move-why": `^invalid_hash 1, missing_source 2$`, "hints-kv.evict-why": `^–$`, "hints-other-why": `^unsupported_action_type 5$`,
		"hints-outcomes": `^accepted 25, moved 210, end \d+$`,
		"router-keys":    `^60,000$`, "router-ambiguous": `^1$`, "router-described": `^59,000$`, "router-batches": `^500$`, "router-removed": `^10,000$`, "router-undescribed": `^11$`, "router-gaps": `^1$`,
		"router-events-endpoint": `^tcp://127\.0\.0\.1:5557$`, "router-events-subscribers": `^2$`, "router-events-dropped": `^13$`, "router-events-replays": `^5$`, "router-plane-messages": `^890$`, "router-plane-replays": `^–$`,
		"peer-tcp://10.0.0.2:7390-route": `^shm$`, "peer-tcp://10.0.0.2:7390-blocks": `^1,200$`, "peer-tcp://10.0.0.3:7390-connected": `^no$`, "peer-8000000000000000-endpoint": `^fetches from here$`,
		"cmd-resp-get-p50": `^41\.0 µs$`, "cmd-resp-get-p99": `^212 µs$`, "cmd-resp-get-p999": `^712 µs$`, "cmd-binary-set-p999": `^–$`, "cmd-resp-get-proto": `^resp$`,
		"cmd-binary-set-calls": `^1,200,000$`, "cmd-all-p99": `^255 µs$`, "latency-p99": `^255 µs$`,
		"ns-default-evicted": `^812,000$`, "ns-default-refused": `^7$`, "ns-blocks-blocks": `^60,000$`, "ns-blocks-bytes": `^4\.0 GiB$`,
	} {
		if got := b.Text(id); !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("%s is %q, want %s", id, got, want)
		}
	}
	if label := b.Eval(`document.getElementById('hit-chart').getAttribute('aria-label')`); label != "Hit ratio over the last two minutes: now 95.0%, lowest 95.0%, highest 95.0%" {
		t.Errorf("the chart's name is %q", label)
	}
	if hidden := b.Eval(`['resp-get', 'resp-del', 'binary-fetch', 'all'].map((n) => document.getElementById('cmd-' + n).hidden).join()`); hidden != "false,false,true,false" {
		t.Errorf("rows of commands that are hidden: %s; only what was never called may be", hidden)
	}
	if hidden := b.Eval(`['hints-card', 'hints-kv.move', 'hints-kv.fetch', 'router-card'].map((n) => document.getElementById(n).hidden).join()`); hidden != "false,false,true,false" {
		t.Errorf("parts about hints that are hidden: %s; only what never came may be", hidden)
	}
	if title := b.Eval(`document.getElementById('cmd-resp-get-p50').title`); title != "since the start: 81.0 µs" {
		t.Errorf("the title of a time is %q", title)
	}
	if width := b.Eval(`document.getElementById('mem-fill').style.width`); width != "75%" {
		t.Errorf("the memory bar's width is %q", width)
	}

	b.Call("Emulation.setDeviceMetricsOverride", map[string]any{"width": 360, "height": 700, "deviceScaleFactor": 2, "mobile": true})
	b.Await("the page fits a phone", `document.documentElement.scrollWidth <= 360 && innerWidth === 360`)

	if len(b.Failures) > 0 {
		t.Errorf("the console says %q", b.Failures)
	}

	f.set(func(f *fake) { f.peers.Peers = f.peers.Peers[2:] })
	b.Await("a forgotten peer has no row", `document.getElementById('peers').children.length === 1 && document.getElementById('peer-8000000000000000') !== null`)

	f.set(func(f *fake) { f.unready, f.reason = true, "draining" })
	b.Await("not ready is shown", `document.getElementById('state').textContent === 'not ready' && document.getElementById('notice').textContent.includes('draining')`)

	addr := node.Addr().String()
	node.stop(t)
	b.Await("the page says that the node is gone", `document.getElementById('state').textContent === 'no answer' &&
		!document.getElementById('notice').hidden && document.getElementById('notice').textContent.startsWith('The node has not answered since')`)

	again := newFake()
	again.started = time.Now()
	again.peers, again.stats.Hints, again.router = nil, nil, &publish.Totals{Published: &publish.Stats{}, Events: &events.PublisherStats{}}
	again.server.Commands = []CommandStats{{Proto: ProtocolRESP, Name: CommandGet, Calls: 7}}
	node = start(t, again, addr)
	b.Await("the page follows a new process", `document.getElementById('state').textContent === 'ready' &&
		document.getElementById('notice').hidden && document.getElementById('ops-total').textContent === '7' &&
		document.getElementById('peers-card').hidden && document.getElementById('hints-card').hidden`)
	b.Failures = nil // from the time without a node
	b.Await("what routers are told follows it", `document.getElementById('router-plane') === null && document.getElementById('router-stored').textContent === '0' &&
		document.getElementById('router-events-replays').textContent === '–'`)
	again.set(func(f *fake) { f.router = &publish.Totals{} })
	b.Await("nothing is published", `!document.getElementById('router-card').hidden && document.getElementById('router-batches').closest('.told').hidden`)
	again.set(func(f *fake) { f.router = nil })
	b.Await("there are no routers", `document.getElementById('router-card').hidden`)
	if len(b.Failures) > 0 {
		t.Errorf("the console says %q", b.Failures)
	}
}

// running is a server that a test stops and starts by hand.
type running struct {
	*Server
	served chan error
}

func start(t *testing.T, src Source, addr string) *running {
	t.Helper()
	s, err := New(Options{Addr: addr, Source: src})
	if err != nil {
		t.Fatal(err)
	}
	r := &running{s, make(chan error, 1)}
	go func() { r.served <- s.Serve() }()
	return r
}

// stop cuts what the browser holds open.
func (r *running) stop(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = r.Close(ctx) // that connections were cut is what was asked for
	if err := <-r.served; err != nil {
		t.Errorf("Serve: %v", err)
	}
	r.served <- nil // stop may be called again
}
