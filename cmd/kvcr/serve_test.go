package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// output is a writer that tests may read while a command runs.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// serving runs kvcr serve until the test ends and returns the addresses that it
// announced.
func serving(t *testing.T, args ...string) (resp, binary, status string) {
	t.Helper()
	find := servingAll(t, args...)
	return find("resp"), find("binary"), find("status")
}

// servingAll is serving with all that is announced: it returns the first word of a
// line.
func servingAll(t *testing.T, args ...string) func(what string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var out, errs output
	done := make(chan int)
	args = append([]string{"serve", "--capacity", "32MiB", "--resp", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"}, args...)
	go func() { done <- run(&env{ctx, &out, &errs, nil}, args) }()
	t.Cleanup(func() {
		cancel()
		select {
		case code := <-done:
			if code != 0 {
				t.Errorf("exit code %d: %s", code, errs.String())
			}
		case <-time.After(20 * time.Second):
			t.Error("serve does not stop")
		}
	})
	return func(what string) string {
		t.Helper()
		re := regexp.MustCompile(`(?m)^  ` + what + ` +(\S+)`)
		for range 1000 {
			if m := re.FindStringSubmatch(out.String()); m != nil {
				return m[1]
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Fatalf("no %q announced: %s %s", what, out.String(), errs.String())
		return ""
	}
}

// kvcrCmd runs one command to its end.
func kvcrCmd(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(&env{context.Background(), &out, &errs, nil}, args)
	return out.String(), errs.String(), code
}

func TestServeAndClients(t *testing.T) {
	_, addr, status := serving(t)
	in := filepath.Join(t.TempDir(), "in")
	value := strings.Repeat("large ", 100_000)
	if err := os.WriteFile(in, []byte(value), 0o600); err != nil {
		t.Fatal(err)
	}
	at := "--addr=" + addr
	for _, tt := range []struct {
		args []string
		out  string // all of standard output
		err  string // part of standard error
		code int
	}{
		{[]string{"set", "k", "v", at}, "", "", 0},
		{[]string{"get", "k", at}, "v", "", 0},
		{[]string{"set", "k", "w", "--nx", at}, "", "there already", 1},
		{[]string{"set", "l", "--in", in, at}, "", "", 0},
		{[]string{"get", "l", at}, value, "", 0},
		{[]string{"exists", "k", "l", at}, "k\t1 bytes\nl\t600000 bytes\n", "", 0},
		{[]string{"exists", "k", "m", at}, "k\t1 bytes\nm\tmiss\n", "1 of 2 keys: not there", 1},
		{[]string{"del", "k", "m", at}, "k\tdeleted\nm\tmiss\n", "", 0},
		{[]string{"get", "k", at}, "", `"k": not there`, 1},
		{[]string{"get", strings.Repeat("k", 2000), at}, "", "key", 1},
		{[]string{"set", "k", "v", "--in", in, at}, "", "not both", 2},
		{[]string{"get", "k", "--addr=127.0.0.1:1"}, "", "127.0.0.1:1", 1},
		{[]string{"get", "k", "--namespace=other", at}, "", "other", 1},
	} {
		out, errs, code := kvcrCmd(t, tt.args...)
		if out != tt.out || code != tt.code || !strings.Contains(errs, tt.err) || code == 0 && errs != "" {
			t.Errorf("%.80q: %.80q, %q, code %d; want %.80q, %q, %d", tt.args, out, errs, code, tt.out, tt.err, tt.code)
		}
	}
	if out, _, code := kvcrCmd(t, "stat", at); code != 0 || !strings.Contains(out, `"CapacityBytes"`) {
		t.Errorf("stat: %d %.200s", code, out)
	}
	if out, _, code := kvcrCmd(t, "ping", "-n2", at); code != 0 || strings.Count(out, "answer from") != 2 {
		t.Errorf("ping: %d %s", code, out)
	}
	for path, want := range map[string]string{"healthz": "ok", "metrics": "kvcr_", "config": `"capacity"`, "": "<title>"} {
		r, err := http.Get(status + path)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if r.StatusCode != 200 || !strings.Contains(string(b), want) {
			t.Errorf("/%s: %d, %.100q", path, r.StatusCode, b)
		}
	}
}

// A secret is asked for, and a wrong one is refused with the reason.
func TestServeWithSecret(t *testing.T) {
	dir := t.TempDir()
	file := func(name, secret string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(secret+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	right, wrong := file("right", "a secret of enough bytes"), file("wrong", "another secret of enough bytes")
	_, addr, _ := serving(t, "--secret-file", right)
	if _, errs, code := kvcrCmd(t, "set", "k", "v", "--addr", addr, "--secret-file", right); code != 0 {
		t.Error(errs)
	}
	for _, args := range [][]string{{"--secret-file", wrong}, nil} {
		if _, errs, code := kvcrCmd(t, append([]string{"get", "k", "--addr", addr}, args...)...); code != 1 || !strings.Contains(errs, "secret") && !strings.Contains(errs, "auth") {
			t.Errorf("%v: %d, %q", args, code, errs)
		}
	}
}

// What cannot be served is refused at the start, all of it named.
func TestServeRefuses(t *testing.T) {
	short := filepath.Join(t.TempDir(), "short")
	if err := os.WriteFile(short, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	base := []string{"serve", "--capacity", "8MiB", "--http=", "--listen=", "--resp=127.0.0.1:0"}
	for _, tt := range []struct {
		args []string
		want string
		code int
	}{
		{[]string{"--resp", "0.0.0.0:0"}, "not loopback", 1},
		{[]string{"--http", "0.0.0.0:0"}, "--http-public", 1},
		{[]string{"--resp", "nowhere"}, `"nowhere"`, 1},
		{[]string{"--secret-file", short}, "at least 16", 2},
		{[]string{"--secret-file", short + "-absent"}, "no such file", 2},
		{[]string{"--max-conns", "0"}, "at least 1", 2},
		{[]string{"--idle-timeout", "soon"}, `"soon"`, 2},
		{[]string{"--outbound-cap", "1"}, "64KiB", 2},
		{[]string{"--pair-suffixes", "a"}, "two suffixes", 2},
		{[]string{"--pair-suffixes", "a,b"}, "chained", 1},
		{[]string{"--log-level", "loud"}, `"loud"`, 2},
		{[]string{"--resp", "unix:" + short}, "no socket", 1},
		{[]string{"--peer-listen", "127.0.0.1:0"}, "begin with tcp:// or unix://", 2},
		{[]string{"--peer-listen", "tcp://127.0.0.1"}, "name host and port", 2},
		{[]string{"--peer-listen", "tcp://0.0.0.0:0"}, "give --peer-secret-file, listen on loopback, or allow it with --peer-public true", 1},
		{[]string{"--peer-listen", "tcp://127.0.0.1:0,unix://" + short}, "no socket", 1},
		{[]string{"--peer-advertise", "here"}, `"here"`, 2},
		{[]string{"--peer-secret-file", short}, "at least 16", 2},
		{[]string{"--peer-routes", "shm,strem"}, `"stream"`, 2},
		{[]string{"--peer-streams", "17"}, "at most 16", 2},
		{[]string{"--peer-advertise", "tcp://a:1"}, "means nothing without peer-listen", 2},
		{[]string{"--peer-listen", "tcp://127.0.0.1:0", "--peer-routes", "shm", "--backing", "anonymous"}, "use memfd, or leave shm out", 2},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		var out, errs output
		code := run(&env{ctx, &out, &errs, nil}, append(append([]string(nil), base...), tt.args...))
		cancel()
		if code != tt.code || !strings.Contains(errs.String(), tt.want) {
			t.Errorf("%v: code %d, %q; want %d with %q", tt.args, code, errs.String(), tt.code, tt.want)
		}
	}
}
