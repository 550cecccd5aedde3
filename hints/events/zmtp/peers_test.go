package zmtp

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"

	"github.com/kvcr-go/kvcr/internal/pyzmq"
)

// libzmq subscribes to us, with heartbeats, and publishes to us.
func TestLibzmq(t *testing.T) {
	py := pyzmq.Start(t)
	p, at := newPub(t, "tcp://127.0.0.1:0", PubOptions{})
	py.Do(pyzmq.Command{"op": "socket", "id": "sub", "type": "SUB", "connect": at, "subscribe": []string{"kv", "b"}, "heartbeat": 5})
	eventually(t, "subscribed", func() bool { return send(p, "b") == 1 })
	py.Recv("sub", 1)
	const n = 1000
	for i := range n {
		send(p, "no", "for nobody")
		send(p, "kv-events", fmt.Sprint(i), strings.Repeat("x", i))
	}
	got := py.Recv("sub", n)
	for i := range n {
		if i >= len(got) || len(got[i]) != 3 || string(got[i][1]) != fmt.Sprint(i) || len(got[i][2]) != i {
			t.Fatalf("message %d of %d is not as sent", i, len(got))
		}
	}
	py.Do(pyzmq.Command{"op": "unsubscribe", "id": "sub", "topic": "b"})
	eventually(t, "unsubscribed", func() bool { return send(p, "b") == 0 })
	py.Do(pyzmq.Command{"op": "close", "id": "sub"})
	eventually(t, "the subscriber is gone", func() bool { return p.Subscribers() == 0 })

	// An XPUB is a PUB that says who subscribes.
	pub := py.Do(pyzmq.Command{"op": "socket", "id": "pub", "type": "XPUB", "bind": "tcp://127.0.0.1:*", "heartbeat": 5})
	c := dial(t, pub.Endpoint, SUB)
	if !c.commands {
		t.Error("libzmq says that it speaks ZMTP 3.0")
	}
	c.Subscribe("kv")
	if got := py.Recv("pub", 1); len(got) != 1 || string(got[0][0]) != "\x01kv" {
		t.Fatalf("libzmq heard %q", got)
	}
	big := bytes.Repeat([]byte("y"), 100_000)
	py.Do(pyzmq.Command{"op": "send", "id": "pub", "frames": []string{"6b76", "", fmt.Sprintf("%x", big)}})
	var m Message
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if err := c.Read(&m); err != nil {
		t.Fatal(err)
	}
	if len(m.Frames) != 3 || string(m.Frames[0]) != "kv" || len(m.Frames[1]) != 0 || !bytes.Equal(m.Frames[2], big) {
		t.Errorf("got %.100q", m.Frames)
	}
}

func TestLibzmqRequests(t *testing.T) {
	py := pyzmq.Start(t)
	l, err := Listen("tcp://127.0.0.1:0", ROUTER, Options{}, func(c *Conn) {
		for m := new(Message); c.Read(m) == nil; {
			c.Write(AppendMessage(nil, m.Frames...))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, kind := range []string{"DEALER", "REQ"} {
		py.Do(pyzmq.Command{"op": "socket", "id": kind, "type": kind, "connect": l.Endpoint(), "heartbeat": 5})
		frames := []string{"", "61"}
		if kind == "REQ" {
			frames = frames[1:] // libzmq puts the empty one there
		}
		py.Do(pyzmq.Command{"op": "send", "id": kind, "frames": frames})
		if got := py.Recv(kind, 1); len(got) != 1 || string(slices.Concat(got[0]...)) != "a" {
			t.Errorf("%s got %q", kind, got)
		}
	}
	r := py.Do(pyzmq.Command{"op": "socket", "id": "router", "type": "ROUTER", "bind": "tcp://127.0.0.1:*"})
	c := dial(t, r.Endpoint, DEALER)
	c.Write(AppendMessage(nil, nil, []byte("question")))
	got := py.Recv("router", 1)
	if len(got) != 1 || len(got[0]) != 3 || string(got[0][2]) != "question" {
		t.Fatalf("ROUTER got %q", got)
	}
	py.Do(pyzmq.Command{"op": "send", "id": "router", "frames": []string{fmt.Sprintf("%x", got[0][0]), "", "62"}})
	if got := read(t, c); !slices.Equal(got, []string{"", "b"}) {
		t.Errorf("answer %q", got)
	}
}

// go-zeromq speaks ZMTP 3.0, where subscriptions are messages.
func TestGoZeromq(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p, at := newPub(t, "tcp://127.0.0.1:0", PubOptions{})
	sub := zmq4.NewSub(ctx)
	if err := sub.Dial(at); err != nil {
		t.Fatal(err)
	}
	if err := sub.SetOption(zmq4.OptionSubscribe, "kv"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "subscribed", func() bool { return send(p, "kv", "a", strings.Repeat("b", 300)) == 1 })
	m, err := sub.Recv()
	if err != nil || len(m.Frames) != 3 || string(m.Frames[1]) != "a" || len(m.Frames[2]) != 300 {
		t.Errorf("go-zeromq got %.100q, %v", m.Frames, err)
	}
	sub.Close()

	pub := zmq4.NewPub(ctx)
	defer pub.Close()
	if err := pub.Listen("tcp://127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	c := dial(t, "tcp://"+pub.Addr().String(), SUB)
	if c.commands {
		t.Error("go-zeromq takes subscriptions as commands")
	}
	c.Subscribe("k")
	eventually(t, "subscribed", func() bool { return len(pub.(zmq4.Topics).Topics()) == 1 })
	if err := pub.Send(zmq4.NewMsgFrom([]byte("kv"), nil, []byte("z"))); err != nil {
		t.Fatal(err)
	}
	if got := read(t, c); !slices.Equal(got, []string{"kv", "", "z"}) {
		t.Errorf("got %q", got)
	}
}
