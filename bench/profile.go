package bench

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"slices"
	"strconv"
	"strings"

	"github.com/google/pprof/profile"
)

// ProfileKinds are the profiles that can be taken of a suite.
var ProfileKinds = []string{"cpu", "mem", "mutex", "block", "trace"}

const (
	// One in so many contended locks is sampled, and one wait in so many
	// nanoseconds of waiting: about what the CPU profile costs, which is under a
	// percent.
	mutexFraction = 100
	blockRate     = 100_000
)

// Profiles are being taken of one process. Files are DIR/NAME.KIND.pprof, and
// DIR/NAME.trace; NAME is the suite's, and SUITE-ROLE for processes that it starts.
//
// Every sample has the label suite. Samples of time on a processor have the role that
// their goroutine has taken, and shard where an engine's owner was at work.
//
// Go (up to 1.26) keeps labels of goroutines in profiles of time and of goroutines
// only, not in those of allocations, locks and waits (runtime/pprof, SetGoroutineLabels).
// There, and for time of the runtime's own goroutines, role is what the stack tells,
// with the label role_from=stack beside it; shard is not known.
type Profiles struct {
	suite, base string // base is DIR/NAME
	kinds       []string
	cpu, trace  *os.File
}

// StartProfiles begins. Stop ends it and writes what there is. One at a time in a
// process.
func StartProfiles(suite, base string, kinds []string) (*Profiles, error) {
	for _, k := range kinds {
		if !slices.Contains(ProfileKinds, k) {
			return nil, &OptionError{"profile", k, "one of " + strings.Join(ProfileKinds, ", ")}
		}
	}
	if err := os.MkdirAll(filepath.Dir(base), 0o755); err != nil {
		return nil, err
	}
	p := &Profiles{suite: suite, base: base, kinds: kinds}
	err := p.start()
	if err != nil {
		err = errors.Join(err, p.Stop())
	}
	return p, err
}

func (p *Profiles) wants(kind string) bool { return slices.Contains(p.kinds, kind) }

func (p *Profiles) path(kind string) string {
	if kind == "trace" {
		return p.base + ".trace"
	}
	return p.base + "." + kind + ".pprof"
}

func (p *Profiles) start() (err error) {
	if p.wants("mutex") {
		runtime.SetMutexProfileFraction(mutexFraction)
	}
	if p.wants("block") {
		runtime.SetBlockProfileRate(blockRate)
	}
	if p.wants("trace") {
		if p.trace, err = os.Create(p.path("trace")); err != nil {
			return err
		}
		if err := trace.Start(p.trace); err != nil {
			return err
		}
	}
	if p.wants("cpu") {
		if p.cpu, err = os.Create(p.path("cpu")); err != nil {
			return err
		}
		return pprof.StartCPUProfile(p.cpu)
	}
	return nil
}

// Stop ends the profiles, writes them, and puts together those that processes of
// the suite have left.
func (p *Profiles) Stop() error {
	var errs []error
	if p.cpu != nil {
		pprof.StopCPUProfile()
		errs = append(errs, p.cpu.Close(), p.label(p.path("cpu")))
	}
	if p.trace != nil {
		trace.Stop()
		errs = append(errs, p.trace.Close())
	}
	for kind, name := range map[string]string{"mem": "allocs", "mutex": "mutex", "block": "block"} {
		if !p.wants(kind) {
			continue
		}
		if kind == "mem" {
			runtime.GC() // what is in use is known as of the last collection
		}
		errs = append(errs, create(p.path(kind), func(w io.Writer) error { return pprof.Lookup(name).WriteTo(w, 0) }), p.label(p.path(kind)))
	}
	if p.wants("mutex") {
		runtime.SetMutexProfileFraction(0)
	}
	if p.wants("block") {
		runtime.SetBlockProfileRate(0)
	}
	return errors.Join(append(errs, p.gather())...)
}

// role is that of the process whose profiles these are: its files are named by it.
func (p *Profiles) role() string {
	name, _, _ := strings.Cut(filepath.Base(p.base), partMark)
	if role, ok := strings.CutPrefix(name, p.suite+"-"); ok {
		return role
	}
	return RoleGenerator
}

// label writes the suite into every sample that lacks it, an owner's labels being its
// own, and the role that the stack tells of where there is none.
func (p *Profiles) label(path string) error {
	prof, err := ReadProfile(path)
	if err != nil {
		return err
	}
	for _, s := range prof.Sample {
		if s.Label == nil {
			s.Label = map[string][]string{}
		}
		s.Label[labelSuite] = []string{p.suite}
		if len(s.Label[labelRole]) > 0 {
			continue
		}
		if role := stackRoleOf(s, p.role()); role != "" {
			s.Label[labelRole], s.Label[labelFrom] = []string{role}, []string{"stack"}
		}
	}
	return create(path, prof.Write)
}

// ReadProfile reads one file.
func ReadProfile(path string) (*profile.Profile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	prof, err := profile.Parse(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return prof, nil
}

func create(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// ChildProfile is the command, before its own arguments, that runs this program
// with profiles: see child.
const ChildProfile = "profiled"

// child is the command line of a process of the suite: args, with profiles taken of
// it if they are wanted. Each process leaves files of its own, which gather merges.
func (p *Profiles) child(role string, args ...string) []string {
	if p == nil {
		return args
	}
	kinds := slices.DeleteFunc(slices.Clone(p.kinds), func(k string) bool { return k == "trace" }) // those cannot be merged
	if len(kinds) == 0 {
		return args
	}
	return append([]string{"bench", ChildProfile, p.suite, p.base + "-" + role, strings.Join(kinds, ",")}, args...)
}

// partMark stands between the name of a process and its number.
const partMark = ".part-"

// ChildBase is the base of one process of several with one name.
func ChildBase(base string) string { return base + partMark + strconv.Itoa(os.Getpid()) }

// gather merges what processes left into one file for each name and kind.
func (p *Profiles) gather() error {
	parts, err := filepath.Glob(p.base + "-*" + partMark + "*.pprof")
	if err != nil {
		return err
	}
	files := map[string][]string{}
	for _, path := range parts {
		name, rest, _ := strings.Cut(path, partMark)
		_, kind, _ := strings.Cut(rest, ".")
		files[name+"."+kind] = append(files[name+"."+kind], path)
	}
	for to, from := range files {
		var all []*profile.Profile
		for _, path := range from {
			prof, err := ReadProfile(path)
			if err != nil {
				return err
			}
			all = append(all, prof)
		}
		merged, err := profile.Merge(all)
		if err != nil {
			return fmt.Errorf("%s: %w", to, err)
		}
		if err := create(to, merged.Write); err != nil {
			return err
		}
		for _, path := range from {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	return nil
}
