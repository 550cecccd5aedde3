package client

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

func events(first uint64, keys ...string) *wire.Events {
	m := &wire.Events{Epoch: 5, FirstSequence: first}
	for _, k := range keys {
		m.Events = append(m.Events, wire.Event{Kind: wire.EventStored, Tier: 2, Key: []byte(k), Size: 1})
	}
	return m
}

func TestSubscribe(t *testing.T) {
	f := newFake(t, func(f *fake) {
		f.serve = func(p *peer) {
			var s wire.Subscribe
			id, ok := p.want(wire.TypeSubscribe, &s)
			if !ok {
				return
			}
			if s.FromEpoch != 5 || s.FromSequence != 41 {
				p.f.tb.Errorf("SUBSCRIBE %+v", s)
			}
			for i := range uint64(1000) {
				p.send(events(42+i, fmt.Sprint("key", i)).Append(nil, id))
			}
			p.send((&wire.StatusReply{Status: wire.StatusClosed}).Append(nil, id))
			p.drain()
		}
	})
	cl := f.dial(nil)
	s, err := cl.Subscribe(soon(t), 5, 41)
	if err != nil {
		t.Fatal(err)
	}
	var all []wire.Events
	for i := range uint64(1000) {
		e, err := s.Next(soon(t))
		if err != nil || e.Epoch != 5 || e.FirstSequence != 42+i {
			t.Fatalf("events %d: %+v, %v", i, e, err)
		}
		all = append(all, e)
	}
	for range 2 {
		_, err = s.Next(soon(t))
		if e := want(t, err, ErrClosing, "subscribe"); e.Status != wire.StatusClosed {
			t.Errorf("error %#v", e)
		}
	}
	for i, e := range all { // they are ours
		if len(e.Events) != 1 || string(e.Events[0].Key) != fmt.Sprint("key", i) {
			t.Fatalf("events have changed: %+v", e)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A subscription whose user does not read holds up its own connection alone.
func TestSubscribeSlowReader(t *testing.T) {
	f := newFake(t, func(f *fake) {
		f.serve = func(p *peer) {
			h, payload, ok := p.next()
			if ok && h.Type == wire.TypeSubscribe {
				frame := events(1, string(make([]byte, 1000))).Append(nil, h.ID)
				for {
					if _, err := p.nc.Write(frame); err != nil {
						return
					}
				}
			}
			if ok {
				p.send((&wire.Pong{Bytes: payload}).Append(nil, h.ID))
			}
			p.drain()
		}
	})
	cl := f.dial(nil)
	s, err := cl.Subscribe(soon(t), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if !eventually(func() bool { return len(s.frames) == framesAhead }) {
		t.Fatal("nothing is read ahead")
	}
	if _, err := cl.Ping(soon(t)); err != nil {
		t.Errorf("Ping beside a slow subscription: %v", err)
	}
	s.Close()
	s.Close()
	for range framesAhead + 1 {
		_, err = s.Next(soon(t))
	}
	for err == nil { // at most the one that the reader had in hand
		_, err = s.Next(soon(t))
	}
	want(t, err, ErrClosed, "subscribe")
}

func TestSubscribeEnds(t *testing.T) {
	t.Run("context of Next", func(t *testing.T) {
		f := newFake(t, func(f *fake) { f.serve = (*peer).drain })
		s, err := f.dial(nil).Subscribe(soon(t), 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(background, time.Millisecond)
		defer cancel()
		_, err = s.Next(ctx)
		want(t, err, ErrTimeout, "subscribe")
		f.hangUp()
		_, err = s.Next(soon(t))
		want(t, err, ErrLost, "subscribe")
	})
	t.Run("client", func(t *testing.T) {
		f := newFake(t, func(f *fake) { f.serve = (*peer).drain })
		cl := f.dial(nil)
		s, err := cl.Subscribe(soon(t), 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		go cl.Close()
		_, err = s.Next(soon(t))
		want(t, err, ErrClosed, "subscribe")
	})
	t.Run("refused", func(t *testing.T) {
		f := newFake(t, func(f *fake) {
			f.serve = func(p *peer) {
				if id, ok := p.want(wire.TypeSubscribe, nil); ok {
					p.send((&wire.ErrorReply{Code: wire.CodeTooMany, Text: "enough"}).Append(nil, id))
					p.drain()
				}
			}
		})
		s, err := f.dial(nil).Subscribe(soon(t), 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Next(soon(t))
		if e := want(t, err, ErrBusy, "subscribe"); e.Text != "enough" {
			t.Errorf("error %v", e)
		}
		select {
		case <-s.c.gone:
		case <-soon(t).Done():
			t.Error("its connection stays")
		}
	})
	t.Run("nobody", func(t *testing.T) {
		f := newFake(t, nil)
		cl := f.dial(nil)
		f.close()
		if _, err := cl.Subscribe(soon(t), 0, 0); !errors.Is(err, ErrLost) {
			t.Errorf("Subscribe to nobody: %v", err)
		}
	})
}
