package resp

import (
	"math"
	"testing"
)

func TestAppend(t *testing.T) {
	tests := []struct {
		name string
		f    func([]byte) []byte
		want string
	}{
		{"simple", func(b []byte) []byte { return AppendSimple(b, "OK") }, "+OK\r\n"},
		{"simple with line ends", func(b []byte) []byte { return AppendSimple(b, "a\r\nb") }, "+a  b\r\n"},
		{"error", func(b []byte) []byte { return AppendError(b, "ERR no") }, "-ERR no\r\n"},
		{"error with line ends", func(b []byte) []byte { return AppendError(b, "ERR '\r\n+OK\r\n'") }, "-ERR '  +OK  '\r\n"},
		{"int", func(b []byte) []byte { return AppendInt(b, 42) }, ":42\r\n"},
		{"least int", func(b []byte) []byte { return AppendInt(b, math.MinInt64) }, ":-9223372036854775808\r\n"},
		{"bulk", func(b []byte) []byte { return AppendBulk(b, []byte("a\r\nb")) }, "$4\r\na\r\nb\r\n"},
		{"bulk of a string", func(b []byte) []byte { return AppendBulk(b, "") }, "$0\r\n\r\n"},
		{"bulk in parts", func(b []byte) []byte { return AppendCRLF(append(AppendBulkHeader(b, 3), "abc"...)) }, "$3\r\nabc\r\n"},
		{"null", func(b []byte) []byte { return AppendNull(b, 2) }, "$-1\r\n"},
		{"null in RESP3", func(b []byte) []byte { return AppendNull(b, 3) }, "_\r\n"},
		{"array", func(b []byte) []byte { return AppendArray(b, 12) }, "*12\r\n"},
		{"map", func(b []byte) []byte { return AppendMap(b, 2, 7) }, "*14\r\n"},
		{"map in RESP3", func(b []byte) []byte { return AppendMap(b, 3, 7) }, "%7\r\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.f([]byte("\r\n")); string(got) != "\r\n"+tt.want {
				t.Errorf("%q, want %q behind what was there", got, tt.want)
			}
			room := make([]byte, 0, 64)
			if a := testing.AllocsPerRun(100, func() { tt.f(room) }); a != 0 {
				t.Errorf("%v allocations", a)
			}
		})
	}
}
