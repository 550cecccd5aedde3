package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/kvcr-go/kvcr/hints/plan/scene"
)

// planCmd asks the planner of hints about an inventory in a file.
type planCmd struct {
	File     string `arg:"" optional:"" help:"Members, what they hold, and prompts, as JSON; or a dump of router events, one JSON object a line; - is standard input."`
	Example  bool   `help:"Print a file to start from."`
	Events   string `placeholder:"DUMP" help:"Add the router events of a dump to the file's holdings."`
	Multi    bool   `help:"Targets may fetch from several sources."`
	JSON     bool   `name:"json" help:"Print the answers as JSON."`
	Envelope bool   `help:"Print the hints as envelopes, one a line, and nothing else."`
	SVG      string `name:"svg" placeholder:"FILE" help:"Draw who holds what, and who fetches what from whom; - is standard output."`
}

// Help is what kvcr plan --help says besides.
func (planCmd) Help() string {
	return `The file is one JSON object:

  block_size  tokens of a block (16); id_tokens: tokens that one of hash_ids stands for (512)
  members     worker (and rank) or cache_owner (hexadecimal digits) and attached; name;
              type: aggregated, prefill, decode; endpoint: without one it is no source;
              capable: takes hints, and is a target
  prompts     name; and local_hashes, tokens, or hash_ids of a trace
  holdings    member; tier: device, host_pinned, disk, external (host_pinned); prompt;
              ranges of its blocks, [from, to) from 0 (all)
  events      router events, as in a dump

Of a dump alone the members are assumed, and the prompt is its longest chain.`
}

func (c *planCmd) Run(e *env) error {
	switch {
	case c.Example && c.File != "":
		return usageError{errors.New("--example reads no file; leave one of them out")}
	case c.Example:
		_, err := e.stdout.Write(scene.Example)
		return err
	case c.File == "":
		return usageError{errors.New("give a file, - for standard input, or --example for one to start from")}
	case c.JSON && c.Envelope:
		return usageError{errors.New("--json and --envelope: which?")}
	case c.File == "-" && c.Events == "-":
		return usageError{errors.New("the file and --events cannot both be standard input")}
	}
	s, err := readScene(c.File, c.Events)
	if err != nil {
		return err
	}
	answers := s.Ask(c.Multi)
	if c.SVG != "" {
		if err := writeFile(e, c.SVG, func(w io.Writer) error { return s.WriteSVG(w, answers) }); err != nil {
			return err
		}
		if c.SVG == "-" {
			return nil
		}
	}
	switch {
	case c.JSON:
		return s.WriteJSON(e.stdout, answers)
	case c.Envelope:
		for _, a := range answers {
			for _, t := range a.Targets {
				if t.Envelope != nil {
					e.printf("%s\n", t.Envelope)
				}
			}
		}
		return nil
	}
	e.printf("%s\n", s.Summary())
	for _, a := range s.Assumed {
		e.printf("assumed: %s\n", a)
	}
	e.printf("\n")
	if err := s.WriteTable(e.stdout, answers); err != nil {
		return err
	}
	if c.SVG != "" {
		e.printf("\nthe picture is %s\n", c.SVG)
	}
	return nil
}

// readScene reads a file, and a dump if there is one. What is wrong in them is a mistake
// of the user's.
func readScene(path, dump string) (*scene.Scene, error) {
	var s *scene.Scene
	err := withFile(path, func(r io.Reader, name string) (err error) {
		s, err = scene.Read(r, name)
		return err
	})
	if err == nil && dump != "" {
		err = withFile(dump, s.AddEvents)
	}
	if errors.As(err, new(*scene.Error)) || errors.Is(err, os.ErrNotExist) {
		err = usageError{err}
	}
	return s, err
}

func withFile(path string, read func(r io.Reader, name string) error) error {
	if path == "-" {
		return read(os.Stdin, "standard input")
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("%w; kvcr plan --example prints a file to start from", err)
	}
	defer f.Close()
	return read(f, path)
}
