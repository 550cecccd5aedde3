package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/hints/keys"
	"github.com/kvcr-go/kvcr/wire"
	"github.com/kvcr-go/kvcr/wire/client"
)

// Clients that have the secret, and use hints without measure.

// waiting is what sessions hold at most: bytes for jobs, and bytes to send.
func (s *Server) waiting() (held, queued int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ss := range s.sessions {
		ss.mu.Lock()
		held, queued = max(held, ss.held), max(queued, ss.queued)
		ss.mu.Unlock()
	}
	return held, queued
}

// Hints that come faster than they are dealt with wait in the kernel, beyond what a
// connection may hold; all are answered in the end.
func TestHintFlood(t *testing.T) {
	const most = 1 << 20
	s, cl := startHinted(t, func(o *Options) { o.OutboundCap = most })
	for range cap(s.hinting) {
		s.hinting <- struct{}{} // nobody gets on
	}
	c := dialBinary(t, s)
	c.greet(nil, nil)
	frame := (&wire.Hint{Body: []byte(`{"actions":[]}` + strings.Repeat(" ", 200<<10))}).Append(nil, 1)
	sent, rest := 0, frame
	for { // until it does not take more
		c.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
		n, err := c.Write(rest)
		if rest = rest[n:]; len(rest) == 0 {
			sent++
			rest = frame
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil || sent > 500 {
			t.Fatalf("%d envelopes are taken, %v", sent, err)
		}
	}
	if held, _ := s.waiting(); held < most/2 || held > most+wire.MaxPayload+64<<10 {
		t.Errorf("a connection holds %d bytes for hints, may hold %d and one frame", held, most)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := cl.Ping(ctx); err != nil {
		t.Errorf("another connection: %v", err)
	}
	for range cap(s.hinting) {
		<-s.hinting
	}
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if len(rest) < len(frame) { // it has begun
		sent++
		go c.Write(rest)
	}
	for i := range sent {
		h, payload, err := c.next()
		if err != nil || h.Type != wire.TypeHintResults || string(payload) != "[]" {
			t.Fatalf("answer %d of %d is %+v %q, %v", i, sent, h, payload, err)
		}
	}
	if held, _ := s.waiting(); held != 0 {
		t.Errorf("%d bytes are held for nothing", held)
	}
}

// Who subscribes to outcomes and does not read keeps no more than its share waiting,
// holds up nobody, and is closed.
func TestOutcomesNotRead(t *testing.T) {
	s, cl := startHinted(t, func(o *Options) { o.WriteTimeout = 300 * time.Millisecond })
	c := dialBinary(t, s)
	c.Conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	c.greet(nil, nil)
	c.write((&wire.SubscribeOutcomes{}).Append(nil, 5))
	var first wire.Outcomes
	c.recv(5, &first)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var many []uint64
	for h := range uint64(10_000) {
		many = append(many, 1<<40+h)
	}
	body := envelope(t, "", []string{hints.TypeEvict}, many...)
	worst, stuck := 0, false
	for i := range 400 { // each 160 KiB of outcomes; until the reader has lost some
		if _, err := cl.Hint(ctx, "", wire.FormatJSON, body); err != nil {
			t.Fatalf("hint %d: %v", i, err)
		}
		_, queued := s.waiting()
		worst = max(worst, queued)
		st, err := s.opt.Engine.Stats()
		if err != nil {
			t.Fatal(err)
		}
		if stuck = stuck || queued > eventsAhead; stuck && st.Hints.Outcomes.Subscriptions == 0 {
			break
		}
	}
	if !stuck || worst > eventsAhead+wire.MaxPayload {
		t.Errorf("up to %d bytes waited for the reader; it should come to %d and one frame", worst, eventsAhead)
	}
	if !comesTrue(10*time.Second, func() bool {
		st, err := s.opt.Engine.Stats()
		return err == nil && st.Hints.Outcomes.Subscriptions == 0 && s.conns.Load() == 1
	}) {
		t.Error("the reader that takes nothing stays")
	}
}

// A connection has a bound of requests that wait for other nodes, and of the blocks
// that they may bring.
func TestFetchForFlood(t *testing.T) {
	s, cl := startHinted(t, nil)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var all []uint64
	var ks [][]byte
	for h := range uint64(wire.MaxList) {
		all, ks = append(all, h), append(ks, hashKey(h))
	}
	if _, err := cl.Hint(ctx, "r", wire.FormatJSON, envelope(t, "tcp://"+silent.Addr().String(), []string{hints.TypeFetch}, all...)); err != nil {
		t.Fatal(err)
	}
	busy := func(c *binaryClient, id uint64) {
		t.Helper()
		var st wire.StatusReply
		if c.recv(id, &st); st.Status != wire.StatusBusy {
			t.Errorf("request %d: %v", id, st.Status)
		}
	}
	few := dialBinary(t, s)
	few.greet(nil, nil)
	for id := range uint64(maxInFlight + 20) {
		few.write((&wire.Fetch{Keys: ks[:2], RequestID: "r"}).Append(nil, id+1))
	}
	for id := range uint64(20) {
		busy(few, maxInFlight+id+1)
	}
	few.ask(1000, &wire.Ping{}, &wire.Pong{})
	for id := range uint64(maxInFlight) {
		few.write((&wire.Cancel{Target: id + 1}).Append(nil, 2000))
		var got wire.Claims
		if few.recv(id+1, &got); len(got.Claims) != 2 || got.Claims[0].Status != wire.StatusAborted {
			t.Errorf("request %d: %+v", id+1, got.Claims)
		}
	}
	for range 2 { // an id that is in use
		few.write((&wire.Fetch{Keys: ks[:2], RequestID: "r"}).Append(nil, 3))
	}
	busy(few, 3)
	large := dialBinary(t, s)
	large.greet(nil, nil)
	for id := range uint64(maxClaims/wire.MaxList + 1) {
		large.write((&wire.Fetch{Keys: ks, RequestID: "r"}).Append(nil, id+1))
	}
	busy(large, maxClaims/wire.MaxList+1)
	large.Close() // takes the others with it: see startWith
}

// The engine's subscriptions to outcomes are bounded over all connections.
func TestOutcomeSubscriptionsBounded(t *testing.T) {
	s := startWith(t, kvcr.Config{
		Capacity: 8 << 20, Namespaces: []kvcr.Namespace{{Name: "kv"}},
		Hints: &kvcr.Hints{Adapter: keys.Direct{Namespace: "kv", Style: keys.Dynamo{}}, Outcomes: hints.OutcomesConfig{Subscriptions: 3}},
	}, func(o *Options) { o.Binary = []string{"127.0.0.1:0"} })
	_, addrs := s.Addrs()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var open []*client.OutcomeStream
	for i := range 5 {
		cl, err := client.Dial(ctx, client.Options{Addr: addrs[0].String()})
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		sub, err := cl.SubscribeOutcomes(ctx, 0, 0)
		if i < 3 && err != nil || i >= 3 && !errors.Is(err, client.ErrBusy) {
			t.Errorf("subscription %d: %v", i+1, err)
		}
		if err == nil {
			open = append(open, sub)
		}
		if i == 4 {
			open[0].Close()
			if !comesTrue(10*time.Second, func() bool {
				sub, err = cl.SubscribeOutcomes(ctx, 0, 0)
				return err == nil
			}) {
				t.Errorf("after one has ended: %v", err)
			}
		}
	}
}

// Results that do not fit a frame lose what is for people; if that does not do, the
// client is told. Either way the connection goes on.
func TestHintOfManyActions(t *testing.T) {
	_, cl := startHinted(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	many := func(n int) []byte { return []byte(`{"actions":[` + strings.Repeat(`{},`, n-1) + `{}]}`) }
	body, err := cl.Hint(ctx, "", wire.FormatJSON, many(2000))
	var results []hints.Result
	if err != nil || json.Unmarshal(body, &results) != nil || len(results) != 2000 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	for i, r := range results {
		if r.Status != hints.Rejected || r.Index != i || r.Detail != "" || (r.Reason == hints.LimitExceeded) != (i >= 256) {
			t.Fatalf("result %d: %+v", i, r)
		}
	}
	_, err = cl.Hint(ctx, "", wire.FormatJSON, many(10_000))
	var e *client.Error
	if !errors.As(err, &e) || !errors.Is(err, client.ErrTooLarge) || e.Size != wire.MaxPayload {
		t.Errorf("10,000 actions: %v", err)
	}
	if _, err := cl.Hint(ctx, "", wire.FormatJSON, []byte(fmt.Sprintf(`{"actions":[%s]}`, strings.Repeat(`[`, 5000)))); !errors.Is(err, client.ErrRefused) {
		t.Errorf("a deep one: %v", err)
	}
	if _, err := cl.Ping(ctx); err != nil {
		t.Error(err)
	}
}
