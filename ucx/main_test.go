//go:build linux && cgo && ucx

package ucx

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// A test that needs a second process runs this binary again with the name of a
// role; the two talk in lines over the child's standard input and output.
const roleVar = "UCX_TEST_ROLE"

var roles = map[string]func(*bufio.Reader){}

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVar); role != "" {
		os.Unsetenv(roleVar)
		time.AfterFunc(time.Minute, func() { os.Exit(4) }) // whatever becomes of the test
		in := bufio.NewReader(os.Stdin)
		if f := roles[role]; f != nil {
			f(in)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// child is a running second process.
type child struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startChild(t testing.TB, role string) *child {
	t.Helper()
	return startChildWith(t, role, nil)
}

func startChildWith(t testing.TB, role string, attr *syscall.SysProcAttr) *child {
	t.Helper()
	c := &child{t: t, cmd: exec.Command(os.Args[0], "-test.run=^$")}
	c.cmd.Env = append(os.Environ(), roleVar+"="+role)
	c.cmd.Stderr = os.Stderr
	c.cmd.SysProcAttr = attr
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// A child that hangs must not hang the test.
	bound := time.AfterFunc(40*time.Second, func() { c.cmd.Process.Kill() })
	t.Cleanup(func() {
		c.in.Close()
		c.cmd.Process.Kill()
		c.cmd.Wait()
		bound.Stop()
	})
	return c
}

func (c *child) say(format string, args ...any) { fmt.Fprintf(c.in, format+"\n", args...) }

func (c *child) hear() string {
	c.t.Helper()
	line, err := c.out.ReadString('\n')
	if err != nil {
		c.t.Fatalf("child: %v", err)
	}
	return strings.TrimSpace(line)
}

func (c *child) hearBlob() []byte {
	c.t.Helper()
	b, err := base64.StdEncoding.DecodeString(c.hear())
	if err != nil {
		c.t.Fatal(err)
	}
	return b
}

func blobText(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

func hearLine(in *bufio.Reader) string {
	line, err := in.ReadString('\n')
	if err != nil {
		os.Exit(0) // the test has ended
	}
	return strings.TrimSpace(line)
}

// mustChild ends the child loudly: the test then fails on its silence.
func mustChild[T any](v T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(3)
	}
	return v
}

// mapped is memory off the Go heap.
func mapped(t testing.TB, n int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}

func addrOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

func textBlob(s string) ([]byte, error) { return base64.StdEncoding.DecodeString(s) }

// childMemory maps memory that lives as long as the child.
func childMemory(n int) uintptr {
	b := mustChild(unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE))
	return uintptr(unsafe.Pointer(&b[0]))
}

func childBytes(addr uintptr, n int) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), n)
}

func stopChild(c *child) error { return c.cmd.Process.Signal(unix.SIGSTOP) }

// rig is a context with workers, all closed at the end of the test.
type rig struct {
	t   testing.TB
	ctx *Context
}

func newRig(t testing.TB, o Options) *rig {
	t.Helper()
	c, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("Context.Close: %v", err)
		}
	})
	return &rig{t, c}
}

func (r *rig) worker(o WorkerOptions) *Worker {
	r.t.Helper()
	w, err := r.ctx.NewWorker(o)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := w.Close(testPatience); err != nil {
			r.t.Errorf("Worker.Close: %v", err)
		}
	})
	return w
}

// memory registers n bytes; workers made later are closed before it goes.
func (r *rig) memory(n int) (*Memory, []byte) {
	r.t.Helper()
	b := mapped(r.t, n)
	m, err := r.ctx.Register(b, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := m.Deregister(); err != nil {
			r.t.Errorf("Deregister: %v", err)
		}
	})
	return m, b
}

func (r *rig) connect(w, to *Worker) *Endpoint {
	r.t.Helper()
	e, err := w.Connect(to.Address(), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return e
}

// start submits one operation whose completion arrives in the channel.
func start(t testing.TB, w *Worker, op Op) (Request, <-chan Completion) {
	t.Helper()
	ch := make(chan Completion, 1)
	op.Done = func(c Completion) { ch <- c }
	r, err := w.Start(op)
	if err != nil {
		t.Fatalf("%v: %v", op.Kind, err)
	}
	return r, ch
}

func await(t testing.TB, what string, ch <-chan Completion) Completion {
	t.Helper()
	select {
	case c := <-ch:
		return c
	case <-time.After(testPatience):
		t.Fatalf("%s did not complete in %v", what, testPatience)
		panic("unreachable")
	}
}

func fill(b []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}
