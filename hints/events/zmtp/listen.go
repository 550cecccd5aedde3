package zmtp

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kvcr-go/kvcr/internal/role"
)

// A Listener serves the connections that arrive at an endpoint.
type Listener struct {
	ln       net.Listener
	endpoint string
	kind     Kind
	opt      Options
	serve    func(*Conn)

	refused atomic.Uint64
	failed  atomic.Uint64

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
	done   chan struct{}
	wg     sync.WaitGroup
}

// Listen binds an endpoint. serve is called for every connection after its handshake,
// in a goroutine of its own; it must return when the connection fails, which then is
// closed. The file of an ipc endpoint that nobody listens at any more is replaced.
func Listen(endpoint string, kind Kind, opt Options, serve func(*Conn)) (*Listener, error) {
	network, address, err := split(endpoint)
	if err != nil {
		return nil, err
	}
	l := &Listener{kind: kind, opt: opt.withDefaults(), serve: serve, conns: map[net.Conn]struct{}{}, done: make(chan struct{})}
	switch network {
	case "inproc":
		l.ln, err = inproc.listen(address)
	case "unix":
		if err := removeStale(address); err != nil {
			return nil, fmt.Errorf("listen at %s: %w", endpoint, err)
		}
		l.ln, err = net.Listen(network, address)
	default:
		l.ln, err = net.Listen(network, address)
	}
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", endpoint, err)
	}
	l.endpoint = name(network, l.ln.Addr())
	l.wg.Add(1)
	go roleAccept.Run(l.accept)
	return l, nil
}

// What goroutines of sockets are for, in profiles.
var (
	roleAccept = role.New("zmtp-accept")
	roleSocket = role.New("zmtp-socket")
)

// removeStale removes the socket that a dead process has left behind.
func removeStale(path string) error {
	if strings.HasPrefix(path, "@") {
		return nil // has no file
	}
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && st.Mode()&fs.ModeSocket == 0 {
		return nil // Listen says what is wrong with it
	}
	if err != nil {
		return err
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		c.Close()
		return fmt.Errorf("%s: %w", path, syscall.EADDRINUSE)
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return os.Remove(path)
	}
	return nil
}

// Endpoint returns where the Listener is reached, with the port that the system chose.
func (l *Listener) Endpoint() string { return l.endpoint }

// Refused returns how many connections were closed because there were too many.
func (l *Listener) Refused() uint64 { return l.refused.Load() }

// Failed returns how many connections ended without a handshake.
func (l *Listener) Failed() uint64 { return l.failed.Load() }

func (l *Listener) accept() {
	defer l.wg.Done()
	pause := 5 * time.Millisecond
	for {
		nc, err := l.ln.Accept()
		if err != nil {
			// Out of descriptors, most likely: try again, not at once.
			select {
			case <-l.done:
				return
			case <-time.After(pause):
				pause = min(2*pause, time.Second)
				continue
			}
		}
		pause = 5 * time.Millisecond
		if tcp, ok := nc.(*net.TCPConn); ok {
			tcp.SetKeepAliveConfig(keepAlive)
		}
		l.mu.Lock()
		switch {
		case l.closed:
			nc.Close()
		case len(l.conns) >= l.opt.MaxConns:
			l.refused.Add(1)
			nc.Close()
		default:
			l.conns[nc] = struct{}{}
			l.wg.Add(1)
			go roleSocket.Run(func() { l.handle(nc) })
		}
		l.mu.Unlock()
	}
}

func (l *Listener) handle(nc net.Conn) {
	defer l.wg.Done()
	if c, err := shake(nc, l.kind, l.opt); err == nil {
		l.serve(c)
	} else {
		l.failed.Add(1)
	}
	nc.Close()
	l.mu.Lock()
	delete(l.conns, nc)
	l.mu.Unlock()
}

// Close stops listening, closes all connections and waits for what serves them.
func (l *Listener) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		l.wg.Wait()
		return nil
	}
	l.closed = true
	close(l.done)
	for nc := range l.conns {
		nc.Close()
	}
	l.mu.Unlock()
	err := l.ln.Close()
	l.wg.Wait()
	return err
}
