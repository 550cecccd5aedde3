package bench

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// What is written can be read, conditions too.
func TestRowsComeBack(t *testing.T) {
	rep := sampleReport()
	rep.Suite, rep.LeftOut, rep.workers = "engine", []string{"a thing: why"}, 2
	rep.Conditions = &Conditions{Command: "kvcr bench engine", Date: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), CPU: "x", CPUs: 2, MemoryBytes: 1 << 34, Profiles: []string{"cpu"}, Took: 1500 * time.Millisecond}
	empty := rep.result(Result{Suite: "engine", Name: "not-reached"})
	empty.series(ours)
	var b bytes.Buffer
	if err := rep.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	rows, err := ReadRows(&b)
	if err != nil || len(rows) != 10 {
		t.Fatalf("%d rows, %v; want 9 and one of the run", len(rows), err)
	}
	if got, want := rows[0].Title(), "engine get-copy size=4096"; got != want {
		t.Errorf("title %q, want %q", got, want)
	}
	last := rows[len(rows)-1]
	if last.Name != RunName || last.Suite != "engine" || last.Value != 1.5 {
		t.Errorf("row of the run: %+v", last)
	}
	got, err := ConditionsOf(last)
	want := *rep.Conditions
	want.LeftOut, want.Workers = rep.LeftOut, 2
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("conditions %+v, %v\nwant %+v", got, err, want)
	}
}

func TestStoredMistakes(t *testing.T) {
	for text, want := range map[string]string{
		`{"a":1}`:         "stored results",
		`[{"suite":"s"}]`: "row 1 has no suite, name or impl",
		`[`:               "stored results",
		`[{"suite":"s","name":"n","impl":"i","better":"more","runs":[1]}]`: `better is "more"`,
		`[{"suite":"s","name":"n","impl":"i","better":"lower","runs":[]}]`: "no runs",
	} {
		if _, err := ReadRows(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestMergeRows(t *testing.T) {
	row := func(name string, v float64) Row { return Row{Suite: "s", Name: name, Impl: ours, Value: v} }
	got := MergeRows([]Row{row("a", 1), row("b", 2)}, []Row{row("c", 3), row("a", 4)})
	var names []string
	for _, r := range got {
		names = append(names, r.Name)
	}
	if !slices.Equal(names, []string{"a", "b", "c"}) || got[0].Value != 4 {
		t.Errorf("merged %+v", got)
	}
}

func TestConditionsOfAMachine(t *testing.T) {
	root := t.TempDir()
	for path, text := range map[string]string{
		"proc/cpuinfo":              "processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\nflags: x\n",
		"proc/meminfo":              "MemTotal:       24680000 kB\nHugePages_Total:       7\n",
		"proc/loadavg":              "0.50 0.25 0.10 1/234 5678\n",
		"proc/sys/kernel/osrelease": "6.1.2-test\n",
		"sys/kernel/mm/transparent_hugepage/enabled":       "always [madvise] never\n",
		"sys/kernel/mm/transparent_hugepage/shmem_enabled": "always within_size advise [never] deny force\n",
	} {
		full := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c := Here(root)
	if c.CPU != "Some CPU @ 3 GHz" || c.MemoryBytes != 24680000<<10 || c.Kernel != "6.1.2-test" || c.Load != "0.50 0.25 0.10" ||
		c.HugePages != "transparent: madvise, of shared memory: never, reserved: 7" || c.CPUs < 1 || c.Go == "" {
		t.Errorf("%+v", c)
	}
	if c := Here(t.TempDir()); c.CPU != "" || c.MemoryBytes != 0 || c.HugePages != "" {
		t.Errorf("a machine that says nothing: %+v", c)
	}
}

// A row that was stored is the one that was measured: numbers are of another type
// there, and large ones are written as they are.
func TestStoredRowsHaveTheirKeys(t *testing.T) {
	rep := &Report{}
	r := rep.result(Result{Suite: "engine", Name: "put", Params: []Param{{"size", 2 << 20}, {"share", 0.5}, {"checksum", "on"}}, Unit: "ns/op", Better: Lower})
	r.series(ours).Runs = []float64{1, 2, 3, 4, 5}
	var b bytes.Buffer
	if err := rep.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	stored, err := ReadRows(&b)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := stored[0].Key(), "engine put checksum=on share=0.5 size=2097152 kvcr"; got != want || rep.Rows()[0].Key() != want {
		t.Errorf("stored %q, measured %q, want %q", got, rep.Rows()[0].Key(), want)
	}
	if changes, onlyOld, onlyNew := Compare(stored, rep.Rows()); len(changes) != 1 || onlyOld+onlyNew != 0 {
		t.Errorf("%d rows compared, %d and %d not", len(changes), onlyOld, onlyNew)
	}
}
