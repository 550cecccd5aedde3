package peer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvcr-go/kvcr/wire"
)

// adapter knows the keys of some hashes, and what goes wrong with others.
type adapter map[uint64]func() (string, []byte, wire.Status)

func (a adapter) Resolve(hash uint64) (string, []byte, wire.Status) {
	if f := a[hash]; f != nil {
		return f()
	}
	return "", nil, wire.StatusMiss
}

func known(key string) func() (string, []byte, wire.Status) {
	return func() (string, []byte, wire.Status) { return "ns", []byte(key), wire.StatusOK }
}

func unknown(s wire.Status) func() (string, []byte, wire.Status) {
	return func() (string, []byte, wire.Status) { return "ns", []byte("a key all the same"), s }
}

// lookups is a block table that has some keys.
type lookups map[string]wire.Resolved

func (l lookups) Lookup(namespace string, key []byte, r *wire.Resolved) wire.Status {
	b, ok := l[namespace+"/"+string(key)]
	if !ok {
		return wire.StatusMiss
	}
	r.Generation, r.Size = b.Generation, b.Size
	return wire.StatusOK
}

// Each hash has its own answer, whatever becomes of its neighbours.
func TestAnswerHashes(t *testing.T) {
	a := adapter{
		1: known("one"), 2: known("elsewhere"), 3: unknown(wire.StatusAmbiguous), 4: unknown(wire.StatusMiss),
		5: func() (string, []byte, wire.Status) { panic("no such page") },
		6: unknown(wire.StatusBusy),
		7: func() (string, []byte, wire.Status) { return "ns", nil, wire.StatusOK },
		8: func() (string, []byte, wire.Status) { return "ns", make([]byte, wire.MaxKey+1), wire.StatusOK },
		9: func() (string, []byte, wire.Status) { return "\xff", []byte("k"), wire.StatusOK },
		10: func() (string, []byte, wire.Status) {
			return strings.Repeat("n", wire.MaxName+1), []byte("k"), wire.StatusOK
		},
		11: func() (string, []byte, wire.Status) { return "", make([]byte, wire.MaxKey), wire.StatusOK },
	}
	rec := lookups{"ns/one": {Generation: 7, Size: 100}, "/" + string(make([]byte, wire.MaxKey)): {Generation: 8, Size: 200}}
	m := &wire.ResolveHashes{Dest: 2, Hashes: []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 1}}
	got, failures, fault := AnswerHashes(1, a, rec, m)
	one := wire.Resolved{Namespace: "ns", Key: []byte("one"), Generation: 7, Size: 100}
	miss, broken := wire.Resolved{Status: wire.StatusMiss}, wire.Resolved{Status: wire.StatusAdapter}
	want := []wire.Resolved{
		one, miss, {Status: wire.StatusAmbiguous}, miss, broken, broken, broken, broken, broken, broken,
		{Key: make([]byte, wire.MaxKey), Generation: 8, Size: 200}, miss, one,
	}
	if fmt.Sprint(got.Items) != fmt.Sprint(want) || got.Source != 1 || got.Dest != 2 {
		t.Errorf("%+v", got)
	}
	if failures != 6 || fault == "" {
		t.Errorf("%d failures, %q", failures, fault)
	}
	if _, _, _, err := wire.Next(got.Append(nil, 1)); err != nil {
		t.Error(err)
	}
}

// describes is an adapter that also says something of some keys.
type describes struct {
	adapter
	say map[string]func(limit int) []byte
}

func (d describes) AppendDescription(dst []byte, limit int, namespace string, key []byte) []byte {
	if f := d.say[namespace+"/"+string(key)]; f != nil {
		return append(dst, f(limit)...)
	}
	return dst
}

// What is said of a block goes with its answer, up to the limit; what cannot be said
// costs the description, not the block.
func TestAnswerHashesDescribed(t *testing.T) {
	long := func(limit int) []byte { return slices.Repeat([]byte{7}, limit) }
	d := describes{adapter{}, map[string]func(int) []byte{
		"ns/one": func(int) []byte { return []byte("about one") }, "ns/long": long,
		"ns/longer": func(limit int) []byte { return long(limit + 1) },
		"ns/broken": func(int) []byte { panic("no such page") },
		"ns/gone": func(int) []byte {
			t.Error("a block that is not here is described")
			return nil
		},
	}}
	keys := []string{"one", "long", "longer", "broken", "silent", "gone"}
	rec := lookups{}
	m := &wire.ResolveHashes{Dest: 2}
	for i, k := range keys {
		d.adapter[uint64(i)] = known(k)
		m.Hashes = append(m.Hashes, uint64(i))
		if k != "gone" {
			rec["ns/"+k] = wire.Resolved{Generation: 7, Size: 100}
		}
	}
	got, failures, fault := AnswerHashes(1, d, rec, m)
	for i, want := range []int{len("about one"), wire.MaxDescription, 0, 0, 0} {
		r := &got.Items[i]
		if r.Status != wire.StatusOK || string(r.Key) != keys[i] || r.Generation != 7 || len(r.Description) != want {
			t.Errorf("%s: %v, key %q, a description of %d bytes, want %d", keys[i], r.Status, r.Key, len(r.Description), want)
		}
	}
	if string(got.Items[0].Description) != "about one" || got.Items[5].Status != wire.StatusMiss || failures != 2 || !strings.Contains(fault, "no such page") {
		t.Errorf("%q, %v, %d failures, %q", got.Items[0].Description, got.Items[5].Status, failures, fault)
	}
	if _, _, _, err := wire.Next(got.Append(nil, 1)); err != nil {
		t.Error(err)
	}
}

// A source that is asked by itself looks nothing up.
func TestAnswerHashesSelf(t *testing.T) {
	a := adapter{1: func() (string, []byte, wire.Status) {
		t.Error("the adapter was asked")
		return "", nil, wire.StatusMiss
	}}
	got, failures, _ := AnswerHashes(7, a, nil, &wire.ResolveHashes{Dest: 7, Hashes: []uint64{1, 2}})
	for _, r := range got.Items {
		if r.Status != wire.StatusSelf {
			t.Errorf("%v", r.Status)
		}
	}
	if len(got.Items) != 2 || failures != 0 {
		t.Errorf("%d answers, %d failures", len(got.Items), failures)
	}
}

// resolveTest drives a machine by hand.
type resolveTest struct {
	t    *testing.T
	m    *Resolving
	now  Time
	last OpID
}

func newResolveTest(t *testing.T, n, part, window int) *resolveTest {
	rt := &resolveTest{t: t, now: 100 * sec}
	var hashes []uint64
	for i := range n {
		hashes = append(hashes, uint64(i))
	}
	rt.m = NewResolving(dstInc, hashes, testTiming, ResolveLimits{Part: part, Window: window}, func() OpID { rt.last++; return rt.last })
	return rt
}

// step takes an event and shows what is sent, as id:first-last hash.
func (rt *resolveTest) step(ev Event, want ...string) {
	rt.t.Helper()
	var got []string
	for _, a := range rt.m.Step(rt.now, ev) {
		h := a.(Send).Msg.(*wire.ResolveHashes).Hashes
		got = append(got, fmt.Sprintf("%d:%d-%d", a.(Send).ID, h[0], h[len(h)-1]))
	}
	if !slices.Equal(got, want) {
		rt.t.Errorf("%T sends %v, want %v", ev, got, want)
	}
}

// reply is a source's answer: key n for hash n.
func reply(id, from, to uint64) Frame {
	m := &wire.HashesResolved{Source: uint64(srcInc), Dest: uint64(dstInc)}
	for h := from; h <= to; h++ {
		m.Items = append(m.Items, wire.Resolved{Key: []byte(fmt.Sprint(h)), Generation: uint32(h) + 1})
	}
	return Frame{ID: id, Msg: m}
}

// complete checks that all hashes have their keys.
func (rt *resolveTest) complete() {
	rt.t.Helper()
	all, err := rt.m.Results()
	if err != nil || rt.m.Ops() != 0 || rt.m.Next() != 0 {
		rt.t.Errorf("%v, %d hashes without an answer, next at %v", err, rt.m.Ops(), rt.m.Next())
	}
	for i, r := range all {
		if r.Hash != uint64(i) || r.Status != wire.StatusOK || string(r.Key) != fmt.Sprint(i) || r.Generation != uint32(i)+1 || r.Source != srcInc {
			rt.t.Errorf("hash %d: %+v", i, r)
		}
	}
}

// A long list goes in parts, two of which are under way; each is repeated until it is
// answered, and answers count once, whatever their order.
func TestResolvingParts(t *testing.T) {
	rt := newResolveTest(t, 10, 3, 2)
	rt.step(Tick{})
	rt.step(Up{Peer: srcInc}, "1:0-2", "2:3-5")
	if rt.m.Next() != rt.now+sec {
		t.Errorf("repeats at %v", rt.m.Next())
	}
	rt.step(reply(2, 3, 5), "3:6-8")
	rt.step(reply(2, 6, 8)) // late, and with another's keys
	rt.step(reply(9, 0, 2))
	rt.now += sec
	rt.step(Tick{}, "1:0-2", "3:6-8")
	rt.now += sec
	rt.step(Tick{}) // the pause grows
	rt.step(Frame{3, &wire.StatusReply{Status: wire.StatusBusy}})
	rt.now += sec
	rt.step(Tick{}, "1:0-2", "3:6-8")
	rt.step(Down{})
	if rt.m.Next() != 0 {
		t.Error("a timer without a connection")
	}
	rt.step(reply(1, 0, 2)) // of a connection that is gone
	rt.step(Up{Peer: srcInc}, "1:0-2", "3:6-8")
	rt.step(reply(3, 6, 8), "4:9-9")
	rt.step(reply(1, 0, 2))
	rt.step(reply(4, 9, 9))
	rt.complete()
	rt.step(reply(4, 9, 9))
	rt.step(Unreachable{wire.StatusSelf})
	rt.m.End(wire.StatusTimeout, ErrLost, nil)
	rt.complete()
}

// What is meant for another life changes nothing.
func TestResolvingIncarnations(t *testing.T) {
	rt := newResolveTest(t, 2, 0, 0)
	rt.step(Up{Peer: srcInc}, "1:0-1")
	for _, change := range []func(*wire.HashesResolved){
		func(m *wire.HashesResolved) { m.Source++ },
		func(m *wire.HashesResolved) { m.Dest++ },
	} {
		f := reply(1, 5, 6)
		change(f.Msg.(*wire.HashesResolved))
		rt.step(f)
	}
	if rt.m.Ops() != 2 {
		t.Fatal("an answer of another life counts")
	}
	rt.step(Down{})
	rt.step(Up{Peer: srcInc + 1}, "1:0-1")
	rt.step(reply(1, 5, 6)) // of the life before
	rt.step(Down{})
	rt.step(Up{Peer: srcInc}, "1:0-1")
	rt.step(reply(1, 0, 1))
	rt.complete()
}

// What is no answer costs the hashes of its request.
func TestResolvingFailures(t *testing.T) {
	for _, tt := range []struct {
		name   string
		msg    wire.Message
		status wire.Status
		err    error
		text   string
	}{
		{"too few", &wire.HashesResolved{Source: uint64(srcInc), Dest: uint64(dstInc), Items: make([]wire.Resolved, 1)}, wire.StatusSource, ErrLost, "1 answers for 2 hashes"},
		{"too many", &wire.HashesResolved{Source: uint64(srcInc), Dest: uint64(dstInc), Items: make([]wire.Resolved, 3)}, wire.StatusSource, ErrLost, "3 answers for 2 hashes"},
		{"a status that is no answer", &wire.StatusReply{}, wire.StatusSource, ErrLost, "no sense"},
		{"no resolver", &wire.StatusReply{Status: wire.StatusUnsupported}, wire.StatusUnsupported, ErrRefused, "give it a Resolver"},
		{"refused", &wire.StatusReply{Status: wire.StatusIncarnation}, wire.StatusIncarnation, ErrRefused, "incarnation"},
		{"an earlier version", &wire.ErrorReply{Code: wire.CodeBadType, Text: "not known here"}, wire.StatusUnsupported, ErrRefused, "the peer does not resolve hashes"},
		{"another error", &wire.ErrorReply{Code: wire.CodeInternal, Text: "oh"}, wire.StatusSource, ErrRefused, "internal: oh"},
		{"garbled", &garbled{err: errors.New("not whole")}, wire.StatusSource, ErrLost, "not whole"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rt := newResolveTest(t, 6, 2, 2)
			rt.step(Up{Peer: srcInc}, "1:0-1", "2:2-3")
			rt.step(Frame{2, tt.msg}, "3:4-5")
			rt.step(reply(1, 0, 1))
			rt.step(reply(3, 4, 5))
			all, err := rt.m.Results()
			var e *Error
			if !errors.Is(err, tt.err) || !errors.As(err, &e) || e.Status != tt.status || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%v", err)
			}
			for i, r := range all {
				if failed := i/2 == 1; failed != (r.Status == tt.status) || failed != (r.Key == nil) || !failed && string(r.Key) != fmt.Sprint(i) {
					t.Errorf("hash %d: %+v", i, r)
				}
			}
			if rt.m.Ops() != 0 {
				t.Error("it goes on")
			}
		})
	}
}

// Where there is no connection, or no time, what has come stays.
func TestResolvingEnds(t *testing.T) {
	rt := newResolveTest(t, 8, 2, 2)
	rt.step(Up{Peer: srcInc}, "1:0-1", "2:2-3")
	rt.step(reply(2, 2, 3), "3:4-5")
	rt.step(Down{})
	rt.step(Unreachable{wire.StatusSelf})
	all, err := rt.m.Results()
	var e *Error
	if !errors.Is(err, ErrRefused) || !errors.As(err, &e) || e.Status != wire.StatusSelf || rt.m.Ops() != 0 {
		t.Errorf("%v, %d without an answer", err, rt.m.Ops())
	}
	for i, r := range all {
		if ok := i/2 == 1; ok != (r.Status == wire.StatusOK) || !ok && (r.Status != wire.StatusSelf || r.Source != 0) {
			t.Errorf("hash %d: %+v", i, r)
		}
	}
	rt.step(Up{Peer: srcInc})
	if none := newResolveTest(t, 0, 2, 2); none.m.Ops() != 0 {
		t.Error("nothing to ask, and something to wait for")
	} else {
		none.step(Up{Peer: srcInc})
	}
}

// Over a network that loses, repeats, delays and reorders, and a source that restarts
// and binds hashes to other keys, every answer is one that the source has given for
// that very hash since the call began; and all are there in the end.
func TestResolvingAnyNetwork(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 40).Draw(t, "hashes")
		hashes := make([]uint64, n)
		for i := range hashes {
			hashes[i] = rapid.Uint64Max(9).Draw(t, "hash")
		}
		source, bound := srcInc, map[uint64]string{}
		given := map[uint64]map[string]bool{} // by hash
		for h := range uint64(10) {
			bound[h] = fmt.Sprintf("%d", h)
			given[h] = map[string]bool{}
		}
		var last OpID
		m := NewResolving(dstInc, hashes, testTiming, ResolveLimits{Part: rapid.IntRange(1, 5).Draw(t, "part"), Window: rapid.IntRange(1, 3).Draw(t, "window")}, func() OpID { last++; return last })
		type packet struct {
			toSource bool
			f        Frame
		}
		var wireful []packet
		now, up := 100*sec, false
		asked := map[uint64]string{}
		step := func(ev Event) {
			for _, a := range m.Step(now, ev) {
				s := a.(Send)
				if !up {
					t.Fatalf("%v is sent without a connection", s)
				}
				if h := fmt.Sprint(s.Msg.(*wire.ResolveHashes).Hashes); asked[s.ID] == "" {
					asked[s.ID] = h
				} else if asked[s.ID] != h {
					t.Fatalf("request %d asked for %s and asks for %s", s.ID, asked[s.ID], h)
				}
				wireful = append(wireful, packet{true, Frame{s.ID, s.Msg}})
			}
		}
		deliver := func(p packet) {
			if !p.toSource {
				step(p.f)
				return
			}
			q := p.f.Msg.(*wire.ResolveHashes)
			r := &wire.HashesResolved{Source: uint64(source), Dest: q.Dest}
			for _, h := range q.Hashes {
				key := fmt.Sprintf("%s@%x", bound[h], uint64(source))
				given[h][key] = true
				r.Items = append(r.Items, wire.Resolved{Key: []byte(key)})
			}
			wireful = append(wireful, packet{false, Frame{p.f.ID, r}})
		}
		harsh := rapid.IntRange(0, 120).Draw(t, "faults")
		for i := 0; m.Ops() > 0 || i < harsh; i++ {
			if i > harsh+1000 {
				t.Fatalf("%d hashes have no answer", m.Ops())
			}
			what := 0
			if i < harsh {
				what = rapid.IntRange(0, 9).Draw(t, "what")
			}
			switch {
			case what == 1 && up:
				up = false
				step(Down{})
			case what == 2 && len(wireful) > 0:
				at := rapid.IntRange(0, len(wireful)-1).Draw(t, "lost")
				wireful = slices.Delete(wireful, at, at+1)
			case what == 3 && len(wireful) > 0:
				deliver(wireful[rapid.IntRange(0, len(wireful)-1).Draw(t, "repeated")])
			case what == 4:
				bound[rapid.Uint64Max(9).Draw(t, "hash")] = fmt.Sprintf("rebound-%d", i)
			case what == 5 && !up: // restarts
				source++
			case what == 6 && len(wireful) > 0: // out of order
				at := rapid.IntRange(0, len(wireful)-1).Draw(t, "which")
				p := wireful[at]
				wireful = slices.Delete(wireful, at, at+1)
				deliver(p)
			case !up:
				up = true
				step(Up{Peer: source})
			case len(wireful) > 0 && what < 9:
				p := wireful[0]
				wireful = wireful[1:]
				deliver(p)
			default:
				if at := m.Next(); at != 0 {
					now = max(now, at)
				}
				step(Tick{})
			}
		}
		all, err := m.Results()
		if err != nil || len(all) != n {
			t.Fatalf("%d answers, %v", len(all), err)
		}
		for i, r := range all {
			if r.Hash != hashes[i] || !given[hashes[i]][string(r.Key)] || !strings.HasSuffix(string(r.Key), fmt.Sprintf("@%x", uint64(r.Source))) {
				t.Fatalf("hash %d: %d is %s of %x, the source said one of %v", i, r.Hash, r.Key, uint64(r.Source), given[hashes[i]])
			}
		}
	})
}
