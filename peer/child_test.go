package peer

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// The other process of a test is the test binary, run again with a role.

const (
	envRole     = "KVCR_PEER_TEST_ROLE"
	envEndpoint = "KVCR_PEER_TEST_ENDPOINT"
	envUCX      = "KVCR_PEER_TEST_UCX"
	childBlocks = 64
	childSize   = 1 << 20
)

// child is another process with a node.
type child struct {
	t        testing.TB
	cmd      *exec.Cmd
	in       io.WriteCloser
	out      *bufio.Scanner
	endpoint string
}

func startChild(t testing.TB, role string, env ...string) *child {
	t.Helper()
	c := &child{t: t, cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(append(os.Environ(), envRole+"="+role), env...)
	c.cmd.Stderr = os.Stderr
	in, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.in, c.out = in, bufio.NewScanner(out)
	t.Cleanup(func() { c.stop() })
	c.endpoint = c.line()
	return c
}

// line is the next line that the child says.
func (c *child) line() string {
	c.t.Helper()
	s, ok := c.scan()
	if !ok {
		c.t.Fatalf("the other process has ended: %v", c.out.Err())
	}
	return s
}

// scan is line, with ok false when the child has ended. What UCX says of its own
// accord, on standard output, is not the child's.
func (c *child) scan() (line string, ok bool) {
	for c.out.Scan() {
		if s := c.out.Text(); !strings.HasPrefix(s, "[") || !strings.Contains(s, "UCX") {
			return s, true
		}
	}
	return "", false
}

// ask sends a command and returns the answer.
func (c *child) ask(format string, a ...any) string {
	c.t.Helper()
	fmt.Fprintf(c.in, format+"\n", a...)
	return c.line()
}

// kill ends the process at once, as kill -9 does, and waits for that.
func (c *child) kill() {
	c.cmd.Process.Signal(syscall.SIGKILL)
	c.cmd.Wait()
}

// stop lets the process end by itself.
func (c *child) stop() {
	if c.cmd.ProcessState != nil {
		return
	}
	c.in.Close()
	done := time.AfterFunc(10*time.Second, func() { c.cmd.Process.Signal(syscall.SIGKILL) })
	c.cmd.Wait()
	done.Stop()
}

// childT is a testing.TB outside of a test.
type childT struct{ testing.TB }

func (childT) Helper()                   {}
func (childT) Name() string              { return "child" }
func (childT) Cleanup(func())            {}
func (childT) Fatal(a ...any)            { fmt.Println(append([]any{"fatal:"}, a...)...); os.Exit(1) }
func (childT) Fatalf(f string, a ...any) { fmt.Printf("fatal: "+f+"\n", a...); os.Exit(1) }
func (childT) Errorf(f string, a ...any) { fmt.Printf("fatal: "+f+"\n", a...); os.Exit(1) }

// childMain is the other process. It says where its node listens, and then
// answers commands, one a line.
func childMain(role string) {
	t := childT{}
	tb := newTable(t, 2*childBlocks, childSize, role != "heap")
	routes := []wire.Route{wire.RouteShm, wire.RouteStream}
	if role == "heap" || os.Getenv("KVCR_PEER_TEST_STREAM") != "" {
		routes = routes[1:]
	}
	tb.noPool = role == "nopool"
	opt := withRoutes(routes...)
	if os.Getenv(envUCX) != "" {
		opt = withUCX(t, tb)
	}
	n := openNode(t, tb, opt)
	if role != "dest" {
		for i := range childBlocks {
			tb.put(t, keyOf(i), childSize)
		}
	}
	tb.put(t, "small", 64<<10)
	fmt.Println(n.Endpoints()[0])
	endpoint := os.Getenv(envEndpoint)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		cmd, arg, _ := strings.Cut(in.Text(), " ")
		switch cmd {
		case "plain":
			fmt.Println(servePlain(tb))
		case "use":
			c, s, m, h := tb.use()
			fmt.Println(c + s + m + h)
		case "fetch": // all blocks, again and again, until the end
			fmt.Println("ok")
			go func() {
				for {
					for i, s := range fetch(t, n, endpoint, Submit{Namespace: "ns", Items: wanted(0, childBlocks)}, 5*time.Second) {
						if s.Status == wire.StatusOK && !s.Existing {
							if err := tb.check(keyOf(i), childSize); err != nil {
								t.Fatal(err)
							}
						}
					}
					tb.drop()
				}
			}()
		case "once": // from who may end meanwhile
			fetch(t, n, arg, Submit{Namespace: "ns", Items: wanted(0, 4)}, 300*time.Millisecond)
			fmt.Println("done")
		case "route":
			s, _ := n.Known(endpoint)
			fmt.Println(s.Route)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	n.Close(ctx)
}

func runtimeGoroutines() int { return runtime.NumGoroutine() }

const (
	sigstop = syscall.SIGSTOP
	sigcont = syscall.SIGCONT
)
