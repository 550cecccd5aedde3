package peer

import (
	"errors"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr/internal/procs"
)

// watchdogs wait for the ends of the processes that a link has to do with, by
// incarnation. The zero watchdogs are ready.
type watchdogs struct {
	mu  sync.Mutex
	all map[Incarnation]watchdog
}

type watchdog struct {
	pid   int32
	entry *procs.Entry
}

// watch has Dead posted when the process behind a unix socket has ended. An
// incarnation is one process: another one that says it is the same is refused.
func (w *watchdogs) watch(set *procs.Set, nc net.Conn, who Incarnation, post func(Event)) error {
	raw, err := nc.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	var pid int32
	pidfd := -1
	var failed error
	err = raw.Control(func(fd uintptr) { pid, pidfd, failed = procs.System.Peer(int(fd)) })
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if d, ok := w.all[who]; ok {
		unix.Close(pidfd)
		if d.pid != pid { // while we watch it nobody else gets its number
			return errors.New("another process has that incarnation")
		}
		return nil
	}
	entry, err := set.Add(pidfd, func() { post(Dead{Peer: who}) })
	if err != nil {
		return err
	}
	if w.all == nil {
		w.all = map[Incarnation]watchdog{}
	}
	w.all[who] = watchdog{pid, entry}
	return nil
}

// keep ends the watch over those that f does not want.
func (w *watchdogs) keep(f func(Incarnation) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for who, d := range w.all {
		if !f(who) {
			d.entry.Remove()
			delete(w.all, who)
		}
	}
}

// depends reports whether an operation waits for that process.
func (d *Dest) depends(p Incarnation) bool {
	for _, op := range d.ops {
		if op.source == p {
			return true
		}
	}
	return false
}
