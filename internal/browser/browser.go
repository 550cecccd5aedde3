//go:build linux

package browser

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Browser is a headless Chromium with one page, driven over its DevTools pipe. It
// belongs to one test, and to the test's goroutine.
type Browser struct {
	t       *testing.T
	ctx     context.Context
	in      *os.File
	out     *bufio.Reader
	session string
	last    int
	// Failures are what the console showed as errors.
	Failures []string
}

func find(t *testing.T) string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("no chromium, chromium-browser or google-chrome on this machine")
	return ""
}

// Open starts one that shows url, or skips the test where no browser is
// installed. It ends with the test.
func Open(t *testing.T, url string) *Browser {
	path := find(t)
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

	b := &Browser{t: t, ctx: ctx, in: in, out: bufio.NewReader(out)}
	var target struct{ TargetID string }
	b.decode(b.Call("Target.createTarget", map[string]any{"url": "about:blank"}), &target)
	var attached struct{ SessionID string }
	b.decode(b.Call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}), &attached)
	b.session = attached.SessionID
	b.Call("Runtime.enable", nil)
	b.Call("Log.enable", nil)
	b.Call("Page.navigate", map[string]any{"url": url})
	return b
}

// Call sends one command and returns its result. Events before it are looked
// through for errors of the page.
func (b *Browser) Call(method string, params map[string]any) json.RawMessage {
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
			b.Failures = append(b.Failures, string(answer.Params))
		case answer.ID == b.last && answer.Error != nil:
			b.t.Fatalf("%s: %s", method, answer.Error.Message)
		case answer.ID == b.last:
			return answer.Result
		}
	}
}

func (b *Browser) decode(text []byte, v any) {
	b.t.Helper()
	if err := json.Unmarshal(text, v); err != nil {
		b.t.Fatalf("%.200s: %v", text, err)
	}
}

// Eval returns what an expression of the page is, as text.
func (b *Browser) Eval(expression string) string {
	b.t.Helper()
	var got struct {
		Result           struct{ Value any }
		ExceptionDetails json.RawMessage
	}
	b.decode(b.Call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true}), &got)
	if got.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, got.ExceptionDetails)
	}
	return fmt.Sprint(got.Result.Value)
}

// Text is what an element shows.
func (b *Browser) Text(id string) string {
	b.t.Helper()
	return b.Eval(`document.getElementById('` + id + `').textContent`)
}

// Await asks until an expression is true.
func (b *Browser) Await(what, expression string) {
	b.t.Helper()
	for b.ctx.Err() == nil {
		if b.Eval(`location.protocol !== 'about:' && document.readyState === 'complete' && (`+expression+`)`) == "true" {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	b.t.Fatalf("waited in vain: %s", what)
}

// Number waits until an element shows a whole number above floor.
func (b *Browser) Number(id string, floor int) int {
	b.t.Helper()
	b.Await(fmt.Sprintf("%s is above %d", id, floor),
		fmt.Sprintf(`Number(document.getElementById('%s').textContent.replaceAll(',', '')) > %d`, id, floor))
	n, err := strconv.Atoi(strings.ReplaceAll(b.Text(id), ",", ""))
	if err != nil {
		b.t.Fatalf("%s: %v", id, err)
	}
	return n
}
