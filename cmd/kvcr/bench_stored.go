package main

import (
	"context"
	"errors"
	"path/filepath"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/kvcr-go/kvcr/bench"
)

// benchListCmd says which suites there are: what kvcr bench alone does.
type benchListCmd struct{}

func (benchListCmd) Run(e *env, k *kong.Context) error {
	rows := [][]string{}
	for _, s := range suitesOf(k.Model.Node) {
		rows = append(rows, []string{s.Name, s.Help})
	}
	rows = append(rows, []string{"all", "All of these, each in a process of its own."})
	if err := bench.WriteColumns(e.stdout, "ll", rows); err != nil {
		return err
	}
	e.printf("\nkvcr bench SUITE --help lists the flags; kvcr bench SUITE --quick takes 45 seconds.\n")
	return nil
}

// benchStoredCmd makes of stored results what a run would have made of them: what
// became of every bar, and what the flags ask for.
type benchStoredCmd struct {
	Files []string `arg:"" name:"file" help:"Results that --json wrote. Of equal rows the last file's stay."`
}

func (c *benchStoredCmd) Run(e *env, root *cli) error {
	b := &root.Bench
	old, err := b.stored()
	if err != nil {
		return err
	}
	var runs [][]bench.Row
	for _, path := range c.Files {
		rows, err := readRows(path)
		if err != nil {
			return usageError{err}
		}
		runs = append(runs, rows)
	}
	rows := bench.MergeRows(runs...)
	return errors.Join(b.bars(e, rows), b.output(e, rows, old))
}

type benchProfileCmd struct {
	Dir string `arg:"" help:"Where --profile has left them."`
}

func (c *benchProfileCmd) Run(e *env) error { return bench.WriteTop(e.stdout, c.Dir) }

// benchProfiledCmd runs another command of this program with profiles taken of it:
// the processes that a suite starts.
type benchProfiledCmd struct {
	Suite string   `arg:""`
	Base  string   `arg:""`
	Kinds string   `arg:""`
	Args  []string `arg:"" passthrough:""`
}

// errProfiled is the failure of the other command, which has said why.
var errProfiled = errors.New("a profiled command failed")

func (c *benchProfiledCmd) Run(e *env) error {
	p, err := bench.StartProfiles(c.Suite, bench.ChildBase(c.Base), strings.Split(c.Kinds, ","))
	if err != nil {
		return err
	}
	_, role, _ := strings.Cut(filepath.Base(c.Base), "-")
	bench.Labelled(e.ctx, c.Suite, role, func(ctx context.Context) {
		labelled := *e
		labelled.ctx = ctx
		if run(&labelled, c.Args) != 0 {
			err = errProfiled
		}
	})
	return errors.Join(err, p.Stop())
}
