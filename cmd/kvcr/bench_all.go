package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/kvcr-go/kvcr/bench"
)

// quickAll bounds all suites of a quick run.
const quickAll = 10 * time.Minute

// benchAllCmd runs every suite in a process of its own, so that no suite starts
// with the heap, the collector's pace or the processor caches of another one.
type benchAllCmd struct{}

func (benchAllCmd) Run(e *env, root *cli, k *kong.Context) error {
	c := &root.Bench
	if c.Only != "" {
		return usageError{errors.New("--only names results of one suite: kvcr bench SUITE --only " + c.Only)}
	}
	old, err := c.stored()
	if err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "kvcr-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ctx := e.ctx
	if c.Quick {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, quickAll, fmt.Errorf("quick suites took over %v", quickAll))
		defer cancel()
	}
	var errs []error
	var rows []bench.Row
	suites := suitesOf(k.Model.Node)
	times := [][]string{{"suite", "took", ""}}
	began := time.Now()
	for i, s := range suites {
		if ctx.Err() != nil {
			errs = append(errs, fmt.Errorf("%s: not begun: %w", s.Name, context.Cause(ctx)))
			times = append(times, []string{s.Name, "", "not begun"})
			continue
		}
		if !c.Quiet {
			fmt.Fprintf(e.stderr, "kvcr: suite %d of %d: %s; %v so far\n", i+1, len(suites), s.Name, time.Since(began).Round(time.Second))
		}
		suiteBegan := time.Now()
		args := c.childArgs(s.Name, filepath.Join(dir, s.Name+".json"))
		if short, ok := s.Target.Addr().Interface().(shortAmongAll); ok {
			args = append(args, short.amongAll(c)...)
		}
		got, err := c.inChild(ctx, e, exe, s.Name, args)
		rows = bench.MergeRows(rows, got)
		end := ""
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.Name, err))
			end = "ended early"
		}
		times = append(times, []string{s.Name, time.Since(suiteBegan).Round(time.Second / 10).String(), end})
	}
	var cut []string // suites that did not come to their end
	for _, t := range times {
		if t[2] != "" {
			cut = append(cut, t[0])
		}
	}
	times = append(times, []string{"all", time.Since(began).Round(time.Second / 10).String(), ""})
	if c.JSON != "-" {
		e.printf("== all\n\n")
		errs = append(errs, bench.WriteColumns(e.stdout, "lrl", times))
		e.printf("\n")
	}
	errs = append(errs, c.bars(e, rows))
	if len(cut) > 0 && c.JSON != "-" {
		e.printf("incomplete: bars that %s did not come to are not among these\n", strings.Join(cut, ", "))
	}
	return errors.Join(append(errs, c.output(e, rows, old))...)
}

// shortAmongAll is a suite that takes flags of its own where all suites run.
type shortAmongAll interface{ amongAll(c *benchCmd) []string }

// inChild runs one suite in a process. What it wrote, where the flag --json of args
// says, counts also when it fails.
func (c *benchCmd) inChild(ctx context.Context, e *env, exe, suite string, args []string) ([]bench.Row, error) {
	cmd := exec.CommandContext(ctx, exe, args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = e.stdout, e.stderr, e.environ
	if c.JSON == "-" {
		cmd.Stdout = io.Discard
	} else {
		e.printf("== %s\n\n", suite)
	}
	// Asked to end, a suite writes what it has and ends its own processes.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	rows, errRead := readRows(args[slices.Index(args, "--json")+1])
	if errors.Is(errRead, os.ErrNotExist) && err != nil {
		errRead = nil // it said why
	}
	return rows, errors.Join(err, errRead)
}

// childArgs are the flags that suites have in common, less those of the output.
func (c *benchCmd) childArgs(suite, results string) []string {
	args := []string{"bench", suite, "--json", results}
	for _, f := range []struct {
		name  string
		given bool
	}{{"--quick", c.Quick}, {"--smoke", c.Smoke}, {"--quiet", c.Quiet}} {
		if f.given {
			args = append(args, f.name)
		}
	}
	if c.Runs != 0 {
		args = append(args, "--runs", strconv.Itoa(c.Runs))
	}
	if len(c.Profile) > 0 {
		args = append(args, "--profile", strings.Join(c.Profile, ","), "--profile-dir", c.ProfileDir)
	}
	return args
}
