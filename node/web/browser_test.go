//go:build linux

package web

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
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
	}
	node := start(t, f, "127.0.0.1:0")
	defer func() { node.stop(t) }()
	b := openBrowser(t, "http://"+node.Addr().String()+"/")

	first := b.number("ops-total", 11_200_317)
	second := b.number("ops-total", first)
	b.number("hits-total", 9_000_000)
	b.await("rates are shown", `document.getElementById('ops-rate').textContent.match(/^[\d,]+$/) !== null && document.querySelector('#hit-chart .line') !== null`)
	if second <= first {
		t.Errorf("ops-total was %d, then %d", first, second)
	}
	for id, want := range map[string]string{
		"state": `^ready$`, "uptime": `^1 d 2 h$`, "version": `^v1\.2\.3-test$`,
		"hit-ratio": `^90\.0%$`, "hit-ratio-recent": `^95\.0%$`,
		"mem-percent": `^75\.0%$`, "mem-used": `^12\.0 GiB$`, "mem-capacity": `^16\.0 GiB$`, "mem-reserved": `^16\.2 GiB$`,
		"mem-go-limit": `^none$`, "blocks": `^260,000$`,
		"conns-open": `^42$`, "conns-max": `^10,000$`,
		"cmd-get-p50": `^81\.0 µs$`, "cmd-get-p99": `^412 µs$`, "cmd-get-p999": `^1\.31 ms$`, "cmd-set-p999": `^2\.20 ms$`, "cmd-del-p99": `^–$`,
		"ns-default-evicted": `^812,000$`, "ns-default-refused": `^7$`, "ns-blocks-blocks": `^60,000$`, "ns-blocks-bytes": `^4\.0 GiB$`,
	} {
		if got := b.text(id); !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("%s is %q, want %s", id, got, want)
		}
	}
	if label := b.eval(`document.getElementById('hit-chart').getAttribute('aria-label')`); label != "Hit ratio over the last two minutes: now 95.0%, lowest 95.0%, highest 95.0%" {
		t.Errorf("the chart's name is %q", label)
	}
	if width := b.eval(`document.getElementById('mem-fill').style.width`); width != "75%" {
		t.Errorf("the memory bar's width is %q", width)
	}

	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": 360, "height": 700, "deviceScaleFactor": 2, "mobile": true})
	b.await("the page fits a phone", `document.documentElement.scrollWidth <= 360 && innerWidth === 360`)

	if len(b.failures) > 0 {
		t.Errorf("the console says %q", b.failures)
	}

	f.set(func(f *fake) { f.unready, f.reason = true, "draining" })
	b.await("not ready is shown", `document.getElementById('state').textContent === 'not ready' && document.getElementById('notice').textContent.includes('draining')`)

	addr := node.Addr().String()
	node.stop(t)
	b.await("the page says that the node is gone", `document.getElementById('state').textContent === 'no answer' &&
		!document.getElementById('notice').hidden && document.getElementById('notice').textContent.startsWith('The node has not answered since')`)

	again := newFake()
	again.started = time.Now()
	again.server.Commands = []CommandStats{{Name: CommandGet, Calls: 7}}
	node = start(t, again, addr)
	b.await("the page follows a new process", `document.getElementById('state').textContent === 'ready' &&
		document.getElementById('notice').hidden && document.getElementById('ops-total').textContent === '7'`)
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

// browser is a headless Chromium with one page, driven over its DevTools pipe.
type browser struct {
	t       *testing.T
	ctx     context.Context
	in      *os.File
	out     *bufio.Reader
	session string
	last    int
	// failures are what the console showed as errors.
	failures []string
}

func findBrowser(t *testing.T) string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("no chromium, chromium-browser or google-chrome on this machine")
	return ""
}

func openBrowser(t *testing.T, url string) *browser {
	path := findBrowser(t)
	// Not t.TempDir: a helper of the browser that ends late may still write here.
	dir, err := os.MkdirTemp("", "kvcr-web-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	args := []string{"--headless", "--remote-debugging-pipe", "--user-data-dir=" + dir, "--no-first-run", "--disable-gpu",
		"--disable-dev-shm-usage", "--disable-extensions", "--disable-background-networking", "--disable-component-update",
		"--no-proxy-server", "--window-size=1280,1000"}
	if os.Getuid() == 0 {
		args = append(args, "--no-sandbox")
	}
	theirIn, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	cmd := exec.Command(path, append(args, "about:blank")...)
	cmd.ExtraFiles = []*os.File{theirIn, theirOut} // 3 and 4
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var said bytes.Buffer
	cmd.Stderr = &said
	cmd.WaitDelay = time.Second
	err = cmd.Start()
	theirIn.Close()
	theirOut.Close()
	if err != nil {
		t.Fatal(err)
	}
	// When time is up the browser ends, and with it every read of the pipe.
	end := context.AfterFunc(ctx, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	t.Cleanup(func() {
		late := !end()
		cancel()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait() // it was killed
		in.Close()
		out.Close()
		if late || t.Failed() {
			t.Logf("time was up: %t; the browser said: %.2000s", late, said.String())
		}
	})

	b := &browser{t: t, ctx: ctx, in: in, out: bufio.NewReader(out)}
	var target struct{ TargetID string }
	b.decode(b.call("Target.createTarget", map[string]any{"url": "about:blank"}), &target)
	var attached struct{ SessionID string }
	b.decode(b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}), &attached)
	b.session = attached.SessionID
	b.call("Runtime.enable", nil)
	b.call("Log.enable", nil)
	b.call("Page.navigate", map[string]any{"url": url})
	return b
}

// call sends one command and returns its result. Events before it are looked
// through for errors of the page.
func (b *browser) call(method string, params map[string]any) json.RawMessage {
	b.t.Helper()
	b.last++
	message := map[string]any{"id": b.last, "method": method}
	if params != nil {
		message["params"] = params
	}
	if b.session != "" {
		message["sessionId"] = b.session
	}
	text, err := json.Marshal(message)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.in.Write(append(text, 0)); err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
	for {
		got, err := b.out.ReadBytes(0)
		if err != nil {
			b.t.Fatalf("%s: the browser is gone: %v", method, err)
		}
		var answer struct {
			ID     int
			Method string
			Params json.RawMessage
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		b.decode(got[:len(got)-1], &answer)
		switch {
		case answer.Method == "Runtime.exceptionThrown",
			answer.Method == "Log.entryAdded" && bytes.Contains(answer.Params, []byte(`"level":"error"`)):
			b.failures = append(b.failures, string(answer.Params))
		case answer.ID == b.last && answer.Error != nil:
			b.t.Fatalf("%s: %s", method, answer.Error.Message)
		case answer.ID == b.last:
			return answer.Result
		}
	}
}

func (b *browser) decode(text []byte, v any) {
	b.t.Helper()
	if err := json.Unmarshal(text, v); err != nil {
		b.t.Fatalf("%.200s: %v", text, err)
	}
}

// eval returns what an expression of the page is, as text.
func (b *browser) eval(expression string) string {
	b.t.Helper()
	var got struct {
		Result           struct{ Value any }
		ExceptionDetails json.RawMessage
	}
	b.decode(b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true}), &got)
	if got.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, got.ExceptionDetails)
	}
	return fmt.Sprint(got.Result.Value)
}

func (b *browser) text(id string) string {
	b.t.Helper()
	return b.eval(`document.getElementById('` + id + `').textContent`)
}

// await asks until an expression is true.
func (b *browser) await(what, expression string) {
	b.t.Helper()
	for b.ctx.Err() == nil {
		if b.eval(`document.getElementById('notice') !== null && (`+expression+`)`) == "true" {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	b.t.Fatalf("waited in vain: %s", what)
}

// number waits until an element shows a whole number above floor.
func (b *browser) number(id string, floor int) int {
	b.t.Helper()
	b.await(fmt.Sprintf("%s is above %d", id, floor),
		fmt.Sprintf(`Number(document.getElementById('%s').textContent.replaceAll(',', '')) > %d`, id, floor))
	n, err := strconv.Atoi(strings.ReplaceAll(b.text(id), ",", ""))
	if err != nil {
		b.t.Fatalf("%s: %v", id, err)
	}
	return n
}
