package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kvcr-go/kvcr/node/web"
	"github.com/kvcr-go/kvcr/wire"
)

// A newcomer types what serve says, and sees a miss, a hit of the bytes stored, and
// where to look.
func TestTryIsTheFirstHit(t *testing.T) {
	_, addr, status := serving(t)
	out, errs, code := kvcrCmd(t, "try", "--addr", addr)
	if code != 0 || errs != "" {
		t.Fatalf("code %d: %s", code, errs)
	}
	re := regexp.MustCompile(`^node at ` + addr + `: 32 MiB for blocks, 0 resident
  miss     \S+ +"(try-[A-Z2-7]{12})" is not there yet
  stored   \S+ +64 KiB under that key
  hit      \S+ +all 65536 bytes are those that were stored
  removed  the block; the counters stay
the node counts 1 hit \(0 before\) and 1 miss \(0 before\)
live: ` + status + `
$`)
	m := re.FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("said:\n%s", out)
	}
	if out, _, code := kvcrCmd(t, "exists", m[1], "--addr", addr); code != 1 || !strings.Contains(out, "miss") {
		t.Errorf("the block is left: %d %s", code, out)
	}
	if out, errs, code := kvcrCmd(t, "try", "--size", "1", "--addr", addr); code != 0 || !strings.Contains(out, "all 1 bytes") || !strings.Contains(out, "2 hits (1 before)") {
		t.Errorf("one byte: %d %s%s", code, out, errs)
	}
}

func TestTryOfFixedSlotsAndChains(t *testing.T) {
	addr := servingAll(t, "--block", "4KiB", "--kind", "chained", "--http", "")("binary")
	if out, errs, code := kvcrCmd(t, "try", "--addr", addr); code != 1 || !strings.Contains(errs, "try --size 4096") {
		t.Errorf("too large: %d %s%s", code, out, errs)
	}
	out, errs, code := kvcrCmd(t, "try", "--addr", addr, "--size", "4096")
	if code != 0 || !strings.Contains(out, "all 4096 bytes") || strings.Contains(out, "live:") {
		t.Errorf("%d %s%s", code, out, errs)
	}
}

// A node that loses a block, changes it, or has what nobody stored, is told of.
func TestTryFindsWhatIsWrong(t *testing.T) {
	for _, tt := range []struct {
		name string
		lie  func(v []byte, ok bool) ([]byte, bool)
		want string
	}{
		{"honest", func(v []byte, ok bool) ([]byte, bool) { return v, ok }, ""},
		{"other byte", func(v []byte, ok bool) ([]byte, bool) {
			if ok {
				v[len(v)-1]++
			}
			return v, ok
		}, "came back with other bytes"},
		{"shorter", func(v []byte, ok bool) ([]byte, bool) { return v[:len(v)/2], ok }, "4 of them, 8 were stored"},
		{"lost", func([]byte, bool) ([]byte, bool) { return nil, false }, "is gone"},
		{"made up", func(v []byte, _ bool) ([]byte, bool) { return v, true }, "which nobody stored"},
	} {
		var out bytes.Buffer
		err := tryNode(context.Background(), &env{stdout: &out}, &liar{lie: tt.lie}, "here", 8)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v; want %q", tt.name, err, tt.want)
		}
		if tt.want != "" && strings.Contains(out.String(), "  hit") {
			t.Errorf("%s: called a hit:\n%s", tt.name, out.String())
		}
	}
}

// liar is a cache of one block whose answers go through lie.
type liar struct {
	value []byte
	lie   func(v []byte, ok bool) ([]byte, bool)
}

func (l *liar) Get(context.Context, []byte, []byte) ([]byte, bool, error) {
	v, ok := l.lie(bytes.Clone(l.value), l.value != nil)
	return v, ok, nil
}

func (l *liar) Set(_ context.Context, _, value []byte) error { l.value = value; return nil }

func (l *liar) Delete(context.Context, ...[]byte) ([]wire.Status, error) {
	return []wire.Status{wire.StatusOK}, nil
}

func (l *liar) Stats(context.Context) ([]byte, error) { return []byte("{}"), nil }

// Every client command says what to do when there is no node.
func TestNoNode(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := ln.Addr().String()
	ln.Close()
	for _, addr := range []string{free, "unix:" + filepath.Join(t.TempDir(), "none")} {
		for _, cmd := range []string{"try", "stat", "ping"} {
			out, errs, code := kvcrCmd(t, cmd, "--addr", addr)
			if code != 1 || out != "" || !strings.Contains(errs, "no node listens at "+addr) || !strings.Contains(errs, " serve") || !strings.Contains(errs, "--addr") {
				t.Errorf("%s at %s: %d %s%s", cmd, addr, code, out, errs)
			}
		}
	}
	for _, size := range []string{"0", "2GiB", "many"} {
		if _, errs, code := kvcrCmd(t, "try", "--addr", free, "--size", size); code != 2 || errs == "" {
			t.Errorf("--size %s: %d %s", size, code, errs)
		}
	}
}

// A second node at the same addresses says what may be there.
func TestServeWhereAnotherDoes(t *testing.T) {
	resp, binary, status := serving(t)
	free := map[string]string{"resp": "127.0.0.1:0", "listen": "127.0.0.1:0", "http": "127.0.0.1:0"}
	page := strings.TrimSuffix(strings.TrimPrefix(status, "http://"), "/")
	for flag, taken := range map[string]string{"resp": resp, "listen": binary, "http": page} {
		args := []string{"serve", "--capacity", "8MiB"}
		for f, addr := range free {
			if f == flag {
				addr = taken
			}
			args = append(args, "--"+f, addr)
		}
		_, errs, code := kvcrCmd(t, args...)
		if code != 1 || !strings.Contains(errs, taken) || !strings.Contains(errs, "another node may run there") || !strings.Contains(errs, "--"+flag) {
			t.Errorf("%s: %d %s", flag, code, errs)
		}
	}
}

// What serve says to type next names the node, unless it is where clients look
// anyway.
func TestNextCommand(t *testing.T) {
	for _, tt := range []struct {
		addr     net.Addr
		settings []web.Setting
		want     string
	}{
		{&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7370}, nil, "try"},
		{&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7371}, nil, "try --addr 127.0.0.1:7371"},
		{&net.UnixAddr{Name: "/run/k.sock", Net: "unix"}, []web.Setting{{Name: "secret-file", Value: "s"}}, "try --addr unix:/run/k.sock --secret-file s"},
	} {
		if got := nextCommand(tt.addr, tt.settings); got != os.Args[0]+" "+tt.want {
			t.Errorf("%v: %q", tt.addr, got)
		}
	}
}
