package resp

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
)

func TestReadReply(t *testing.T) {
	text := func(k Kind, s string) Reply { return Reply{Kind: k, Text: []byte(s)} }
	one := Reply{Kind: Int, Int: 1}
	tests := []struct {
		name, in string
		want     Reply
	}{
		{"simple", "+OK\r\n", text(Simple, "OK")},
		{"empty simple", "+\r\n", text(Simple, "")},
		{"error", "-ERR no\r\n", text(Error, "ERR no")},
		{"int", ":-12\r\n", Reply{Kind: Int, Int: -12}},
		{"bulk", "$4\r\na\r\nb\r\n", text(Bulk, "a\r\nb")},
		{"empty bulk", "$0\r\n\r\n", text(Bulk, "")},
		{"null bulk", "$-1\r\n", Reply{Kind: Null}},
		{"null array", "*-1\r\n", Reply{Kind: Null}},
		{"null", "_\r\n", Reply{Kind: Null}},
		{"array", "*2\r\n:1\r\n$1\r\na\r\n", Reply{Kind: Array, Items: []Reply{one, text(Bulk, "a")}}},
		{"empty array", "*0\r\n", Reply{Kind: Array, Items: []Reply{}}},
		{"array with a null", "*2\r\n$-1\r\n:1\r\n", Reply{Kind: Array, Items: []Reply{{Kind: Null}, one}}},
		{"array in an array", "*2\r\n*1\r\n:1\r\n:1\r\n", Reply{Kind: Array, Items: []Reply{{Kind: Array, Items: []Reply{one}}, one}}},
		{"map", "%2\r\n+a\r\n:1\r\n+b\r\n_\r\n", Reply{Kind: Map, Items: []Reply{text(Simple, "a"), one, text(Simple, "b"), {Kind: Null}}}},
		{"push", ">1\r\n:1\r\n", Reply{Kind: Push, Items: []Reply{one}}},
		{"true", "#t\r\n", Reply{Kind: Bool, Int: 1}},
		{"false", "#f\r\n", Reply{Kind: Bool}},
		{"double", ",-1.5e3\r\n", Reply{Kind: Double, Double: -1500}},
		{"infinite", ",-inf\r\n", Reply{Kind: Double, Double: math.Inf(-1)}},
		{"verbatim", "=7\r\ntxt:a\r\n\r\n", text(Verbatim, "a\r\n")},
		{"deepest", strings.Repeat("*1\r\n", 8) + ":1\r\n", nest(8, one)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, n, err := ReadReply([]byte(tt.in + "+more\r\n"))
			if err != nil || n != len(tt.in) || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%+v, %d, %v; want %+v, %d", got, n, err, tt.want, len(tt.in))
			}
			for i := range tt.in {
				if _, n, err := ReadReply([]byte(tt.in[:i])); n != 0 || err != ErrShort {
					t.Errorf("first %d bytes: %d, %v", i, n, err)
				}
			}
		})
	}
	r, _, err := ReadReply([]byte(",nan\r\n"))
	if err != nil || !math.IsNaN(r.Double) {
		t.Errorf("nan: %+v, %v", r, err)
	}
}

func nest(depth int, r Reply) Reply {
	for range depth {
		r = Reply{Kind: Array, Items: []Reply{r}}
	}
	return r
}

func TestReadReplyErrors(t *testing.T) {
	tests := []struct {
		name, in string
		err      error
	}{
		{"unknown type", "OK\r\n", errReplyKind},
		{"unknown type in an array", "*1\r\nx", errReplyKind},
		{"line feed alone", "+OK\n", errReplyLine},
		{"carriage return in a line", "+a\rb\r\n", errReplyLine},
		{"endless line", "+" + strings.Repeat("x", 64<<10+1), errReplyLine},
		{"line too long", "+" + strings.Repeat("x", 64<<10) + "\r\n", errReplyLine},
		{"no number", ":\r\n", errReplyNumber},
		{"number with space", ": 1\r\n", errReplyNumber},
		{"null with text", "_x\r\n", errReplyLine},
		{"bool", "#x\r\n", errReplyLine},
		{"long bool", "#tt\r\n", errReplyLine},
		{"empty bool", "#\r\n", errReplyLine},
		{"empty double", ",\r\n", errReplyNumber},
		{"hexadecimal double", ",0x1p3\r\n", errReplyNumber},
		{"double with underscore", ",1_0\r\n", errReplyNumber},
		{"double in other words", ",Infinity\r\n", errReplyNumber},
		{"double too large", ",1e999\r\n", errReplyNumber},
		{"bulk of -2", "$-2\r\n", errReplyLength},
		{"map of -1", "%-1\r\n", errReplyLength},
		{"verbatim of -1", "=-1\r\n", errReplyLength},
		{"bulk with wrong length", "$1\r\nab\r\n", errReplyLength},
		{"bulk without line feed", "$1\r\na\rb", errReplyLength},
		{"huge bulk", "$536870913\r\n", errReplyLength},
		{"huge array", "*2147483647\r\n", errReplyLength},
		{"huge map", "%4611686018427387905\r\n", errReplyLength},
		{"stream of unknown length", "*?\r\n", errReplyLength},
		{"verbatim without format", "=3\r\nabc\r\n", errReplyLength},
		{"verbatim without colon", "=4\r\nabcd\r\n", errReplyLength},
		{"too deep", strings.Repeat("*1\r\n", 9), errReplyDepth},
		{"too deep in others", strings.Repeat(">1\r\n%1\r\n:1\r\n", 5), errReplyDepth},
		{"largest bulk, not there", "$536870912\r\n", ErrShort},
		{"largest array, not there", "*1048576\r\n", ErrShort},
		{"largest arrays in each other", strings.Repeat("*1048576\r\n", 8), ErrShort},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			memory := allocated(func() {
				if r, n, err := ReadReply([]byte(tt.in)); n != 0 || err != tt.err || !reflect.DeepEqual(r, Reply{}) {
					t.Errorf("%+v, %d, %v; want %v", r, n, err, tt.err)
				}
			})
			if limit := uint64(4096 + 2*len(tt.in)); memory > limit {
				t.Errorf("%d bytes allocated for an input of %d", memory, len(tt.in))
			}
		})
	}
}

// FuzzReadReply: an accepted reply has the same meaning whatever follows it, no
// part of it is a reply, and memory follows the input.
func FuzzReadReply(f *testing.F) {
	for _, s := range []string{
		"+OK\r\n", "-ERR x\r\n", ":1\r\n", "$-1\r\n", "$3\r\nabc\r\n", "*2\r\n:1\r\n*1\r\n_\r\n", "%1\r\n+a\r\n#t\r\n",
		",1.5\r\n", ",inf\r\n", "=5\r\ntxt:a\r\n", ">1\r\n+x\r\n", "*2147483647\r\n", "*1000\r\n*1000\r\n", strings.Repeat("*1\r\n", 9),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 1024 {
			return
		}
		r, n, err := ReadReply(in)
		if err != nil {
			var protocol ProtocolError
			if n != 0 || err != ErrShort && !errors.As(err, &protocol) {
				t.Fatalf("%q: %d, %v", in, n, err)
			}
			return
		}
		if n <= 0 || n > len(in) {
			t.Fatalf("%q: used %d", in, n)
		}
		if bytesOf(r) > 3*n {
			t.Fatalf("%q: %d items' worth of reply in %d bytes", in, bytesOf(r), n)
		}
		for i := range n {
			if _, used, err := ReadReply(in[:i:i]); used != 0 || err != ErrShort {
				t.Fatalf("%q: the first %d bytes: %d, %v", in, i, used, err)
			}
		}
		again, used, err := ReadReply(append(in[:n:n], "*x"...))
		if used != n || err != nil || !same(r, again) {
			t.Fatalf("%q: %+v, then %+v, %d, %v", in, r, again, used, err)
		}
	})
}

// bytesOf is the least number of bytes that could have said r.
func bytesOf(r Reply) int {
	n := 3 + len(r.Text)
	for _, i := range r.Items {
		n += bytesOf(i)
	}
	return n
}

// same is DeepEqual, with nan equal to itself.
func same(a, b Reply) bool {
	if len(a.Items) != len(b.Items) {
		return false
	}
	for i := range a.Items {
		if !same(a.Items[i], b.Items[i]) {
			return false
		}
	}
	nan := math.IsNaN(a.Double) && math.IsNaN(b.Double)
	return a.Kind == b.Kind && string(a.Text) == string(b.Text) && a.Int == b.Int && (nan || a.Double == b.Double)
}
