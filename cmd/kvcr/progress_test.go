package main

import (
	"bytes"
	"os"
	"testing"
	"time"
)

func TestProgress(t *testing.T) {
	long := time.Now().Add(-time.Hour)
	tests := []struct {
		name        string
		live, quiet bool
		want        string
	}{
		// Each says "one" when it is due, then "two" at once, then clears.
		{"plain", false, false, "one\n"},
		{"terminal", true, false, "\r\x1b[Kone\r\x1b[K"},
		{"quiet", false, true, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var b bytes.Buffer
			p := newProgress(&b, tt.quiet)
			p.live, p.last = tt.live, long
			p.say("one")
			p.say("two")
			p.clear()
			if b.String() != tt.want {
				t.Errorf("wrote %q, want %q", b.String(), tt.want)
			}
		})
	}
	if isTerminal(&bytes.Buffer{}) {
		t.Error("a buffer is no terminal")
	}
	if f, err := os.Open(os.DevNull); err != nil || isTerminal(f) {
		t.Errorf("/dev/null is no terminal, %v", err)
	}
}
