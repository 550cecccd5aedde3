package soak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// node is one node: a process of kvcr serve, and those that take its place at the same
// addresses.
type node struct {
	index int
	run   *run
	args  []string
	log   string // the file that has its output

	binary, resp, http, peers, events, replay, socket string // addresses
	// The relays before them.
	viaBinary, viaRESP, viaPeers *relay

	// life counts processes, and is raised before one is ended: what was begun under an
	// earlier life may never end.
	life atomic.Uint64
	up   atomic.Bool // it serves

	mu      sync.Mutex
	cmd     *exec.Cmd
	exited  chan struct{}
	failure error // of the process that has exited
	ready   bool  // it has served
	ending  bool  // it was told to end, or killed

	cells []*cell
	ends  ends

	atBase []byte // its descriptors then, for who looks for a leak
}

const (
	startPatience = time.Minute
	// drainTime is the nodes' drain-timeout; stopPatience is for what comes after it.
	drainTime    = 5 * time.Second
	stopPatience = 30 * time.Second
)

// newNode chooses addresses and makes the relays. host is a loopback address that
// nobody else has, no other node either, so that nobody takes a port while its node is
// dead.
func newNode(r *run, index int, host, kind string) (*node, error) {
	n := &node{index: index, run: r, log: filepath.Join(r.dir, fmt.Sprintf("node-%d-%s.log", index, kind)), socket: filepath.Join(r.dir, fmt.Sprintf("%d.sock", index))}
	for _, to := range []*string{&n.binary, &n.resp, &n.http, &n.peers, &n.events, &n.replay} {
		ln, err := net.Listen("tcp", host+":0")
		if err != nil {
			return nil, err
		}
		defer ln.Close() // not before all are chosen, so that each is another
		*to = ln.Addr().String()
	}
	n.args = []string{"serve", "--capacity", strconv.Itoa(r.o.capacity), "--kind", kind, "--mean-value", "16KiB", "--prefault", "true", "--backing", "memfd",
		"--listen", n.binary + ",unix:" + n.socket, "--resp", n.resp, "--http", n.http, "--drain-timeout", drainTime.String(), "--log-level", "warn",
		"--peer-listen", "tcp://" + n.peers, "--hash-recipe", recipe, "--worker-id", strconv.Itoa(index),
		"--events", "tcp://" + n.events, "--events-replay", "tcp://" + n.replay}
	if kind == kindFlat { // few, so that the largest values fit one
		n.args = append(n.args, "--shards", "2")
	}
	if kind == kindChained {
		n.args = append(n.args, "--pair-suffixes", strings.Join(pairSuffixes[:], ","))
	}
	// The last node has no memory in common with its peers.
	if index == r.o.Nodes-1 {
		n.args = append(n.args, "--peer-routes", lastRoutes)
	}
	for i, v := range []struct {
		relay **relay
		to    string
	}{{&n.viaBinary, n.binary}, {&n.viaRESP, n.resp}, {&n.viaPeers, n.peers}} {
		var err error
		if *v.relay, err = newRelay(v.to, mix(r.o.Seed)+uint64(index*16+i), &r.faults, &r.bad); err != nil {
			return n, err
		}
	}
	for i := range cellsOfNode {
		n.cells = append(n.cells, newCell(fmt.Appendf(nil, "set/%d/%03d", index, i)))
	}
	n.ends.init(r, n)
	return n, nil
}

func (n *node) name() string { return fmt.Sprintf("node %d", n.index) }

// start runs a process and waits until it is ready.
func (n *node) start(ctx context.Context) error {
	for try := 0; ; try++ {
		err := n.launch()
		if err != nil {
			return err
		}
		if err = n.await(ctx); err == nil {
			n.mu.Lock()
			n.ready = true
			n.mu.Unlock()
			n.up.Store(true)
			return nil
		}
		n.kill()
		// Its addresses may still be those of connections of the process before.
		if try == 3 || ctx.Err() != nil {
			return fmt.Errorf("%s does not start: %w: %s", n.name(), err, n.lastWords())
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func (n *node) launch() error {
	out, err := os.OpenFile(n.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command(n.run.o.Exe, n.args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(os.Environ(), n.run.o.nodeEnv...)
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	n.mu.Lock()
	n.cmd, n.exited, n.ready, n.ending = cmd, exited, false, false
	n.mu.Unlock()
	go func() {
		err := cmd.Wait()
		n.mu.Lock()
		n.failure = err
		wanted := n.ending || !n.ready // who starts it sees the latter
		n.mu.Unlock()
		n.up.Store(false)
		if !wanted {
			select { // who interrupts us may have interrupted it as well
			case <-n.run.ctx.Done():
				wanted = true
			case <-time.After(time.Second):
			}
		}
		if !wanted {
			n.run.trouble.add(nodeDied, n.name(), "it ended by itself: %v: %s", err, n.lastWords())
			n.life.Add(1)
		}
		close(exited)
	}()
	return nil
}

func (n *node) process() (cmd *exec.Cmd, exited chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cmd, n.exited
}

func (n *node) pid() int {
	cmd, _ := n.process()
	return cmd.Process.Pid
}

// await waits until the node says that it serves.
func (n *node) await(ctx context.Context) error {
	_, exited := n.process()
	for end := time.Now().Add(startPatience); ; {
		_, err := n.ask(ctx, "/readyz")
		if err == nil || time.Now().After(end) {
			return err
		}
		select {
		case <-exited:
			return errors.New("it has ended")
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// ask gets a page of the node's.
func (n *node) ask(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.http+path, nil)
	if err != nil {
		return nil, err
	}
	res, err := n.run.web.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(res.Body); err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s: %s", path, res.Status, b.Bytes())
	}
	return b.Bytes(), nil
}

// end sends a signal that ends the process, and begins another life before it does.
func (n *node) end(sig syscall.Signal) (exited chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cmd == nil {
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	if !n.ending {
		n.ending = true
		n.up.Store(false) // first: whoever sees the next life sees that it has not begun
		n.life.Add(1)
	}
	_ = n.cmd.Process.Signal(sig) // it may be dead already
	return n.exited
}

// kill ends the process at once, as kill -9 does.
func (n *node) kill() { <-n.end(syscall.SIGKILL) }

// stop tells the node to end, and looks at how it does.
func (n *node) stop() {
	_, already := n.process()
	if already == nil {
		return
	}
	select {
	case <-already:
		return // it was reported
	default:
	}
	exited := n.end(syscall.SIGTERM)
	select {
	case <-exited:
	case <-time.After(drainTime + stopPatience):
		n.end(syscall.SIGQUIT) // says what each goroutine does
		select {
		case <-exited:
		case <-time.After(5 * time.Second):
		}
		n.kill()
		n.run.trouble.add(nodeDied, n.name(), "told to stop, it did not in %v", drainTime+stopPatience)
		return
	}
	n.mu.Lock()
	err := n.failure
	n.mu.Unlock()
	words := n.lastWords()
	switch {
	case err == nil:
	case n.run.bad.Load() && strings.Contains(words, "peer: close: peers may still"):
		// Peers that were silent just then: it has said so, and not waited for them.
		n.run.ops.add("stopped while peers were silent", 1)
	default:
		n.run.trouble.add(nodeDied, n.name(), "told to stop, it failed: %v: %s", err, words)
	}
}

// halt stops all threads of the process for a while.
func (n *node) halt(ctx context.Context, d time.Duration) {
	cmd, _ := n.process()
	_ = cmd.Process.Signal(syscall.SIGSTOP) // a process that is dead is noticed elsewhere
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	_ = cmd.Process.Signal(syscall.SIGCONT)
}

// lastWords is the end of the node's output.
func (n *node) lastWords() string {
	b, err := os.ReadFile(n.log)
	if err != nil {
		return err.Error()
	}
	const most = 2000
	return strings.TrimSpace(string(b[max(0, len(b)-most):]))
}

// complaints are lines of the node's output that it should not have.
func (n *node) complaints() (lines []string) {
	b, err := os.ReadFile(n.log)
	if err != nil {
		return []string{err.Error()}
	}
	for _, l := range strings.Split(string(b), "\n") {
		for _, bad := range []string{"level=ERROR", "panic:", "fatal error:", "DATA RACE", "goroutine leak"} {
			if strings.Contains(l, bad) {
				lines = append(lines, l)
				break
			}
		}
	}
	return lines
}

func (n *node) relays() []*relay { return []*relay{n.viaBinary, n.viaRESP, n.viaPeers} }

// cut resets all connections through the relays.
func (n *node) cut() {
	for _, r := range n.relays() {
		r.cut()
	}
}

func (n *node) closeRelays() {
	for _, r := range n.relays() {
		if r != nil {
			r.close()
		}
	}
}
