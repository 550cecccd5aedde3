package ring

import (
	"fmt"
	"strings"
	"testing"
)

// The protocol of a Parker as a state machine small enough to visit every
// state: one sleeper and a few wakers, each of which makes the condition true
// once. Stores of a waker may sit in a store buffer (as on amd64, where a Push
// is a plain MOV) until it fences. wait.go is the code this models, step by
// step; the variants below break one step each, and the search must notice.
type variant struct {
	noFence       bool // a waker's look may overtake its push
	lookFirst     bool // a waker looks for an announcement, then makes the condition true
	noRecheck     bool // the sleeper looks, announces, and sleeps
	bufferedSwap  bool // the sleeper's announcement is a plain store, too
	plainTake     bool // a waker takes the announcement with load and store
	leaveToken    bool // the sleeper retracts without the token of a faster waker
	sendFirst     bool // a waker sends, then takes
	cancelForgets bool // a sleeper whose context ended leaves its announcement
}

const maxWakers = 3

// The sleeper's program counter.
const (
	sPoll    = iota // not announced: take what is there, or announce
	sSwap           // announce
	sCheck          // announced: look again
	sSleep          // in the channel receive, or in the select
	sRetract        // the condition is true: take the announcement back
	sCancel         // the context ended: take the announcement back
	sToken          // a waker was faster: receive its token
	sWoken          // has a token: look again
	sDone
)

// A waker's program counter.
const (
	wStart = iota
	wFence
	wLook
	wTake
	wTake2 // plainTake: stores what it decided on a load
	wSend
	wPushLate // lookFirst: nobody slept, so only push
	wDone
)

type waker struct {
	pc       uint8
	buffered bool // its push is in the store buffer
	saw      bool // lookFirst: it saw an announcement
}

// world is one state. It is comparable: a set of them is a map.
type world struct {
	pushed   uint8 // in memory; the condition is pushed > taken
	taken    uint8
	state    uint8 // the Parker's word
	swapping bool  // bufferedSwap: asleep is in the sleeper's store buffer
	tokens   uint8
	canceled bool // the context has ended (at most once)
	pc       uint8
	wakers   [maxWakers]waker
}

func (w world) ready() bool { return w.pushed > w.taken }

// word is the state as the sleeper sees it: through its own store buffer.
func (w world) word() uint8 {
	if w.swapping {
		return asleep
	}
	return w.state
}

// search visits all states for n wakers and returns their number, and what it
// found wrong in the first bad one.
func search(v variant, n int) (states int, wrong string) {
	start := world{}
	for i := n; i < maxWakers; i++ {
		start.wakers[i].pc = wDone
	}
	seen := map[world]bool{start: true}
	for todo := []world{start}; len(todo) > 0; {
		w := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		next, wrong := v.moves(w, n)
		if wrong != "" {
			return len(seen), fmt.Sprintf("%s: %+v", wrong, w)
		}
		if len(next) == 0 {
			if w.pc != sDone {
				return len(seen), fmt.Sprintf("lost wake-up: %+v", w)
			}
			if w.tokens != 0 || w.state != awake {
				return len(seen), fmt.Sprintf("left behind: %+v", w)
			}
		}
		for _, x := range next {
			if !seen[x] {
				seen[x] = true
				todo = append(todo, x)
			}
		}
	}
	return len(seen), ""
}

// moves returns every state one step from w, or what is wrong with a step.
func (v variant) moves(w world, n int) (next []world, wrong string) {
	add := func(x world) { next = append(next, x) }
	take := func(x world) world { // the condition is true: one Wait has returned
		x.taken++
		x.pc = sPoll
		if int(x.taken) == n {
			x.pc = sDone
		}
		return x
	}

	if w.swapping { // the store buffer drains when it likes
		x := w
		x.swapping, x.state = false, asleep
		add(x)
	}
	x := w
	switch w.pc {
	case sPoll:
		if w.ready() {
			add(take(x))
		} else {
			x.pc = sSwap
			add(x)
		}
	case sSwap:
		if !v.bufferedSwap && w.state != awake {
			return nil, "announced twice"
		}
		if v.bufferedSwap {
			x.swapping = true
		} else {
			x.state = asleep
		}
		x.pc = sCheck
		if v.noRecheck {
			x.pc = sSleep
		}
		add(x)
	case sCheck:
		x.pc = sSleep
		if w.ready() {
			x.pc = sRetract
		}
		add(x)
	case sSleep:
		if w.swapping {
			break // the runtime's own locks drain the buffer first
		}
		if w.tokens > 0 {
			x.tokens--
			x.pc = sWoken
			add(x)
		}
		if !w.canceled {
			x := w
			x.canceled = true
			x.pc = sCancel
			if v.cancelForgets {
				x.pc = sPoll
			}
			add(x)
		}
	case sRetract, sCancel:
		if w.swapping {
			break // a compare-and-swap drains the buffer first
		}
		switch {
		case w.word() == asleep:
			x.state = awake
			x.pc = sPoll // for sRetract the condition is true there
		case v.leaveToken:
			x.pc = sPoll
		default:
			x.pc = sToken
		}
		add(x)
	case sToken:
		if w.tokens > 0 {
			x.tokens--
			x.pc = sPoll
			add(x)
		}
	case sWoken:
		if w.ready() {
			add(take(x))
		} else {
			x.pc = sSwap
			add(x)
		}
	}

	for i := range w.wakers {
		a := w.wakers[i]
		set := func(x world, a waker) {
			x.wakers[i] = a
			add(x)
		}
		if a.buffered { // the store buffer drains when it likes
			x, a := w, a
			a.buffered = false
			x.pushed++
			set(x, a)
		}
		x := w
		switch a.pc {
		case wStart:
			if v.lookFirst && !a.saw {
				if w.state == asleep {
					a.saw = true
				} else {
					a.pc = wPushLate
				}
				set(x, a)
				break
			}
			a.buffered = true
			a.pc = wFence
			set(x, a)
		case wPushLate:
			a.buffered = true
			a.pc = wDone
			set(x, a)
		case wFence:
			if a.buffered && !v.noFence {
				break
			}
			a.pc = wLook
			set(x, a)
		case wLook:
			a.pc = wDone
			if w.state == asleep {
				a.pc = wTake
				if v.sendFirst {
					a.pc = wSend
				}
			}
			set(x, a)
		case wTake:
			if a.buffered {
				break // a locked instruction drains the buffer first
			}
			switch {
			case v.plainTake:
				a.pc = wTake2
				if w.state != asleep {
					a.pc = wDone
				}
			case w.state == asleep:
				x.state = awake
				a.pc = wSend
				if v.sendFirst {
					a.pc = wDone
				}
			default:
				a.pc = wDone
			}
			set(x, a)
		case wTake2:
			x.state = awake
			a.pc = wSend
			set(x, a)
		case wSend:
			if w.tokens > 0 {
				return nil, "send blocks"
			}
			x.tokens++
			a.pc = wDone
			if v.sendFirst {
				a.pc = wTake
			}
			set(x, a)
		}
	}
	return next, ""
}

// TestParkerModel visits every interleaving, with one to three wakers and a
// context that may end at any moment of a sleep: no wake-up is lost, no send
// blocks, no token or announcement is left behind.
func TestParkerModel(t *testing.T) {
	for n := 1; n <= maxWakers; n++ {
		states, wrong := search(variant{}, n)
		if wrong != "" {
			t.Errorf("%d wakers: %s", n, wrong)
		}
		t.Logf("%d wakers: %d states", n, states)
	}
}

// TestParkerModelFindsMutants: each step of the protocol is needed.
func TestParkerModelFindsMutants(t *testing.T) {
	for _, tt := range []struct {
		name string
		v    variant
		want string // how the fault must begin; empty: any
	}{
		{"no fence", variant{noFence: true}, "lost wake-up"},
		{"look before push", variant{lookFirst: true}, "lost wake-up"},
		{"no second look", variant{noRecheck: true}, "lost wake-up"},
		{"announcement buffered", variant{bufferedSwap: true}, "lost wake-up"},
		{"take without CAS", variant{plainTake: true}, ""},
		{"token left", variant{leaveToken: true}, ""},
		{"send before take", variant{sendFirst: true}, ""},
		{"cancel forgets", variant{cancelForgets: true}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, wrong := search(tt.v, maxWakers)
			if wrong == "" || !strings.HasPrefix(wrong, tt.want) {
				t.Errorf("search found %q, want %q", wrong, tt.want)
			}
			t.Log(wrong)
		})
	}
}
