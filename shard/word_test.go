package shard

import (
	"fmt"
	"testing"
)

func TestClaim(t *testing.T) {
	const gen = 7
	at := func(s state, low uint32) uint64 { return withState(gen<<genShift, s, low) }
	tests := []struct {
		name       string
		word, want uint64
		ok         bool
	}{
		{"free", at(free, 0), at(free, 0), false},
		{"being filled", at(filling, 0), at(filling, 0), false},
		{"ready", at(ready, 0), at(ready, 1), true},
		{"ready, read by others", at(ready, 5), at(ready, 6), true},
		{"retiring, still read", at(retiring, 2), at(retiring, 2), false},
		{"member", at(member, 9), at(member, 9), false},
		{"pins exhausted", at(ready, pinMask), at(ready, pinMask), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var w word
			w.Store(tt.word)
			if _, ok := w.claim(); ok != tt.ok {
				t.Errorf("claim = %t, want %t", ok, tt.ok)
			}
			if got := w.Load(); got != tt.want {
				t.Errorf("word = %#x, want %#x", got, tt.want)
			}
		})
	}
}

func TestRelease(t *testing.T) {
	var w word
	w.Store(withState(3<<genShift, retiring, 2))
	if w.unclaim() {
		t.Fatal("the first of two releases freed the record")
	}
	if !w.unclaim() {
		t.Fatal("the last release did not free the record")
	}
	if got, want := w.Load(), uint64(4)<<genShift; got != want {
		t.Errorf("word = %#x, want %#x: FREE, next generation", got, want)
	}
}

func TestReleaseWithoutClaimPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	var w word
	w.Store(withState(0, free, 0))
	w.unclaim()
}

// TestWordStates enumerates every interleaving of two readers (claim, read,
// release) and an owner (retire, then fill and publish the record anew) on one
// word, step by step, and checks in each state that no reader reads bytes of
// another life than the one it claimed and that each life is freed once.
func TestWordStates(t *testing.T) {
	seen := map[model]bool{}
	var walk func(m model, path string)
	walk = func(m model, path string) {
		if seen[m] {
			return
		}
		seen[m] = true
		if m.frees > m.lives {
			t.Fatalf("%s: %d lives, freed %d times", path, m.lives, m.frees)
		}
		for i, next := range m.steps() {
			if next.bad != "" {
				t.Fatalf("%s: step %d: %s (word %#x)", path, i, next.bad, m.word)
			}
			walk(next, fmt.Sprintf("%s %d", path, i))
		}
	}
	var start model
	start.word = withState(0, ready, 0)
	start.lives = 1
	walk(start, "")
	if len(seen) < 100 {
		t.Errorf("only %d states: the enumeration does not run", len(seen))
	}
}

// model is one state of two readers and one owner around a word. It is a value:
// each step copies it and runs the real transition on the copy.
type model struct {
	word    uint64
	content uint32 // life whose bytes are in the slot
	lives   int
	frees   int
	readers [2]reader
	owner   int // 0 serving, 1 retired and waiting for FREE, 2 filling
	bad     string
}

type reader struct {
	at   int // 0 idle, 1 claimed, 2 has read, 3 done
	life uint32
}

func (m model) steps() (out []model) {
	with := func(f func(m *model, w *word)) {
		n := m
		var w word
		w.Store(m.word)
		f(&n, &w)
		n.word = w.Load()
		out = append(out, n)
	}
	for i := range m.readers {
		switch m.readers[i].at {
		case 0:
			with(func(m *model, w *word) {
				if now, ok := w.claim(); ok {
					m.readers[i] = reader{1, genOf(now)}
				} else {
					m.readers[i].at = 3
				}
			})
		case 1:
			with(func(m *model, w *word) {
				if m.content != m.readers[i].life {
					m.bad = fmt.Sprintf("reader of life %d reads bytes of life %d", m.readers[i].life, m.content)
				}
				m.readers[i].at = 2
			})
		case 2:
			with(func(m *model, w *word) {
				if w.unclaim() {
					m.frees++
				}
				m.readers[i].at = 3
			})
		}
	}
	switch m.owner {
	case 0:
		if m.lives < 3 {
			with(func(m *model, w *word) {
				if pins, ok := w.retire(true); ok {
					m.owner = 1
					if pins == 0 {
						w.Store(nextFree(w.Load()))
						m.frees++
					}
				}
			})
		}
	case 1:
		if stateOf(m.word) == free {
			with(func(m *model, w *word) {
				w.Store(withState(w.Load(), filling, 0))
				m.content = genOf(w.Load())
				m.owner = 2
			})
		}
	case 2:
		with(func(m *model, w *word) {
			w.Store(withState(w.Load(), ready, 0))
			m.lives++
			m.owner = 0
		})
	}
	return out
}
