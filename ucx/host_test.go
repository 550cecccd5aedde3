//go:build linux && cgo && ucx

package ucx

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What the host, or a peer that is gone, does to a worker: case E2, F2, K3, K4 and
// L3 of the cases that this package is for.

// Registering, sending from and deregistering memory, again and again, keeps
// nothing: UCX's cache of registrations, which has no bound by itself, holds none of
// ours.
func TestRegisterCycles(t *testing.T) {
	rounds := 20_000
	if testing.Short() {
		rounds = 2_000
	}
	r := newRig(t, Options{})
	a, b := r.worker(WorkerOptions{}), r.worker(WorkerOptions{})
	ep := r.connect(a, b)
	into, _ := r.memory(4096)
	cycle := func(n int) {
		for i := range n {
			mem, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
			if err != nil {
				t.Fatal(err)
			}
			m, err := r.ctx.Register(mem, nil)
			if err != nil {
				t.Fatal(err)
			}
			mem[0] = byte(i)
			_, got := start(t, b, Op{Kind: OpRecv, Mem: into, Len: 4096, Tag: uint64(i)})
			_, sent := start(t, a, Op{Kind: OpSend, Endpoint: ep, Mem: m, Len: 4096, Tag: uint64(i)})
			if c := await(t, "send", sent); c.Err != nil {
				t.Fatal(c.Err)
			}
			if c := await(t, "recv", got); c.Err != nil {
				t.Fatal(c.Err)
			}
			if err := m.Deregister(); err != nil {
				t.Fatal(err)
			}
			if err := unix.Munmap(mem); err != nil {
				t.Fatal(err)
			}
		}
	}
	cycle(rounds / 4) // UCX's pools grow to what this needs
	runtime.GC()
	before := rssBytes(t)
	cycle(rounds)
	runtime.GC()
	after := rssBytes(t)
	t.Logf("%d cycles: memory %d -> %d KiB", rounds, before>>10, after>>10)
	if grown := after - before; grown > 8<<20 && grown/int64(rounds) > 64 {
		t.Errorf("%d bytes stay behind with each registration", grown/int64(rounds))
	}
}

// Memory that is unmapped and mapped again at the same address, with other bytes in
// it, is other memory: what is sent are the new bytes.
func TestRemappedAddress(t *testing.T) {
	const size = 1 << 20 // by rendezvous, which would pin it
	r := newRig(t, Options{})
	a, b := r.worker(WorkerOptions{}), r.worker(WorkerOptions{})
	ep := r.connect(a, b)
	into, dst := r.memory(size)
	base := mapped(t, size) // keeps the address for us
	for i := range uint64(50) {
		// Over the old mapping, as the kernel alone knows.
		addr := addrOf(base)
		_, _, errno := unix.Syscall6(unix.SYS_MMAP, addr, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_FIXED, ^uintptr(0), 0)
		if errno != 0 {
			t.Fatal(errno)
		}
		m, err := r.ctx.Register(base, nil)
		if err != nil {
			t.Fatal(err)
		}
		fill(base, i)
		_, got := start(t, b, Op{Kind: OpRecv, Mem: into, Len: size, Tag: i})
		_, sent := start(t, a, Op{Kind: OpSend, Endpoint: ep, Mem: m, Len: size, Tag: i})
		if c := await(t, "recv", got); c.Err != nil {
			t.Fatal(c.Err)
		}
		if c := await(t, "send", sent); c.Err != nil {
			t.Fatal(c.Err)
		}
		if !bytes.Equal(dst, base) {
			t.Fatalf("round %d: other bytes than those that are there now", i)
		}
		if err := m.Deregister(); err != nil {
			t.Fatal(err)
		}
	}
}

// A worker with three dead and three living peers, which close at the same moment,
// is closed within a bound, in any order.
func TestCloseAmongDeadAndLiving(t *testing.T) {
	rounds := 3
	if testing.Short() {
		rounds = 1
	}
	for round := range rounds {
		r := newRig(t, Options{Puts: true})
		m, _ := r.memory(1 << 20)
		w, err := r.ctx.NewWorker(WorkerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var living []*Worker
		var dead []*child
		var eps []*Endpoint
		connect := func(addr []byte) {
			ep, err := w.Connect(addr, func(error) {})
			if err != nil {
				t.Fatal(err)
			}
			eps = append(eps, ep)
			_, flushed := start(t, w, Op{Kind: OpFlush, Endpoint: ep})
			if c := await(t, "flush", flushed); c.Err != nil {
				t.Fatal(c.Err)
			}
		}
		for range 3 {
			c := startChild(t, "victim")
			addr := c.hearBlob()
			c.hearBlob()
			connect(addr)
			dead = append(dead, c)
			l, err := r.ctx.NewWorker(WorkerOptions{})
			if err != nil {
				t.Fatal(err)
			}
			connect(l.Address())
			living = append(living, l)
		}
		var open []<-chan Completion
		for i, ep := range eps {
			_, c := start(t, w, Op{Kind: OpSend, Endpoint: ep, Mem: m, Len: 1 << 20, Tag: uint64(i)}) // nobody receives it
			open = append(open, c)
		}
		for _, c := range dead {
			c.cmd.Process.Kill()
		}
		begin := time.Now()
		var wg sync.WaitGroup
		closing := func(what string, f func() error) {
			wg.Add(1)
			go func() {
				defer wg.Done()
				if err := f(); err != nil {
					t.Errorf("round %d: %s: %v", round, what, err)
				}
			}()
		}
		for i := range eps { // one end or the other first, or both at once
			if i%3 == round%3 {
				closing("an endpoint", func() error { return eps[i].Close(testPatience) })
			}
		}
		for i, l := range living {
			if i == round%3 {
				time.Sleep(5 * time.Millisecond)
			}
			closing("a living peer", func() error { return l.Close(testPatience) })
		}
		closing("the worker", func() error { return w.Close(testPatience) })
		wg.Wait()
		if d := time.Since(begin); d > 5*time.Second {
			t.Errorf("round %d: closing took %v", round, d)
		}
		for i, c := range open {
			await(t, fmt.Sprintf("send %d", i), c)
		}
	}
}

func init() {
	roles["locked"] = locked
	roles["bridged"] = bridged
}

// locked carries bytes though the host lets it lock next to no memory.
func locked(*bufio.Reader) {
	limit := unix.Rlimit{Cur: 64 << 10, Max: 64 << 10}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		fmt.Println("limit:", err)
		return
	}
	const size = 8 << 20
	c := mustChild(Open(Options{}))
	addr := childMemory(2 * size)
	m := mustChild(c.RegisterAt(addr, 2*size, Host, nil))
	a, b := mustChild(c.NewWorker(WorkerOptions{})), mustChild(c.NewWorker(WorkerOptions{}))
	ep := mustChild(a.Connect(b.Address(), nil))
	mem := childBytes(addr, 2*size)
	fill(mem[:size], 1)
	done := make(chan Completion, 2)
	mustChild(b.Start(Op{Kind: OpRecv, Mem: m, Off: size, Len: size, Tag: 1, Done: func(c Completion) { done <- c }}))
	mustChild(a.Start(Op{Kind: OpSend, Endpoint: ep, Mem: m, Len: size, Tag: 1, Done: func(c Completion) { done <- c }}))
	for range 2 {
		if c := <-done; c.Err != nil {
			fmt.Println(c.Kind, c.Err)
			return
		}
	}
	fmt.Println("same bytes:", bytes.Equal(mem[:size], mem[size:]))
}

// With a limit of 64 KiB of locked memory the transports that lock none go on.
func TestLockedMemoryLimit(t *testing.T) {
	if got := startChild(t, "locked").hear(); got != "same bytes: true" {
		t.Error(got)
	}
}

// bridged is a worker of a host that also has the bridge of a container engine: it
// receives 1 MiB, or sends it to the address it hears.
func bridged(in *bufio.Reader) {
	hearLine(in) // the network is there
	// UCX looks for devices below /sys, where those of another namespace are.
	if err := errors.Join(unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("sysfs", "/sys", "sysfs", 0, "")); err != nil {
		fmt.Println("skip:", err)
		return
	}
	const size = 1 << 20
	c := mustChild(Open(Options{}))
	addr := childMemory(size)
	m := mustChild(c.RegisterAt(addr, size, Host, nil))
	w := mustChild(c.NewWorker(WorkerOptions{}))
	fmt.Println(blobText(w.Address()))
	done := make(chan Completion, 1)
	op := Op{Kind: OpRecv, Mem: m, Len: size, Tag: 1, Done: func(c Completion) { done <- c }}
	if text := hearLine(in); text != "receive" {
		op.Kind, op.Endpoint = OpSend, mustChild(w.Connect(mustChild(textBlob(text)), nil))
	}
	mustChild(w.Start(op))
	if op.Kind == OpRecv {
		fmt.Println("posted")
	}
	select {
	case c := <-done:
		fmt.Println(c.Bytes, c.Err)
	case <-time.After(20 * time.Second):
		fmt.Println("nothing comes")
	}
	hearLine(in) // the other side may still need us
}

// Two hosts that both have a bridge of the same addresses, as container engines
// make them, connect over the network that joins them, without being told which.
func TestMisleadingBridge(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs the command ip (iproute2)")
	}
	if _, err := exec.LookPath("nsenter"); err != nil {
		t.Skip("needs the command nsenter (util-linux)")
	}
	var hosts [2]*child
	for i := range hosts {
		c, err := startIsolated(t, "bridged")
		if err != nil {
			t.Skipf("needs network namespaces: %v", err)
		}
		hosts[i] = c
	}
	ip := func(i int, args ...string) (string, error) {
		pid := strconv.Itoa(hosts[i].cmd.Process.Pid)
		out, err := exec.Command("nsenter", append([]string{"-t", pid, "-n", "ip"}, args...)...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("ip %v: %w: %s", args, err, out)
		}
		return string(out), err
	}
	for i := range hosts {
		if _, err := ip(i, "link", "add", "docker0", "type", "bridge"); err != nil {
			t.Skip(err)
		}
		for _, args := range [][]string{
			{"link", "set", "lo", "up"},
			// A container, so that the bridge has a carrier.
			{"link", "add", "veth0", "type", "veth", "peer", "name", "veth1"},
			{"link", "set", "veth0", "master", "docker0"}, {"link", "set", "veth0", "up"}, {"link", "set", "veth1", "up"},
			{"addr", "add", "172.17.0.1/16", "dev", "docker0"}, {"link", "set", "docker0", "up"},
		} {
			if _, err := ip(i, args...); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := ip(0, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(hosts[1].cmd.Process.Pid)); err != nil {
		t.Skip(err)
	}
	for i := range hosts {
		for _, args := range [][]string{
			{"addr", "add", fmt.Sprintf("10.78.0.%d/24", i+1), "dev", "eth0"}, {"link", "set", "eth0", "up"},
		} {
			if _, err := ip(i, args...); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, c := range hosts {
		for _, dev := range []string{"eth0", "docker0"} { // the kernel takes up to a second
			for end := time.Now().Add(testPatience); ; time.Sleep(10 * time.Millisecond) {
				out, err := ip(i, "-o", "link", "show", "dev", dev)
				if err != nil || time.Now().After(end) {
					t.Fatalf("%s is never up: %s, %v", dev, out, err)
				}
				if strings.Contains(out, "state UP") {
					break
				}
			}
		}
		c.say("go")
	}
	to := hosts[0].hear()
	if strings.HasPrefix(to, "skip") {
		t.Skip("needs a sysfs of its own: ", to)
	}
	hosts[1].hear()
	hosts[0].say("receive")
	if got := hosts[0].hear(); got != "posted" {
		t.Fatal(got)
	}
	hosts[1].say("%s", to)
	for i, c := range hosts {
		if got := c.hear(); got != "1048576 <nil>" && !(i == 1 && got == "0 <nil>") {
			t.Errorf("host %d: %s", i, got)
		}
	}
}

// startIsolated is startChild in network and mount namespaces of its own.
func startIsolated(t testing.TB, role string) (*child, error) {
	try := exec.Command("true")
	try.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
	if err := try.Run(); err != nil {
		return nil, err
	}
	return startChildWith(t, role, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}), nil
}
