// Package pyzmq lets tests talk to libzmq, through Debian's python3-zmq.
package pyzmq

import (
	"bufio"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"
)

//go:embed peer.py
var script string

const python = "/usr/bin/python3"

// Peer is a Python process that has sockets.
type Peer struct {
	t   testing.TB
	in  io.WriteCloser
	out *bufio.Reader
}

// Start runs a Peer until the test ends. Without python3-zmq and python3-msgpack the
// test is skipped.
func Start(t testing.TB) *Peer {
	t.Helper()
	if err := exec.Command(python, "-c", "import zmq, msgpack").Run(); err != nil {
		t.Skipf("no %s with zmq and msgpack (apt-get install python3-zmq python3-msgpack): %v", python, err)
	}
	cmd := exec.Command(python, "-u", "-c", script)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		kill := time.AfterFunc(5*time.Second, func() { cmd.Process.Kill() })
		defer kill.Stop()
		if err := cmd.Wait(); err != nil {
			t.Errorf("python: %v", err)
		}
	})
	return &Peer{t: t, in: in, out: bufio.NewReader(out)}
}

// Command is what a Peer is asked to do; see peer.py.
type Command map[string]any

// Answer is what a Peer says.
type Answer struct {
	Error      string
	Endpoint   string
	Pub        string
	Replay     string
	Subscribed bool
	Messages   [][]string
	Asked      []uint64
	Payload    string
	Value      any
}

// Do runs one command. It must be called from one goroutine at a time.
func (p *Peer) Do(c Command) Answer {
	p.t.Helper()
	line, err := json.Marshal(c)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		p.t.Fatalf("python is gone: %v", err)
	}
	answer, err := p.out.ReadBytes('\n')
	if err != nil {
		p.t.Fatalf("python is gone: %v", err)
	}
	var a Answer
	if err := json.Unmarshal(answer, &a); err != nil {
		p.t.Fatalf("python says %s: %v", answer, err)
	}
	if a.Error != "" {
		p.t.Fatalf("python, asked for %v: %s", c["op"], a.Error)
	}
	return a
}

// Recv returns up to n messages of a socket, fewer if none comes for five seconds.
func (p *Peer) Recv(id string, n int) [][][]byte {
	p.t.Helper()
	return p.Bytes(p.Do(Command{"op": "recv", "id": id, "n": n}).Messages)
}

// Bytes undoes the hexadecimal digits of messages.
func (p *Peer) Bytes(messages [][]string) [][][]byte {
	p.t.Helper()
	out := make([][][]byte, len(messages))
	for i, m := range messages {
		for _, f := range m {
			b, err := hex.DecodeString(f)
			if err != nil {
				p.t.Fatal(err)
			}
			out[i] = append(out[i], b)
		}
	}
	return out
}
