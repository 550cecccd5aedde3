package resp

import (
	"reflect"
	"strings"
	"testing"
)

func TestWords(t *testing.T) {
	tests := []struct {
		name, line string
		want       []string
		err        error
	}{
		{"words", "SET a b", []string{"SET", "a", "b"}, nil},
		{"blanks around", " \tSET  a\tb \v\f ", []string{"SET", "a", "b"}, nil},
		{"skipped blanks", "\v\fSET", []string{"SET"}, nil},
		{"blanks in words", "a\vb\fc", []string{"a\vb\fc"}, nil},
		{"carriage return in the line", "a\rb\r", []string{"a", "b"}, nil},
		{"zero byte", "a\x00b", []string{"a\x00b"}, nil},
		{"quotes", `SET "a b" 'c d'`, []string{"SET", "a b", "c d"}, nil},
		{"empty quotes", `SET "" ''`, []string{"SET", "", ""}, nil},
		{"quotes in the other quotes", `"'" '"'`, []string{"'", `"`}, nil},
		{"quotes after letters", `ab"c d"`, []string{"abc d"}, nil},
		{"escapes", `"\n\r\t\b\a\\\"\q\'"`, []string{"\n\r\t\b\a\\\"q'"}, nil},
		{"hexadecimal", `"\x41\xfF\x00"`, []string{"A\xff\x00"}, nil},
		{"not hexadecimal", `"\x4g\xg4\x4"`, []string{"x4gxg4x4"}, nil},
		{"single quotes know one escape", `'\n\x41\'\\ '`, []string{`\n\x41'\\ `}, nil},
		{"backslash in a word", `a\nb`, []string{`a\nb`}, nil},
		{"vertical tab after quotes", "\"a\"\vb", []string{"a", "b"}, nil},
		{"several with quotes", `"1" "22" x "333"`, []string{"1", "22", "x", "333"}, nil},

		{"open double", `"a`, nil, errQuotes},
		{"open single", `'a`, nil, errQuotes},
		{"only a quote", `"`, nil, errQuotes},
		{"escaped end", `"a\"`, nil, errQuotes},
		{"escaped single end", `'a\'`, nil, errQuotes},
		{"backslash at the end", `"a\`, nil, errQuotes},
		{"end within hexadecimal", `"\x4`, nil, errQuotes},
		{"letters after double", `"a"b`, nil, errQuotes},
		{"letters after single", `'a'b`, nil, errQuotes},
		{"quotes after quotes", `"a""b"`, nil, errQuotes},
		{"good words before", `SET a "b`, nil, errQuotes},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, end := range []string{"\n", "\r\n"} {
				var p Parser
				var cmd Command
				n, err := p.Next([]byte(tt.line+end), &cmd)
				if err != tt.err || err == nil && n != len(tt.line)+len(end) {
					t.Fatalf("Next = %d, %v; want %v", n, err, tt.err)
				}
				var got []string
				for _, a := range cmd.Args {
					got = append(got, string(a))
					if cap(a) != len(a) {
						t.Errorf("an append to %q runs into what follows", a)
					}
				}
				if !reflect.DeepEqual(got, tt.want) {
					t.Errorf("%q, want %q", got, tt.want)
				}
			}
		})
	}
}

func TestFold(t *testing.T) {
	var dst [16]byte
	tests := []struct{ in, want string }{
		{"get", "GET"}, {"GeTrAnGe", "GETRANGE"}, {"", ""}, {"a1-{`\xe9", "A1-{`\xe9"},
		{"sixteen letters!", "SIXTEEN LETTERS!"}, {"seventeen letters", ""}, {strings.Repeat("x", 1000), ""},
	}
	for _, tt := range tests {
		if got := Fold(dst[:], []byte(tt.in)); string(got) != tt.want {
			t.Errorf("Fold(%q) = %q, want %q", tt.in, got, tt.want)
		}
	}
	name, found := []byte("getrange"), 0
	if a := testing.AllocsPerRun(100, func() {
		switch string(Fold(dst[:], name)) {
		case "GETRANGE":
			found++
		}
	}); a != 0 || found == 0 {
		t.Errorf("%v allocations, found %d times", a, found)
	}
}
