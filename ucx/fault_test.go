//go:build linux && cgo && ucx

package ucx

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

func init() {
	roles["fault in C"] = func(*bufio.Reader) {
		(&Worker{}).turn(nil) // kx_turn writes through a null pointer
	}
	roles["fault in Go"] = func(*bufio.Reader) {
		defer func() { fmt.Println("recovered:", recover()) }()
		var w *Worker
		w.addr = nil
	}
}

// Linking libucx must leave crash reports to Go: UCX takes the signals before
// main, and signals.c takes them back.
func TestFaults(t *testing.T) {
	run := func(role string) (stdout, stderr string, err error) {
		var out, errs bytes.Buffer
		cmd := exec.Command(os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), roleVar+"="+role)
		cmd.Stdout, cmd.Stderr = &out, &errs
		err = cmd.Run()
		return out.String(), errs.String(), err
	}
	_, stderr, err := run("fault in C")
	if err == nil || !strings.Contains(stderr, "signal arrived during cgo execution") || !strings.Contains(stderr, "kx_turn") {
		t.Errorf("a fault in C: %v\n%s", err, stderr)
	}
	if strings.Contains(stderr, "Caught signal") || strings.Contains(stderr, "==== backtrace") {
		t.Errorf("UCX reports the fault:\n%s", stderr)
	}
	stdout, stderr, err := run("fault in Go")
	if err != nil || !strings.Contains(stdout, "recovered: runtime error: invalid memory address") {
		t.Errorf("a nil pointer in Go: %v\n%s%s", err, stdout, stderr)
	}
}
