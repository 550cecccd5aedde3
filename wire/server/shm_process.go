package server

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/internal/procs"
	"github.com/kvcr-go/kvcr/wire"
)

// sharing knows the processes that read this server's memory in place.
//
// The claims of a connection with shared memory do not end with it: its process
// may go on reading, and a closed socket says nothing about that. They go to the
// process, and end when its pidfd says that it has ended.
//
//	P1  a process is waited for from the moment on when it attaches, when a failure
//	    can still be answered, as long as it is in known
//	P2  it leaves known when conns == 0 and it has no claims
//	P3  claims end by leave or ended, once the process has ended, or by forget, once
//	    nothing writes to the memory any more; no other way
//
// The zero sharing is ready.
type sharing struct {
	kernel *procs.Kernel // nil: procs.System
	ends   procs.Set

	// Since the start, but for held: claims of connections that are open now.
	gets, hits, lent, commits, committed atomic.Uint64
	held                                 atomic.Int64

	mu      sync.Mutex // guards what follows
	byPID   map[int32]*process
	known   map[*process]struct{}
	conns   int
	waiting int    // claims of connections that have ended
	granted int64  // bytes of staging memory
	dropped uint64 // processes that ended with claims
	closed  bool
}

// process is one client that has memory of ours mapped.
type process struct {
	pid    int32
	end    *procs.Entry
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
	if p = sh.byPID[pid]; p != nil && !p.dead && !p.end.Exited() {
		unix.Close(pidfd)
	} else if p, err = sh.add(pid, pidfd); err != nil {
		return nil, 0, notSupported("process %d cannot be watched: %v", pid, err)
	}
	p.conns++
	sh.conns++
	return p, len(p.claims), nil
}

// add begins to watch a process. mu held.
func (sh *sharing) add(pid int32, pidfd int) (*process, error) {
	p := &process{pid: pid}
	end, err := sh.ends.Add(pidfd, func() { sh.ended(p) })
	if err != nil {
		return nil, err
	}
	if sh.known == nil {
		sh.byPID, sh.known = map[int32]*process{}, map[*process]struct{}{}
	}
	p.end = end
	sh.byPID[pid], sh.known[p] = p, struct{}{}
	return p, nil
}

// leave ends a connection: its claims wait for the end of the process.
func (sh *sharing) leave(p *process, claims map[uint64]kvcr.View) {
	sh.mu.Lock()
	sh.held.Add(-int64(len(claims)))
	p.conns--
	sh.conns--
	var over []kvcr.View
	for _, v := range claims {
		if p.dead {
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
	delete(sh.known, p)
	p.end.Remove()
}

// ended ends the claims of a process that has ended.
func (sh *sharing) ended(p *process) {
	sh.mu.Lock()
	over := p.claims
	p.dead, p.claims = true, nil
	sh.waiting -= len(over)
	sh.drop(p, over)
	sh.tidy(p)
	sh.mu.Unlock()
	release(over)
}

// shut lets nobody in any more. Claims of processes that live stay.
func (sh *sharing) shut() {
	sh.mu.Lock()
	sh.closed = true
	idle := sh.waiting == 0
	sh.mu.Unlock()
	if idle {
		sh.ends.Close()
	}
}

// forget ends the claims that stayed, and stops watching.
func (sh *sharing) forget() {
	sh.mu.Lock()
	var over []kvcr.View
	for p := range sh.known {
		over = append(over, p.claims...)
		p.claims = nil
		sh.tidy(p)
	}
	sh.waiting = 0
	sh.mu.Unlock()
	release(over)
	sh.ends.Close()
}

// counts are for Stats.
func (sh *sharing) counts() SharedStats {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	st := SharedStats{
		Conns: sh.conns, Gets: sh.gets.Load(), Hits: sh.hits.Load(), LentBytes: sh.lent.Load(), Claims: sh.held.Load() + int64(sh.waiting), HeldForDead: int64(sh.waiting),
		StagingBytes: sh.granted, Commits: sh.commits.Load(), CommittedBytes: sh.committed.Load(), Dropped: sh.dropped,
	}
	for p := range sh.known {
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
