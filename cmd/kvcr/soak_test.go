package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/bench"
	"github.com/kvcr-go/kvcr/bench/soak"
)

// A short soak, with a kill, finds nothing and says what it did.
func TestSoak(t *testing.T) {
	js := filepath.Join(t.TempDir(), "r.json")
	code, out, msg := call(t, nil, "bench", "soak", "--smoke", "--quiet", "--json", js)
	if code != 0 || !strings.Contains(out, "0 reads were wrong; no violation") {
		t.Fatalf("exit code %d: %s\n%s", code, msg, out)
	}
	rows, err := readRows(js)
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, r := range rows {
		values[r.Title()] = r.Value
	}
	for _, some := range []string{"bytes-checked", "faults kind=kill", "operations kind=get", "operations kind=resp get", "operations kind=views", "operations kind=kv.move", "actions kind=ended", "end kind=chained process=node 0 what=goroutines"} {
		if values["soak "+some] <= 0 {
			t.Errorf("no %s", some)
		}
	}
	for title, v := range values {
		if strings.HasPrefix(title, "soak violations") && v != 0 || title == "soak wrong-bytes" && v != 0 {
			t.Errorf("%s: %v", title, v)
		}
	}
}

// What is broken on purpose is found, and the command that repeats the run is named.
func TestSoakFinds(t *testing.T) {
	if testing.Short() {
		t.Skip("a second soak is left out of short tests")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// A machine with other work may not get to all of it in the first time.
	for _, d := range []time.Duration{time.Second, 5 * time.Second, 20 * time.Second} {
		missing, err := sabotaged(t, exe, d)
		if missing == "" {
			return
		}
		if d == 20*time.Second {
			t.Errorf("%s is not found: %v", missing, err)
		}
	}
}

// sabotaged runs a soak with everything broken that can be, and names what it did not
// find.
func sabotaged(t *testing.T, exe string, d time.Duration) (missing string, err error) {
	all := soak.Sabotage{Flip: true, Claim: true, Goroutine: true, Mute: true}
	rep, err := soak.Run(t.Context(), soak.Options{Options: bench.Options{Smoke: true}, Exe: exe, For: d, Nodes: 2, Seed: 11, Sabotage: all})
	var found *soak.ViolationsError
	if !errors.As(err, &found) {
		t.Fatalf("nothing is found: %v", err)
	}
	os.RemoveAll(found.Logs)
	if !strings.Contains(err.Error(), fmt.Sprintf("kvcr bench soak --for %v --nodes 2 --seed 11 --kind chained", d)) || len(rep.Results) == 0 {
		t.Errorf("no way to repeat it, or no report: %v", err)
	}
	for _, tt := range []struct{ name, kind, where, what string }{
		{"a wrong bit", "wrong bytes", "", "1 of"},
		{"a claim that is kept", "leak", "node 0", "claims: 1, at the base 0"},
		{"a goroutine that stays", "leak", "this process", "goroutines"},
		{"an action that was not noted", "wrong answer", "node", "never accepted from here"},
	} {
		if !slices.ContainsFunc(found.Found, func(v soak.Violation) bool {
			return v.Kind == tt.kind && strings.Contains(v.Where, tt.where) && strings.Contains(v.What, tt.what)
		}) {
			return tt.name, err
		}
	}
	return "", nil
}
