package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// proc is a child process as the test sees it.
type proc struct {
	t        testing.TB
	set      settings
	cmd      *exec.Cmd
	in       io.Closer
	endpoint string
	self     uint64
	at       chan string   // points at which it waits
	dead     chan struct{} // closed when its output has ended
	armed    string        // the point named last

	mu      sync.Mutex
	enc     *json.Encoder
	lastID  int
	pending map[int]chan reply
}

var errDead = errors.New("the process has ended")

// start runs a child and opens its engine.
func start(t testing.TB, s settings) *proc {
	t.Helper()
	p := spawn(t, s)
	p.open()
	return p
}

// spawn runs a child, whose engine is not open yet.
func spawn(t testing.TB, s settings) *proc {
	t.Helper()
	p := &proc{t: t, set: s}
	p.run()
	t.Cleanup(p.stop)
	return p
}

func (p *proc) run() {
	p.t.Helper()
	config, err := json.Marshal(p.set)
	if err != nil {
		p.t.Fatal(err)
	}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), envChild+"="+string(config))
	p.cmd.Stderr = os.Stderr
	if p.set.OwnSpace {
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	}
	in, err := p.cmd.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.in, p.enc, p.pending = in, json.NewEncoder(in), map[int]chan reply{}
	p.at, p.dead = make(chan string, 16), make(chan struct{})
	go p.listen(json.NewDecoder(out), p.at, p.dead)
}

// listen hands replies to those that wait for them.
func (p *proc) listen(out *json.Decoder, at chan string, dead chan struct{}) {
	defer close(dead)
	for {
		var a reply
		if out.Decode(&a) != nil {
			return
		}
		if a.At != "" {
			at <- a.At
			continue
		}
		p.mu.Lock()
		got := p.pending[a.ID]
		delete(p.pending, a.ID)
		p.mu.Unlock()
		got <- a
	}
}

func (p *proc) open() {
	p.t.Helper()
	a := p.must(request{Verb: "open"})
	p.endpoint, p.self = a.Endpoint, a.Self
}

// begin sends a request; the function waits for the reply.
func (p *proc) begin(r request) func() (reply, error) {
	got := make(chan reply, 1)
	if r.Verb == "arm" {
		p.armed = r.Point
	}
	p.mu.Lock()
	p.lastID++
	r.ID = p.lastID
	p.pending[r.ID] = got
	err := p.enc.Encode(r)
	p.mu.Unlock()
	dead := p.dead
	return func() (reply, error) {
		if err != nil {
			return reply{}, errDead
		}
		select {
		case a := <-got:
			if a.Err != "" {
				return a, errors.New(a.Err)
			}
			return a, nil
		case <-dead:
			return reply{}, errDead
		case <-time.After(30 * time.Second):
			return reply{}, fmt.Errorf("no reply to %q", r.Verb)
		}
	}
}

func (p *proc) call(r request) (reply, error) { return p.begin(r)() }

func (p *proc) must(r request) reply {
	p.t.Helper()
	a, err := p.call(r)
	if err != nil {
		p.t.Fatalf("%s: %s %v: %v", p.set.Name, r.Verb, r.Keys, err)
	}
	return a
}

// reached waits until the process stands at the armed point.
func (p *proc) reached() {
	p.t.Helper()
	select {
	case <-p.at:
	case <-p.dead:
		p.t.Fatalf("%s has ended before its point, %q", p.set.Name, p.armed)
	case <-time.After(10 * time.Second):
		p.t.Fatalf("%s never comes to its point, %q", p.set.Name, p.armed)
	}
}

// signal sends a signal to the process.
func (p *proc) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) } // it may be dead already

// pause stops the process, and waits until none of its threads runs.
func (p *proc) pause() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	for end := time.Now().Add(5 * time.Second); !p.paused(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatalf("%s does not stop", p.set.Name)
		}
	}
}

func (p *proc) paused() bool {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
	for _, name := range stats {
		b, e := os.ReadFile(name)
		_, state, ok := strings.Cut(string(b), ") ") // behind the thread's name
		if e == nil && (!ok || state[0] != 'T') {
			return false
		}
	}
	return err == nil && len(stats) > 0
}

func (p *proc) resume() { p.signal(syscall.SIGCONT) }

// kill ends the process at once, as kill -9 does, and waits for that.
func (p *proc) kill() {
	p.signal(syscall.SIGKILL)
	p.reap()
}

func (p *proc) reap() {
	<-p.dead
	p.in.Close()
	_ = p.cmd.Wait() // that it was killed is known
}

// restart runs the process again, at the same address.
func (p *proc) restart() {
	p.t.Helper()
	p.run()
	p.open()
}

func (p *proc) stop() {
	if p.cmd.ProcessState != nil {
		return
	}
	p.kill()
}

// rest waits until the engine is at rest.
func (p *proc) rest(t testing.TB) base {
	t.Helper()
	return p.restWithin(t, 4*time.Second)
}

func (p *proc) restWithin(t testing.TB, d time.Duration) base {
	t.Helper()
	return p.waitBase(t, d, "rest", base.rest)
}

// restWith waits until the engine is at rest with so many bytes taken: memory that
// a handle keeps in advance comes back after it is closed.
func (p *proc) restWith(t testing.TB, taken int64) {
	t.Helper()
	p.waitBase(t, 4*time.Second, fmt.Sprintf("rest with %d bytes taken", taken), func(b base) bool { return b.rest() && b.Taken == taken })
}

func (p *proc) waitBase(t testing.TB, within time.Duration, what string, ok func(base) bool) (b base) {
	t.Helper()
	for end := time.Now().Add(within); ; time.Sleep(2 * time.Millisecond) {
		if b = p.must(request{Verb: "base"}).Base; ok(b) {
			return b
		}
		if time.Now().After(end) {
			t.Errorf("%s is not at %s after %v: %+v", p.set.Name, what, within, b)
			return b
		}
	}
}

// address is one that nobody has, below those that the kernel gives out, so that
// nobody gets it while the process that listens there is dead.
func address(t testing.TB) string {
	t.Helper()
	for range 100 {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(20000+rand.IntN(12000)))
		if ln, err := net.Listen("tcp", addr); err == nil {
			ln.Close()
			return "tcp://" + addr
		}
	}
	t.Fatal("no free port between 20000 and 32000")
	return ""
}

func names(prefix string, n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprintf("%s-%d", prefix, i))
	}
	return keys
}

func all(reasons []string, want string) bool {
	for _, r := range reasons {
		if r != want {
			return false
		}
	}
	return len(reasons) > 0
}
