package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
)

// env is what commands may use of the outside; tests give their own.
type env struct {
	ctx            context.Context
	stdout, stderr io.Writer
	environ        []string
}

func (e *env) printf(format string, args ...any) { fmt.Fprintf(e.stdout, format, args...) }

// configFile is the file of settings: that of the flag, else of KVCR_CONFIG.
func (e *env) configFile(flag string) string {
	if flag != "" {
		return flag
	}
	for _, kv := range e.environ {
		if v, ok := strings.CutPrefix(kv, "KVCR_CONFIG="); ok {
			return v
		}
	}
	return ""
}

type cli struct {
	Serve        serveCmd        `cmd:"" help:"Run a node: RESP, binary protocol, status page."`
	Try          tryCmd          `cmd:"" help:"Store a block in a node, read it back, compare every byte."`
	Get          getCmd          `cmd:"" help:"Read a value from a node."`
	Set          setCmd          `cmd:"" help:"Write a value to a node."`
	Del          delCmd          `cmd:"" help:"Delete keys of a node."`
	Exists       existsCmd       `cmd:"" help:"Say which keys a node has, and their sizes."`
	Stat         statCmd         `cmd:"" help:"Print a node's counters."`
	Ping         pingCmd         `cmd:"" help:"Measure how long a node takes to answer."`
	Hint         hintCmd         `cmd:"" help:"Send a router's hints to a node, and say what becomes of them."`
	Plan         planCmd         `cmd:"" help:"Ask the planner who should fetch what from whom: a table, envelopes, a picture."`
	Replay       replayCmd       `cmd:"" help:"Send a trace through the engine and check every byte."`
	Bench        benchCmd        `cmd:"" help:"Measure beside other caches, queues and policies."`
	Sim          simCmd          `cmd:"" help:"Run the transfer protocol over a simulated network and check what it promises."`
	Peerdemo     peerdemoCmd     `cmd:"" help:"Two processes fetch, deliver and move blocks; one is killed."`
	PeerdemoNode peerdemoNodeCmd `cmd:"" hidden:""`
	Routerdemo   routerdemoCmd   `cmd:"" help:"Three nodes under a router, without hints and with them."`
	Doctor       doctorCmd       `cmd:"" help:"Say what this machine gives and what to change."`
	Config       configCmd       `cmd:"" help:"Print every effective setting and its source."`
	Version      versionCmd      `cmd:"" help:"Print the version."`
}

// usageError is a mistake in how the command was called: exit code 2.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(&env{ctx, os.Stdout, os.Stderr, os.Environ()}, os.Args[1:]))
}

// newParser knows the commands and their flags. end is called after --help.
func newParser(e *env, args []string, end func(code int)) *kong.Kong {
	var c cli
	parser, err := kong.New(&c,
		kong.Name("kvcr"),
		kong.Description("KVCR keeps KV-cache blocks in reserved memory and lends them without copying."),
		kong.Writers(e.stdout, e.stderr),
		kong.Exit(end),
		kong.Vars{"node": defaultNode},
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Bind(e, commandLine(args)))
	if err != nil {
		panic(err) // the command tree is wrong: ours
	}
	return parser
}

// run parses and executes one command line and returns the exit code.
func run(e *env, args []string) (code int) {
	type exit int
	defer func() {
		// kong ends after --help by calling Exit; nothing else panics with this.
		if x, ok := recover().(exit); ok {
			code = int(x)
		}
	}()
	parser := newParser(e, args, func(n int) { panic(exit(n)) })
	if len(args) == 0 {
		args = []string{"--help"}
	}
	kctx, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(e.stderr, "kvcr: %v\n", err)
		return 2
	}
	if err := kctx.Run(); err != nil {
		fmt.Fprintf(e.stderr, "kvcr: %s\n", strings.TrimPrefix(err.Error(), "kvcr: "))
		if errors.As(err, &usageError{}) {
			return 2
		}
		return 1
	}
	return 0
}
