package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// demoPatience bounds each thing asked of a node of the demonstration.
const demoPatience = 30 * time.Second

// noRoute is a node's answer when its build or machine does not have the route.
type noRoute struct{ why string }

func (e *noRoute) Error() string { return e.why }

// other is another process of the demonstration, with a node in it.
type other struct {
	name     string
	endpoint string
	cmd      *exec.Cmd
	in       io.WriteCloser
	out      *json.Decoder
}

// startOther runs this program again as a node.
func startOther(ctx context.Context, e *env, setup demoSetup) (*other, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	o := &other{name: setup.Name, cmd: exec.CommandContext(ctx, exe, "peerdemo-node")}
	o.cmd.Stderr = e.stderr
	if o.in, err = o.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := o.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	o.out = json.NewDecoder(out)
	if err := o.cmd.Start(); err != nil {
		return nil, err
	}
	a, err := o.say(setup)
	if err == nil && a.NoRoute != "" {
		err = &noRoute{a.NoRoute}
	}
	if err != nil {
		o.kill()
		return nil, err
	}
	o.endpoint = a.Endpoint
	return o, nil
}

// say sends a line and reads the answer.
func (o *other) say(line any) (demoAnswer, error) {
	if err := json.NewEncoder(o.in).Encode(line); err != nil {
		return demoAnswer{}, fmt.Errorf("node %s: %w", o.name, err)
	}
	return o.hear()
}

// hear reads an answer. A node that says nothing for too long is killed.
func (o *other) hear() (a demoAnswer, err error) {
	late := time.AfterFunc(2*demoPatience, func() { o.cmd.Process.Signal(syscall.SIGKILL) })
	defer late.Stop()
	if err = o.out.Decode(&a); err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	if err != nil {
		return a, fmt.Errorf("node %s: %w", o.name, err)
	}
	return a, nil
}

// kill ends the process at once, as kill -9 does, and waits for that.
func (o *other) kill() {
	o.cmd.Process.Signal(syscall.SIGKILL)
	o.cmd.Wait()
}

// stop lets the process end by itself.
func (o *other) stop() error {
	o.in.Close()
	late := time.AfterFunc(demoPatience, func() { o.cmd.Process.Signal(syscall.SIGKILL) })
	defer late.Stop()
	if err := o.cmd.Wait(); err != nil {
		return fmt.Errorf("node %s: %w", o.name, err)
	}
	return nil
}
