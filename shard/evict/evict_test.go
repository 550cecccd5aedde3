package evict

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestNew(t *testing.T) {
	for _, name := range append(Names(), "") {
		p, err := New(name, make([]Node, 9), newFake(8), 1)
		if err != nil {
			t.Fatalf("New(%q): %v", name, err)
		}
		want := name
		if name == "" {
			want = Default
		}
		if p.Name() != want {
			t.Errorf("New(%q).Name() = %q, want %q", name, p.Name(), want)
		}
	}
	_, err := New("clock", make([]Node, 9), newFake(8), 1)
	var ce *ConfigError
	if !errors.Is(err, ErrUnknown) || !errors.As(err, &ce) || !strings.Contains(err.Error(), "s3fifo") {
		t.Errorf("unknown name gave %v, want ErrUnknown that names the known ones", err)
	}
	if _, err := New("lru", make([]Node, 1), newFake(0), 1); !errors.Is(err, ErrTooMany) {
		t.Errorf("no blocks gave %v, want ErrTooMany", err)
	}
}

func TestMisusePanics(t *testing.T) {
	for _, name := range Names() {
		for what, f := range map[string]func(f *fake, p Policy){
			"insert 0":           func(f *fake, p Policy) { p.Insert([]Insert{{ID: 0}}, 9) },
			"insert above N":     func(f *fake, p Policy) { p.Insert([]Insert{{ID: 5}}, 9) },
			"insert resident":    func(f *fake, p Policy) { p.Insert([]Insert{{ID: 1}}, 9) },
			"remove absent":      func(f *fake, p Policy) { p.Remove(2, Deleted, 9) },
			"remove above N":     func(f *fake, p Policy) { p.Remove(77, Deleted, 9) },
			"replace absent":     func(f *fake, p Policy) { p.Replace(2, 3, 9) },
			"replace by present": func(f *fake, p Policy) { p.Replace(1, 1, 9) },
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				fk, p := open(t, name, 4)
				p.Insert(fk.chain(0, 1), 5)
				defer func() {
					msg, ok := recover().(string)
					if !ok || !strings.HasPrefix(msg, "evict: ") {
						t.Errorf("recovered %v, want a message of ours", msg)
					}
				}()
				f(fk, p)
			})
		}
	}
}

// TestEveryPolicy holds what all policies promise, in the simplest case of each.
func TestEveryPolicy(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			f, p := open(t, name, 8)
			if v := p.Victim(1); v != 0 {
				t.Fatalf("victim %d of an empty shard", v)
			}
			p.Insert(f.chain(0, 1, 2, 3), 1)
			p.Insert(f.chain(0, 4), 5)
			if !p.Admit(f.chain(0, 5)) || p.Decide(1) != Drop {
				t.Error("a built-in policy must admit and drop")
			}
			for id := range f.busy {
				f.busy[id] = true
			}
			if v := p.Victim(6); v != 0 {
				t.Errorf("victim %d while all are busy", v)
			}
			f.busy[3] = false
			if v := p.Victim(7); v != 3 {
				t.Errorf("victim %d, want 3, the one that is not busy", v)
			}
			clear(f.busy)
			p.Replace(4, 6, 8)
			f.hash[6] = f.hash[4]
			if f.last[6] != 8 {
				t.Errorf("replace left last access %d, want 8", f.last[6])
			}
			left := drain(t, p, 9)
			slices.Sort(left)
			if want := []ID{1, 2, 3, 6}; !slices.Equal(left, want) {
				t.Errorf("evicted %v, want %v", left, want)
			}
			p.Insert(f.chain(0, 1, 2), 10)
			p.Clear()
			if err := p.Check(); err != nil {
				t.Fatal(err)
			}
			p.Insert(f.chain(0, 1, 2), 11) // panics if Clear left them resident
			if got := drain(t, p, 12); !slices.Equal(got, []ID{2, 1}) {
				t.Errorf("evicted %v, want tail before head", got)
			}
		})
	}
}

// TestBusyBurst: busy blocks at the cold end are found out of the way the next
// time, and do not hide the one block that may go.
func TestBusyBurst(t *testing.T) {
	const n = 1000
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			f, p := open(t, name, n)
			for id := ID(1); id <= n; id++ {
				p.Insert(f.chain(0, id), uint32(id))
				f.busy[id] = true
			}
			f.busy[n-1] = false
			if v := p.Victim(n); v != n-1 {
				t.Fatalf("victim %d, want %d", v, n-1)
			}
			f.busy[n/2], f.busy[n-1] = false, true
			if v := p.Victim(n); v != n/2 {
				t.Fatalf("victim %d, want %d", v, n/2)
			}
			if err := p.Check(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestBusyIsMovedAway: busy blocks at the cold end are met once, not by every
// Victim.
func TestBusyIsMovedAway(t *testing.T) {
	const n, claimed = 1000, 100
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			f, p := open(t, name, n)
			for id := ID(1); id <= n; id++ {
				p.Insert(f.chain(0, id), uint32(id))
				f.busy[id] = id <= claimed
			}
			asked := func() int {
				before := f.asked
				if v := p.Victim(n); v <= claimed {
					t.Fatalf("victim %d is busy or none", v)
				}
				return f.asked - before
			}
			first, second := asked(), asked()
			if first < claimed || second > 4*busyEnd {
				t.Errorf("asked for %d blocks, then for %d; want all %d, then few", first, second, claimed)
			}
		})
	}
}
