package client

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcr-go/kvcr/internal/role"
)

// Client is one node, as seen from here. Any number of goroutines may use it.
//
// Keys, values and buffers that are passed to a call are the caller's again when
// the call has returned, however it ended. A call may be given up by its context
// at any time; what it asked for may have happened all the same, or may happen
// yet, even after a later call has returned: see Error.MayHaveRun.
//
// A connection that is lost fails its calls and is made again at the next one,
// after a pause when attempts fail. Calls that change nothing (Get, GetInto,
// Exists, Prefix, Query, Ping, Stats), and those that were not sent, are sent once
// more over a fresh connection before they fail.
type Client struct {
	opt    Options
	ctx    context.Context // of everything in the background
	cancel context.CancelFunc
	slots  []slot
	pool   sync.Pool // of *call
	work   sync.WaitGroup

	lastClaim atomic.Uint64 // our numbers for claims: those of two connections differ

	mu     sync.Mutex
	closed bool
	conns  map[*conn]struct{} // all whose reader runs
}

// Dial returns a client of a node, connected once, so that errors show here. They
// are *Error, or say what is wrong with the options. The caller must Close the
// client.
func Dial(ctx context.Context, opt Options) (*Client, error) {
	opt.withDefaults()
	if err := opt.validate(); err != nil {
		return nil, fmt.Errorf("client: options: %w", err)
	}
	cl := &Client{opt: opt, slots: make([]slot, opt.Conns), conns: map[*conn]struct{}{}}
	cl.ctx, cl.cancel = context.WithCancel(context.Background())
	cl.pool.New = func() any { return newCall() }
	c, err := cl.open(ctx)
	if err != nil {
		cl.Close()
		return nil, err
	}
	cl.slots[0].conn.Store(c)
	return cl, nil
}

// Close ends all connections, calls and subscriptions, and waits for what runs in
// the background. It does not wait for the node. Calls that are waiting fail with
// ErrClosed, as do later ones. It may be called any number of times.
func (cl *Client) Close() error {
	cl.mu.Lock()
	cl.closed = true
	conns := make([]*conn, 0, len(cl.conns))
	for c := range cl.conns {
		conns = append(conns, c)
	}
	cl.mu.Unlock()
	cl.cancel()
	for _, c := range conns {
		c.fail(&Error{Op: "connection", Addr: cl.opt.Addr, Err: ErrClosed})
	}
	cl.work.Wait()
	return nil
}

// What goroutines of a client are for, in profiles.
var (
	roleReader = role.New("client-reader")
	roleWriter = role.New("client-writer")
	roleWork   = role.New("client-work")
)

// spawn runs f in the background, unless the client is closed.
func (cl *Client) spawn(f func()) bool {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.closed {
		return false
	}
	cl.work.Add(1)
	go func() {
		defer cl.work.Done()
		roleWork.Run(f)
	}()
	return true
}

// adopt starts the reader of a connection, unless the client is closed.
func (cl *Client) adopt(c *conn) bool {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.closed {
		return false
	}
	cl.conns[c] = struct{}{}
	cl.work.Add(1)
	go roleReader.Run(c.read)
	return true
}

// forget is the end of a reader.
func (cl *Client) forget(c *conn) {
	cl.mu.Lock()
	delete(cl.conns, c)
	cl.mu.Unlock()
	cl.work.Done()
}

// call returns a call to fill in; end gives it back.
func (cl *Client) call(op op) *call {
	k := cl.pool.Get().(*call)
	k.op = op
	return k
}

func (cl *Client) end(k *call) {
	k.reset()
	cl.pool.Put(k)
}

// do runs a call on a connection of the pool, or on c if that is given.
func (cl *Client) do(ctx context.Context, k *call, c *conn) error {
	if ctx.Err() != nil {
		return cl.where(&Error{Err: ended(ctx)}, k)
	}
	var expired <-chan time.Time
	if _, ok := ctx.Deadline(); !ok && cl.opt.RequestTimeout > 0 {
		if k.timer == nil {
			k.timer = time.NewTimer(cl.opt.RequestTimeout)
		} else {
			k.timer.Reset(cl.opt.RequestTimeout)
		}
		defer k.timer.Stop()
		expired = k.timer.C
	}
	var err *Error
	if c != nil {
		err = c.run(ctx, expired, k)
	} else {
		err = cl.doAny(ctx, expired, k)
	}
	if err == nil {
		err = k.outcome()
	}
	if err != nil {
		return cl.where(err, k)
	}
	return nil
}

// where completes an error with what only the call knows.
func (cl *Client) where(e *Error, k *call) error {
	e.Op, e.Addr = k.op.name(), cl.opt.Addr
	return e
}

// doAny runs a call on a connection of the pool, and a second time if the first
// has found its connection dead.
func (cl *Client) doAny(ctx context.Context, expired <-chan time.Time, k *call) *Error {
	for fresh := false; ; fresh = true {
		c, err := cl.pick(ctx, expired, fresh)
		if err != nil {
			return err
		}
		err = c.run(ctx, expired, k)
		if err == nil || err.Err != ErrLost || fresh || k.begun || k.handed && !ops[k.op].again {
			return err
		}
		k.rewind()
	}
}

// pick chooses a connection: one without calls, else the one with the fewest while
// another is made if there may be more. fresh: one that is not there yet, if any.
func (cl *Client) pick(ctx context.Context, expired <-chan time.Time, fresh bool) (*conn, *Error) {
	var best *conn
	var empty *slot
	for i := range cl.slots {
		c := cl.slots[i].conn.Load()
		if c == nil || !c.ok.Load() || c.stuck(cl.quietLimit()) {
			if empty == nil {
				empty = &cl.slots[i]
			}
			continue
		}
		if best == nil || c.load.Load() < best.load.Load() {
			best = c
		}
		if c.load.Load() == 0 && !fresh {
			return c, nil
		}
	}
	if empty == nil {
		return best, nil
	}
	a := cl.connect(empty)
	if best != nil && !fresh {
		return best, nil
	}
	select {
	case <-a.done:
	case <-ctx.Done():
		return nil, &Error{Err: ended(ctx)}
	case <-expired:
		return nil, &Error{Err: ErrTimeout}
	}
	if a.err != nil {
		one := *a.err
		return nil, &one
	}
	return a.c, nil
}

// quietLimit is how long a connection may owe an answer and say nothing at all.
func (cl *Client) quietLimit() time.Duration {
	if cl.opt.RequestTimeout > 0 {
		return cl.opt.RequestTimeout
	}
	return 30 * time.Second
}
