package peer

import (
	"errors"
	"sync"
	"time"

	"github.com/kvcr-go/kvcr/ucx"
	"github.com/kvcr-go/kvcr/wire"
)

// ucxLife is one worker. There is one at a time, except while an old one ends.
type ucxLife struct {
	u    *UCX
	w    *ucx.Worker
	addr []byte

	mu       sync.Mutex
	sessions map[pumper]func(error) // how to end each
	starved  map[pumper]struct{}    // those that found no free request
	over     bool
}

// pumper is a session's side, which starts what it can.
type pumper interface{ pump() }

func (u *UCX) newLife() (*ucxLife, error) {
	w, err := u.ctx.NewWorker(ucx.WorkerOptions{MaxRequests: ucxRequests, MaxEndpoints: 4096, Spin: u.cfg.Spin})
	if err != nil {
		return nil, err
	}
	l := &ucxLife{u: u, w: w, addr: w.Address(), sessions: map[pumper]func(error){}, starved: map[pumper]struct{}{}}
	if len(l.addr) > wire.MaxUCX {
		return nil, errors.Join(&ConfigError{"UCX.Devices", len(l.addr), "the worker's address is longer than 8192 bytes: use fewer devices"}, l.end())
	}
	return l, nil
}

// enter notes a session. False: the worker has ended.
func (l *ucxLife) enter(p pumper, fail func(error)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return false
	}
	l.sessions[p] = fail
	return true
}

func (l *ucxLife) leave(p pumper) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.sessions, p)
	delete(l.starved, p)
}

// starve has p pumped when an operation has ended.
func (l *ucxLife) starve(p pumper) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.starved[p] = struct{}{}
}

// feed is called when operations have ended, with no lock held.
func (l *ucxLife) feed() {
	l.mu.Lock()
	if len(l.starved) == 0 {
		l.mu.Unlock()
		return
	}
	all := l.starved
	l.starved = map[pumper]struct{}{}
	l.mu.Unlock()
	for p := range all {
		l.u.crew.push(p.pump)
	}
}

// condemn ends a worker that does not let go of memory, and opens another. It does
// not block.
func (l *ucxLife) condemn(why string) {
	u := l.u
	l.mu.Lock()
	again := l.over
	l.over = true
	l.mu.Unlock()
	if again {
		return
	}
	u.mu.Lock()
	if u.life != l { // Close ends it
		u.mu.Unlock()
		return
	}
	u.life = nil
	u.work.Add(1)
	u.mu.Unlock()
	u.log.Warn("the UCX worker is closed, and all its sessions with it", "why", why)
	go func() {
		defer u.work.Done()
		err := l.end()
		if err != nil {
			u.log.Error("a UCX worker cannot be closed", "err", err)
		}
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.closed {
			return
		}
		if u.life, err = u.newLife(); err != nil {
			u.log.Error("no UCX worker can be opened: route ucx is not used any more", "err", err)
		}
	}()
}

// end closes the worker: when it returns nil, every operation has completed.
func (l *ucxLife) end() error {
	l.mu.Lock()
	l.over = true
	var fails []func(error)
	for _, f := range l.sessions {
		fails = append(fails, f)
	}
	l.mu.Unlock()
	for _, f := range fails {
		f(errors.New("the UCX worker is being closed"))
	}
	var err error
	for range 5 { // each waits for a second and more
		if err = l.w.Close(200 * time.Millisecond); err == nil {
			return nil
		}
	}
	return err
}
