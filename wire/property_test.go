package wire

import (
	"bytes"
	"errors"
	"reflect"
	"runtime"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

// draws has, for each type, a generator of any message of it.
var draws = map[Type]func(t *rapid.T) Message{
	TypeHello: func(t *rapid.T) Message {
		low := rapid.Uint8Range(1, 255).Draw(t, "min")
		return &Hello{low, rapid.Uint8Range(low, 255).Draw(t, "max"), [16]byte(fixed(t, 16)), id(t), [32]byte(fixed(t, 32)), text(t, 0, MaxName), text(t, 0, MaxName), text(t, 0, MaxLayout)}
	},
	TypeChallenge: func(t *rapid.T) Message {
		return &Challenge{rapid.Uint8Range(1, 255).Draw(t, "version"), rapid.Bool().Draw(t, "auth"), [16]byte(fixed(t, 16)), id(t), [32]byte(fixed(t, 32)), id(t), u(t), u(t), u(t)}
	},
	TypeAuth:    func(t *rapid.T) Message { return &Auth{[32]byte(fixed(t, 32))} },
	TypeWelcome: func(t *rapid.T) Message { return &Welcome{[32]byte(fixed(t, 32))} },
	TypePing:    func(t *rapid.T) Message { return &Ping{some(t, 0, MaxPing)} },
	TypePong:    func(t *rapid.T) Message { return &Pong{some(t, 0, MaxPing)} },
	TypeCancel:  func(t *rapid.T) Message { return &Cancel{id(t)} },
	TypeStatus:  func(t *rapid.T) Message { return &StatusReply{status(t), id(t)} },
	TypeStatuses: func(t *rapid.T) Message {
		return &Statuses{many(t, func(t *rapid.T) Status { return status(t) })}
	},
	TypeCount:   func(t *rapid.T) Message { return &Count{u(t)} },
	TypeError:   func(t *rapid.T) Message { return &ErrorReply{Code(status(t)), text(t, 0, MaxText)} },
	TypeGoodbye: func(t *rapid.T) Message { return &Goodbye{Code(status(t)), text(t, 0, MaxText)} },
	TypeGet:     func(t *rapid.T) Message { return &Get{key(t)} },
	TypeSet: func(t *rapid.T) Message {
		v, total := part(t)
		return &Set{verb(t), id(t), key(t), total, v, rapid.Bool().Draw(t, "more")}
	},
	TypeValue: func(t *rapid.T) Message {
		v, total := part(t)
		return &Value{total, v, rapid.Bool().Draw(t, "more")}
	},
	TypeData: func(t *rapid.T) Message {
		v := some(t, 1, 300)
		return &Data{rapid.Uint64Max(1<<64-1-uint64(len(v))).Draw(t, "offset"), v, rapid.Bool().Draw(t, "more")}
	},
	TypeDelete: func(t *rapid.T) Message { return &Delete{many(t, key)} },
	TypeExists: func(t *rapid.T) Message { return &Exists{Mode(rapid.IntRange(0, 1).Draw(t, "mode")), many(t, key)} },
	TypeQuery:  func(t *rapid.T) Message { return &Query{many(t, key), text(t, 0, MaxText)} },
	TypeResults: func(t *rapid.T) Message {
		return &Results{many(t, func(t *rapid.T) Result { return Result{status(t), rapid.Uint8().Draw(t, "tier"), id(t)} })}
	},
	TypeFetch: func(t *rapid.T) Message { return &Fetch{many(t, key), text(t, 0, MaxText)} },
	TypeClaims: func(t *rapid.T) Message {
		return &Claims{many(t, func(t *rapid.T) Claim { return Claim{status(t), id(t), id(t), u(t), id(t)} })}
	},
	TypeDeliver:   func(t *rapid.T) Message { return &Deliver{id(t)} },
	TypeRelease:   func(t *rapid.T) Message { return &Release{many(t, id)} },
	TypeShmAttach: func(t *rapid.T) Message { return &ShmAttach{id(t)} },
	TypeShmPools: func(t *rapid.T) Message {
		return &ShmPools{many(t, func(t *rapid.T) Pool { return Pool{u(t), id(t), id(t)} }), id(t)}
	},
	TypeReserve:     func(t *rapid.T) Message { return &Reserve{key(t), id(t), verb(t)} },
	TypeReservation: func(t *rapid.T) Message { return &Reservation{status(t), id(t), u(t), id(t)} },
	TypeCommit:      func(t *rapid.T) Message { return &Commit{id(t), rapid.Bool().Draw(t, "has"), id(t)} },
	TypeAbort:       func(t *rapid.T) Message { return &Abort{id(t)} },
	TypeHint: func(t *rapid.T) Message {
		return &Hint{Format(rapid.IntRange(0, 1).Draw(t, "format")), text(t, 0, MaxText), some(t, 0, 300)}
	},
	TypeHintResults: func(t *rapid.T) Message { return &HintResults{some(t, 0, 300)} },
	TypeDiscardHint: func(t *rapid.T) Message { return &DiscardHint{text(t, 1, MaxText)} },
	TypeStats:       func(t *rapid.T) Message { return &Stats{} },
	TypeStatsReply:  func(t *rapid.T) Message { return &StatsReply{some(t, 0, 300)} },
	TypeSubscribe:   func(t *rapid.T) Message { return &Subscribe{id(t), id(t)} },
	TypeEvents: func(t *rapid.T) Message {
		return &Events{id(t), id(t), rapid.Bool().Draw(t, "snapshot"), many(t, func(t *rapid.T) Event {
			e := Event{EventKind(rapid.IntRange(1, 3).Draw(t, "kind")), rapid.Uint8().Draw(t, "tier"), nil, some(t, 0, MaxKey), id(t)}
			if e.Kind != EventCleared {
				e.Key = key(t)
			}
			return e
		})}
	},
	TypePeerHello: func(t *rapid.T) Message {
		return &PeerHello{peerInfo(t), Routes(rapid.Uint8().Draw(t, "routes")), id(t)}
	},
	TypePeerWelcome: func(t *rapid.T) Message {
		return &PeerWelcome{peerInfo(t), Route(rapid.Uint8().Draw(t, "route")), id(t), text(t, 0, MaxName)}
	},
	TypePeerStream: func(t *rapid.T) Message { return &PeerStream{id(t), rapid.Uint8().Draw(t, "index")} },
	TypePeerQuery:  func(t *rapid.T) Message { return &PeerQuery{text(t, 0, MaxName), many(t, key)} },
	TypeInvalidate: func(t *rapid.T) Message { return &Invalidate{id(t), text(t, 0, MaxName), many(t, wanted)} },
	TypeStart: func(t *rapid.T) Message {
		mode := Transfer(rapid.IntRange(0, 1).Draw(t, "mode"))
		return &Start{id(t), id(t), mode, rapid.Bool().Draw(t, "owned"), u(t), [32]byte(fixed(t, 32)), text(t, 0, MaxName), many(t, wanted)}
	},
	TypeOffer: func(t *rapid.T) Message {
		return &Offer{id(t), id(t), many(t, func(t *rapid.T) Offered {
			flags := OfferFlags(rapid.Uint8().Draw(t, "flags"))
			return Offered{status(t), flags, status(t), u(t), id(t), id(t), u(t), uint16(u(t)), some(t, 0, MaxKey), some(t, 0, MaxPieces), many(t, id)}
		})}
	},
	TypeRefused: func(t *rapid.T) Message { return &Refused{id(t), status(t), text(t, 0, MaxText)} },
	TypeAccept: func(t *rapid.T) Message {
		return &Accept{id(t), id(t), many(t, func(t *rapid.T) Accepted { return Accepted{item(t), some(t, 0, MaxDesc)} })}
	},
	TypeDone:     func(t *rapid.T) Message { return &Done{id(t), id(t), many(t, itemStatus)} },
	TypeConfirm:  func(t *rapid.T) Message { return &Confirm{id(t), id(t), many(t, item)} },
	TypeRemoved:  func(t *rapid.T) Message { return &Removed{id(t), id(t), many(t, itemStatus)} },
	TypeAsk:      func(t *rapid.T) Message { return &Ask{id(t), id(t), many(t, item)} },
	TypeDecline:  func(t *rapid.T) Message { return &Decline{id(t), id(t), many(t, itemStatus)} },
	TypeFinish:   func(t *rapid.T) Message { return &Finish{id(t), id(t)} },
	TypeFinished: func(t *rapid.T) Message { return &Finished{id(t), id(t)} },
	TypeProbe:    func(t *rapid.T) Message { return &Probe{id(t), id(t), rapid.Bool().Draw(t, "cancel"), many(t, item)} },
	TypeProbeAck: func(t *rapid.T) Message {
		return &ProbeAck{id(t), id(t), rapid.Bool().Draw(t, "terminal"), rapid.Bool().Draw(t, "known")}
	},
	TypeResolveHashes:     func(t *rapid.T) Message { return &ResolveHashes{id(t), many(t, id)} },
	TypeHashesResolved:    func(t *rapid.T) Message { return &HashesResolved{id(t), id(t), many(t, resolved)} },
	TypeSubscribeOutcomes: func(t *rapid.T) Message { return &SubscribeOutcomes{id(t), id(t)} },
	TypeOutcomes: func(t *rapid.T) Message {
		return &Outcomes{id(t), rapid.Bool().Draw(t, "gap"), many(t, outcome)}
	},
	TypeDescribe: func(t *rapid.T) Message {
		return &Describe{u(t), text(t, 0, MaxName), many(t, func(t *rapid.T) Description {
			return Description{key(t), DescribeFlags(rapid.Uint8().Draw(t, "flags")), id(t), id(t), many(t, u)}
		})}
	},
	TypeBlock: func(t *rapid.T) Message { return &Block{item(t), id(t)} },
}

func id(t *rapid.T) uint64     { return rapid.Uint64().Draw(t, "u64") }
func u(t *rapid.T) uint32      { return rapid.Uint32().Draw(t, "u32") }
func status(t *rapid.T) Status { return Status(rapid.Uint16().Draw(t, "u16")) }
func verb(t *rapid.T) Verb     { return Verb(rapid.IntRange(0, 2).Draw(t, "verb")) }
func key(t *rapid.T) []byte    { return some(t, 1, MaxKey) }
func item(t *rapid.T) uint32   { return rapid.Uint32Max(MaxItems-1).Draw(t, "index") }
func wanted(t *rapid.T) Wanted { return Wanted{key(t), u(t)} }
func itemStatus(t *rapid.T) ItemStatus {
	return ItemStatus{item(t), status(t)}
}
func resolved(t *rapid.T) Resolved {
	if s := Status(rapid.Uint16Max(3).Draw(t, "status")); s != StatusOK {
		return Resolved{Status: s}
	}
	return Resolved{0, text(t, 0, MaxName), key(t), u(t), id(t), uint16(u(t)), uint16(u(t)), some(t, 0, MaxPieces), some(t, 0, MaxDescription)}
}
func outcome(t *rapid.T) OutcomeItem {
	stage := OutcomeStage(rapid.Uint8().Draw(t, "stage"))
	return OutcomeItem{
		id(t), id(t), text(t, 0, MaxText), text(t, 0, MaxText), u(t), text(t, 0, MaxName), text(t, 0, MaxText), u(t), stage,
		many(t, id), text(t, 0, MaxText), u(t), u(t), u(t), u(t), u(t), u(t), id(t),
	}
}
func peerInfo(t *rapid.T) PeerInfo {
	return PeerInfo{text(t, 0, MaxName), text(t, 0, MaxName), [16]byte(fixed(t, 16)), some(t, 0, MaxUCX)}
}
func fixed(t *rapid.T, n int) []byte {
	return rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "array")
}

// some is lo to hi bytes, often few, and nil for none.
func some(t *rapid.T, lo, hi int) []byte {
	b := rapid.SliceOfN(rapid.Byte(), lo, max(lo, min(hi, 12))).Draw(t, "bytes")
	if rapid.IntRange(0, 9).Draw(t, "long") == 0 {
		b = bytes.Repeat([]byte{0xa5}, hi)
	}
	if len(b) == 0 {
		return nil
	}
	return b
}

func text(t *rapid.T, lo, hi int) string { return rapid.StringN(lo, hi/4, hi).Draw(t, "text") }

func part(t *rapid.T) (value []byte, total uint64) {
	value = some(t, 0, 300)
	return value, rapid.Uint64Min(uint64(len(value))).Draw(t, "total")
}

func many[T any](t *rapid.T, one func(*rapid.T) T) []T {
	return rapid.SliceOfN(rapid.Custom(one), 0, 6).Draw(t, "list")
}

// tail is the length of a message's last field where it has none of its own: a
// payload may end anywhere in it.
func tail(m Message) int {
	switch m := m.(type) {
	case *Ping:
		return len(m.Bytes)
	case *Pong:
		return len(m.Bytes)
	case *Set:
		return len(m.Value)
	case *Value:
		return len(m.Value)
	case *Data:
		return len(m.Bytes) - 1
	case *Hint:
		return len(m.Body)
	case *HintResults:
		return len(m.Body)
	case *StatsReply:
		return len(m.Body)
	}
	return 0
}

func TestRoundTrip(t *testing.T) {
	if len(draws) != len(every()) {
		t.Errorf("%d generators for %d types", len(draws), len(every()))
	}
	for typ, draw := range draws {
		t.Run(typ.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				m, id := draw(t), id(t)
				before := rapid.SliceOfN(rapid.Byte(), 0, 3).Draw(t, "before")
				b := m.Append(bytes.Clone(before), id)
				if !bytes.Equal(b[:len(before)], before) {
					t.Fatal("Append changed what was there")
				}
				b = b[len(before):]
				h, payload, rest, err := Next(append(b, "next"...))
				if err != nil || string(rest) != "next" || h.Type != typ || h.ID != id {
					t.Fatalf("%+v, rest %q, %v", h, rest, err)
				}
				if len(payload) > typ.MaxLength() {
					t.Fatalf("%d bytes, at most %d", len(payload), typ.MaxLength())
				}
				got := New(typ)
				if err := got.Parse(payload); err != nil {
					t.Fatal(err)
				}
				setMore(got, h.More())
				if !reflect.DeepEqual(norm(got), norm(m)) {
					t.Fatalf("%+v became %+v", m, got)
				}
				for _, n := range cuts(t, len(b)-1) {
					if _, _, _, err := Next(b[:n]); err != ErrShort {
						t.Fatalf("%d bytes of %d: %v", n, len(b), err)
					}
				}
				if len(payload) == 0 {
					return
				}
				for _, n := range cuts(t, len(payload)-1) {
					cut := New(typ)
					err := cut.Parse(payload[:n:n])
					if last, ok := last(m); ok && n == len(payload)-last {
						continue // a whole message of a client that does not know of the field
					}
					if n < len(payload)-tail(m) {
						if !errors.Is(err, ErrPayload) {
							t.Fatalf("%d bytes of a payload of %d: %v", n, len(payload), err)
						}
						continue
					}
					if err != nil {
						t.Fatalf("a tail cut short, %d bytes of %d: %v", n, len(payload), err)
					}
				}
			})
		})
	}
}

// last is how many bytes the field takes that ends a message and may be absent.
func last(m Message) (int, bool) {
	switch m := m.(type) {
	case *Hello:
		return 2 + len(m.Layout), true
	case *Query:
		return 2 + len(m.RequestID), true
	case *Fetch:
		return 2 + len(m.RequestID), true
	case *PeerHello:
		return 8, true
	}
	return 0, false
}

// norm makes lists of nothing alike: nil and empty mean the same.
func norm(m Message) Message {
	var walk func(v reflect.Value)
	walk = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				walk(v.Field(i))
			}
		case reflect.Slice:
			if v.Len() == 0 {
				v.SetZero()
			}
			for i := range v.Len() {
				walk(v.Index(i))
			}
		}
	}
	walk(reflect.ValueOf(m).Elem())
	return m
}

// cuts is all lengths up to n when there are few, and a choice of them else.
func cuts(t *rapid.T, n int) []int {
	if n > 200 {
		return rapid.SliceOfN(rapid.IntRange(0, n), 50, 50).Draw(t, "cuts")
	}
	all := make([]int, n+1)
	for i := range all {
		all[i] = i
	}
	return all
}

// No bit of a header is without meaning: magic, version, flags and reserved
// bytes are as they must be or the frame is refused.
func TestFlippedBits(t *testing.T) {
	for _, g := range golden(t) {
		for i := range 8 * HeaderSize {
			b := bytes.Clone(g.frame)
			b[i/8] ^= 1 << (i % 8)
			_, _, _, err := Next(b)
			var want error
			switch at := i / 8; {
			case at < 2:
				want = ErrMagic
			case at == 2:
				want = ErrVersion
			case at == 4 && i%8 == 0 && (g.typ == TypeSet || g.typ == TypeValue || g.typ == TypeData):
			case at == 4 || at == 5:
				want = ErrFlags
			case at == 6 || at == 7 || at >= 20:
				want = ErrReserved
			case at == 3 || at >= 16: // another type, another length: see the fuzz test
				continue
			}
			if !errors.Is(err, want) {
				t.Errorf("%s: bit %d flipped: %v, want %v", g.name, i, err, want)
			}
		}
	}
}

// perByte bounds the memory of a parsed payload: a key of one byte takes three
// in the payload and the largest element for its size is its slice header.
const perByte = unsafe.Sizeof([]byte(nil)) / 3

func FuzzParse(f *testing.F) {
	for _, g := range golden(f) {
		f.Add(g.frame)
	}
	f.Add([]byte("GET / HTTP/1.1\r\nHost: example.org\r\n\r\n"))
	f.Add((&Stats{}).Append((&Get{Key: []byte("k")}).Append(nil, 1), 2))
	f.Add(append(AppendHeader(nil, Header{Type: TypeDelete, Length: 4}), 0xff, 0xff, 0xff, 0xff))
	f.Add(append(AppendHeader(nil, Header{Type: TypeFetch, Length: 4}), 0, 0x20, 0, 0))
	for _, tc := range tooMuch {
		if b := tc.frame(); len(b) < 2<<10 { // the fuzzer is slow to change long ones
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for {
			h, payload, rest, err := Next(b)
			if need := Need(b); (need > 0) != (err == ErrShort) {
				t.Fatalf("Next says %v, Need %d", err, need)
			}
			if err != nil {
				if !bytes.Equal(rest, b) {
					t.Fatal("rest is not b after an error")
				}
				return
			}
			if m := New(h.Type); m != nil {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				err := m.Parse(payload)
				runtime.ReadMemStats(&after)
				// The slack is for what else runs in the process.
				if got, most := after.TotalAlloc-before.TotalAlloc, uint64(perByte)*uint64(len(payload))+64<<10; got > most {
					t.Fatalf("%v: %d bytes reserved for a payload of %d", h.Type, got, len(payload))
				}
				if err == nil {
					setMore(m, h.More())
					frame := b[:len(b)-len(rest)]
					if again := m.Append(nil, h.ID); !bytes.Equal(again, frame) {
						t.Fatalf("%v: % x became % x", h.Type, frame, again)
					}
				} else if !errors.Is(err, ErrPayload) {
					t.Fatal(err)
				}
			}
			b = rest
		}
	})
}
