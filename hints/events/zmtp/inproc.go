package zmtp

import (
	"context"
	"fmt"
	"net"
	"sync"
	"syscall"
)

// registry has the inproc endpoints of this process that are bound.
type registry struct {
	mu    sync.Mutex
	bound map[string]*pipeListener
}

var inproc = registry{bound: map[string]*pipeListener{}}

// pipeListener hands out one end of the pipes that are dialled.
type pipeListener struct {
	name  pipeName
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

type pipeName string

func (pipeName) Network() string  { return "inproc" }
func (n pipeName) String() string { return string(n) }

func (r *registry) listen(name string) (net.Listener, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bound[name] != nil {
		return nil, fmt.Errorf("inproc://%s: %w", name, syscall.EADDRINUSE)
	}
	l := &pipeListener{name: pipeName(name), conns: make(chan net.Conn), done: make(chan struct{})}
	r.bound[name] = l
	return l, nil
}

func (r *registry) dial(ctx context.Context, name string) (net.Conn, error) {
	r.mu.Lock()
	l := r.bound[name]
	r.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("inproc://%s: %w", name, syscall.ECONNREFUSED)
	}
	ours, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return ours, nil
	case <-l.done:
		return nil, fmt.Errorf("inproc://%s: %w", name, syscall.ECONNREFUSED)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() {
		inproc.mu.Lock()
		delete(inproc.bound, string(l.name))
		inproc.mu.Unlock()
		close(l.done)
	})
	return nil
}

func (l *pipeListener) Addr() net.Addr { return l.name }
