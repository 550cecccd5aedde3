package main

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The same requests are routed without hints and with them, every action ends, every
// byte is right, and with hints more is reused.
func TestRouterdemo(t *testing.T) {
	code, out, msg := call(t, nil, "routerdemo", "--quiet", "--trace", "generated", "--requests", "45", "--block", "4KiB")
	if code != 0 || msg != "" || !strings.Contains(out, "0 bytes were wrong. Every other action that was accepted has ended.") {
		t.Fatalf("exit code %d: %q\n%s", code, msg, out)
	}
	var rows [][]int
	for _, name := range []string{"no hints", "hints"} {
		m := regexp.MustCompile(`(?m)^` + name + ` +([\d,]+) +([\d,]+) +([\d,]+) +([\d,]+) +[\d.]+ %$`).FindStringSubmatch(out)
		if m == nil {
			t.Fatalf("no row of %s:\n%s", name, out)
		}
		var row []int
		for _, n := range m[1:] {
			v, _ := strconv.Atoi(strings.ReplaceAll(n, ",", ""))
			row = append(row, v)
		}
		if row[0] != row[1]+row[2]+row[3] {
			t.Errorf("%s: %v do not add up", name, row)
		}
		rows = append(rows, row)
	}
	if none, hinted := rows[0], rows[1]; none[0] != hinted[0] || none[2] != 0 || hinted[3] >= none[3] {
		t.Errorf("without hints %v, with them %v", none, hinted)
	}
	for _, typ := range []string{"kv.prefetch", "kv.move"} {
		if !regexp.MustCompile(`(?m)^` + typ + ` +[1-9].* 0$`).MatchString(out) {
			t.Errorf("no %s without failures:\n%s", typ, out)
		}
	}
}

func TestRouterdemoMistakes(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"--block=2KiB", "4KiB to 2MiB"},
		{"--block=6KiB", "multiple of 4KiB"},
		{"--block=x", "no size"},
		{"--nodes=1", "2 to 16"},
		{"--nodes=17", "2 to 16"},
		{"--requests=0", "at least 1"},
		{"--share=4", "5 to 200 percent"},
		{"--trace=conversaton", `"conversation"`},
	} {
		if code, _, msg := call(t, nil, "routerdemo", tt.args); code != 2 || !strings.Contains(msg, tt.want) {
			t.Errorf("%s: exit code %d, %q lacks %q", tt.args, code, msg, tt.want)
		}
	}
}

// A node that fails is shown with what it has said.
func TestFleetNodeFails(t *testing.T) {
	f, err := startFleet(t.Context(), 2, 1000, 64)
	if f == nil || err == nil || !strings.Contains(err.Error(), "ended before it listened") || !strings.Contains(err.Error(), "SlotBytes = 1000") {
		t.Errorf("%v", err)
	}
}

func TestLastWords(t *testing.T) {
	var w lastWords
	for range 1000 {
		w.Write([]byte("what was said long ago\n"))
	}
	w.Write([]byte("the end"))
	if n := len(w.said); n != 4<<10 || !strings.HasSuffix(string(w.said), "ago\nthe end") {
		t.Errorf("%d bytes: ...%s", n, w.said[max(0, n-50):])
	}
}
