package procs

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrClosed: the set was closed.
var ErrClosed = errors.New("procs: closed")

// Set waits for the ends of processes. The zero Set is ready.
//
//	P1  an entry is in byFD exactly as long as its pidfd is open
//	P2  its function is called at most once, and not after Remove has returned
//	    true
type Set struct {
	mu       sync.Mutex
	byFD     map[int32]*Entry
	epoll    *os.File
	closed   bool
	watching sync.WaitGroup
}

// Entry is one process that is waited for.
type Entry struct {
	set   *Set
	fd    int32
	ended func()
}

// Add takes pidfd over, also when it fails, and has ended called once that process
// has ended. ended must not block.
func (s *Set) Add(pidfd int, ended func()) (*Entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := &Entry{s, int32(pidfd), ended}
	if err := s.add(e); err != nil {
		unix.Close(pidfd)
		return nil, err
	}
	s.byFD[e.fd] = e
	return e, nil
}

// add begins to watch. mu held.
func (s *Set) add(e *Entry) error {
	if s.closed {
		return ErrClosed
	}
	if s.epoll == nil {
		fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		if err != nil {
			return os.NewSyscallError("epoll_create1", err)
		}
		if err := unix.SetNonblock(fd, true); err != nil { // so that os gives it to the poller
			unix.Close(fd)
			return err
		}
		s.epoll = os.NewFile(uintptr(fd), "processes")
		s.byFD = map[int32]*Entry{}
		s.watching.Add(1)
		go s.watch(s.epoll)
	}
	// Through the file's own handle: Fd would take it out of Go's poller.
	raw, err := s.epoll.SyscallConn()
	if err != nil {
		return err
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: e.fd}
	var failed error
	err = raw.Control(func(set uintptr) { failed = unix.EpollCtl(int(set), unix.EPOLL_CTL_ADD, int(e.fd), &ev) })
	return errors.Join(err, os.NewSyscallError("epoll_ctl", failed))
}

// Remove forgets the process. False: its end was noticed before.
func (e *Entry) Remove() bool {
	e.set.mu.Lock()
	defer e.set.mu.Unlock()
	return e.set.take(e)
}

// take closes an entry, once. mu held.
func (s *Set) take(e *Entry) bool {
	if s.byFD[e.fd] != e {
		return false
	}
	delete(s.byFD, e.fd)
	unix.Close(int(e.fd)) // which takes it out of the epoll set
	return true
}

// watch looks at processes that may have ended, until the set is closed.
func (s *Set) watch(epoll *os.File) {
	defer s.watching.Done()
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
				s.look(events[i].Fd)
			}
		}
	})
}

// look calls the function of a process that has ended. The event may be that of a
// descriptor closed meanwhile, whose number means another process: so it is only
// a reason to look.
func (s *Set) look(pidfd int32) {
	s.mu.Lock()
	e := s.byFD[pidfd]
	if e == nil || !Exited(int(pidfd)) {
		s.mu.Unlock()
		return
	}
	s.take(e)
	s.mu.Unlock()
	e.ended()
}

// Len is the number of processes waited for.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byFD)
}

// Close forgets all processes and waits for the goroutine.
func (s *Set) Close() {
	s.mu.Lock()
	s.closed = true
	for _, e := range s.byFD {
		s.take(e)
	}
	epoll := s.epoll
	s.epoll = nil
	s.mu.Unlock()
	if epoll != nil {
		epoll.Close()
	}
	s.watching.Wait()
}

// Exited reports whether the process has ended, or is not waited for any more.
func (e *Entry) Exited() bool {
	e.set.mu.Lock()
	defer e.set.mu.Unlock()
	return e.set.byFD[e.fd] != e || Exited(int(e.fd))
}
