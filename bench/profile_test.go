package bench

import (
	"context"
	"errors"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"
	"time"
)

// work keeps clients of an engine busy. Its owner has the labels that samples of it
// will have; whether it is seen at work is a matter of chance, since writers do
// most of its work in its place.
func work(ctx context.Context, t *testing.T, d time.Duration) {
	t.Helper()
	o := Options{Workers: 4, Capacity: 16 << 20}.withDefaults()
	side, err := newPuts(o, 4096, "off")
	if err != nil {
		t.Fatal(err)
	}
	defer side.Close()
	var running strings.Builder
	if err := pprof.Lookup("goroutine").WriteTo(&running, 1); err != nil {
		t.Fatal(err)
	}
	if w := `{"role":"owner", "shard":"blocks/0"}`; !strings.Contains(running.String(), w) {
		t.Errorf("no goroutine has the labels %s", w)
	}
	if _, err := closedLoop(ctx, o.Workers, d, 16, side.move); err != nil {
		t.Fatal(err)
	}
}

// burn takes that much time of a processor, or a little more.
func burn(d time.Duration) {
	before := ownUse().CPU
	for ownUse().CPU-before < d {
		for i := range 1 << 16 {
			_ = mix64(uint64(i))
		}
	}
}

// Every sample says of which suite it is; those of time say who was at work, the
// engine's owners among them.
func TestProfilesAreLabelled(t *testing.T) {
	dir := t.TempDir()
	p, err := StartProfiles("mine", filepath.Join(dir, "mine"), ProfileKinds)
	if err != nil {
		t.Fatal(err)
	}
	Labelled(context.Background(), "mine", RoleGenerator, func(ctx context.Context) {
		work(ctx, t, 400*time.Millisecond)
		pprof.SetGoroutineLabels(context.Background())
		burn(200 * time.Millisecond) // as an owner does, which says nothing of the suite
	})
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"cpu", "mem", "mutex", "block"} {
		prof, err := ReadProfile(filepath.Join(dir, "mine."+kind+".pprof"))
		if err != nil {
			t.Fatal(err)
		}
		if kind != "mutex" && len(prof.Sample) == 0 { // locks need not meet
			t.Errorf("%s: no samples", kind)
		}
		roles := map[string]int{}
		for _, s := range prof.Sample {
			if !slices.Equal(s.Label["suite"], []string{"mine"}) {
				t.Fatalf("%s: a sample of suite %q", kind, s.Label["suite"])
			}
			for _, role := range s.Label["role"] {
				roles[role]++
				if shard := s.Label["shard"]; (role == "owner") != slices.Equal(shard, []string{"blocks/0"}) {
					t.Errorf("%s: a sample of role %s and shard %q", kind, role, shard)
				}
			}
		}
		if kind == "cpu" && (roles["client"] == 0 || roles["generator"] == 0) {
			t.Errorf("samples of roles %v, want of client and generator", roles)
		}
	}
	var text strings.Builder
	if err := WriteTop(&text, dir); err != nil {
		t.Fatal(err)
	}
	for _, w := range []string{"role client", "go tool pprof -http=: " + filepath.Join(dir, "mine.cpu.pprof"), "go tool trace " + filepath.Join(dir, "mine.trace"), "mine.mem.pprof: alloc_space"} {
		if !strings.Contains(text.String(), w) {
			t.Errorf("the summary has no %q:\n%s", w, text.String())
		}
	}
}

func TestProfileMistakes(t *testing.T) {
	var bad *OptionError
	if _, err := StartProfiles("s", filepath.Join(t.TempDir(), "s"), []string{"heap"}); !errors.As(err, &bad) || !strings.Contains(err.Error(), "mem") {
		t.Errorf("an unknown kind: %v", err)
	}
	if err := WriteTop(&strings.Builder{}, t.TempDir()); err == nil || !strings.Contains(err.Error(), "--profile") {
		t.Errorf("no profiles: %v", err)
	}
	var none *Profiles
	if got := none.child("load", "bench", "load"); !slices.Equal(got, []string{"bench", "load"}) {
		t.Errorf("without profiles a process runs %q", got)
	}
	only := &Profiles{suite: "s", base: "d/s", kinds: []string{"trace"}}
	if got := only.child("load", "bench", "load"); len(got) != 2 {
		t.Errorf("a trace alone, of which none is taken of processes: %q", got)
	}
}
