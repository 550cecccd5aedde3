package bench

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/pprof/profile"
)

// topFunctions is how many functions of a profile are shown; arbitrary.
const topFunctions = 10

// WriteTop says, of each profile in dir, which functions and which roles took most,
// and how to open it.
func WriteTop(w io.Writer, dir string) error {
	profiles, err := filepath.Glob(filepath.Join(dir, "*.pprof"))
	if err != nil {
		return err
	}
	traces, err := filepath.Glob(filepath.Join(dir, "*.trace"))
	if err != nil {
		return err
	}
	if len(profiles)+len(traces) == 0 {
		return fmt.Errorf("%s: no profiles: kvcr bench SUITE --profile cpu,mem writes some", dir)
	}
	for _, path := range profiles {
		prof, err := ReadProfile(path)
		if err != nil {
			return err
		}
		if err := writeTop(w, path, prof); err != nil {
			return err
		}
	}
	for _, path := range traces {
		if _, err := fmt.Fprintf(w, "%s\n  open it: go tool trace %s\n\n", path, path); err != nil {
			return err
		}
	}
	return nil
}

// tally is what was sampled of one function, or of one role.
type tally struct {
	name      string
	flat, cum int64
}

func writeTop(w io.Writer, path string, prof *profile.Profile) error {
	index := len(prof.SampleType) - 1 // unless it says otherwise
	for i, t := range prof.SampleType {
		if t.Type == prof.DefaultSampleType || t.Type == "alloc_space" {
			index = i
		}
	}
	unit := prof.SampleType[index].Unit
	functions, roles := map[string]*tally{}, map[string]*tally{}
	of := func(m map[string]*tally, name string) *tally {
		if m[name] == nil {
			m[name] = &tally{name: name}
		}
		return m[name]
	}
	var total, fromStack int64
	for _, s := range prof.Sample {
		v := s.Value[index]
		total += v
		seen := map[string]bool{} // recursion counts once
		for i, loc := range s.Location {
			for j, line := range loc.Line {
				if line.Function == nil {
					continue
				}
				f := of(functions, line.Function.Name)
				if i == 0 && j == 0 {
					f.flat += v
				}
				if !seen[f.name] {
					f.cum += v
				}
				seen[f.name] = true
			}
		}
		role := "not known"
		if known := s.Label[labelRole]; len(known) > 0 {
			role = known[0]
		}
		of(roles, role).flat += v
		if len(s.Label[labelFrom]) > 0 {
			fromStack += v
		}
	}
	share := func(v int64) string { return fmt.Sprintf("%.1f %%", 100*float64(v)/float64(max(1, total))) }
	if _, err := fmt.Fprintf(w, "%s: %s, %s in %d samples\n", path, prof.SampleType[index].Type, quantity(total, unit), len(prof.Sample)); err != nil {
		return err
	}
	rows := [][]string{{"", "flat", "", "with what it calls", ""}}
	for _, f := range most(functions)[:min(topFunctions, len(functions))] {
		if f.flat == 0 {
			break
		}
		rows = append(rows, []string{"", quantity(f.flat, unit), share(f.flat), share(f.cum), f.name})
	}
	if err := WriteColumns(w, "lrrrl", rows); err != nil {
		return err
	}
	for _, r := range most(roles) {
		if _, err := fmt.Fprintf(w, "  role %s: %s\n", r.name, share(r.flat)); err != nil {
			return err
		}
	}
	if fromStack > 0 {
		if _, err := fmt.Fprintf(w, "  %s of the roles are read off the stacks: Go has labels for time on a processor only, and none for its own goroutines\n", share(fromStack)); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "  open it: go tool pprof -http=: %s\n\n", path)
	return err
}

// most sorts by flat, the most first.
func most(m map[string]*tally) []*tally {
	return slices.SortedFunc(maps.Values(m), func(a, b *tally) int {
		return cmp.Or(cmp.Compare(b.flat, a.flat), cmp.Compare(a.name, b.name))
	})
}

func quantity(v int64, unit string) string {
	switch unit {
	case "nanoseconds":
		return time.Duration(v).Round(10 * time.Microsecond).String()
	case "bytes":
		return fmt.Sprintf("%.1f MiB", float64(v)/(1<<20))
	}
	return group(v)
}
