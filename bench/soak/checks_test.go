package soak

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/wire"
	"github.com/kvcr-go/kvcr/wire/client"
)

func tryNode() (*run, *node) {
	r := &run{ctx: context.Background()}
	n := &node{run: r}
	n.ends.init(r, n)
	n.ends.listening.Store(true)
	n.up.Store(true)
	r.nodes = []*node{n}
	return r, n
}

// An accepted action has one end; none, two, or one of an action that was rejected or
// never sent is found. A node that was ended owes nothing.
func TestEnds(t *testing.T) {
	end := func(n *node, name string) {
		message, id, _ := strings.Cut(name, "/")
		n.ends.heard(&wire.OutcomeItem{MessageID: message, ActionID: id, Stage: wire.OutcomeEnd})
	}
	tests := []struct {
		name string
		do   func(n *node)
		open int
		kind string // of the violation; empty: none
	}{
		{"one end", func(n *node) { n.ends.sent("m/a"); n.ends.answered("m/a", true); end(n, "m/a") }, 0, ""},
		{"an end before the answer", func(n *node) { n.ends.sent("m/a"); end(n, "m/a"); n.ends.answered("m/a", true) }, 0, ""},
		{"no end", func(n *node) { n.ends.sent("m/a"); n.ends.answered("m/a", true) }, 1, ""},
		{"no end, and the answer was lost", func(n *node) { n.ends.sent("m/a") }, 0, ""},
		{"no end, and the node was ended", func(n *node) { n.ends.sent("m/a"); n.ends.answered("m/a", true); n.life.Add(1) }, 0, ""},
		{"no end, and outcomes were missed", func(n *node) { n.ends.sent("m/a"); n.ends.answered("m/a", true); n.ends.missed() }, 0, ""},
		{"no end, and nobody listened", func(n *node) {
			n.ends.listening.Store(false)
			n.ends.sent("m/a")
			n.ends.answered("m/a", true)
		}, 0, ""},
		{"no end, and the process was being ended", func(n *node) {
			n.up.Store(false)
			n.life.Add(1)
			n.ends.sent("m/a")
			n.ends.answered("m/a", true)
			n.up.Store(true)
		}, 0, ""},
		{"two ends", func(n *node) { n.ends.sent("m/a"); end(n, "m/a"); end(n, "m/a") }, 0, noEnd},
		{"rejected", func(n *node) { n.ends.sent("m/a"); n.ends.answered("m/a", false) }, 0, ""},
		{"rejected after its end", func(n *node) { n.ends.sent("m/a"); end(n, "m/a"); n.ends.answered("m/a", false) }, 0, noEnd},
		{"an end after it was rejected", func(n *node) { n.ends.sent("m/a"); n.ends.answered("m/a", false); end(n, "m/a") }, 0, wrongAnswer},
		{"another's end", func(n *node) { n.ends.sent("m/a"); n.ends.answered("m/a", true); end(n, "m/b") }, 1, wrongAnswer},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, n := tryNode()
			tt.do(n)
			if open := n.ends.open(); len(open) != tt.open {
				t.Errorf("open: %v, want %d", open, tt.open)
			}
			want := map[string]int{}
			if tt.kind != "" {
				want[tt.kind] = 1
			}
			if got := r.trouble.counts; len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
				t.Errorf("violations %v, want %v", got, want)
			}
		})
	}
	// What is remembered has a bound, and ends of what was forgotten are found.
	r, n := tryNode()
	for i := range 3 * keptEnds {
		name := fmt.Sprintf("m/%d", i)
		n.ends.sent(name)
		n.ends.answered(name, true)
		end(n, name)
	}
	if got := len(n.ends.actions); got > keptEnds+1 {
		t.Errorf("%d ended actions are remembered", got)
	}
	if end(n, "m/0"); r.trouble.count(wrongAnswer) != 1 {
		t.Error("a second end after a long time is not found")
	}
}

// Errors that nothing explains are violations; a timeout is one of S3.
func TestJudge(t *testing.T) {
	lost, late := &client.Error{Err: client.ErrLost}, &client.Error{Err: client.ErrTimeout}
	tests := []struct {
		name   string
		shaken bool
		direct bool
		killed bool
		err    error
		kind   string
	}{
		{"nothing", false, true, false, nil, ""},
		{"a full cache", false, true, false, &client.Error{Err: client.ErrCapacity}, ""},
		{"lost before any fault", false, false, false, lost, unexpected},
		{"lost through a relay", true, false, false, lost, ""},
		{"lost directly", true, true, false, lost, unexpected},
		{"lost directly, of a node that was killed", true, true, true, lost, ""},
		{"late through a relay", true, false, false, late, ""},
		{"late directly", true, true, false, late, noAnswer},
		{"late before any fault", false, false, false, late, noAnswer},
		{"a broken protocol", true, false, true, &client.Error{Err: client.ErrProtocol}, unexpected},
		{"a bad key", true, false, true, &client.Error{Err: client.ErrBadKey}, unexpected},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, n := tryNode()
			r.shaken.Store(tt.shaken)
			w := &worker{run: r, node: n, name: "w", direct: tt.direct, rng: rand.New(rand.NewPCG(1, 1))}
			_ = w.calm("call", func(context.Context) error {
				if tt.killed {
					n.life.Add(1)
				}
				return tt.err
			})
			for _, kind := range violationKinds {
				if got, want := r.trouble.count(kind), map[bool]int{true: 1}[kind == tt.kind]; got != want {
					t.Errorf("%d violations of kind %s, want %d", got, kind, want)
				}
			}
		})
	}
}

// A subscriber's view follows frames, over snapshots.
func TestMirror(t *testing.T) {
	stored := func(key string) wire.Event { return wire.Event{Kind: wire.EventStored, Key: []byte(key), Size: 1} }
	removed := func(key string) wire.Event { return wire.Event{Kind: wire.EventRemoved, Key: []byte(key)} }
	m := &mirror{}
	have := func(keys ...string) map[string]uint64 {
		h := map[string]uint64{}
		for _, k := range keys {
			h[k] = 1
		}
		return h
	}
	steps := []struct {
		f    wire.Events
		same map[string]uint64 // nil: it knows that it knows nothing whole
	}{
		{wire.Events{Epoch: 1, FirstSequence: 5, Snapshot: true, Events: []wire.Event{stored("a"), stored("b")}}, nil},
		{wire.Events{Epoch: 1, FirstSequence: 6}, have("a", "b")},
		{wire.Events{Epoch: 1, FirstSequence: 6, Events: []wire.Event{removed("a"), stored("c")}}, have("b", "c")},
		{wire.Events{Epoch: 2, FirstSequence: 1, Snapshot: true, Events: []wire.Event{stored("d")}}, nil},
		{wire.Events{Epoch: 2, FirstSequence: 2, Events: []wire.Event{stored("e")}}, have("d", "e")},
		{wire.Events{Epoch: 2, FirstSequence: 3, Events: []wire.Event{{Kind: wire.EventCleared}}}, have()},
	}
	for i, s := range steps {
		if err := m.apply(&s.f); err != nil {
			t.Fatal(err)
		}
		if d := m.differs(s.same); (d == "") != (s.same != nil) {
			t.Errorf("step %d: %q", i, d)
		}
	}
	if m.differs(have("x")) == "" {
		t.Error("a key that it lacks is not seen")
	}
	m.keys["y"] = 1
	if m.differs(have()) == "" {
		t.Error("a key that is gone is not seen")
	}
	if err := m.apply(&wire.Events{Epoch: 3, FirstSequence: 9, Events: []wire.Event{stored("a")}}); err == nil {
		t.Error("another epoch without a snapshot is taken")
	}
}

func TestLevels(t *testing.T) {
	base := levels{levelGoroutines: 20, levelHeap: 5 << 20, levelClaims: 0}
	for _, tt := range []struct {
		name string
		l    levels
		want int
	}{
		{"as before", base, 0},
		{"lower", levels{levelGoroutines: 10}, 0},
		{"a goroutine", levels{levelGoroutines: 21}, 1},
		{"some memory", levels{levelHeap: 6 << 20}, 0},
		{"much memory", levels{levelHeap: 60 << 20}, 1},
		{"a connection with a peer", levels{levelDescriptors: 2}, 0},
		{"a claim and descriptors", levels{levelClaims: 1, levelDescriptors: 3}, 2},
	} {
		if got := tt.l.above(base, allowance(2)); len(got) != tt.want {
			t.Errorf("%s: %v, want %d", tt.name, got, tt.want)
		}
	}
	if got := idle(levels{levelGoroutines: 5, levelMoves: 1}); len(got) != 1 {
		t.Errorf("a hold at rest: %v", got)
	}
}

// The schedule follows from the seed, begins with a kill, never ends the first node,
// and has every kind of fault in a long run.
func TestSchedule(t *testing.T) {
	make := func(seed uint64) []fault {
		return schedule(rand.New(rand.NewPCG(seed, 0)), 3, 10*time.Minute, 4*time.Second)
	}
	one := make(7)
	if !reflect.DeepEqual(one, make(7)) || reflect.DeepEqual(one, make(8)) {
		t.Error("it does not follow from the seed")
	}
	kinds := map[string]int{}
	for i, f := range one {
		kinds[f.kind]++
		if i > 0 && f.at <= one[i-1].at || f.at >= 10*time.Minute || f.node < 0 || f.node > 2 {
			t.Errorf("fault %d: %v after %v", i, f, one[max(0, i-1)])
		}
		if f.node == 0 && (f.kind == faultKill || f.kind == faultStop) {
			t.Errorf("the first node is ended: %v", f)
		}
	}
	if one[0].kind != faultKill || len(kinds) != 5 || len(one) < 100 {
		t.Errorf("%d faults of kinds %v, the first is %v", len(one), kinds, one[0])
	}
	for seed := range uint64(50) {
		if s := schedule(rand.New(rand.NewPCG(seed, 0)), 2, time.Second, 700*time.Millisecond); len(s) == 0 || s[0].kind != faultKill {
			t.Errorf("a short run has no kill: %v", s)
		}
	}
}

// The RESP reader takes what a node sends, and nothing else.
func TestRESPReader(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"+OK\r\n", "+ OK"},
		{"-OOM no\r\n", "- OOM no"},
		{":12\r\n", ": 12"},
		{"$3\r\na\r\n\r\n", "$ a\r\n"},
		{"$0\r\n\r\n", "$ "},
		{"$-1\r\n", "null"},
		{"*2\r\n$1\r\na\r\n$-1\r\n", "* $ a, null"},
		{"$3\r\nabcde", "bad"},
		{"$99999999999\r\n", "bad"},
		{"x\r\n", "bad"},
		{"+OK\n", "bad"},
		{":1x\r\n", "bad"},
		{"$5\r\nab", "EOF"},
	} {
		w := &respWorker{in: bufio.NewReader(strings.NewReader(tt.in))}
		a, err := w.read()
		got := show(&a)
		if err != nil {
			if got = "EOF"; strings.Contains(err.Error(), "no RESP") {
				got = "bad"
			}
		}
		if got != tt.want {
			t.Errorf("%q is %q, %v; want %q", tt.in, got, err, tt.want)
		}
	}
}

func show(a *respReply) string {
	switch a.kind {
	case 0:
		return "null"
	case ':':
		return fmt.Sprint(": ", a.n)
	case '*':
		var all []string
		for i := range a.all {
			all = append(all, show(&a.all[i]))
		}
		return "* " + strings.Join(all, ", ")
	}
	return string(a.kind) + " " + string(a.text)
}

// An answer that belongs to another command of the pipeline is found.
func TestPipelineFindsMixedAnswers(t *testing.T) {
	r, n := tryNode()
	here, there := net.Pipe()
	defer here.Close()
	go func() {
		defer there.Close()
		in := bufio.NewReader(there)
		for range 2 * 5 { // *2 $4 ECHO $1 word
			in.ReadString('\n')
		}
		io.WriteString(there, "$1\r\nb\r\n$1\r\na\r\n")
	}()
	w := &respWorker{worker: worker{run: r, node: n, name: "w"}, c: here, in: bufio.NewReader(here), excused: func() bool { return false }}
	echo := func(word string) question {
		return question{"echo", args("ECHO", word), func(a *respReply) {
			if w.is("ECHO", a, '$') && string(a.text) != word {
				r.trouble.add(wrongAnswer, w.where(), "%s", a.text)
			}
		}}
	}
	w.send([]question{echo("a"), echo("b")})
	if got := r.trouble.count(wrongAnswer); got != 2 {
		t.Errorf("%d of 2 wrong answers are found: %v", got, r.trouble.found)
	}
}

// A call that never returns is found while it lasts.
func TestWatch(t *testing.T) {
	var w watch
	k := w.enter("a call")
	if got := w.overdue(time.Hour); got != nil {
		t.Errorf("overdue at once: %v", got)
	}
	k.since = k.since.Add(-time.Minute)
	if got := w.overdue(time.Second); len(got) != 1 || !strings.Contains(got[0], "a call") {
		t.Errorf("overdue: %v", got)
	}
	if got := w.overdue(time.Second); got != nil {
		t.Errorf("told twice: %v", got)
	}
	w.leave(k)
	if len(w.active) != 0 {
		t.Error("it is still known")
	}
}

func TestViolationsError(t *testing.T) {
	tr := trouble{began: time.Now()}
	if err := tr.err("again", "dir"); err != nil {
		t.Errorf("without any: %v", err)
	}
	for i := range kept + 5 {
		tr.add(leak, "node 1", "finding %d", i)
	}
	text := tr.err("kvcr bench soak --seed 9", "/logs").Error()
	for _, want := range []string{"15 violations", "15 leak", "node 1", "finding 9", "and 5 more", "/logs", "kvcr bench soak --seed 9"} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %q: %s", want, text)
		}
	}
}

// Of a snapshot that was cut off nothing is left in the one that follows.
func TestMirrorAfterCutSnapshot(t *testing.T) {
	m := mirror{}
	stored := func(key string) wire.Event {
		return wire.Event{Kind: wire.EventStored, Key: []byte(key), Size: 1}
	}
	for _, frames := range [][]wire.Events{
		{{Epoch: 1, FirstSequence: 5, Snapshot: true, Events: []wire.Event{stored("gone")}}}, // and no more
		{{Epoch: 1, FirstSequence: 7, Snapshot: true, Events: []wire.Event{stored("here")}}, {Epoch: 1, FirstSequence: 8}},
	} {
		m.again()
		for i := range frames {
			if err := m.apply(&frames[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if what := m.differs(map[string]uint64{"here": 1}); what != "" {
		t.Errorf("the mirror %s", what)
	}
}
