package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// progress says how far long work has come: one line that is rewritten on a
// terminal, else a line every few seconds.
type progress struct {
	w     io.Writer // nil: quiet
	live  bool
	last  time.Time
	drawn bool
}

func newProgress(w io.Writer, quiet bool) *progress {
	if quiet {
		return &progress{}
	}
	return &progress{w: w, live: isTerminal(w), last: time.Now()}
}

// say shows a line if the last one is old enough.
func (p *progress) say(format string, args ...any) {
	every := 3 * time.Second
	if p.live {
		every = 100 * time.Millisecond
	}
	if p.w == nil || time.Since(p.last) < every {
		return
	}
	p.last = time.Now()
	if p.live {
		p.drawn = true
		fmt.Fprintf(p.w, "\r\x1b[K"+format, args...)
		return
	}
	fmt.Fprintf(p.w, format+"\n", args...)
}

// clear takes the live line away.
func (p *progress) clear() {
	if p.drawn {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.drawn = false
	}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// writeFile creates path and lets write fill it; "-" is standard output.
func writeFile(e *env, path string, write func(io.Writer) error) error {
	if path == "-" {
		return write(e.stdout)
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		f.Close()
		return fmt.Errorf("%s: %w", path, err)
	}
	return f.Close()
}
