package wire

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func TestHeader(t *testing.T) {
	good := AppendHeader(nil, Header{Type: TypeSet, Flags: FlagMore, ID: 0x0102030405060708, Length: 300})
	want := []byte{'K', 'V', 1, 0x12, 1, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 0x2c, 1, 0, 0, 0, 0, 0, 0}
	if !bytes.Equal(good, want) {
		t.Fatalf("header is % x, want % x", good, want)
	}
	for _, tc := range []struct {
		name   string
		change func(b []byte)
		err    error
		code   Code
		got    uint64
		limit  uint64
	}{
		{"magic", func(b []byte) { copy(b, "GE") }, ErrMagic, CodeBadMagic, 'G' | 'E'<<8, 'K' | 'V'<<8},
		{"version", func(b []byte) { b[2] = 2 }, ErrVersion, CodeBadVersion, 2, 1},
		{"unknown flag", func(b []byte) { b[4] = 3 }, ErrFlags, CodeBadFlags, 3, 1},
		{"high flag", func(b []byte) { b[5] = 0x80 }, ErrFlags, CodeBadFlags, 0x8001, 1},
		{"flag of another type", func(b []byte) { b[3] = byte(TypeGet) }, ErrFlags, CodeBadFlags, 1, 0},
		{"flag missing", func(b []byte) { b[3], b[4] = byte(TypeEvents), 0 }, ErrFlags, CodeBadFlags, 0, 1},
		{"unknown flag of unknown type", func(b []byte) { b[3], b[4] = 0xff, 2 }, ErrFlags, CodeBadFlags, 2, 1},
		{"reserved 6", func(b []byte) { b[6] = 1 }, ErrReserved, CodeBadFlags, 1, 0},
		{"reserved 23", func(b []byte) { b[23] = 1 }, ErrReserved, CodeBadFlags, 1 << 24, 0},
		{"length", func(b []byte) { copy(b[16:], "\xff\xff\xff\xff") }, ErrLength, CodeBadLength, 1<<32 - 1, 1043 + MaxChunk},
		{"length of a short type", func(b []byte) { b[3], b[4], b[16], b[17] = byte(TypeCancel), 0, 9, 0 }, ErrLength, CodeBadLength, 9, 8},
		{"length of an unknown type", func(b []byte) { b[3], b[4] = 0xff, 0; copy(b[16:], "\x01\x10\x04\x00") }, ErrLength, CodeBadLength, MaxPayload + 1, MaxPayload},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := bytes.Clone(good)
			tc.change(b)
			_, err := ParseHeader(b)
			var fe *FrameError
			if !errors.Is(err, tc.err) || !errors.As(err, &fe) {
				t.Fatalf("ParseHeader: %v, want %v", err, tc.err)
			}
			if fe.Code != tc.code || CodeOf(err) != tc.code || fe.Got != tc.got || fe.Limit != tc.limit {
				t.Errorf("%+v, want %v, %#x, %#x", fe, tc.code, tc.got, tc.limit)
			}
			if _, _, rest, err := Next(b); !errors.Is(err, tc.err) || len(rest) != len(b) {
				t.Errorf("Next: %v, %d bytes left", err, len(rest))
			}
			if n := Need(b); n != 0 {
				t.Errorf("Need: %d more bytes of a frame that is broken", n)
			}
			if !strings.Contains(err.Error(), "limit") {
				t.Errorf("%q names no limit", err)
			}
		})
	}
}

// A type of a later version can be skipped.
func TestUnknownType(t *testing.T) {
	b := append(AppendHeader(nil, Header{Type: 0x7f, Flags: FlagMore, ID: 1, Length: 3}), "abcdef"...)
	h, payload, rest, err := Next(b)
	if err != nil || h.Type.Known() || string(payload) != "abc" || string(rest) != "def" {
		t.Errorf("%+v, %q, %q, %v", h, payload, rest, err)
	}
	if h.Type.FromClient() || h.Type.FromServer() || New(h.Type) != nil || h.Type.String() != "type(127)" {
		t.Errorf("%v passes for known", h.Type)
	}
}

func TestAppendHeaderPanics(t *testing.T) {
	for _, h := range []Header{
		{Type: TypeGet, Flags: FlagMore},
		{Type: TypeEvents},
		{Type: TypePing, Length: MaxPing + 1},
		{Type: TypeSet, Flags: 2},
	} {
		func() {
			defer func() {
				if _, ok := recover().(*FrameError); !ok {
					t.Errorf("%+v was written", h)
				}
			}()
			AppendHeader(nil, h)
		}()
	}
}

func TestNext(t *testing.T) {
	b := (&Ping{Bytes: []byte("one")}).Append(nil, 1)
	first := len(b)
	b = (&Ping{Bytes: []byte("two")}).Append(b, 2)
	for n := range first {
		if _, _, rest, err := Next(b[:n]); err != ErrShort || len(rest) != n {
			t.Fatalf("%d bytes of a frame of %d: %v, %d left", n, first, err, len(rest))
		}
		want := first - n
		if n < HeaderSize {
			want = HeaderSize - n
		}
		if got := Need(b[:n]); got != want {
			t.Fatalf("%d bytes of a frame of %d: Need says %d, want %d", n, first, got, want)
		}
	}
	h, payload, rest, err := Next(b)
	if err != nil || h.ID != 1 || string(payload) != "one" || len(rest) != len(b)-first || Need(b) != 0 {
		t.Fatalf("%+v, %q, %d left, %v", h, payload, len(rest), err)
	}
	if grown := append(payload, 'X'); &grown[0] == &payload[0] {
		t.Error("an append to a payload writes into the next frame")
	}
	h, payload, rest, err = Next(rest)
	if err != nil || h.ID != 2 || string(payload) != "two" || len(rest) != 0 {
		t.Fatalf("%+v, %q, %d left, %v", h, payload, len(rest), err)
	}
}

func TestDirections(t *testing.T) {
	for i := range 256 {
		typ := Type(i)
		if !typ.Known() {
			continue
		}
		client, server := typ.FromClient(), typ.FromServer()
		if want := i&0x80 == 0; client != want {
			t.Errorf("%v: from client: %v", typ, client)
		}
		if want := i&0x80 != 0 || typ == TypeData; server != want {
			t.Errorf("%v: from server: %v", typ, server)
		}
	}
}

func TestNames(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{StatusOK.String(), "ok"}, {StatusTooLarge.String(), "too_large"}, {StatusReleased.String(), "released"},
		{StatusChecksum.String(), "checksum"}, {StatusGroup.String(), "group"},
		{StatusAmbiguous.String(), "ambiguous_hash"}, {Status(77).String(), "status(77)"}, {(StatusAdapter + 1).String(), "status(31)"},
		{OutcomeAccepted.String(), "accepted"}, {OutcomeEnd.String(), "end"}, {(OutcomeEnd + 1).String(), "stage(9)"},
		{CodeBadMagic.String(), "bad_magic"}, {CodeShutdown.String(), "shutdown"},
		{Code(77).String(), "code(77)"}, {Code(0).String(), "code(0)"},
		{TypeDiscardHint.String(), "DISCARD_HINT"}, {Type(0).String(), "type(0)"},
		{RouteNone.String(), "none"}, {RouteStream.String(), "stream"}, {(RouteStream + 1).String(), "route(5)"},
		{TransferCopy.String(), "copy"}, {TransferMove.String(), "move"}, {Transfer(2).String(), "transfer(2)"},
	} {
		if tc.got != tc.want {
			t.Errorf("%q, want %q", tc.got, tc.want)
		}
	}
}
