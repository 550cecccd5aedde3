package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestRoutes(t *testing.T) {
	plain := serve(t, Options{Source: newFake()})
	debug := serve(t, Options{Source: newFake(), Debug: true})
	tests := []struct {
		path  string
		debug bool
		code  int
		kind  string
		holds string
	}{
		{"/", false, 200, "text/html; charset=utf-8", `id="ops-total"`},
		{"/static/style.css", false, 200, "text/css; charset=utf-8", "prefers-color-scheme: dark"},
		{"/static/app.js", false, 200, "text/javascript; charset=utf-8", "api/status"},
		{"/static/icon.svg", false, 200, "image/svg+xml", "<svg"},
		{"/healthz", false, 200, "text/plain; charset=utf-8", "ok\n"},
		{"/readyz", false, 200, "text/plain; charset=utf-8", "ok\n"},
		{"/config", false, 200, "application/json", `"capacity"`},
		{"/api/status", false, 200, "application/json", `"uptime_seconds"`},
		{"/metrics", false, 200, "text/plain; version=0.0.4", "kvcr_hits_total 9e+06"},
		{"/index.html", false, 404, "text/plain; charset=utf-8", ""},
		{"/static/", false, 404, "text/plain; charset=utf-8", ""},
		{"/static/../server.go", false, 404, "text/plain; charset=utf-8", ""},
		{"/api", false, 404, "text/plain; charset=utf-8", ""},
		{"/healthz/", false, 404, "text/plain; charset=utf-8", ""},
		{"/debug/pprof/", false, 404, "text/plain; charset=utf-8", ""},
		{"/debug/pprof/heap", false, 404, "text/plain; charset=utf-8", ""},
		{"/debug/pprof/", true, 200, "text/html; charset=utf-8", "goroutine"},
		{"/debug/pprof/cmdline", true, 200, "text/plain; charset=utf-8", ""},
		{"/debug/pprof/goroutine?debug=1", true, 200, "text/plain; charset=utf-8", "goroutine profile"},
		{"/debug/pprof/symbol", true, 200, "text/plain; charset=utf-8", "num_symbols"},
		{"/debug/pprof/trace?seconds=0.05", true, 200, "application/octet-stream", ""},
		{"/debug/claims", false, 404, "text/plain; charset=utf-8", ""},
		{"/debug/claims", true, 200, "text/plain; charset=utf-8", "claims 17\nwriting 4\n"},
		{"/debug/pprof/no-such-profile", true, 404, "text/plain; charset=utf-8", ""},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%s debug=%t", tt.path, tt.debug), func(t *testing.T) {
			s := plain
			if tt.debug {
				s = debug
			}
			resp, body := request(t, s, http.MethodGet, tt.path, nil)
			if resp.StatusCode != tt.code {
				t.Errorf("GET: %s, want %d: %.200s", resp.Status, tt.code, body)
			}
			if kind := resp.Header.Get("Content-Type"); !strings.HasPrefix(kind, tt.kind) {
				t.Errorf("Content-Type %q, want %q", kind, tt.kind)
			}
			if !strings.Contains(body, tt.holds) {
				t.Errorf("body lacks %q: %.300s", tt.holds, body)
			}
			if csp := resp.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") {
				t.Errorf("Content-Security-Policy %q", csp)
			}
			head, nothing := request(t, s, http.MethodHead, tt.path, nil)
			if head.StatusCode != tt.code || nothing != "" {
				t.Errorf("HEAD: %s and %d bytes, want %d and none", head.Status, len(nothing), tt.code)
			}
			for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions, "BREW"} {
				resp, _ := request(t, s, method, tt.path, nil)
				if resp.StatusCode != http.StatusMethodNotAllowed || resp.Header.Get("Allow") != "GET, HEAD" {
					t.Errorf("%s: %s, Allow %q; want 405 and GET, HEAD", method, resp.Status, resp.Header.Get("Allow"))
				}
			}
		})
	}
}

// strange is a route of the mux that every program shares.
const strange = "/web-test-of-the-default-mux"

func init() { http.HandleFunc(strange, func(w http.ResponseWriter, r *http.Request) {}) }

// What others put into the shared mux must not be served here.
func TestOwnMux(t *testing.T) {
	s := serve(t, Options{Source: newFake(), Debug: true})
	if resp, _ := request(t, s, http.MethodGet, strange, nil); resp.StatusCode != http.StatusNotFound {
		t.Errorf("a route of the default mux: %s, want 404", resp.Status)
	}
}

func TestReady(t *testing.T) {
	f := newFake()
	s := serve(t, Options{Source: f})
	for _, tt := range []struct {
		name    string
		unready bool
		reason  string
		code    int
		body    string
	}{
		{"ready", false, "", 200, "ok\n"},
		{"ready, with a reason of old", false, "draining", 200, "ok\n"},
		{"draining", true, "draining: 3 connections", 503, "draining: 3 connections\n"},
		{"no reason given", true, "", 503, "not ready\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f.set(func(f *fake) { f.unready, f.reason = tt.unready, tt.reason })
			resp, body := request(t, s, http.MethodGet, "/readyz", nil)
			if resp.StatusCode != tt.code || body != tt.body {
				t.Errorf("readyz: %d %q, want %d %q", resp.StatusCode, body, tt.code, tt.body)
			}
			if body := get(t, s, "/healthz"); body != "ok\n" {
				t.Errorf("healthz: %q", body)
			}
		})
	}
}

func TestConfigHidesSecrets(t *testing.T) {
	f := newFake()
	s := serve(t, Options{Source: f})
	body := get(t, s, "/config")
	type row struct{ Name, Value, Source string }
	var rows []row
	if err := json.Unmarshal([]byte(body), &rows); err != nil {
		t.Fatal(err)
	}
	want := []row{
		{"capacity", "16GiB", "flag"},
		{"resp-password", "set", "env KVCR_RESP_PASSWORD"},
		{"peer-key", "set", "file kvcr.yaml"},
		{"secret", "unset", "default"},
	}
	if fmt.Sprint(rows) != fmt.Sprint(want) {
		t.Errorf("config is %v, want %v", rows, want)
	}
	for _, path := range []string{"/config", "/api/status", "/metrics", "/"} {
		if body := get(t, s, path); strings.Contains(body, "hunter2") || strings.Contains(body, "sesame") {
			t.Errorf("%s shows a secret", path)
		}
	}
	f.config = nil
	if body := get(t, s, "/config"); body != "[]\n" {
		t.Errorf("no settings are %q, want an empty list", body)
	}
}

func TestPublic(t *testing.T) {
	for _, tt := range []struct {
		addr   string
		public bool
		ok     bool
	}{
		{"127.0.0.1:0", false, true},
		{"127.0.0.9:0", false, true},
		{"localhost:0", false, true},
		{":0", false, false},
		{"0.0.0.0:0", false, false},
		{"[::]:0", false, false},
		{"192.0.2.1:80", false, false},
		{"0.0.0.0:0", true, true},
		{"127.0.0.1:0", true, true},
	} {
		s, err := New(Options{Addr: tt.addr, Source: newFake(), Public: tt.public})
		if tt.ok {
			if err != nil {
				t.Errorf("%s public=%t: %v", tt.addr, tt.public, err)
				continue
			}
			if port := s.Addr().(*net.TCPAddr).Port; port == 0 {
				t.Errorf("%s: Addr has port 0", tt.addr)
			}
			s.Close(context.Background())
			continue
		}
		if !errors.Is(err, ErrPublic) || !strings.Contains(err.Error(), "--http-public") {
			t.Errorf("%s public=%t: %v, want ErrPublic with the flag", tt.addr, tt.public, err)
		}
	}
	for _, addr := range []string{"127.0.0.1", "127.0.0.1:http:80", "127.0.0.1:99999"} {
		if _, err := New(Options{Addr: addr, Source: newFake()}); err == nil || errors.Is(err, ErrPublic) {
			t.Errorf("%q: %v, want an error about the address", addr, err)
		}
	}
	taken := serve(t, Options{Source: newFake()})
	if _, err := New(Options{Addr: taken.Addr().String(), Source: newFake()}); err == nil {
		t.Error("a taken port was bound again")
	}
}

// A page from elsewhere may make its own name mean 127.0.0.1.
func TestHostNames(t *testing.T) {
	local := serve(t, Options{Source: newFake()})
	public := serve(t, Options{Source: newFake(), Public: true})
	for _, tt := range []struct {
		host string
		code int
	}{
		{"127.0.0.1:9100", 200},
		{"127.8.8.8", 200},
		{"localhost", 200},
		{"LocalHost:80", 200},
		{"[::1]:80", 200},
		{"[::ffff:127.0.0.1]", 200},
		{"evil.example", 403},
		{"evil.example:80", 403},
		{"localhost.evil.example", 403},
		{"192.0.2.1:80", 403},
	} {
		host := func(r *http.Request) { r.Host = tt.host }
		if resp, _ := request(t, local, http.MethodGet, "/config", host); resp.StatusCode != tt.code {
			t.Errorf("loopback listener, Host %q: %s, want %d", tt.host, resp.Status, tt.code)
		}
		if resp, _ := request(t, public, http.MethodGet, "/config", host); resp.StatusCode != 200 {
			t.Errorf("public listener, Host %q: %s, want 200", tt.host, resp.Status)
		}
	}
}

// FuzzLoopbackName: nothing panics, and what is accepted is the one name or
// written with the characters of addresses, none of which names another site.
func FuzzLoopbackName(f *testing.F) {
	for _, host := range []string{"", "localhost", "LOCALHOST:80", "127.0.0.1:9100", "[::1]", "[::1]:80", "::1", "[::1%25lo]:80",
		"localhost.evil.example", "127.0.0.1.evil.example", "evil.example:127", "localho\u017ft", "[127.0.0.1", ":80"} {
		f.Add(host)
	}
	f.Fuzz(func(t *testing.T, host string) {
		if !loopbackName(host) {
			return
		}
		name := host
		if h, _, err := net.SplitHostPort(host); err == nil {
			name = h
		}
		if strings.ToLower(name) != "localhost" && strings.Trim(name, "0123456789abcdefABCDEF.:[]") != "" {
			t.Errorf("%q is taken for this machine", host)
		}
	})
}

func TestBounds(t *testing.T) {
	f := newFake()
	s := serve(t, Options{Source: f})
	t.Run("headers", func(t *testing.T) {
		resp, _ := request(t, s, http.MethodGet, "/healthz", func(r *http.Request) { r.Header.Set("X-Long", strings.Repeat("x", 64<<10)) })
		if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("64 KiB of header: %s, want 431", resp.Status)
		}
	})
	t.Run("times", func(t *testing.T) {
		if s.http.ReadHeaderTimeout <= 0 || s.http.ReadTimeout <= 0 || s.http.IdleTimeout <= 0 {
			t.Errorf("a time without bound: %v %v %v", s.http.ReadHeaderTimeout, s.http.ReadTimeout, s.http.IdleTimeout)
		}
	})
	t.Run("connections", func(t *testing.T) {
		client.CloseIdleConnections()
		var held []net.Conn
		defer func() {
			for _, c := range held {
				c.Close()
			}
			await(t, "all connections are gone", func() bool { return s.conns.open.Load() == 0 })
			get(t, s, "/healthz")
		}()
		await(t, "all connections are gone", func() bool { return s.conns.open.Load() == 0 })
		for range maxConns {
			c, err := net.Dial("tcp", s.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, c)
		}
		await(t, "all are counted", func() bool { return s.conns.open.Load() == maxConns })
		c, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(5 * time.Second))
		fmt.Fprint(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
		b, err := io.ReadAll(c)
		var late net.Error
		if len(b) != 0 || errors.As(err, &late) && late.Timeout() {
			t.Errorf("one connection too many got %q, %v; want it closed", b, err)
		}
		if n := s.conns.refused.Load(); n != 1 {
			t.Errorf("%d connections refused, want 1", n)
		}
		// Those within the cap are served.
		held[0].SetDeadline(time.Now().Add(5 * time.Second))
		fmt.Fprint(held[0], "GET /healthz HTTP/1.0\r\n\r\n")
		if b, _ := io.ReadAll(held[0]); !bytes.Contains(b, []byte("200 OK")) {
			t.Errorf("one within the cap got %q", b)
		}
	})
}

// However many pages ask, the engine is asked once in statusAge.
func TestStatusIsShared(t *testing.T) {
	f := newFake()
	s, err := New(Options{Addr: "127.0.0.1:0", Source: f})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	now := time.Unix(1000, 0)
	s.now = func() time.Time { return now }
	var all sync.WaitGroup
	for range 50 {
		all.Add(1)
		go func() {
			defer all.Done()
			s.snapshot()
		}()
	}
	all.Wait()
	if f.asked != 1 {
		t.Errorf("50 pages asked the engine %d times, want once", f.asked)
	}
	f.set(func(f *fake) { f.stats.Counts.Hits++ })
	now = now.Add(statusAge - 1)
	if first := hits(t, s); first != 9_000_000 || f.asked != 1 {
		t.Errorf("within its age: hits %d, asked %d times", first, f.asked)
	}
	now = now.Add(1)
	if second := hits(t, s); second != 9_000_001 || f.asked != 2 {
		t.Errorf("past its age: hits %d, asked %d times; want the new number", second, f.asked)
	}
}

func hits(t *testing.T, s *Server) uint64 {
	t.Helper()
	var st Status
	if err := json.Unmarshal(s.snapshot(), &st); err != nil {
		t.Fatal(err)
	}
	return st.Cache.Hits
}

func TestClose(t *testing.T) {
	t.Run("without Serve, again, and Serve after", func(t *testing.T) {
		s, err := New(Options{Addr: "127.0.0.1:0", Source: newFake()})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := s.Close(context.Background()); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
		if _, err := net.Dial("tcp", s.Addr().String()); err == nil {
			t.Error("the port still answers")
		}
		if err := s.Serve(); err != nil {
			t.Errorf("Serve after Close: %v", err)
		}
	})
	t.Run("a profile under way ends", func(t *testing.T) {
		s, err := New(Options{Addr: "127.0.0.1:0", Source: newFake(), Debug: true})
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- s.Serve() }()
		c, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, "GET /debug/pprof/trace?seconds=60 HTTP/1.1\r\nHost: localhost\r\n\r\n")
		if _, err := c.Read(make([]byte, 16)); err != nil { // the trace has begun
			t.Fatal(err)
		}
		go io.Copy(io.Discard, c)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Run("an answer under way is cut when time is up", func(t *testing.T) {
		f := newFake()
		asked, let := make(chan struct{}), make(chan struct{})
		var once sync.Once
		f.eachTime = func(*fake) { once.Do(func() { close(asked); <-let }) }
		s, err := New(Options{Addr: "127.0.0.1:0", Source: f})
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- s.Serve() }()
		answered := make(chan error, 1)
		go func() {
			resp, err := client.Get("http://" + s.Addr().String() + "/api/status")
			if err == nil {
				resp.Body.Close()
			}
			answered <- err
		}()
		<-asked
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close: %v, want that time was up", err)
		}
		if err := <-answered; err == nil {
			t.Error("the answer was not cut")
		}
		close(let)
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
}

func TestLog(t *testing.T) {
	var mu sync.Mutex
	var out bytes.Buffer
	f := newFake()
	s := serve(t, Options{Source: f, Log: slog.New(slog.NewTextHandler(lockedWriter{&mu, &out}, nil))})
	f.set(func(f *fake) { f.stats.Namespaces[1].Name = "default" }) // two series of one name
	resp, _ := request(t, s, http.MethodGet, "/metrics", nil)
	if resp.StatusCode != http.StatusInternalServerError {
		t.Errorf("/metrics with a series twice: %s, want 500", resp.Status)
	}
	mu.Lock()
	defer mu.Unlock()
	if !strings.Contains(out.String(), "level=WARN") {
		t.Errorf("nothing was logged: %q", out.String())
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// The page must work where nothing else can be reached, and its script must
// find what it writes to.
func TestPageIsWhole(t *testing.T) {
	s := serve(t, Options{Source: newFake()})
	html, css, js := get(t, s, "/"), get(t, s, "/static/style.css"), get(t, s, "/static/app.js")
	for name, text := range map[string]string{"index.html": html, "style.css": css, "app.js": js} {
		for _, m := range regexp.MustCompile(`(https?:)?//[a-z0-9]+\.[a-z.]+[^\s'"]*`).FindAllString(text, -1) {
			if m != "http://www.w3.org/2000/svg" {
				t.Errorf("%s names %s, which is elsewhere", name, m)
			}
		}
	}
	for _, m := range regexp.MustCompile(`(?:href|src)="([^"]*)"`).FindAllStringSubmatch(html, -1) {
		if m[1] == "debug/pprof/" {
			continue // shown only where it is served
		}
		get(t, s, "/"+m[1])
	}
	ids := map[string]bool{}
	for _, m := range regexp.MustCompile(`\sid="([^"]*)"`).FindAllStringSubmatch(html, -1) {
		if ids[m[1]] {
			t.Errorf("id %q twice", m[1])
		}
		ids[m[1]] = true
	}
	used := regexp.MustCompile(`(?:byId|put|putBytes|alarm|flow|new Chart)\('([^']*)'`).FindAllStringSubmatch(js, -1)
	if len(used) < 20 {
		t.Errorf("only %d uses of ids found in app.js", len(used))
	}
	for _, m := range used {
		if !ids[m[1]] {
			t.Errorf("app.js writes to %q, which index.html lacks", m[1])
		}
	}
}
