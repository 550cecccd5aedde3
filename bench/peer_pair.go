package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr"
)

// source is the process with the blocks, as this one sees it.
type source struct {
	sourceHello
	spec SourceSpec
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
	log  bytes.Buffer
}

func startSource(ctx context.Context, o PeerOptions, spec SourceSpec) (_ *source, err error) {
	arg, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	s := &source{spec: spec, cmd: exec.CommandContext(ctx, o.Exe, o.Profiles.child("source", "bench", "peer-source", string(arg))...)}
	s.cmd.Cancel = func() error { return s.cmd.Process.Signal(unix.SIGTERM) }
	s.cmd.Stderr = &s.log
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.out = bufio.NewScanner(out)
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	if err := s.hear(&s.sourceHello); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

func (s *source) hear(v any) error {
	if !s.out.Scan() {
		return errors.Join(errors.New("the source's process has ended"), s.out.Err())
	}
	return json.Unmarshal(s.out.Bytes(), v)
}

// ask sends a command and returns what the process has used by then.
func (s *source) ask(command string) (u use, err error) {
	if _, err := fmt.Fprintln(s.in, command); err != nil {
		return u, err
	}
	return u, s.hear(&u)
}

// stop has the process end by itself, and waits for it.
func (s *source) stop() error {
	s.in.Close()
	kill := time.AfterFunc(20*time.Second, func() { s.cmd.Process.Kill() })
	defer kill.Stop()
	if err := s.cmd.Wait(); err != nil {
		return fmt.Errorf("the source's process: %w: %s", err, strings.TrimSpace(s.log.String()))
	}
	return nil
}

// fetcher is this process's engine, empty but for what it has just fetched.
type fetcher struct {
	e        *kvcr.Engine
	h        *kvcr.Handle
	endpoint string
	route    string
	size     int
	keys     *Keys
	list     [][]byte // of all keys
	opt      kvcr.FetchOptions
	scratch  []byte
}

func newFetcher(routes []string, endpoint string, size, blocks int) (*fetcher, error) {
	e, err := openPeerEngine(routes, "", size, blocks)
	if err != nil {
		return nil, err
	}
	f := &fetcher{e: e, endpoint: endpoint, route: routes[0], size: size, keys: blockKeys(blocks),
		opt: kvcr.FetchOptions{Sources: []string{endpoint}, Timeout: peerPatience}, scratch: make([]byte, size)}
	for i := range blocks {
		f.list = append(f.list, f.keys.At(i).Bytes)
	}
	if f.h, err = e.Handle(); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return f, nil
}

func (f *fetcher) Close() error { return errors.Join(f.h.Close(), f.e.Close()) }

// fetch fetches blocks from to to-1 in one operation, looks at them and drops them
// again. took is from call to completion.
func (f *fetcher) fetch(ctx context.Context, from, to int, whole bool) (took time.Duration, err error) {
	start := time.Now()
	rs, err := f.h.FetchFrom(f.list[from:to], f.opt).Wait(ctx)
	took = time.Since(start)
	if err != nil {
		return 0, err
	}
	for i := range rs {
		if err := f.check(from+i, &rs[i], whole); err != nil {
			return 0, err
		}
	}
	return took, f.drop(from, to)
}

// check looks at a block and releases it. Stamps at both ends tell the right
// block; whole compares every byte.
func (f *fetcher) check(i int, r *kvcr.Result, whole bool) error {
	if !r.OK() {
		return fmt.Errorf("block %d: %w", i, r.Err())
	}
	defer r.View.Release()
	b := r.View.Bytes()
	if len(b) != f.size {
		return fmt.Errorf("block %d has %d bytes, not %d", i, len(b), f.size)
	}
	return checkBlock(b, f.scratch, f.keys.At(i), whole)
}

// checkBlock compares a block with what fillBlock makes for k; scratch is as long.
func checkBlock(b, scratch []byte, k Key, whole bool) error {
	if whole {
		if n := wrongBytes(b, scratch, k); n > 0 {
			return fmt.Errorf("block %d has %d wrong bytes", k.number(), n)
		}
		return nil
	}
	for _, at := range []int{0, len(b) - 8} {
		if got := binary.LittleEndian.Uint64(b[at:]); got != mix64(k.stamp()+uint64(at)) {
			return fmt.Errorf("block %d has %#x at byte %d", k.number(), got, at)
		}
	}
	return nil
}

func (f *fetcher) drop(from, to int) error {
	for i, r := range f.h.DeleteBatch(f.list[from:to]) {
		if !r.OK() {
			return fmt.Errorf("block %d cannot be dropped: %w", from+i, r.Err())
		}
	}
	return nil
}

// onRoute reports an error when the connection has taken another route.
func (f *fetcher) onRoute(want string) error {
	s, _ := f.e.Peers().Known(f.endpoint)
	if got := s.Route.String(); !strings.HasPrefix(got, want) {
		return fmt.Errorf("the route is %s, not %s", got, want)
	}
	return nil
}

// dialPlain opens connections to the source's plain server.
func (s *source) dialPlain(n int) (conns []net.Conn, err error) {
	network := "tcp"
	if s.spec.Network == "unix" {
		network = "unix"
	}
	for range n {
		nc, err := net.Dial(network, s.Plain)
		if err != nil {
			closeAll(conns)
			return nil, err
		}
		conns = append(conns, nc)
	}
	return conns, nil
}

// contender does one thing that is timed.
type contender struct {
	impl  string
	rival bool
	note  string
	once  func() (time.Duration, error)
}

// turns has each contender move so many bytes once, in turn, again and again for
// about d, at least three times, beginning with another one each time. What else
// the machine does meets all of them. The medians of their rates are one run's
// values; what both processes use of processors is noted.
func (r *Result) turns(ctx context.Context, d time.Duration, src *source, cs []contender, bytes int) error {
	took, used := make([][]float64, len(cs)), make([][]float64, len(cs))
	defer asClient(ctx)()
	for start := time.Now(); len(took[0]) < 3 || time.Since(start) < d*time.Duration(len(cs)); {
		turn := len(took[0])
		for i := range cs {
			i = (i + turn) % len(cs)
			if err := ctx.Err(); err != nil {
				return err
			}
			before, err := bothUse(src)
			if err != nil {
				return err
			}
			t, err := cs[i].once()
			if err != nil {
				return fmt.Errorf("%s: %w", cs[i].impl, err)
			}
			after, err := bothUse(src)
			if err != nil {
				return err
			}
			took[i] = append(took[i], float64(max(1, t.Nanoseconds())))
			used[i] = append(used[i], float64((after - before).Nanoseconds()))
		}
	}
	for i, c := range cs {
		s := r.series(c.impl)
		s.Rival = c.rival
		s.Runs = append(s.Runs, float64(bytes)/middle(took[i]))
		s.cpu = append(s.cpu, middle(used[i])/float64(bytes)*1024)
		s.Note = fmt.Sprintf("%.0f ns/KiB of CPU", middle(slices.Clone(s.cpu)))
		if c.note != "" {
			s.Note = c.note + ", " + s.Note
		}
	}
	return nil
}

// bothUse is the processor time of both processes.
func bothUse(src *source) (time.Duration, error) {
	u, err := src.ask("use")
	return u.CPU + ownUse().CPU, err
}

func middle(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
