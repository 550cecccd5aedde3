package server

import (
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/wire"
)

// sharing knows the processes that read this server's memory in place.
//
// The claims of a connection with shared memory do not end with it: its process
// may go on reading, and a closed socket says nothing about that. They go to the
// process, and end when its pidfd says that it has ended. One goroutine waits for
// all pidfds, in Go's poller.
//
//	P1  a process is in byFD exactly as long as its pidfd is open, and in the
//	    epoll set from the same moment on: it is put there when it attaches, when
//	    a failure can still be answered
//	P2  it leaves byFD when conns == 0 and it has no claims
//	P3  claims end by leave or ended with exited(fd), or by close; no other way
//
// The zero sharing is ready.
type sharing struct {
	kernel *peerKernel // nil: realPeers

	// Since the start, but for held: claims of connections that are open now.
	gets, hits, lent, commits, committed atomic.Uint64
	held                                 atomic.Int64

	mu      sync.Mutex // guards what follows
	byPID   map[int32]*process
	byFD    map[int32]*process
	conns   int
	waiting int    // claims of connections that have ended
	granted int64  // bytes of staging memory
	dropped uint64 // processes that ended with claims
	epoll   *os.File
	closed  bool

	watching sync.WaitGroup
}

// process is one client that has memory of ours mapped.
type process struct {
	pid    int32
	fd     int32 // pidfd
	conns  int
	dead   bool
	missed bool        // counted as dropped
	claims []kvcr.View // of its connections that have ended
}

// join counts a connection of the process that owns pidfd, and takes that over.
// owed is how many claims the process has left behind already.
func (sh *sharing) join(pid int32, pidfd int) (p *process, owed int, err error) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.closed {
		unix.Close(pidfd)
		return nil, 0, &notShared{wire.StatusClosed, "the server is closing"}
	}
	// While the process that we know under the number lives, nobody else has it.
	if p = sh.byPID[pid]; p != nil && !p.dead && !exited(int(p.fd)) {
		unix.Close(pidfd)
	} else if p, err = sh.add(pid, pidfd); err != nil {
		unix.Close(pidfd)
		return nil, 0, notSupported("process %d cannot be watched: %v", pid, err)
	}
	p.conns++
	sh.conns++
	return p, len(p.claims), nil
}

// add begins to watch a process. mu held.
func (sh *sharing) add(pid int32, pidfd int) (*process, error) {
	if sh.epoll == nil {
		fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		if err != nil {
			return nil, os.NewSyscallError("epoll_create1", err)
		}
		if err := unix.SetNonblock(fd, true); err != nil { // so that os gives it to the poller
			unix.Close(fd)
			return nil, err
		}
		sh.epoll = os.NewFile(uintptr(fd), "processes")
		sh.byPID, sh.byFD = map[int32]*process{}, map[int32]*process{}
		sh.watching.Add(1)
		go sh.watch(sh.epoll)
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(pidfd)}
	if err := control(sh.epoll, pidfd, &ev); err != nil {
		return nil, err
	}
	p := &process{pid: pid, fd: int32(pidfd)}
	sh.byPID[pid], sh.byFD[p.fd] = p, p
	return p, nil
}

// control adds a descriptor to an epoll set without taking the set's own out of
// Go's poller, as Fd would.
func control(epoll *os.File, fd int, ev *unix.EpollEvent) error {
	raw, err := epoll.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(set uintptr) { failed = unix.EpollCtl(int(set), unix.EPOLL_CTL_ADD, fd, ev) })
	if err == nil {
		err = os.NewSyscallError("epoll_ctl", failed)
	}
	return err
}

// leave ends a connection: its claims wait for the end of the process.
func (sh *sharing) leave(p *process, claims map[uint64]kvcr.View) {
	sh.mu.Lock()
	sh.held.Add(-int64(len(claims)))
	p.conns--
	sh.conns--
	var over []kvcr.View
	for _, v := range claims {
		if p.dead || sh.closed {
			over = append(over, v)
		} else {
			p.claims = append(p.claims, v)
			sh.waiting++
		}
	}
	if p.dead {
		sh.drop(p, over)
	}
	sh.tidy(p)
	sh.mu.Unlock()
	release(over)
}

// drop counts a process that has ended, once, if it has left claims behind. mu
// held.
func (sh *sharing) drop(p *process, claims []kvcr.View) {
	if len(claims) > 0 && !p.missed {
		p.missed = true
		sh.dropped++
	}
}

// tidy forgets a process that nothing is known of any more. mu held.
func (sh *sharing) tidy(p *process) {
	if p.conns > 0 || len(p.claims) > 0 {
		return
	}
	if sh.byPID[p.pid] == p { // the number may have gone to another process
		delete(sh.byPID, p.pid)
	}
	delete(sh.byFD, p.fd)
	unix.Close(int(p.fd))
}

// watch ends the claims of processes that end, until the set is closed.
func (sh *sharing) watch(epoll *os.File) {
	defer sh.watching.Done()
	raw, err := epoll.SyscallConn()
	if err != nil {
		return // closed already
	}
	var events [64]unix.EpollEvent
	_ = raw.Read(func(set uintptr) bool { // the error is that of a closed set
		for {
			n, err := unix.EpollWait(int(set), events[:], 0)
			if n <= 0 && err != unix.EINTR {
				return false // wait until there is something
			}
			for i := range max(n, 0) {
				sh.ended(events[i].Fd)
			}
		}
	})
}

// ended ends the claims of a process that has ended. The event may be that of a
// descriptor closed meanwhile, whose number means another process: so it is only
// a reason to look.
func (sh *sharing) ended(pidfd int32) {
	sh.mu.Lock()
	p := sh.byFD[pidfd]
	if p == nil || !exited(int(p.fd)) {
		sh.mu.Unlock()
		return
	}
	over := p.claims
	p.dead, p.claims = true, nil
	sh.waiting -= len(over)
	sh.drop(p, over)
	sh.tidy(p)
	sh.mu.Unlock()
	release(over)
}

// close ends all claims that wait, so that the engine can be closed, and stops
// watching.
func (sh *sharing) close() {
	sh.mu.Lock()
	sh.closed = true
	var over []kvcr.View
	for _, p := range sh.byFD {
		over = append(over, p.claims...)
		p.claims = nil
		sh.tidy(p)
	}
	sh.waiting = 0
	epoll := sh.epoll
	sh.epoll = nil
	sh.mu.Unlock()
	release(over)
	if epoll != nil {
		epoll.Close()
	}
	sh.watching.Wait()
}

// counts are for Stats.
func (sh *sharing) counts() SharedStats {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	st := SharedStats{
		Conns: sh.conns, Gets: sh.gets.Load(), Hits: sh.hits.Load(), LentBytes: sh.lent.Load(), Claims: sh.held.Load() + int64(sh.waiting), HeldForDead: int64(sh.waiting),
		StagingBytes: sh.granted, Commits: sh.commits.Load(), CommittedBytes: sh.committed.Load(), Dropped: sh.dropped,
	}
	for _, p := range sh.byFD {
		if p.conns > 0 && !p.dead {
			st.Clients++
		}
	}
	return st
}

func release(views []kvcr.View) {
	for i := range views {
		views[i].Release()
	}
}
