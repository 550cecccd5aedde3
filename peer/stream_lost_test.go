package peer

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// Cancelling costs what it cancels, however much waits.
func TestCancelManyWrites(t *testing.T) {
	const n = 1024 * wire.MaxItems
	src := newTable(t, 1, 64, false)
	answered := 0
	r := newStreamSource(&Session{Memory: src, Event: func(Event) { answered++ }})
	src.put(t, keyOf(0), 64)
	o := &wire.Offered{}
	c, _ := src.Claim("", &wire.Wanted{Key: []byte(keyOf(0))}, o)
	for i := range n {
		r.Write(Write{Op: OpID(i / wire.MaxItems), Index: i % wire.MaxItems, Claim: c, Offer: o})
	}
	start := time.Now()
	for i := range n {
		r.CancelWrite(OpID(i/wire.MaxItems), i%wire.MaxItems)
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("%v for %d writes", took, n)
	}
	if answered != n || len(r.queue) > n/2 || r.queued != 0 {
		t.Errorf("%d of %d are answered, %d wait, %d bytes", answered, n, len(r.queue), r.queued)
	}
	r.Down()
	if answered != n {
		t.Error("answered twice")
	}
}

// What is cancelled is not sent, and what is not cancelled is, wherever it waits.
func TestCancelSome(t *testing.T) {
	const n = 64
	src := newTable(t, n, 64, false)
	var sent []int
	r := newStreamSource(&Session{Memory: src, Event: func(e Event) {
		if w := e.(Written); w.Status == wire.StatusOK {
			sent = append(sent, w.Index)
		}
	}})
	o := &wire.Offered{Size: 64}
	for i := range n {
		src.put(t, keyOf(i), 64)
		c, _ := src.Claim("", &wire.Wanted{Key: []byte(keyOf(i))}, &wire.Offered{})
		r.Write(Write{Op: 1, Index: i, Claim: c, Offer: o})
	}
	for i := range n {
		if i%3 != 0 {
			r.CancelWrite(1, i)
		}
	}
	st := &outStream{src: r}
	for r.takeFor(st) {
		st.done(nil)
	}
	if len(sent) != (n+2)/3 || r.queued != 0 || len(r.queue) != 0 {
		t.Errorf("sent %v, %d wait", sent, len(r.queue))
	}
	for k, i := range sent {
		if i != 3*k {
			t.Errorf("sent %v", sent)
			break
		}
	}
}

// The end of a session answers for each write once, for those that were cancelled
// before it as well.
func TestCancelThenDown(t *testing.T) {
	answers := map[int]int{}
	src := newTable(t, 1, 64, false)
	src.put(t, keyOf(0), 64)
	o := &wire.Offered{}
	c, _ := src.Claim("", &wire.Wanted{Key: []byte(keyOf(0))}, o)
	r := newStreamSource(&Session{Memory: src, Event: func(e Event) { answers[e.(Written).Index]++ }})
	for i := range 10 {
		r.Write(Write{Op: 1, Index: i, Claim: c, Offer: o})
	}
	r.CancelWrite(1, 3)
	r.CancelWrite(1, 3)
	r.Down()
	for i := range 10 {
		if answers[i] != 1 {
			t.Errorf("write %d is answered %d times", i, answers[i])
		}
	}
}

// takeFor is take, with the lock that it wants.
func (r *streamSource) takeFor(st *outStream) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return st.take()
}

// What is behind much on a connection that is slow, but lives, is not given up
// because another connection was lost; and what was on that one is.
func TestSlowConnectionIsNotLost(t *testing.T) {
	const size = 64 << 10
	dst := newTable(t, 4, size, false)
	b := openNode(t, dst)
	r := newRawSource(t)
	failed := make(chan error, 1)
	go func() {
		failed <- func() error {
			ctrl, id, err := r.offerAll(size)
			if err != nil {
				return err
			}
			first, slow := <-r.pay, <-r.pay
			first.Close() // with item 0 on it
			<-r.pay
			// Everything has been sent, as far as the source can tell.
			done := &wire.Done{Source: r.self, Dest: r.dest.Load(), Items: []wire.ItemStatus{{Index: 0}, {Index: 1}, {Index: 2}}}
			ctrl.Write(done.Append(nil, id))
			slow.Write((&wire.Block{Index: 1, Size: size}).Append(nil, id))
			b := payload(keyOf(1), size)
			for len(b) > 0 { // for twelve times as long as a connection that is silent is waited for
				slow.Write(b[:size/32])
				b = b[size/32:]
				time.Sleep(quick.Repeat * 3 / 2)
			}
			slow.Write((&wire.Block{Index: 2, Size: size}).Append(nil, id))
			slow.Write(payload(keyOf(2), size))
			return nil
		}()
	}()
	got := fetch(t, b, r.endpoint(), Submit{Namespace: "ns", Items: wanted(0, 3)}, 10*time.Second)
	if got[0].Status != wire.StatusLost || got[1].Status != wire.StatusOK || got[2].Status != wire.StatusOK {
		t.Errorf("%+v", got)
	}
	if err := <-failed; err != nil {
		t.Error(err)
	}
	dst.quiet(t)
}

// What was lost is noticed also while other connections are never silent: they
// carry what the source has begun to send later.
func TestLostBesideBusyConnection(t *testing.T) {
	const size = 16 << 10
	dst := newTable(t, 600, size, false)
	b := openNode(t, dst)
	r := newRawSource(t)
	stop := make(chan struct{})
	var source sync.WaitGroup
	source.Add(1)
	go func() {
		defer source.Done()
		ctrl := <-r.ctrl
		var busy net.Conn
		for n := 0; ; n++ {
			m, id, err := readOne(ctrl, wire.TypeStart, wire.TypeAccept, wire.TypeFinish, wire.TypeProbe)
			if err != nil {
				return
			}
			switch m := m.(type) {
			case *wire.Start:
				o := &wire.Offer{Source: r.self, Dest: r.dest.Load()}
				for range m.Items {
					o.Items = append(o.Items, wire.Offered{Size: size, Flags: wire.OfferNoPool})
				}
				ctrl.Write(o.Append(nil, id))
			case *wire.Accept:
				var over []wire.ItemStatus
				for _, it := range m.Items {
					over = append(over, wire.ItemStatus{Index: it.Index})
				}
				if busy == nil {
					first := <-r.pay
					busy = <-r.pay
					first.Close() // with the first item on it
				} else {
					for _, it := range m.Items {
						busy.Write((&wire.Block{Index: it.Index, Size: size}).Append(nil, id))
						busy.Write(make([]byte, size))
					}
				}
				ctrl.Write((&wire.Done{Source: r.self, Dest: r.dest.Load(), Items: over}).Append(nil, id))
			case *wire.Finish:
				ctrl.Write((&wire.Finished{Source: m.Source, Dest: m.Dest}).Append(nil, id))
			}
		}
	}()
	lost := make(chan Settle, 1)
	b.Submit(r.endpoint(), Submit{Namespace: "ns", Items: wanted(1000, 1), Deadline: b.Now() + 10*time.Second}, func(s Settle) { lost <- s })
	start := time.Now()
	go func() {
		for i := 0; i < 500; i++ {
			select {
			case <-stop:
				return
			default:
			}
			b.Submit(r.endpoint(), Submit{Namespace: "ns", Items: wanted(i, 1), Deadline: b.Now() + 5*time.Second}, func(Settle) {})
			time.Sleep(quick.Repeat / 5)
		}
	}()
	s := <-lost
	close(stop)
	if took := time.Since(start); s.Status != wire.StatusLost || took > 3*time.Second {
		t.Errorf("%v after %v", s.Status, took)
	}
	dst.quiet(t)
	closeNode(t, b)
	source.Wait()
}
