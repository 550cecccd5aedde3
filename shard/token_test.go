package shard

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/ring"
)

// The protocol of doorbell, token and parkers, for two producers and the
// owner, one atomic access a step. A Parker is taken as proven (ring/): to
// announce, to look again and to sleep are steps, a wake is one.
type tokenState struct {
	held  int8    // 0 free, else 1 + who
	bells [2]bool // by producer
	cmds  [2]int8 // commands pushed and not executed
	comps [2]int8 // completions not yet seen by the producer
	procs [3]tokenProc
}

// tokenProc is a producer (0, 1) or the owner (2).
type tokenProc struct {
	at     tokenStep
	then   tokenStep // where to go on after the token's part
	left   int8      // commands the producer still has to send
	budget int8
	set    [2]bool // bells taken by the swap in drain
	saw    bool    // what the last look at held or bells gave
	asleep bool    // announced
	woken  bool    // the parker's token
}

type tokenStep int8

const (
	pPush tokenStep = iota
	pRing
	pTry
	pReady  // ready(): a completion?
	pReady2 // ready(): no, then try to help
	pReady3 // ready(): helped, now a completion?
	pAnnounce
	pAgain // announced: ready() once more
	pAgain2
	pAgain3
	pSleep
	pSlept
	pDone

	hSwap  // the holder: take the bells
	hDrain // execute one command, wake its producer
	hFree
	hLook
	hTryAgain
	hWake

	oHeld // the owner: ready(), two loads
	oRung
	oAnnounce
	oHeld2
	oRung2
	oSleep
	oTry
)

// tokenRules is the protocol, with what mutations change.
type tokenRules struct {
	helped        bool
	lookFirst     bool // the holder looks at the bells before it frees the token
	tryBeforeRing bool // the producer tries the token before it rings
	noSecondLook  bool // the owner sleeps without looking once more
	noPass        bool // a helper out of budget does not wake the owner
	dropBell      bool // a bell swapped out with commands left is not rung again
}

const modelBudget = 1 // commands a helper executes before it passes the rest on

func (m *tokenState) rung() bool { return m.bells[0] || m.bells[1] }

func (m *tokenState) wake(i int) {
	if m.procs[i].asleep {
		m.procs[i].asleep = false
		m.procs[i].woken = true
	}
}

// take makes i the holder, to go on at then when it is through.
func (m *tokenState) take(i int, then tokenStep, budget int8) bool {
	if m.held != 0 {
		return false
	}
	m.held = int8(i + 1)
	p := &m.procs[i]
	p.at, p.then, p.budget = hSwap, then, budget
	return true
}

// retract ends an announcement; a waker that was faster has left its token.
func (p *tokenProc) retract() {
	p.asleep, p.woken = false, false
}

// next is step with what is of no use any more forgotten, so that equal states
// are one.
func (m *tokenState) next(i int, r *tokenRules) bool {
	if !m.step(i, r) {
		return false
	}
	p := &m.procs[i]
	if p.at < hSwap || p.at > hWake {
		p.then, p.budget, p.set = 0, 0, [2]bool{}
		if p.at != oRung && p.at != oRung2 {
			p.saw = false
		}
	} else if p.at != hFree && p.at != hLook {
		p.saw = false
	}
	return true
}

// step advances process i; false when it cannot.
func (m *tokenState) step(i int, r *tokenRules) bool {
	p := &m.procs[i]
	helps := r.helped
	ready := func(next, help tokenStep) {
		if m.comps[i] > 0 {
			m.comps[i]--
			p.retract()
			p.left--
			p.at = pPush
			if p.left == 0 {
				p.at = pDone
			}
			return
		}
		p.at = help
		if !helps {
			p.at = next
		}
	}
	switch p.at {
	case pPush:
		m.cmds[i]++
		p.at = pRing
		if r.tryBeforeRing {
			p.at = pTry
		}
	case pRing:
		m.bells[i] = true
		p.at = pTry
		if r.tryBeforeRing {
			p.at = pReady
		}
	case pTry:
		after := pReady
		if r.tryBeforeRing {
			after = pRing
		}
		if !helps {
			m.wake(2)
			p.at = after
		} else if !m.take(i, after, modelBudget) {
			p.at = after
		}
	case pReady:
		ready(pAnnounce, pReady2)
	case pReady2:
		if !m.take(i, pReady3, modelBudget) {
			p.at = pReady3
		}
	case pReady3:
		ready(pAnnounce, pAnnounce)
	case pAnnounce:
		p.asleep = true
		p.at = pAgain
	case pAgain:
		ready(pSleep, pAgain2)
	case pAgain2:
		if !m.take(i, pAgain3, modelBudget) {
			p.at = pAgain3
		}
	case pAgain3:
		ready(pSleep, pSleep)
	case pSleep:
		if !p.woken {
			return false
		}
		p.woken = false
		p.at = pReady
	case pDone:
		return false

	case hSwap:
		p.set, m.bells = m.bells, [2]bool{}
		p.at = hDrain
	case hDrain:
		j := 0
		if !p.set[0] {
			j = 1
		}
		if !p.set[j] {
			p.at = hFree
			if r.lookFirst {
				p.at = hLook
			}
			return true
		}
		p.set[j] = false
		if m.cmds[j] > 0 {
			m.cmds[j]--
			m.comps[j]++
			p.budget--
			m.wake(j)
		}
		if p.budget <= 0 && p.set[1-j] {
			if !r.dropBell {
				m.bells[1-j] = true
			}
			p.set[1-j] = false
		}
	case hFree:
		m.held = 0
		p.at = hLook
		if r.lookFirst {
			m.afterLook(i, r)
		}
	case hLook:
		p.saw = m.rung()
		if r.lookFirst {
			p.at = hFree
		} else {
			m.afterLook(i, r)
		}
	case hTryAgain:
		if !m.take(i, p.then, p.budget) {
			p.at = p.then // the new holder looks
		}
	case hWake:
		m.wake(2)
		p.at = p.then

	case oHeld:
		p.saw = m.held == 0
		p.at = oRung
	case oRung:
		p.at = oAnnounce
		if p.saw && m.rung() {
			p.at = oTry
		}
	case oAnnounce:
		p.asleep = true
		p.at = oHeld2
		if r.noSecondLook {
			p.at = oSleep
		}
	case oHeld2:
		p.saw = m.held == 0
		p.at = oRung2
	case oRung2:
		p.at = oSleep
		if p.saw && m.rung() {
			p.retract()
			p.at = oTry
		}
	case oSleep:
		if !p.woken {
			return false
		}
		p.woken = false
		p.at = oHeld
	case oTry:
		if !m.take(i, oHeld, 100) {
			p.at = oHeld
		}
	}
	return true
}

// afterLook goes on from what the holder saw of the bells.
func (m *tokenState) afterLook(i int, r *tokenRules) {
	p := &m.procs[i]
	switch {
	case !p.saw:
		p.at = p.then
	case i == 2 || p.budget <= 0 || !r.helped:
		p.at = hWake
		if r.noPass {
			p.at = p.then
		}
	default:
		p.at = hTryAgain
	}
}

// stuck explores every interleaving of the producers, with two commands each,
// and the owner. It returns a state in which nobody can take a step and some
// command is unanswered, and how many states there are.
func stuck(r tokenRules) (bad *tokenState, states int) {
	var start tokenState
	start.procs[0].left, start.procs[1].left = 2, 2
	start.procs[2].at = oHeld
	seen := map[tokenState]bool{start: true}
	todo := []tokenState{start}
	for len(todo) > 0 {
		m := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		moved := false
		for i := range m.procs {
			n := m
			if !n.next(i, &r) {
				continue
			}
			moved = true
			if !seen[n] {
				seen[n] = true
				todo = append(todo, n)
			}
		}
		if !moved && (m.procs[0].at != pDone || m.procs[1].at != pDone || m.rung() || m.cmds != [2]int8{} || m.held != 0) {
			return &m, len(seen)
		}
	}
	return nil, len(seen)
}

func TestTokenStates(t *testing.T) {
	for _, tt := range []struct {
		name  string
		rules tokenRules
		fails bool
	}{
		{"helped", tokenRules{helped: true}, false},
		{"owner only", tokenRules{}, false},
		{"helped, holder looks before it frees", tokenRules{helped: true, lookFirst: true}, true},
		{"helped, a spent helper tells nobody", tokenRules{helped: true, noPass: true}, true},
		{"helped, a bell is lost with the budget", tokenRules{helped: true, dropBell: true}, true},
		{"owner only, producer wakes before it rings", tokenRules{tryBeforeRing: true}, true},
		{"owner only, sleeps without a second look", tokenRules{noSecondLook: true}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bad, n := stuck(tt.rules)
			if (bad != nil) != tt.fails {
				t.Errorf("stuck: %+v, want one: %t", bad, tt.fails)
			}
			if !tt.fails && n < 500 {
				t.Errorf("%d states: the enumeration does not run", n)
			}
			t.Logf("%d states", n)
		})
	}
}

// within fails the test when f does not return in time, instead of hanging.
func within(t *testing.T, d time.Duration, f func()) {
	t.Helper()
	ended := make(chan struct{})
	go func() { defer close(ended); f() }()
	select {
	case <-ended:
	case <-time.After(d):
		buf := make([]byte, 1<<20)
		panic(fmt.Sprintf("not done after %v:\n%s", d, buf[:runtime.Stack(buf, true)]))
	}
}

// What a holder's budget leaves undone stays announced: commands of one lane,
// and of lanes whose bells were taken with its own.
func TestDrainBudget(t *testing.T) {
	s := newTest(t, rig{})
	var ls []*Lane
	for range 66 { // over two words of bells
		ls = append(ls, newLane(t, s))
	}
	for !s.token.try() { // nobody else answers
		runtime.Gosched()
	}
	left := 0
	for _, n := range []int{0, 3, 63, 64, 65} {
		l := ls[n]
		l.cmds, l.comps = ring.New(laneSlots), ring.New(laneSlots)
		for i := range 5 {
			var m ring.Msg
			r := request{op: opDelete, tag: uint32(i)}
			l.key = key(1)
			r.pack(&m)
			l.cmds.Push(&m)
			left++
		}
		s.token.ring(n)
	}
	for left > 0 {
		budget := min(3, left)
		if n := s.drain(budget); n != budget {
			t.Fatalf("drained %d of %d commands with a budget of %d", n, left, budget)
		}
		left -= budget
		if s.token.rung() != (left > 0) {
			t.Fatalf("%d commands left, announced: %t", left, s.token.rung())
		}
	}
	if n := s.drain(3); n != 0 {
		t.Errorf("drained %d commands more than there were", n)
	}
	for _, n := range []int{0, 3, 63, 64, 65} {
		for i := range 5 {
			var m ring.Msg
			if !ls[n].comps.Pop(&m) || unpackReply(&m).tag != uint32(i) || unpackReply(&m).reason != Miss {
				t.Errorf("lane %d, answer %d: %+v", n, i, unpackReply(&m))
			}
		}
	}
	s.unlock(0)
}

// Lanes whose commands all go through the rings, with the owner alone and with
// helpers, beside calls of Do, with yields at random: every command completes,
// each answer belongs to its command.
func TestRingStress(t *testing.T) {
	for _, helped := range []bool{false, true} {
		for _, lanes := range []int{1, 4, 9} {
			t.Run(fmt.Sprintf("helped=%t/lanes=%d", helped, lanes), func(t *testing.T) {
				s := newTest(t, rig{pools: []Pool{{64, 64 * 10}}, policy: "lru"})
				s.helped = helped
				perLane := 3000 / lanes
				if testing.Short() {
					perLane /= 8
				}
				within(t, 60*time.Second, func() { ringStress(t, s, lanes, perLane) })
			})
		}
	}
}

func ringStress(t *testing.T, s *Shard, lanes, perLane int) {
	var done atomic.Bool
	var steps atomic.Int64
	var helpers, wg sync.WaitGroup
	helpers.Add(1)
	// Somebody who holds the token now and then, and gives it up. Not more
	// often than the lanes get on: else this one would answer a bell that
	// everybody else has overlooked.
	go func() {
		defer helpers.Done()
		for last := int64(-1); !done.Load(); runtime.Gosched() {
			if n := steps.Load(); n != last {
				last = n
				s.Do(runtime.Gosched)
			}
		}
	}()
	var ls []*Lane
	for i := range lanes {
		l := newLane(t, s)
		ls = append(ls, l)
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			for n := range perLane {
				if rng.IntN(4) == 0 {
					runtime.Gosched()
				}
				laneStep(t, l, i, n, rng)
				steps.Add(1)
				if t.Failed() {
					return
				}
			}
		}()
	}
	wg.Wait()
	done.Store(true)
	helpers.Wait()
	for _, l := range ls {
		purge(t, s, l)
		l.Close()
	}
}

// laneStep uses one key of the lane's own, so that every answer is known.
func laneStep(t *testing.T, l *Lane, lane, n int, rng *rand.Rand) {
	k := key(lane*1000 + rng.IntN(20))
	s := l.s
	hash := s.hash(k)
	v := pattern(k, n, 64)
	switch rng.IntN(3) {
	case 0: // a set, its commands queued whether the token is free or not
		p := Put{Hash: hash, Key: k, Value: v, Shape: Shape{Size: 64}, Set: true}
		var out [1]reply
		l.queue([]request{{op: opReserve, size: 64, keyLen: uint32(len(k))}}, out[:])
		if out[0].reason != OK {
			t.Errorf("reserve: %v", out[0].reason)
			return
		}
		s.fill(out[0].id, &p)
		l.queue([]request{p.commit(out[0].id)}, out[:])
		if out[0].reason != OK {
			t.Errorf("commit: %v", out[0].reason)
			return
		}
		check(t, l, k, v)
	case 1: // a batch longer than the rings
		reqs := make([]request, 2*laneSlots+5)
		out := make([]reply, len(reqs))
		for i := range reqs {
			reqs[i] = request{op: opCommit + 100} // unknown: answered with its tag, changes nothing
		}
		l.queue(reqs, out)
		for i := range out {
			if out[i].tag != uint32(i) {
				t.Errorf("answer %d carries tag %d", i, out[i].tag)
				return
			}
		}
	case 2:
		want := Miss
		if has(l, k) {
			want = OK
		}
		if why := del(l, k); why != want {
			t.Errorf("delete: %v, want %v", why, want)
		}
		if has(l, k) {
			t.Errorf("%s is resident after its delete", k)
		}
	}
}

// The stack of returned records: readers give last claims back on many
// goroutines while the owner retires the records and takes them. Every record
// comes back exactly once (audit), and nothing else does.
func TestReturnStack(t *testing.T) {
	const records, readers = 1000, 3
	s := newTest(t, rig{pools: []Pool{{64, records}}, policy: "lru"})
	l := newLane(t, s)
	rounds := 150
	if testing.Short() {
		rounds = 15
	}
	for round := range rounds {
		for i := range records {
			mustPut(t, l, key(i), pattern(key(i), round, 64))
		}
		// Two thirds of the records have one reader, so that readers push at the
		// same time; the others have all of them.
		var claims [readers][]Claim
		var of [readers][]int
		for i := range records {
			for r := range claims {
				if i%3 == 0 || i%readers == r {
					c, ok := get(l, key(i))
					if !ok {
						t.Fatalf("%s is a miss", key(i))
					}
					claims[r] = append(claims[r], c)
					of[r] = append(of[r], i)
				}
			}
		}
		for i := range records { // most retire before, the others beside
			if i < records*3/4 {
				del(l, key(i))
			}
		}
		var wg sync.WaitGroup
		var started atomic.Int32
		for r := range claims {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for j, i := range of[r] {
					if k := key(i); !bytes.Equal(s.Bytes(claims[r][j]), pattern(k, round, 64)) {
						t.Errorf("the bytes of %s changed under a claim", k)
					}
				}
				for started.Add(1); started.Load() <= readers; {
					runtime.Gosched() // until the owner has begun as well
				}
				for _, c := range claims[r] {
					if s.Release(c) != nil {
						t.Error("release refused")
					}
				}
			}()
		}
		for started.Load() < readers {
			runtime.Gosched()
		}
		started.Add(1)
		for i := records * 3 / 4; i < records; i++ {
			del(l, key(i))
			if i%50 == 0 {
				s.Do(func() { s.takeReturned() })
			}
		}
		wg.Wait()
		s.Do(func() {
			s.takeReturned()
			if s.freeRecords != int(s.freshRec) || s.freshRec != records {
				t.Fatalf("round %d: %d records free of %d used, want %d", round, s.freeRecords, s.freshRec, records)
			}
			if free := s.store.free()[0]; free != records*64 {
				t.Fatalf("round %d: %d bytes free, want %d", round, free, records*64)
			}
		})
		audit(t, s)
	}
}
