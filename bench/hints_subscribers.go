package bench

import (
	"bufio"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

// notice is a channel that says that something has changed, at least once since.
type notice chan struct{}

func (n notice) tell() {
	select {
	case n <- struct{}{}:
	default:
	}
}

// indexSubscriber is a router: a consumer that keeps an index.
type indexSubscriber struct {
	notice
	c               *events.Consumer
	index           *plan.Index
	stored, removed atomic.Int64

	mu  sync.Mutex
	err error // of the first event that the index refused
}

func openIndexSubscriber(p *events.Publisher) (subscriber, error) {
	return newIndexSubscriber(p.Endpoint(), p.ReplayEndpoint())
}

func newIndexSubscriber(endpoint, replay string) (*indexSubscriber, error) {
	s := &indexSubscriber{notice: make(notice, 1), index: plan.New(plan.Config{})}
	var err error
	s.c, err = events.NewConsumer(events.ConsumerConfig{
		Endpoint: endpoint, Replay: replay, Worker: events.Worker{ID: 1},
		Normalizer: events.NormalizerConfig{BlockSize: publishBlock}, OnEvents: s.apply,
	})
	return s, err
}

func (s *indexSubscriber) apply(evs []events.RouterEvent) {
	stored, removed := 0, 0
	for i := range evs {
		if err := s.index.Apply(&evs[i]); err != nil {
			s.mu.Lock()
			s.err = errors.Join(s.err, err)
			s.mu.Unlock()
		}
		stored += len(evs[i].Blocks)
		removed += len(evs[i].Hashes)
	}
	s.stored.Add(int64(stored))
	s.removed.Add(int64(removed))
	s.tell()
}

func (s *indexSubscriber) changed() <-chan struct{} { return s.notice }

func (s *indexSubscriber) counted() heard {
	gaps := 0
	for _, n := range s.c.Stats().Gaps {
		gaps += int(n)
	}
	return heard{int(s.stored.Load()), int(s.removed.Load()), gaps}
}

func (s *indexSubscriber) check(resident int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	st, cs := s.index.Stats(), s.c.Stats()
	if n := st.Pairs[events.HostPinned]; n != resident || st.Conflicts+st.Refused > 0 || cs.Drops != (events.Drops{}) {
		return fmt.Errorf("the index holds %d blocks, not %d; %d conflicts, %d refused, dropped %v", n, resident, st.Conflicts, st.Refused, cs.Drops)
	}
	return nil
}

func (s *indexSubscriber) close() error { return s.c.Close() }

//go:embed subscriber.py
var subscriberScript string

// errNoZMQ: this machine has no libzmq for Python.
var errNoZMQ = errors.New("no python3 with zmq and msgpack (apt-get install python3-zmq python3-msgpack)")

// zmqSubscriber is a process on libzmq that counts.
type zmqSubscriber struct {
	notice
	cmd   *exec.Cmd
	in    io.Closer
	ended chan struct{}

	mu  sync.Mutex
	now heard
}

func openZMQSubscriber(p *events.Publisher) (subscriber, error) {
	const python = "/usr/bin/python3"
	if exec.Command(python, "-c", "import zmq, msgpack").Run() != nil {
		return nil, errNoZMQ
	}
	s := &zmqSubscriber{notice: make(notice, 1), cmd: exec.Command(python, "-u", "-c", subscriberScript, p.Endpoint()), ended: make(chan struct{})}
	in, err := s.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	s.in = in
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go s.read(out)
	return s, nil
}

func (s *zmqSubscriber) read(out io.Reader) {
	defer close(s.ended)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var line struct{ Stored, Removed, Missed int }
		if json.Unmarshal(lines.Bytes(), &line) != nil {
			return // what is missing will be missed
		}
		s.mu.Lock()
		s.now = heard{line.Stored, line.Removed, line.Missed}
		s.mu.Unlock()
		s.tell()
	}
}

func (s *zmqSubscriber) changed() <-chan struct{} { return s.notice }

func (s *zmqSubscriber) counted() heard {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *zmqSubscriber) check(int) error { return nil }

// close ends the process.
func (s *zmqSubscriber) close() error {
	s.in.Close()
	kill := time.AfterFunc(5*time.Second, func() { s.cmd.Process.Kill() })
	defer kill.Stop()
	<-s.ended
	return s.cmd.Wait()
}
