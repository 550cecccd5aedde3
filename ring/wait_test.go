package ring

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// parkAtOnce makes p park without a poll before, so that a test meets the
// protocol and not the spin.
func parkAtOnce(p *Parker) {
	p.ch = make(chan struct{}, 1)
	p.procs = runtime.GOMAXPROCS(0)
}

// finish fails the test if done does not close in time: a lost wake-up hangs.
func finish(t *testing.T, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		buf := make([]byte, 1<<16)
		t.Fatalf("lost wake-up?\n%s", buf[:runtime.Stack(buf, true)])
	}
}

func TestWaitReady(t *testing.T) {
	var p Parker
	calls := 0
	p.Wait(func() bool { calls++; return true })
	if err := p.WaitContext(context.Background(), func() bool { calls++; return true }); err != nil || calls != 2 {
		t.Errorf("error %v after %d calls of ready, want none after 2", err, calls)
	}
	if p.Sleeping() || p.Wake() {
		t.Error("somebody sleeps after a wait that had nothing to wait for")
	}
}

// TestWaitPolls: ready that comes true during the polls needs no wake.
func TestWaitPolls(t *testing.T) {
	var p Parker
	polls := 1 + spinPolls + yieldPolls
	if runtime.GOMAXPROCS(0) == 1 {
		polls -= spinPolls
	}
	parked := false
	p.hook = func(step) { parked = true }
	calls := 0
	p.Wait(func() bool { calls++; return calls == polls })
	if parked {
		t.Errorf("announced itself although ready was true at poll %d of %d", calls, polls)
	}
	calls = -1 // one poll too late: it announces itself, and sees it then
	p.Wait(func() bool { calls++; return calls == polls })
	if !parked {
		t.Errorf("polled %d times before the announcement, want %d", calls, polls)
	}
}

// TestOneProcessorDoesNotSpin: with GOMAXPROCS 1 a spin only delays whoever is
// to make the condition true; a Parker follows a change at its next park.
func TestOneProcessorDoesNotSpin(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	polls := func(p *Parker) (n int) { // calls of ready before the announcement
		var announced atomic.Bool
		p.hook = func(s step) {
			if s == stepAnnounce {
				announced.Store(true)
			}
		}
		woken := make(chan struct{})
		go func() {
			defer close(woken)
			for !p.Wake() {
				runtime.Gosched()
			}
		}()
		p.Wait(func() bool {
			if !announced.Load() {
				n++
			}
			return announced.Load() && !p.Sleeping()
		})
		<-woken
		return n
	}
	var p Parker
	if n := polls(&p); n != 1+yieldPolls {
		t.Errorf("GOMAXPROCS 1: %d polls before the park, want %d", n, 1+yieldPolls)
	}
	runtime.GOMAXPROCS(2)
	polls(&p) // parks once, and sees the change
	if n := polls(&p); n != 1+spinPolls+yieldPolls {
		t.Errorf("GOMAXPROCS 2: %d polls before the park, want %d", n, 1+spinPolls+yieldPolls)
	}
	runtime.GOMAXPROCS(1)
	polls(&p)
	if n := polls(&p); n != 1+yieldPolls {
		t.Errorf("GOMAXPROCS 1 again: %d polls before the park, want %d", n, 1+yieldPolls)
	}
}

// TestWakeMidway stops the sleeper at each of its steps, wakes it there, and
// checks that Wake told the truth and left nothing behind.
func TestWakeMidway(t *testing.T) {
	for _, tt := range []struct {
		name string
		at   step
		made bool // the condition is made true before the wake
		want bool // Wake's answer
	}{
		{"before the announcement", stepAnnounce, true, false},
		{"announced", stepCheck, true, true},
		{"about to sleep", stepSleep, true, true},
		{"about to retract", stepRetract, true, true},
		{"announced, spurious", stepCheck, false, true},
		{"about to sleep, spurious", stepSleep, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var p Parker
			parkAtOnce(&p)
			ready, asked, spurious := false, false, !tt.made
			p.hook = func(s step) {
				switch {
				case s == tt.at && !asked:
					asked = true
					if tt.at == stepRetract {
						break // made true below, at stepCheck
					}
					ready = tt.made
					if got := p.Wake(); got != tt.want {
						t.Errorf("Wake = %t, want %t", got, tt.want)
					}
					return
				case s == stepCheck && tt.at == stepRetract:
					ready = true
					return
				case s == stepAnnounce && asked && spurious:
					ready = true // the second time round it comes true unaided
					return
				default:
					return
				}
				if got := p.Wake(); got != tt.want {
					t.Errorf("Wake = %t, want %t", got, tt.want)
				}
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				p.Wait(func() bool { return ready })
			}()
			finish(t, done)
			if !asked || p.Sleeping() || len(p.ch) != 0 || p.Wake() {
				t.Errorf("asked %t, Sleeping() = %t, tokens %d", asked, p.Sleeping(), len(p.ch))
			}
		})
	}
}

// TestSecondSleeperPanics: the one misuse a Parker can see.
func TestSecondSleeperPanics(t *testing.T) {
	var p Parker
	parkAtOnce(&p)
	p.state.Store(asleep)
	defer func() {
		if recover() == nil {
			t.Error("a second sleeper did not panic")
		}
	}()
	p.Wait(func() bool { return false })
}

func TestWaitContext(t *testing.T) {
	never := func() bool { return false }
	t.Run("done before", func(t *testing.T) {
		var p Parker
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := p.WaitContext(ctx, never); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want %v", err, context.Canceled)
		}
		if err := p.WaitContext(ctx, func() bool { return true }); err != nil {
			t.Errorf("error %v although ready", err)
		}
	})
	t.Run("deadline while asleep", func(t *testing.T) {
		var p Parker
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		if err := p.WaitContext(ctx, never); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want %v", err, context.DeadlineExceeded)
		}
		if p.Sleeping() || p.Wake() || len(p.ch) != 0 {
			t.Error("the announcement outlived the wait")
		}
	})
	t.Run("canceled and woken at once", func(t *testing.T) {
		// The waker takes the announcement just before the sleeper, whose
		// context has ended, retracts it: the token must not stay.
		for _, made := range []bool{false, true} {
			var p Parker
			parkAtOnce(&p)
			ctx, cancel := context.WithCancel(context.Background())
			ready := false
			p.hook = func(s step) {
				switch s {
				case stepSleep:
					cancel()
				case stepRetract:
					ready = made
					if !p.Wake() {
						t.Error("Wake = false while announced")
					}
				}
			}
			err := p.WaitContext(ctx, func() bool { return ready })
			if made != (err == nil) {
				t.Errorf("ready %t, error %v", made, err)
			}
			if p.Sleeping() || p.Wake() || len(p.ch) != 0 {
				t.Error("the announcement or the token outlived the wait")
			}
		}
	})
}

// TestWakeStress lets a sleeper wait for items from several wakers, with a
// yield thrown in at any step of either side; an item whose wake-up is lost
// hangs the test.
func TestWakeStress(t *testing.T) {
	each := 20_000
	if testing.Short() || raceBuild {
		each = 5_000
	}
	for _, wakers := range []int{1, 3} {
		for _, canceling := range []bool{false, true} {
			t.Run(fmt.Sprintf("wakers=%d/canceling=%t", wakers, canceling), func(t *testing.T) {
				var p Parker
				parkAtOnce(&p)
				p.hook = func(step) {
					if rand.Uint32()%4 == 0 {
						runtime.Gosched()
					}
				}
				var made, woke atomic.Int64
				total := int64(wakers * each)
				var wg sync.WaitGroup
				for range wakers {
					wg.Add(1)
					go func() {
						defer wg.Done()
						for range each {
							made.Add(1)
							if p.Wake() {
								woke.Add(1)
							}
							for range rand.Uint32() % 3 {
								runtime.Gosched()
							}
						}
					}()
				}
				done := make(chan struct{})
				ended := 0
				go func() {
					defer close(done)
					for taken := int64(0); taken < total; {
						ready := func() bool { return made.Load() > taken }
						if canceling && taken%3 == 0 {
							ctx, cancel := context.WithCancel(context.Background())
							go cancel()
							if p.WaitContext(ctx, ready) != nil {
								ended++
								continue
							}
						} else {
							p.Wait(ready)
						}
						taken++
					}
				}()
				finish(t, done)
				wg.Wait()
				if made.Load() != total || p.Sleeping() || len(p.ch) != 0 {
					t.Errorf("%d of %d made, Sleeping() = %t, tokens %d", made.Load(), total, p.Sleeping(), len(p.ch))
				}
				t.Logf("%d items, %d wakes, %d waits ended by their context", total, woke.Load(), ended)
			})
		}
	}
}

// TestRingsAndParkers is the whole pattern: requests there, answers back, a
// Parker on each side, which parks at once, so that every message is a chance
// to lose a wake-up behind a Push that is still in the store buffer.
func TestRingsAndParkers(t *testing.T) {
	n := uint64(100_000)
	if testing.Short() || raceBuild {
		n = 20_000
	}
	for _, capacity := range []int{2, 16} {
		t.Run(fmt.Sprintf("capacity=%d", capacity), func(t *testing.T) {
			there, back := New(capacity), New(capacity)
			var server, client Parker
			parkAtOnce(&server)
			parkAtOnce(&client)
			served, done := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(served)
				var m Msg
				for i := uint64(0); i < n; i++ {
					server.Wait(func() bool { return there.Pop(&m) })
					client.Wake() // room for a request
					if err := checkMsg(&m, i); err != nil {
						t.Error(err)
					}
					server.Wait(func() bool { return back.Push(&m) })
					client.Wake()
				}
			}()
			go func() {
				defer close(done)
				var m Msg
				for sent, got := uint64(0), uint64(0); got < n; {
					// Push while there is room, for room or an answer wait.
					pushed, popped := false, false
					client.Wait(func() bool {
						if sent < n && !pushed {
							fillMsg(&m, sent)
							pushed = there.Push(&m)
						}
						popped = back.Pop(&m)
						return pushed || popped
					})
					if pushed {
						sent++
					}
					if popped {
						if err := checkMsg(&m, got); err != nil {
							t.Error(err)
						}
						got++
					}
					server.Wake()
				}
			}()
			finish(t, done)
			finish(t, served)
		})
	}
}

// TestSleeperHandedOver: the sleeper's words may move to another goroutine
// through an edge of the caller's, here a mutex.
func TestSleeperHandedOver(t *testing.T) {
	var p Parker
	const n, sleepers = 3000, 3
	var made atomic.Int64
	var mu sync.Mutex // the sleeper's role
	var taken int64
	var wg sync.WaitGroup
	for range sleepers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				mu.Lock()
				if taken == n {
					mu.Unlock()
					return
				}
				p.Wait(func() bool { return made.Load() > taken })
				taken++
				mu.Unlock()
			}
		}()
	}
	for i := 0; i < n; i++ {
		made.Add(1)
		p.Wake()
		if i%3 == 0 {
			runtime.Gosched()
		}
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	finish(t, done)
}

func TestWaitAllocs(t *testing.T) {
	var p Parker
	parkAtOnce(&p)
	q := New(2)
	var m Msg
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var stop atomic.Bool
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		var m Msg
		for !stop.Load() {
			if p.Sleeping() && q.Push(&m) {
				p.Wake()
			}
			runtime.Gosched()
		}
	}()
	if n := testing.AllocsPerRun(1000, func() { p.Wait(func() bool { return q.Pop(&m) }) }); n != 0 {
		t.Errorf("Wait with a park: %v allocations", n)
	}
	if n := testing.AllocsPerRun(1000, func() { _ = p.WaitContext(ctx, func() bool { return q.Pop(&m) }) }); n != 0 {
		t.Errorf("WaitContext with a park: %v allocations", n)
	}
	stop.Store(true)
	<-stopped
	if n := testing.AllocsPerRun(1000, func() { p.Wake() }); n != 0 {
		t.Errorf("Wake: %v allocations", n)
	}
}
