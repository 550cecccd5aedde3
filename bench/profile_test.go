package bench

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
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
				if shard := s.Label["shard"]; len(s.Label["role_from"]) == 0 && (role == "owner") != slices.Equal(shard, []string{"blocks/0"}) {
					t.Errorf("%s: a sample of role %s and shard %q", kind, role, shard)
				}
			}
		}
		if kind == "cpu" && (roles["client"] == 0 || roles["generator"] == 0) {
			t.Errorf("samples of roles %v, want of client and generator", roles)
		}
		if kind != "cpu" && len(prof.Sample) > 0 && len(roles) == 0 {
			t.Errorf("%s: the stacks of %d samples tell of no role", kind, len(prof.Sample))
		}
	}
	var text strings.Builder
	if err := WriteTop(&text, dir); err != nil {
		t.Fatal(err)
	}
	for _, w := range []string{"role client", "go tool pprof -http=: " + filepath.Join(dir, "mine.cpu.pprof"), "go tool trace " + filepath.Join(dir, "mine.trace"), "mine.mem.pprof: alloc_space", "are read off the stacks"} {
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

// Every function that roles are read off is there: a renamed one would leave its
// samples without a role.
func TestStackRolesAreThere(t *testing.T) {
	have := map[string]bool{}
	for _, r := range stackRoles {
		dir, name, _ := strings.Cut(r.function[strings.LastIndex(r.function, "/")+1:], ".")
		dir = r.function[:strings.LastIndex(r.function, "/")+1] + dir
		if strings.Contains(dir, "github.com") || !isDir(t, filepath.Join("..", dir)) {
			continue // not ours
		}
		if !have[dir+" read"] {
			have[dir+" read"] = true
			for f := range functions(t, filepath.Join("..", dir)) {
				have[dir+"."+f] = true
			}
		}
		if !have[dir+"."+name] {
			t.Errorf("package %s has no %s", dir, name)
		}
	}
	if len(have) < 100 {
		t.Errorf("%d functions were looked at", len(have))
	}
}

func isDir(t *testing.T, path string) bool {
	t.Helper()
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// functions are those that a package declares, named as the runtime does.
func functions(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, path := range files {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			name := fn.Name.Name
			if fn.Recv != nil {
				if star, ok := fn.Recv.List[0].Type.(*ast.StarExpr); ok {
					if of, ok := star.X.(*ast.Ident); ok {
						name = "(*" + of.Name + ")." + name
					}
				}
			}
			out[name] = true
		}
	}
	return out
}

// What the runtime does for itself has a role too, and the stack says so.
func TestRolesOfStacks(t *testing.T) {
	stack := func(leafFirst ...string) *profile.Sample {
		s := &profile.Sample{}
		for _, f := range leafFirst {
			s.Location = append(s.Location, &profile.Location{Line: []profile.Line{{Function: &profile.Function{Name: f}}}})
		}
		return s
	}
	const of = modulePath + "/"
	for _, tt := range []struct {
		want  string
		stack []string
	}{
		{"owner", []string{"runtime.chansend", of + "shard.(*Shard).drain", of + "shard.(*Shard).own", of + "shard.New.gowrap1"}},
		{"peer-stream", []string{of + "peer.(*inStream).run", of + "internal/role.Role.Run", of + "peer.(*Node).spawn.func1"}},
		{roleClient, []string{"sync.(*Mutex).Lock", of + "bench.closedLoop.func1"}},
		{"server", []string{of + "node.Open", of + "shard.New", "main.main", "runtime.main"}},
		{roleCollector, []string{"runtime.scanobject", "runtime.gcDrain", "runtime.gcBgMarkWorker.func2", "runtime.systemstack", "runtime.gcBgMarkWorker"}},
		{roleScheduler, []string{"runtime.findRunnable", "runtime.schedule", "runtime.park_m", "runtime.mcall"}},
		{roleRuntime, []string{"runtime.nanotime"}},
		{"", []string{"other.Work", "other.Begin"}},
		{"", []string{of + "shard.(*Shard).owner"}}, // a name is not the begin of another
	} {
		if got := stackRoleOf(stack(tt.stack...), "server"); got != tt.want {
			t.Errorf("%v: role %q, want %q", tt.stack, got, tt.want)
		}
	}
	if got := (&Profiles{suite: "node", base: "d/node-server" + partMark + "7"}).role(); got != "server" {
		t.Errorf("the server's files are of role %q", got)
	}
}
