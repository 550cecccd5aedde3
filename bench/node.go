package bench

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr/bench/load"
)

// NodeOptions are those of the node suite.
type NodeOptions struct {
	Options
	// Exe is this program: it is run again as the node, as the generator of load
	// and as the plain server.
	Exe string
	// Pins to measure: "one-core" puts server and load on a processor each,
	// "none" leaves both alone. Empty: both, quick one-core.
	Pins []string
}

const (
	nodeKeys        = 100_000 // at most
	idleConnections = 2000
	// Shared memory is read in blocks of this size, as many at the same time.
	sharedSize, sharedFlight = 1 << 20, 8
)

// nodeBytes is how much all values take, at most.
func (o Options) nodeBytes() int {
	if o.Smoke {
		return 16 << 20
	}
	return 1 << 30
}

// nodeConns is how many connections a generator of load has.
func (o Options) nodeConns() int {
	if o.Smoke {
		return 4
	}
	return 50
}

// lasting is d, or next to nothing when nothing is measured.
func (o Options) lasting(d time.Duration) time.Duration {
	if o.Smoke {
		return d / 20
	}
	return max(d, o.span())
}

// nodeRow is one comparison.
type nodeRow struct {
	op, proto, net string
	size, pipeline int
	bar            Bar
	also           []Bar
	impls          []string // ours first
}

// The implementations measured. Each is a process.
const (
	implRedis     = "redis"
	implMemcached = "memcached"
	implNet       = "net"
	implTCP       = "kvcr-tcp"
	implShared    = "kvcr-shm"   // a node with memory to share
	implPlain     = "plain-read" // of the same memory
)

func nodeRows(pinned bool) []nodeRow {
	redis, cached := []string{ours, implRedis}, []string{ours, implMemcached}
	large := []string{ours, implMemcached, implNet}
	get1M := Bar{Times: 1}
	// The plain server is what the machine gives: it has no cache to look into.
	plain := Bar{Times: 0.85, Of: implNet}
	if pinned {
		get1M.Times = 1.2
	}
	return []nodeRow{
		{"get", "resp", "tcp", 64, 1, Bar{Times: 1}, nil, redis},
		{"set", "resp", "tcp", 64, 1, Bar{Times: 1}, nil, redis},
		{"get", "resp", "tcp", 64, 16, Bar{Times: 2}, nil, redis},
		{"set", "resp", "tcp", 64, 16, Bar{Times: 2}, nil, redis},
		{"get", "resp", "unix", 64, 1, Bar{Times: 1.6}, nil, []string{ours, implTCP}},
		{"get", "resp", "tcp", 4 << 10, 16, Bar{Times: 2}, nil, redis},
		{"get", "resp", "tcp", 64 << 10, 1, Bar{Times: 2}, nil, redis},
		{"get", "resp", "tcp", 64 << 10, 16, Bar{Times: 2}, nil, redis},
		{"get", "binary", "tcp", 64 << 10, 1, Bar{Times: 1.2}, nil, cached},
		{"get", "binary", "tcp", 64 << 10, 16, Bar{Times: 1.6}, nil, cached},
		{"get", "binary", "tcp", 1 << 20, 1, get1M, []Bar{plain}, large},
		{"get", "binary", "tcp", 1 << 20, 16, Bar{Times: 1}, []Bar{plain}, large},
		{"set", "binary", "tcp", 1 << 20, 1, plain, nil, large},
		{"set", "binary", "tcp", 1 << 20, 16, plain, nil, large},
	}
}

func (r *nodeRow) result(pin string) Result {
	return Result{Suite: "node", Name: r.op, Params: []Param{{"proto", r.proto}, {"net", r.net}, {"size", r.size}, {"pipeline", r.pipeline}, {"pin", pin}},
		Unit: "ops/s", Better: Higher, Bar: r.bar, Also: r.also}
}

func sharedResult() Result {
	return Result{Suite: "node", Name: "get", Params: []Param{{"proto", "shm"}, {"net", "unix"}, {"size", sharedSize}, {"pipeline", sharedFlight}, {"pin", "none"}},
		Unit: "ops/s", Better: Higher, Bar: Bar{Times: 5}, Also: []Bar{{Times: 0.8, Of: implPlain}}}
}

func halfLoadResult(pin string) Result {
	return Result{Suite: "node", Name: "get-p999-half-load", Params: []Param{{"size", 64}, {"pin", pin}}, Unit: "us", Better: Lower, Bar: Bar{Times: 1}}
}

func idleResult(conns int, pin string) Result {
	return Result{Suite: "node", Name: "idle-conn", Params: []Param{{"conns", conns}, {"pin", pin}}, Unit: "bytes/conn", Better: Lower, Bar: Bar{Limit: 8 << 10, HasLimit: true}}
}

// absentPin notes the bars of a placement that is not measured.
func (rep *Report) absentPin(pin, why string) {
	for _, r := range nodeRows(pin == "one-core") {
		rep.absent(r.result(pin), why)
	}
	if pin == "none" {
		rep.absent(sharedResult(), why)
	}
	rep.absent(halfLoadResult(pin), why)
	rep.absent(idleResult(idleConnections, pin), why)
}

// Node measures a node beside other servers, each in a process of its own, with
// the load from another one.
func Node(ctx context.Context, o NodeOptions) (*Report, error) {
	o.Options = o.withDefaults()
	rep := &Report{}
	if len(o.Pins) == 0 {
		o.Pins = []string{"one-core", "none"}
		if o.Quick && !o.Smoke {
			o.Pins = o.Pins[:1]
			if len(o.Only) == 0 {
				rep.absentPin("none", "quick: --pin none measures it")
			}
		}
	}
	if err := o.validate([]string{"get", "set", "shm", "get-p999-half-load", "get-latency-curve", "idle-conn"}); err != nil {
		return &Report{}, err
	}
	if o.Quick {
		o.until = time.Now().Add(quickBudget)
	}
	sizes := []int{64, 4 << 10, 64 << 10, 1 << 20}
	dir, err := os.MkdirTemp("", "kvcr-bench")
	if err != nil {
		return rep, err
	}
	defer os.RemoveAll(dir)
	for i, pin := range o.Pins {
		pinned := pin == "one-core"
		if pinned && allowedCPUs() < 2 {
			return rep, &OptionError{Option: "pin", Value: pin, Limit: "needs two processors"}
		}
		if !pinned && o.wants("shm") {
			if err := measureShared(ctx, o, rep, dir); err != nil {
				return rep, err
			}
		}
		for j, size := range sizes {
			var rows []nodeRow
			for _, r := range nodeRows(pinned) {
				if r.size == size && o.wants(r.op) {
					rows = append(rows, r)
				}
			}
			po := o
			po.Options = o.slice(i*len(sizes)+j, len(o.Pins)*len(sizes))
			if err := measureNode(ctx, po, rep, dir, pin, rows); err != nil {
				return rep, err
			}
		}
	}
	return rep, nil
}

// measureNode measures rows of one value size, with all their servers running.
func measureNode(ctx context.Context, o NodeOptions, rep *Report, dir, pin string, rows []nodeRow) (err error) {
	if len(rows) == 0 {
		return nil
	}
	size := rows[0].size
	keys := o.keys(min(nodeKeys, o.nodeBytes()/size))
	servers := fleet{}
	defer func() { err = errors.Join(err, servers.stop()) }()
	for _, r := range rows {
		for _, impl := range r.impls {
			name := serverOf(impl)
			if servers[name] != nil {
				continue
			}
			if err := servers.start(ctx, o, rep, dir, name, pin == "one-core", size, keys); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	err = o.rounds(ctx, func(round int) error {
		for _, r := range rows {
			out := rep.result(r.result(pin))
			for _, impl := range r.impls {
				p := servers[serverOf(impl)]
				if p == nil {
					out.without = notInstalled(serverOf(impl))
					continue
				}
				o.Progress(fmt.Sprintf("%s %s %s, %d bytes, pipeline %d, pin %s, round %d of %d: %s", r.proto, r.net, r.op, r.size, r.pipeline, pin, round+1, o.Runs, impl))
				network := r.net
				if impl != ours {
					network = "tcp"
				}
				proto := p.proto(r.proto)
				spec := load.Spec{Network: network, Addr: p.addr(network, proto), Proto: proto, Op: r.op, Size: r.size, Keys: keys, Conns: o.nodeConns(), Pipeline: r.pipeline, Duration: max(2*o.span(), o.lasting(300*time.Millisecond)), CPU: loadCPU(pin), Unstamped: impl == implNet}
				res, err := generate(ctx, o, spec)
				if err != nil {
					return fmt.Errorf("%s: %w", impl, err)
				}
				s := out.series(impl)
				s.Rival = impl != ours && impl != implNet
				s.Runs = append(s.Runs, res.OperationsPerSec)
				s.Note = fmt.Sprintf("p50 %v, p99 %v, p99.9 %v, %.1f GB/s", res.P50.Round(time.Microsecond), res.P99.Round(time.Microsecond), res.P999.Round(time.Microsecond), res.BytesPerSecond/1e9)
			}
		}
		return nil
	})
	if err != nil || size != 64 {
		return err
	}
	if err := measureHalfLoad(ctx, o, rep, pin, keys, servers); err != nil {
		return err
	}
	return measureIdle(o, rep, pin, servers[ours])
}

// measureHalfLoad sends half of what Redis took at its peak, at fixed times
// whatever the server does, and reports what the slowest thousandth waited.
func measureHalfLoad(ctx context.Context, o NodeOptions, rep *Report, pin string, keys int, servers fleet) error {
	if !o.wants("get-p999-half-load", "get-latency-curve") {
		return nil
	}
	if servers[implRedis] == nil {
		rep.absent(halfLoadResult(pin), notInstalled(implRedis))
		return nil
	}
	peak := math.NaN()
	row := []Param{{"proto", "resp"}, {"net", "tcp"}, {"size", 64}, {"pipeline", 1}, {"pin", pin}}
	for _, r := range rep.Results {
		if s := r.find(implRedis); s != nil && r.Name == "get" && slices.Equal(r.Params, row) {
			peak = s.Median()
		}
	}
	if math.IsNaN(peak) {
		rep.absent(halfLoadResult(pin), "the peak it is half of was not measured: --only get,get-p999-half-load")
		return nil
	}
	out := rep.result(halfLoadResult(pin))
	return o.rounds(ctx, func(round int) error {
		for _, impl := range []string{ours, implRedis} {
			p := servers[impl]
			o.Progress(fmt.Sprintf("p99.9 at %.0f gets a second, pin %s, round %d of %d: %s", peak/2, pin, round+1, o.Runs, impl))
			spec := load.Spec{Network: "tcp", Addr: p.addr("tcp", "resp"), Proto: "resp", Op: "get", Size: 64, Keys: keys, Conns: o.nodeConns(), Pipeline: 1, Rate: peak / 2, Duration: max(4*o.span(), o.lasting(time.Second)), CPU: loadCPU(pin)}
			res, err := generate(ctx, o, spec)
			if err != nil {
				return fmt.Errorf("%s: %w", impl, err)
			}
			h, err := res.Histogram()
			if err != nil {
				return err
			}
			s := out.series(impl)
			s.Rival = impl != ours
			s.Runs = append(s.Runs, float64(res.P999.Microseconds()))
			rep.addCurve(Result{Suite: "node", Name: "get-latency-curve", Params: []Param{{"size", 64}, {"pin", pin}}, Unit: "us", Better: Lower}, impl, h, 1e3)
			s.Note = fmt.Sprintf("p50 %v, p99 %v, %d of %.0f sent late", res.P50.Round(time.Microsecond), res.P99.Round(time.Microsecond), res.BacklogAtTheEnd, peak/2*spec.Duration.Seconds())
		}
		return nil
	})
}

// measureIdle reports what an idle connection costs the node in memory of its own.
func measureIdle(o NodeOptions, rep *Report, pin string, p *process) error {
	if p == nil || !o.wants("idle-conn") {
		return nil
	}
	conns := idleConnections
	if o.Smoke {
		conns = 100
	}
	o.Progress("memory of idle connections")
	out := rep.result(idleResult(conns, pin))
	warm, err := idleConns(p, 100)
	if err != nil {
		return err
	}
	defer closeAll(warm)
	before, err := anonymous(p.cmd.Process.Pid)
	if err != nil {
		return err
	}
	idle, err := idleConns(p, conns)
	if err != nil {
		return err
	}
	defer closeAll(idle)
	time.Sleep(o.lasting(time.Second))
	after, err := anonymous(p.cmd.Process.Pid)
	if err != nil {
		return err
	}
	s := out.series(ours)
	s.Runs = append(s.Runs, float64(after-before)/float64(conns))
	return nil
}

// idleConns opens connections that have asked for one thing.
func idleConns(p *process, n int) (conns []net.Conn, err error) {
	for range n {
		c, err := net.Dial("tcp", p.addr("tcp", "resp"))
		if err != nil {
			closeAll(conns)
			return nil, err
		}
		conns = append(conns, c)
		if _, err := io.WriteString(c, "PING\r\n"); err != nil {
			closeAll(conns)
			return nil, err
		}
		if _, err := io.ReadFull(c, make([]byte, len("+PONG\r\n"))); err != nil {
			closeAll(conns)
			return nil, err
		}
	}
	return conns, nil
}

func closeAll(conns []net.Conn) {
	for _, c := range conns {
		c.Close()
	}
}

// anonymous is the process's resident anonymous memory in bytes.
func anonymous(pid int) (int64, error) {
	return statusBytes(fmt.Sprintf("/proc/%d/status", pid), "RssAnon")
}

// measureShared reads 1 MiB values in place from a node's shared memory, beside
// Redis over a unix socket and the same reads without claims.
func measureShared(ctx context.Context, o NodeOptions, rep *Report, dir string) (err error) {
	const size = sharedSize
	keys := o.keys(o.nodeBytes() / size)
	servers := fleet{}
	defer func() { err = errors.Join(err, servers.stop()) }()
	for _, name := range []string{implShared, implRedis} {
		if err := servers.start(ctx, o, rep, dir, name, false, size, keys); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	out := rep.result(sharedResult())
	return o.rounds(ctx, func(round int) error {
		for _, impl := range []string{ours, implPlain, implRedis} {
			p := servers[implShared]
			spec := load.Spec{Network: "unix", Proto: "shm", Op: "get", Size: size, Keys: keys, Conns: 1, Pipeline: sharedFlight, Duration: max(2*o.span(), o.lasting(500*time.Millisecond)), CPU: -1}
			switch impl {
			case implPlain:
				spec.Proto = "plain"
			case implRedis:
				if p = servers[implRedis]; p == nil {
					out.without = notInstalled(implRedis)
					continue
				}
				spec.Proto, spec.Conns, spec.Pipeline = "resp", sharedFlight, 1
			}
			spec.Addr = p.addr("unix", map[bool]string{true: "resp", false: "binary"}[impl == implRedis])
			o.Progress(fmt.Sprintf("shared memory, round %d of %d: %s", round+1, o.Runs, impl))
			res, err := generate(ctx, o, spec)
			if err != nil {
				return fmt.Errorf("%s: %w", impl, err)
			}
			s := out.series(impl)
			s.Rival = impl == implRedis
			s.Runs = append(s.Runs, res.OperationsPerSec)
			s.Note = fmt.Sprintf("%.1f GB/s", res.BytesPerSecond/1e9)
		}
		return nil
	})
}

func serverOf(impl string) string {
	if impl == implTCP {
		return ours
	}
	return impl
}

// loadCPU is the processor that the generator of load runs on, -1 for any.
func loadCPU(pin string) int {
	if pin == "one-core" {
		return cpuAt(1)
	}
	return -1
}

// generate runs the generator of load in a process of its own.
func generate(ctx context.Context, o NodeOptions, spec load.Spec) (res load.Result, err error) {
	arg, err := json.Marshal(spec)
	if err != nil {
		return res, err
	}
	cmd := exec.CommandContext(ctx, o.Exe, o.Profiles.child("load", "bench", "load", string(arg))...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return res, fmt.Errorf("load: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return res, json.Unmarshal(out, &res)
}

// notInstalled says that there is no such server here.
func notInstalled(server string) string {
	program := map[string]string{implRedis: "redis-server"}[server]
	return cmp.Or(program, server) + " is not installed"
}

// fleet are the servers that run, by name.
type fleet map[string]*process

// start starts one and fills it. A server that is not installed is left out.
func (f fleet) start(ctx context.Context, o NodeOptions, rep *Report, dir, name string, pinned bool, size, keys int) error {
	p, err := startServer(ctx, o, dir, name, pinned, size)
	if errors.Is(err, exec.ErrNotFound) {
		rep.leftOut(notInstalled(name))
		return nil
	}
	if err != nil {
		return err
	}
	f[name] = p
	if name == implNet {
		return nil // it has its one value
	}
	o.Progress(fmt.Sprintf("filling %s with %d values of %d bytes", name, keys, size))
	proto := p.proto("resp")
	fill := load.Spec{Network: "tcp", Addr: p.addr("tcp", proto), Proto: proto, Op: "fill", Size: size, Keys: keys, Conns: 4, Pipeline: 4, CPU: -1}
	if _, err := generate(ctx, o, fill); err != nil {
		return fmt.Errorf("fill: %w", err)
	}
	return nil
}

func (f fleet) stop() error {
	var errs []error
	for _, p := range f {
		errs = append(errs, p.stop())
	}
	return errors.Join(errs...)
}

// process is a server under measurement.
type process struct {
	name  string
	cmd   *exec.Cmd
	addrs map[string]string // "tcp/resp" and so on
	log   bytes.Buffer
}

// proto is what this server speaks when a row asks for proto.
func (p *process) proto(proto string) string {
	switch p.name {
	case implMemcached:
		return "memcached"
	case implNet, implRedis:
		return "resp"
	}
	return proto
}

func (p *process) addr(network, proto string) string { return p.addrs[network+"/"+proto] }

// startServer starts one and waits until it answers.
func startServer(ctx context.Context, o NodeOptions, dir, name string, pinned bool, size int) (*process, error) {
	p := &process{name: name, addrs: map[string]string{}}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	at := "127.0.0.1:" + strconv.Itoa(port)
	var args []string
	exe := o.Exe
	env := os.Environ()
	switch name {
	case implRedis:
		exe = "redis-server"
		unixPath := filepath.Join(dir, fmt.Sprintf("redis-%d.sock", port))
		args = []string{"--port", strconv.Itoa(port), "--unixsocket", unixPath, "--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--maxmemory", "0", "--dir", dir}
		p.addrs["tcp/resp"], p.addrs["unix/resp"] = at, unixPath
	case implMemcached:
		exe = "memcached"
		threads := "4" // its default
		if pinned {
			threads = "1"
		}
		args = []string{"-p", strconv.Itoa(port), "-l", "127.0.0.1", "-U", "0", "-m", "2048", "-I", "8m", "-t", threads, "-u", "nobody"}
		p.addrs["tcp/memcached"] = at
	case implNet:
		args = o.Profiles.child("plain", "bench", "plain-server", "--addr", at, "--size", strconv.Itoa(size))
		p.addrs["tcp/resp"] = at
	default:
		second, err := freePort()
		if err != nil {
			return nil, err
		}
		unixPath := filepath.Join(dir, fmt.Sprintf("node-%d.sock", port))
		binary := "127.0.0.1:" + strconv.Itoa(second)
		shared := unixPath + ".shared"
		args = []string{"serve", "--http=", "--resp", at + ",unix:" + unixPath, "--listen", binary + ",unix:" + shared, "--prefault", "true",
			"--capacity", strconv.Itoa(max(2*o.nodeBytes(), 64<<20)), "--mean-value", strconv.Itoa(max(size, 1024)), "--log-level", "warn"}
		p.addrs["tcp/resp"], p.addrs["unix/resp"], p.addrs["tcp/binary"], p.addrs["unix/binary"] = at, unixPath, binary, shared
		if name == implShared {
			args = append(args, "--backing", "memfd")
		}
		args = o.Profiles.child("server", args...)
	}
	if pinned && (name == ours || name == implNet) {
		env = append(env, "GOMAXPROCS=1")
	}
	if err := p.launch(ctx, exe, args, env, at); err != nil {
		return nil, err
	}
	if pinned {
		if err := pinProcess(p.cmd.Process.Pid, cpuAt(0)); err != nil {
			return nil, errors.Join(err, p.stop())
		}
	}
	return p, nil
}

// launch starts the process and waits until it listens at addr.
func (p *process) launch(ctx context.Context, exe string, args, env []string, addr string) error {
	p.cmd = exec.CommandContext(ctx, exe, args...)
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(unix.SIGTERM) }
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = env, &p.log, &p.log
	if err := p.cmd.Start(); err != nil {
		return err
	}
	if err := p.await(addr); err != nil {
		err = errors.Join(err, p.stop())
		return fmt.Errorf("%w; it said: %s", err, strings.TrimSpace(p.log.String()))
	}
	return nil
}

// await waits until something listens.
func (p *process) await(addr string) error {
	deadline := time.Now().Add(time.Minute)
	for {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			return c.Close()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not listen after a minute: %w", p.name, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// stop ends the process and waits for it.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	done := make(chan struct{})
	go func() { p.cmd.Wait(); close(done) }() // its exit status says how it was stopped
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		p.cmd.Process.Kill()
		<-done
		return fmt.Errorf("%s did not stop: %s", p.name, p.log.String())
	}
	return nil
}

func freePort() (int, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port, nil
}

func allowedCPUs() int {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return 1
	}
	return set.Count()
}

// cpuAt is the i-th processor that this process may use.
func cpuAt(i int) int {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return i
	}
	for cpu := range 1024 {
		if set.IsSet(cpu) {
			if i == 0 {
				return cpu
			}
			i--
		}
	}
	return 0
}

// pinProcess moves all threads of a process to one processor; those it makes
// later inherit that.
func pinProcess(pid, cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return err
	}
	for _, t := range threads {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			return err
		}
		if err := unix.SchedSetaffinity(tid, &set); err != nil && err != unix.ESRCH {
			return os.NewSyscallError("sched_setaffinity", err)
		}
	}
	return nil
}

// PlainServer is what Go's net does without a cache behind it: it answers each
// request of known length with bytes from memory. It serves until ctx ends.
func PlainServer(ctx context.Context, addr string, size int) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { ln.Close() })
	value := make([]byte, size)
	for i := range value {
		value[i] = byte(i * 7)
	}
	head, tail := []byte(fmt.Sprintf("$%d\r\n", size)), []byte("\r\n")
	for {
		c, err := ln.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		go plainConn(c, head, value, tail)
	}
}

// plainConn tells a get from a set by its second byte and knows both lengths.
func plainConn(c net.Conn, head, value, tail []byte) {
	defer c.Close()
	getLen := len("*2\r\n$3\r\nGET\r\n$16\r\n\r\n") + load.KeyBytes
	setLen := len("*3\r\n$3\r\nSET\r\n$16\r\n\r\n") + load.KeyBytes + len(head) + len(value) + len(tail)
	buf := make([]byte, 256<<10)
	have := 0
	for {
		n, err := c.Read(buf[have:])
		if err != nil {
			return
		}
		have += n
		for have >= 2 {
			if buf[1] == '2' {
				if have < getLen {
					break
				}
				have = copy(buf, buf[getLen:have])
				out := net.Buffers{head, value, tail}
				if _, err := out.WriteTo(c); err != nil {
					return
				}
				continue
			}
			if have < setLen {
				// The rest of a large value, read and forgotten.
				for left := setLen - have; left > 0; {
					n, err := c.Read(buf[:min(left, len(buf))])
					if err != nil {
						return
					}
					left -= n
				}
				have = 0
			} else {
				have = copy(buf, buf[setLen:have])
			}
			if _, err := io.WriteString(c, "+OK\r\n"); err != nil {
				return
			}
		}
	}
}
