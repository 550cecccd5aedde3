//go:build linux

package node

import (
	"bytes"
	"io"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/internal/browser"
	"github.com/kvcr-go/kvcr/wire/client"
)

// The times that the status page of a node shows are those of the load: they are
// there when it comes, and follow it when it changes.
func TestPageFollowsLoad(t *testing.T) {
	cfg := config()
	cfg.Engine.Capacity = 64 << 20
	n, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	resp, binary, page := n.Addrs()
	b := browser.Open(t, "http://"+page.String()+"/")
	const p50 = `document.getElementById('cmd-resp-get-p50').textContent`
	b.Await("nothing has a time yet", `document.getElementById('cmd-resp-get')?.hidden && `+p50+` === '–'`)

	c, err := net.Dial("tcp", resp[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(25 * time.Second))
	value := bytes.Repeat([]byte("v"), 4<<20)
	io.WriteString(c, "SET small v\r\n*3\r\n$3\r\nSET\r\n$5\r\nlarge\r\n$"+strconv.Itoa(len(value))+"\r\n")
	c.Write(append(value, '\r', '\n'))
	if _, err := io.ReadFull(c, make([]byte, len("+OK\r\n+OK\r\n"))); err != nil {
		t.Fatal(err)
	}
	get := func(key string, size, times int) {
		t.Helper()
		answer := make([]byte, len("$"+strconv.Itoa(size)+"\r\n\r\n")+size)
		for range times {
			io.WriteString(c, "GET "+key+"\r\n")
			if _, err := io.ReadFull(c, answer); err != nil {
				t.Fatal(err)
			}
		}
	}
	get("small", 1, 100)
	b.Await("a short GET has its time", p50+`.match(/^[\d.]+ .?s$/) !== null && !document.getElementById('cmd-resp-get').hidden`)
	small := b.Text("cmd-resp-get-p50")
	get("large", len(value), 150) // most of what is recent
	// How much it changes depends on what else the machine does.
	b.Await("the time has changed under other load", p50+` !== '`+small+`' && document.getElementById('cmd-resp-get-calls').textContent === '250'`)

	cl, err := client.Dial(t.Context(), client.Options{Addr: binary[0].String()})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if _, ok, err := cl.Get(t.Context(), []byte("small"), nil); err != nil || !ok {
		t.Fatal(err)
	}
	b.Await("the binary protocol has a row", `!document.getElementById('cmd-binary-get').hidden && document.getElementById('cmd-binary-get-p99').textContent.endsWith('s')`)
	if len(b.Failures) > 0 {
		t.Errorf("the console says %q", b.Failures)
	}
}

// The page of a node that routers know shows their hints as they come, and what they
// are told.
func TestPageFollowsHints(t *testing.T) {
	n := startRouted(t, Router{Events: kvEvents()})
	_, _, page := n.Addrs()
	b := browser.Open(t, "http://"+page.String()+"/")
	b.Await("no hint has come", `!document.getElementById('hints-card').hidden && document.getElementById('hints-accepted').textContent === '0' &&
		document.getElementById('hints-outcomes').textContent === 'none' && document.getElementById('router-stored').textContent === '0'`)
	n.deposit(1, 2, 3)
	n.order(hints.TypeEvict, 1)
	b.Await("one has", `document.getElementById('hints-accepted').textContent === '1' && !document.getElementById('hints-kv.evict').hidden &&
		document.getElementById('hints-outcomes').textContent === 'accepted 1, removed 1, end 1' && document.getElementById('router-stored').textContent === '3' &&
		document.getElementById('router-removed').textContent === '1' && document.getElementById('router-keys').textContent === '2'`)
	n.order(hints.TypeInvalidate, 2, 9)
	b.Await("two have", `document.getElementById('hints-accepted').textContent === '2' && document.getElementById('hints-kv.invalidate-accepted').textContent === '1' &&
		document.getElementById('hints-outcomes').textContent === 'accepted 2, removed 2, failed 1, end 2' && document.getElementById('router-removed').textContent === '2'`)
	at, _, _ := n.EventEndpoints()
	if got := b.Text("router-events-endpoint"); got != at {
		t.Errorf("events are shown at %q, are at %q", got, at)
	}
	if len(b.Failures) > 0 {
		t.Errorf("the console says %q", b.Failures)
	}
}
