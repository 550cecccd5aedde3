package soak

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// The kinds of violations, which are those of the rules of the package.
const (
	wrongBytes  = "wrong bytes"        // S1
	wrongAnswer = "wrong answer"       // S2
	noAnswer    = "no answer"          // S3
	noEnd       = "no end"             // S4, also two of them
	nodeDied    = "node"               // S5
	wrongList   = "inventory"          // S6
	leak        = "leak"               // S7
	unexpected  = "unexpected failure" // an error that nothing of what happened explains
)

var violationKinds = []string{wrongBytes, wrongAnswer, noAnswer, noEnd, nodeDied, wrongList, leak, unexpected}

// Violation is one thing that must not be.
type Violation struct {
	Kind  string
	Where string // the node, and who of this process saw it
	What  string
	After time.Duration // since the soak began
}

func (v *Violation) String() string {
	return fmt.Sprintf("%s, %s, after %v: %s", v.Kind, v.Where, v.After.Round(time.Millisecond), v.What)
}

// ViolationsError is a soak that found something.
type ViolationsError struct {
	Found  []Violation // the first of them
	Counts map[string]int
	Repeat string // the command that makes the same kind of run
	Logs   string // where the nodes' output is
}

func (e *ViolationsError) Error() string {
	var b strings.Builder
	n := 0
	for _, c := range e.Counts {
		n += c
	}
	fmt.Fprintf(&b, "%d violations:", n)
	for _, kind := range slices.Sorted(maps.Keys(e.Counts)) {
		fmt.Fprintf(&b, " %d %s,", e.Counts[kind], kind)
	}
	for i := range e.Found {
		fmt.Fprintf(&b, "\n  %s", &e.Found[i])
	}
	if n > len(e.Found) {
		fmt.Fprintf(&b, "\n  and %d more", n-len(e.Found))
	}
	fmt.Fprintf(&b, "\n  the nodes' output is in %s\n  again, with the same choices: %s", e.Logs, e.Repeat)
	return b.String()
}

// kept is how many violations of each kind are told in full.
const kept = 10

// trouble collects violations.
type trouble struct {
	began time.Time

	mu     sync.Mutex
	found  []Violation
	counts map[string]int
}

func (t *trouble) add(kind, where, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counts == nil {
		t.counts = map[string]int{}
	}
	if t.counts[kind]++; t.counts[kind] > kept {
		return
	}
	t.found = append(t.found, Violation{kind, where, fmt.Sprintf(format, args...), time.Since(t.began)})
}

func (t *trouble) count(kind string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counts[kind]
}

func (t *trouble) err(repeat, logs string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.found) == 0 {
		return nil
	}
	return &ViolationsError{slices.Clone(t.found), maps.Clone(t.counts), repeat, logs}
}

// tally counts things by kind.
type tally struct {
	mu sync.Mutex
	n  map[string]int64
}

func (t *tally) add(kind string, n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n == nil {
		t.n = map[string]int64{}
	}
	t.n[kind] += n
}

func (t *tally) get(kind string) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n[kind]
}

// each calls f for every kind in order.
func (t *tally) each(f func(kind string, n int64)) {
	t.mu.Lock()
	all := maps.Clone(t.n)
	t.mu.Unlock()
	for _, kind := range slices.Sorted(maps.Keys(all)) {
		f(kind, all[kind])
	}
}
