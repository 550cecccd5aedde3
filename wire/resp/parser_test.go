package resp

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"testing"
)

// encode writes a command as clients do.
func encode(args ...string) []byte {
	b := AppendArray(nil, len(args))
	for _, a := range args {
		b = AppendBulk(b, a)
	}
	return b
}

// outcome is what a stream was parsed to: its commands, those with streamed
// values put together again, and how it ended.
type outcome struct {
	commands [][]string
	streamed int
	used     int // bytes of whole commands and skipped lines
	err      error
}

// parseAll parses stream as it arrives in pieces; cut gives the size of the
// next. Each call of the parser gets a buffer of its own without a byte to
// spare, and what it returned is scribbled over afterwards.
func parseAll(t *testing.T, p *Parser, stream []byte, cut func() int) (out outcome) {
	t.Helper()
	var cmd Command
	end := 0
	arrive := func() bool {
		if end == len(stream) {
			out.err = ErrShort
			return false
		}
		end = min(end+cut(), len(stream))
		return true
	}
	at := 0
	// call parses until there is a command or an error, and returns the arguments.
	call := func(parse func([]byte, *Command) (int, error)) ([]string, bool) {
		for {
			b := make([]byte, end-at)
			copy(b, stream[at:end])
			n, err := parse(b, &cmd)
			if !bytes.Equal(b, stream[at:end]) {
				t.Fatalf("the parser wrote to its input %q", stream[at:end])
			}
			if p.pos > p.seen || p.seen-p.pos-1 > p.limits.MaxInline {
				t.Fatalf("pos %d, seen %d: invariant broken", p.pos, p.seen)
			}
			if memory := 16*cap(p.spans) + 24*cap(cmd.Args) + cap(p.unquoted); memory > 64*len(b)+24*keptArgs+keptUnquoted {
				t.Fatalf("%d bytes of memory for an input of %d", memory, len(b))
			}
			if err == nil {
				if n <= 0 || n > len(b) {
					t.Fatalf("used %d of %d bytes", n, len(b))
				}
				var args []string
				for _, a := range cmd.Args {
					args = append(args, string(a))
				}
				clear(b)
				at += n
				return args, true
			}
			if n != 0 || len(cmd.Args) != 0 || cmd.Streaming {
				t.Fatalf("%d bytes used and %+v with error %v", n, cmd, err)
			}
			if err != ErrShort {
				out.err = err
				return nil, false
			}
			if !arrive() {
				return nil, false
			}
		}
	}
	for {
		out.used = at
		args, ok := call(p.Next)
		if !ok {
			return out
		}
		if len(args) == 0 {
			t.Fatal("a command without arguments was returned")
		}
		if cmd.Streaming {
			size := int(cmd.ValueLen)
			if len(args) != 2 || int64(size) < p.StreamFrom || int64(size) > p.maxStream {
				t.Fatalf("streaming %q with a value of %d bytes", args, size)
			}
			for end-at < size {
				if !arrive() {
					return out
				}
			}
			args = append(args, string(stream[at:at+size]))
			at += size
			rest, ok := call(p.Rest)
			if !ok {
				return out
			}
			if cmd.Streaming || cmd.ValueLen != 0 {
				t.Fatalf("Rest left %+v", cmd)
			}
			args = append(args, rest...)
			out.streamed++
		}
		out.commands = append(out.commands, args)
	}
}

func whole() int   { return 1 << 30 }
func oneByte() int { return 1 }

func randomCuts(seed uint64) func() int {
	r := rand.New(rand.NewPCG(seed, 1))
	return func() int { return 1 + r.IntN(1+r.IntN(40)) }
}

// small are limits that short streams can reach.
var small = Limits{MaxArgs: 8, MaxInline: 40, MaxBulk: 20, MaxCommand: 12}

func TestNext(t *testing.T) {
	type cmds = [][]string
	tests := []struct {
		name, stream string
		want         cmds
		err          error
	}{
		{"nothing", "", nil, ErrShort},
		{"array", "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", cmds{{"GET", "k"}}, ErrShort},
		{"pipeline", "*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nQUIT\r\n", cmds{{"PING"}, {"QUIT"}}, ErrShort},
		{"empty argument", "*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", cmds{{"ECHO", ""}}, ErrShort},
		{"line ends and zeros in an argument", "*1\r\n$6\r\n\r\n\x00\xff*1\r\n", cmds{{"\r\n\x00\xff*1"}}, ErrShort},
		{"array, then line", "*1\r\n$4\r\nPING\r\nPING x\r\n", cmds{{"PING"}, {"PING", "x"}}, ErrShort},
		{"line, then array", "PING\n*1\r\n$4\r\nPING\r\n", cmds{{"PING"}, {"PING"}}, ErrShort},
		{"empty lines are skipped", "\r\n\n \t\r\nPING\r\n\r\n", cmds{{"PING"}}, ErrShort},
		{"empty arrays are skipped", "*0\r\n*-1\r\n*-7\r\nPING\r\n*0\r\n", cmds{{"PING"}}, ErrShort},
		{"most arguments", "*8\r\n" + strings.Repeat("$1\r\na\r\n", 8), cmds{strings.Split("aaaaaaaa", "")}, ErrShort},
		{"largest argument", "*1\r\n$20\r\n" + strings.Repeat("v", 20) + "\r\n", cmds{{strings.Repeat("v", 20)}}, ErrShort},
		{"most bytes", "*2\r\n$20\r\n" + strings.Repeat("v", 20) + "\r\n$12\r\n" + strings.Repeat("w", 12) + "\r\n", cmds{{strings.Repeat("v", 20), strings.Repeat("w", 12)}}, ErrShort},
		{"room is for each command", strings.Repeat("*1\r\n$20\r\n"+strings.Repeat("v", 20)+"\r\n", 2), cmds{{strings.Repeat("v", 20)}, {strings.Repeat("v", 20)}}, ErrShort},
		{"longest line", strings.Repeat("x", 39) + "\r\n", cmds{{strings.Repeat("x", 39)}}, ErrShort},
		{"longest line, bare", strings.Repeat("x", 40) + "\n", cmds{{strings.Repeat("x", 40)}}, ErrShort},
		{"most is skipped", strings.Repeat("*0\r\n", 10) + "PING\r\n", cmds{{"PING"}}, ErrShort},

		{"too many arguments", "*9\r\n", nil, errCount},
		{"too many words", "a b c d e f g h i\r\n", nil, errInlineLine},
		{"count with sign", "*+1\r\n", nil, errCount},
		{"count with leading zero", "*01\r\n", nil, errCount},
		{"count with space", "* 1\r\n", nil, errCount},
		{"count with space behind", "*1 \r\n", nil, errCount},
		{"count in hexadecimal", "*0x1\r\n", nil, errCount},
		{"count is negative zero", "*-0\r\n", nil, errCount},
		{"count is only a sign", "*-\r\n", nil, errCount},
		{"count is empty", "*\r\n", nil, errCount},
		{"count beyond 64 bits", "*9223372036854775808\r\n", nil, errCount},
		{"count beyond 64 bits that wraps", "*18446744073709551617\r\n", nil, errCount},
		{"count has a carriage return alone", "*1\rx$1\r\na\r\n", nil, errCount},
		{"count line without end", "*" + strings.Repeat("1", 40), nil, errCountLine},
		{"count line too long", "*" + strings.Repeat("1", 40) + "\r\n", nil, errCountLine},
		{"count line as long as may be", "*" + strings.Repeat("1", 39) + "\r\n", nil, errCount},
		{"bulk line without end", "*1\r\n$" + strings.Repeat("1", 40), nil, errBulkLine},
		{"argument is a line", "*1\r\nx\r\n", nil, ProtocolError("Protocol error: expected '$', got 'x'")},
		{"argument is a number", "*1\r\n:", nil, ProtocolError("Protocol error: expected '$', got ':'")},
		{"argument is no text", "*1\r\n\xff", nil, ProtocolError("Protocol error: expected '$', got '\xff'")},
		{"length with sign", "*1\r\n$+1\r\na\r\n", nil, errBulk},
		{"length with leading zero", "*1\r\n$01\r\na\r\n", nil, errBulk},
		{"length with a colon", "*1\r\n$:\r\n0123456789\r\n", nil, errBulk},
		{"length with a colon behind", "*1\r\n$1:\r\n01234567890123456789\r\n", nil, errBulk},
		{"length with a slash behind", "*1\r\n$1/\r\n012345678\r\n", nil, errBulk},
		{"length with space", "*1\r\n$ 1\r\na\r\n", nil, errBulk},
		{"length is negative", "*1\r\n$-2\r\n", nil, errBulk},
		{"length is empty", "*1\r\n$\r\n", nil, errBulk},
		{"length beyond the limit", "*1\r\n$21\r\n", nil, errBulk},
		{"length of 2^63-1", "*1\r\n$9223372036854775807\r\n", nil, errBulk},
		{"length below -2^63", "*1\r\n$-9223372036854775809\r\n", nil, errBulk},
		{"length has a carriage return alone", "*1\r\n$1\ra\n\r\n", nil, errBulk},
		{"argument longer than told", "*1\r\n$1\r\nab\r\n", nil, errBulk},
		{"argument without line feed", "*1\r\n$1\r\na\r*", nil, errBulk},
		{"bytes beyond the limit", "*2\r\n$20\r\n" + strings.Repeat("v", 20) + "\r\n$13\r\n", nil, errTotal},
		{"line too long", strings.Repeat("x", 41) + "\n", nil, errInlineLine},
		{"line without end", strings.Repeat("x", 41), nil, errInlineLine},
		{"too much is skipped", strings.Repeat("*0\r\n", 11), nil, errInlineLine},
		{"error behind commands", "PING\r\n*1\r\n$4\r\nPING\r\n*x\r\n", cmds{{"PING"}, {"PING"}}, errCount},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for name, cut := range map[string]func() int{"whole": whole, "byte by byte": oneByte, "random": randomCuts(7)} {
				got := parseAll(t, &Parser{Limits: small}, []byte(tt.stream), cut)
				if !reflect.DeepEqual(got.commands, tt.want) || got.err != tt.err {
					t.Errorf("%s: %q, %v; want %q, %v", name, got.commands, got.err, tt.want, tt.err)
				}
			}
		})
	}
}

// A few bytes that state more than they hold, or nest where nothing may nest:
// an error, or nothing at all, and next to no memory.
func TestHostileCommands(t *testing.T) {
	tests := []struct {
		name, stream string
		err          error
	}{
		{"count of 2^31-1", "*2147483647\r\n", errCount},
		{"count of billions", "*1000000000\r\n$1\r\na\r\n", errCount},
		{"count of 2^63-1", "*9223372036854775807\r\n", errCount},
		{"count of -2^63", "*-9223372036854775808\r\n", ErrShort},
		{"most arguments, none there", "*65536\r\n", ErrShort},
		{"largest argument, not there", "*1\r\n$67108864\r\n", ErrShort},
		{"one byte more", "*1\r\n$67108865\r\n", errBulk},
		{"null argument", "*2\r\n$3\r\nGET\r\n$-1\r\n", errBulk},
		{"only a null argument", "*1\r\n$-1\r\n", errBulk},
		{"empty array", "*0\r\n", ErrShort},
		{"null array", "*-1\r\n", ErrShort},
		{"array as argument", "*1\r\n*1\r\n", ProtocolError("Protocol error: expected '$', got '*'")},
		{"arrays in arrays", strings.Repeat("*1000000\r\n", 50), errCount},
		{"arrays in a small array", "*3\r\n$3\r\nSET\r\n*2147483647\r\n*2147483647\r\n", ProtocolError("Protocol error: expected '$', got '*'")},
		{"null as argument", "*1\r\n_\r\n", ProtocolError("Protocol error: expected '$', got '_'")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, streamFrom := range []int64{0, 1} {
				memory := uint64(1 << 62)
				for range 5 { // the least: other goroutines allocate meanwhile
					var cmd Command
					p := &Parser{StreamFrom: streamFrom}
					memory = min(memory, uint64(allocated(func() {
						if n, err := p.Next([]byte(tt.stream), &cmd); n != 0 || err != tt.err {
							t.Errorf("Next = %d, %v; want 0, %v", n, err, tt.err)
						}
					})))
				}
				if memory > 2048 {
					t.Errorf("%d bytes allocated for an input of %d", memory, len(tt.stream))
				}
			}
		})
	}
}

// allocated is how many bytes f allocates; other goroutines must be quiet.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// The costliest commands for their length: arguments of nothing, words of one
// letter, quotes around nothing.
func TestMemoryFollowsInput(t *testing.T) {
	quoted := strings.Repeat(`"" `, 20000)
	for name, stream := range map[string]string{
		"empty arguments": "*60000\r\n" + strings.Repeat("$0\r\n\r\n", 60000),
		"not all there":   "*60000\r\n" + strings.Repeat("$0\r\n\r\n", 50000),
		"words":           strings.Repeat("a ", 30000) + "\r\n",
		"quoted words":    quoted + "\r\n",
		"one quoted word": `"` + strings.Repeat("a", 60000) + "\"\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			var p Parser
			var cmd Command
			memory := allocated(func() {
				n, err := p.Next([]byte(stream), &cmd)
				if err != nil && (err != ErrShort || name != "not all there") {
					t.Errorf("Next = %d, %v", n, err)
				}
			})
			if limit := uint64(80 * len(stream)); memory > limit {
				t.Errorf("%d bytes allocated, %d for each of the input's", memory, memory/uint64(len(stream)))
			}
			if err := p.err; err != nil {
				t.Fatal(err)
			}
			// What follows gives the memory back.
			if name == "not all there" {
				return
			}
			for range 2 {
				if _, err := p.Next([]byte("\"x\"\r\n"), &cmd); err != nil {
					t.Fatal(err)
				}
			}
			if memory := 16*cap(p.spans) + 24*cap(cmd.Args) + cap(p.unquoted); memory > 40*keptArgs+keptUnquoted {
				t.Errorf("%d bytes of memory kept", memory)
			}
		})
	}
}

func TestStreaming(t *testing.T) {
	value := strings.Repeat("v", 100)
	tests := []struct {
		name     string
		stream   []byte
		want     []string // nil: none
		streamed bool
		err      error
	}{
		{"plain", encode("SET", "k", value), []string{"SET", "k", value}, true, ErrShort},
		{"any case", encode("sEt", "k", value), []string{"sEt", "k", value}, true, ErrShort},
		{"options", encode("SET", "k", value, "EX", "10"), []string{"SET", "k", value, "EX", "10"}, true, ErrShort},
		{"as small as may be", encode("SET", "k", value[:50]), []string{"SET", "k", value[:50]}, true, ErrShort},
		{"too small", encode("SET", "k", value[:49]), []string{"SET", "k", value[:49]}, false, ErrShort},
		{"as large as may be", encode("SET", "k", strings.Repeat("v", 200)), []string{"SET", "k", strings.Repeat("v", 200)}, true, ErrShort},
		{"too large", encode("SET", "k", strings.Repeat("v", 201)), nil, false, errBulk},
		{"longest option", encode("SET", "k", value, value[:80]), []string{"SET", "k", value, value[:80]}, true, ErrShort},
		{"option too large", encode("SET", "k", value, value[:81]), nil, false, errBulk},
		{"a SET behind the value", encode("SET", "k", value, "SET", "k", value[:60]), []string{"SET", "k", value, "SET", "k", value[:60]}, true, ErrShort},
		{"key too large", encode("SET", value, value), nil, false, errBulk},
		{"not the third argument", encode("SET", value[:60], "v", value[:60]), []string{"SET", value[:60], "v", value[:60]}, false, ErrShort},
		{"other command", encode("GET", "k", value[:60]), []string{"GET", "k", value[:60]}, false, ErrShort},
		{"longer name", encode("SETX", "k", value[:60]), []string{"SETX", "k", value[:60]}, false, ErrShort},
		{"other name, one bit away", encode("SE\x14", "k", value[:60]), []string{"SE\x14", "k", value[:60]}, false, ErrShort},
		{"other command, too large", encode("APPEND", "k", value), nil, false, errBulk},
		{"line", []byte("SET k " + value + "\r\n"), []string{"SET", "k", value}, false, ErrShort},
		{"value longer than told", []byte("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$50\r\n" + value[:51] + "\r\n"), nil, false, errBulk},
		{"value without line feed", []byte("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$50\r\n" + value[:50] + "\rx"), nil, false, errBulk},
		{"null behind the value", []byte("*4\r\n$3\r\nSET\r\n$1\r\nk\r\n$50\r\n" + value[:50] + "\r\n$-1\r\n"), nil, false, errBulk},
		{"array behind the value", []byte("*4\r\n$3\r\nSET\r\n$1\r\nk\r\n$50\r\n" + value[:50] + "\r\n*1\r\n"), nil, false, ProtocolError("Protocol error: expected '$', got '*'")},
		{"the end misses", []byte("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$50\r\n" + value[:50]), nil, false, ErrShort},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			// What comes before and after is none the worse for it.
			ping := []byte("*1\r\n$4\r\nPING\r\n")
			stream := append(append(bytes.Clone(ping), tt.stream...), ping...)
			want := [][]string{{"PING"}}
			if tt.want != nil {
				want = append(want, tt.want, []string{"PING"})
			}
			if tt.name == "the end misses" {
				stream = stream[:len(stream)-len(ping)]
			}
			for name, cut := range map[string]func() int{"whole": whole, "byte by byte": oneByte, "random": randomCuts(7)} {
				p := &Parser{Limits: Limits{MaxBulk: 80}, StreamFrom: 50, MaxStream: 200}
				got := parseAll(t, p, stream, cut)
				if !reflect.DeepEqual(got.commands, want) || got.err != tt.err || (got.streamed == 1) != tt.streamed {
					t.Errorf("%s: %q, %d streamed, %v; want %q, %v", name, got.commands, got.streamed, got.err, want, tt.err)
				}
			}
		})
	}
}

// Limits as large as can be said overflow nothing.
func TestNoLimits(t *testing.T) {
	p := Parser{Limits: Limits{MaxArgs: math.MaxInt, MaxInline: math.MaxInt, MaxBulk: math.MaxInt64, MaxCommand: math.MaxInt}}
	got := parseAll(t, &p, append([]byte("PING\r\n"), encode("GET", "k")...), oneByte)
	if want := [][]string{{"PING"}, {"GET", "k"}}; !reflect.DeepEqual(got.commands, want) || got.err != ErrShort {
		t.Errorf("%q, %v; want %q", got.commands, got.err, want)
	}
	var cmd Command
	if n, err := p.Next([]byte("*9223372036854775807\r\n$9223372036854775807\r\n"), &cmd); n != 0 || err != ErrShort {
		t.Errorf("Next = %d, %v", n, err)
	}
}

// A value beyond MaxBulk is the caller's to refuse, up to 512 MiB by default.
func TestStreamingDefaults(t *testing.T) {
	for size, want := range map[int]error{512 << 20: nil, 512<<20 + 1: errBulk} {
		p := Parser{StreamFrom: 1}
		var cmd Command
		head := fmt.Appendf(nil, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n", size)
		n, err := p.Next(append(head, "value"...), &cmd)
		if err != want {
			t.Errorf("%d bytes: error %v, want %v", size, err, want)
		}
		if err == nil && (n != len(head) || cmd.ValueLen != int64(size) || len(cmd.Args) != 2) {
			t.Errorf("%d bytes: used %d of %d, %+v", size, n, len(head), cmd)
		}
	}
}

func TestOrderOfCalls(t *testing.T) {
	panics := func(f func()) (v any) {
		defer func() { v = recover() }()
		f()
		return nil
	}
	var cmd Command
	p := &Parser{StreamFrom: 1}
	if panics(func() { p.Rest(nil, &cmd) }) == nil {
		t.Error("Rest without a value does not panic")
	}
	if _, err := p.Next(encode("SET", "k", "v"), &cmd); err != nil || !cmd.Streaming {
		t.Fatalf("Next: %v, %+v", err, cmd)
	}
	if panics(func() { p.Next(nil, &cmd) }) == nil {
		t.Error("Next before Rest does not panic")
	}
	if n, err := p.Rest([]byte("\r"), &cmd); n != 0 || err != ErrShort {
		t.Errorf("Rest of half a line end = %d, %v", n, err)
	}
	if panics(func() { p.Next(nil, &cmd) }) == nil {
		t.Error("Next after a short Rest does not panic")
	}
	if n, err := p.Rest([]byte("\r\nPING\r\n"), &cmd); n != 2 || err != nil || len(cmd.Args) != 0 {
		t.Errorf("Rest = %d, %v, %q", n, err, cmd.Args)
	}
	if panics(func() { p.Rest(nil, &cmd) }) == nil {
		t.Error("a second Rest does not panic")
	}
	if n, err := p.Next([]byte("PING\r\n"), &cmd); n != 6 || err != nil {
		t.Errorf("Next = %d, %v", n, err)
	}
}

// Whoever goes on after an error hears it again, from either call.
func TestErrorsStay(t *testing.T) {
	for name, stream := range map[string]string{"in Next": "*x\r\n", "in Rest": "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nvX*"} {
		t.Run(name, func(t *testing.T) {
			p := &Parser{StreamFrom: 1}
			var cmd Command
			n, err := p.Next([]byte(stream), &cmd)
			if cmd.Streaming {
				_, err = p.Rest([]byte(stream)[n+1:], &cmd)
			}
			var protocol ProtocolError
			if !errors.As(err, &protocol) {
				t.Fatalf("error %v", err)
			}
			for range 2 {
				if n, e := p.Next([]byte("PING\r\n"), &cmd); n != 0 || e != err || len(cmd.Args) != 0 {
					t.Errorf("Next = %d, %v, %q", n, e, cmd.Args)
				}
				if n, e := p.Rest([]byte("\r\n"), &cmd); n != 0 || e != err || len(cmd.Args) != 0 {
					t.Errorf("Rest = %d, %v, %q", n, e, cmd.Args)
				}
			}
		})
	}
}

// The parser takes up where it stopped: the bytes it searches are those of the
// input, once or a little more, and none of them within arguments.
func TestLinear(t *testing.T) {
	many := []byte("*60000\r\n" + strings.Repeat("$1\r\nx\r\n", 60000))
	large := append([]byte("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$67108864\r\n"), make([]byte, 64<<20)...)
	large = append(large, "\r\n"...)
	tests := []struct {
		name   string
		stream []byte
		piece  int
		most   int
	}{
		// Of each header three bytes, and the carriage return again.
		{"60000 arguments", many, 1, 4*60000 + 8},
		{"value of 64 MiB", large, 16 << 10, 64},
		{"long line", []byte(strings.Repeat("x", 64<<10) + "\n"), 1, 64<<10 + 1},
		{"many words", []byte(strings.Repeat("x ", 32<<10) + "\n"), 1, 64<<10 + 1},
		{"long number", []byte("*" + strings.Repeat("1", 65534) + "\r"), 1, 64<<10 + 1},
		{"much to skip", []byte(strings.Repeat("*0\r\n", 16<<10) + "x\n"), 1, 128 << 10},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var p Parser
			var cmd Command
			for end := 0; end < len(tt.stream); {
				end = min(end+tt.piece, len(tt.stream))
				n, err := p.Next(tt.stream[:end], &cmd)
				if err != nil && err != ErrShort {
					t.Fatal(err)
				}
				if n > 0 && n != len(tt.stream) {
					t.Fatalf("used %d of %d bytes", n, len(tt.stream))
				}
			}
			if p.searched > int64(tt.most) {
				t.Errorf("searched %d bytes of %d, want at most %d", p.searched, len(tt.stream), tt.most)
			}
			if p.searched == 0 {
				t.Error("the search is not counted")
			}
		})
	}
}

func TestNoAllocations(t *testing.T) {
	mget := []string{"MGET"}
	for i := range 800 {
		mget = append(mget, fmt.Sprint("key", i))
	}
	for name, stream := range map[string][]byte{
		"small":   append(encode("GET", "k"), encode("SET", "k", "v", "EX", "10")...),
		"many":    encode(mget...),
		"line":    []byte("PING\r\n\r\nSET k v\r\n"),
		"quotes":  []byte("SET \"a b\" 'c'\r\n"),
		"stream":  encode("SET", "k", strings.Repeat("v", 100), "EX", "10"),
		"in half": encode("ECHO", "hello"),
	} {
		t.Run(name, func(t *testing.T) {
			p := Parser{StreamFrom: 100}
			var cmd Command
			run := func() {
				if name == "in half" {
					if _, err := p.Next(stream[:len(stream)/2], &cmd); err != ErrShort {
						t.Fatal(err)
					}
				}
				for b := stream; len(b) > 0; {
					n, err := p.Next(b, &cmd)
					if err != nil {
						t.Fatal(err)
					}
					b = b[n:]
					if cmd.Streaming {
						b = b[cmd.ValueLen:]
						if n, err = p.Rest(b, &cmd); err != nil {
							t.Fatal(err)
						}
						b = b[n:]
					}
				}
			}
			if a := testing.AllocsPerRun(100, run); a != 0 {
				t.Errorf("%v allocations", a)
			}
		})
	}
}

// An idle connection must not keep an input buffer that its server gave up.
func TestCommandForgets(t *testing.T) {
	var p Parser
	var cmd Command
	if _, err := p.Next(encode("MGET", "a", "b", "c"), &cmd); err != nil {
		t.Fatal(err)
	}
	for _, a := range cmd.Args {
		if cap(a) != len(a) {
			t.Errorf("an append to %q runs into what follows", a)
		}
	}
	if _, err := p.Next(nil, &cmd); err != ErrShort {
		t.Fatal(err)
	}
	for i, a := range cmd.Args[:cap(cmd.Args)] {
		if a != nil {
			t.Errorf("argument %d is still %q", i, a)
		}
	}
}

func TestParseInt(t *testing.T) {
	tests := []struct {
		in   string
		want int64
		ok   bool
	}{
		{"0", 0, true}, {"7", 7, true}, {"-1", -1, true}, {"1234567890", 1234567890, true},
		{"9223372036854775807", 1<<63 - 1, true}, {"-9223372036854775808", -1 << 63, true},
		{"9223372036854775808", 0, false}, {"-9223372036854775809", 0, false},
		{"9999999999999999999", 0, false}, {"99999999999999999999", 0, false}, {"18446744073709551616", 0, false},
		{"", 0, false}, {"-", 0, false}, {"--1", 0, false}, {"+1", 0, false}, {"00", 0, false}, {"01", 0, false},
		{"-0", 0, false}, {"-01", 0, false}, {" 1", 0, false}, {"1 ", 0, false}, {"1a", 0, false}, {"1.0", 0, false},
		{"/", 0, false}, {":", 0, false},
	}
	for _, tt := range tests {
		got, ok := parseInt([]byte(tt.in))
		if ok != tt.ok || ok && got != tt.want {
			t.Errorf("parseInt(%q) = %d, %t; want %d, %t", tt.in, got, ok, tt.want, tt.ok)
		}
	}
}

// FuzzParser: the commands and the error depend on the bytes alone: not on the
// cuts, nor on streaming where it has the same limits. What is parsed encodes
// and parses to itself.
func FuzzParser(f *testing.F) {
	for _, s := range []string{
		"*2\r\n$3\r\nGET\r\n$1\r\nk\r\nPING\r\n",
		"*5\r\n$3\r\nSET\r\n$1\r\nk\r\n$6\r\nvalue!\r\n$2\r\nEX\r\n$2\r\n10\r\n*1\r\n$4\r\nPING\r\n",
		"SET \"a\\x41\\n b\" 'c\\'d' e\r\n", "\"open\r\n", "a\"b\"c\r\n", "\r\n\r\n\v\f x\vy\r\n",
		"*2147483647\r\n", "*1000000000\r\n$1\r\na\r\n", "*1\r\n$-1\r\n", "*0\r\n*-1\r\nPING\r\n", "*1\r\n*1\r\n",
		"*1\r\n$30\r\n", "*1\r\rx", "*01\r\n", "$5\r\nhello\r\n",
		"*3\r\n$3\r\nset\r\n$1\r\nk\r\n$5\r\nvalueX\n",
		strings.Repeat("x", 50), "*" + strings.Repeat("1", 50), strings.Repeat("\n", 50),
	} {
		f.Add([]byte(s), uint64(len(s)))
	}
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64) {
		if len(stream) > 512 {
			return
		}
		for _, streamFrom := range []int64{0, 4} {
			parser := func() *Parser { return &Parser{Limits: small, StreamFrom: streamFrom, MaxStream: 30} }
			want := parseAll(t, parser(), stream, whole)
			for name, cut := range map[string]func() int{"byte by byte": oneByte, "cut": randomCuts(seed)} {
				if got := parseAll(t, parser(), stream, cut); !reflect.DeepEqual(got, want) {
					t.Fatalf("%q %s: %+v, whole: %+v", stream, name, got, want)
				}
			}
			var protocol ProtocolError
			if want.err != ErrShort && !errors.As(want.err, &protocol) {
				t.Fatalf("%q: error %v", stream, want.err)
			}
		}

		plain := parseAll(t, &Parser{}, stream, whole)
		streamed := parseAll(t, &Parser{StreamFrom: 1, MaxStream: 64 << 20}, stream, randomCuts(seed))
		if !reflect.DeepEqual(plain.commands, streamed.commands) || plain.err != streamed.err || plain.used != streamed.used {
			t.Fatalf("%q: %+v; streamed: %+v", stream, plain, streamed)
		}
		var again []byte
		for _, args := range plain.commands {
			again = append(again, encode(args...)...)
		}
		if got := parseAll(t, &Parser{}, again, whole); !reflect.DeepEqual(got.commands, plain.commands) || got.used != len(again) {
			t.Fatalf("%q gave %q, which gives %+v", stream, again, got)
		}
	})
}
