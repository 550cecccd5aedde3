package kvcr

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/kvcr-go/kvcr"

// ranks orders the packages: a package imports only packages of lower rank.
// Packages below internal are tools that any may use; they use nothing of ours.
var ranks = map[string]int{
	"cmd/kvcr":           50,
	"bench":              40,
	"node":               38,
	"node/web":           36,
	"wire/server":        35,
	"bench/load":         37,
	"bench/model":        33,
	"bench/trace":        32,
	"":                   30, // the root
	"hints":              20,
	"hints/events":       10,
	"hints/keys":         21,
	"hints/plan":         21,
	"hints/plan/fixture": 22,
	"hints/plan/oracle":  22, // asks plan and itself the same questions
	"hints/plan/scene":   23,
	"hints/publish":      31,
	"shard":              20,
	"peer":               20,
	"internal/sim":       25, // runs the machines of peer, unlike the other tools
	"internal/faults":    31, // tests of whole engines, in processes that die
	"shard/evict":        10,
	"wire/client":        12,
	"wire/resp":          11,
	"wire":               10,
	"arena":              10,
	"ucx/cuda":           10,
	"ring":               10,
	"ucx":                10,
	"hints/work":         21,
	"hints/events/zmtp":  9,
	"bench/page":         45,
}

func rankOf(dir string) (int, bool) {
	for d := dir; ; d = path.Dir(d) {
		if d == "." || d == "/" {
			d = ""
		}
		if _, ok := ranks[dir]; !ok && strings.HasPrefix(dir, "internal/") {
			return 0, true
		}
		if r, ok := ranks[d]; ok && (d != "" || dir == "") {
			return r, true
		}
		if d == "" {
			return 0, false
		}
	}
}

// Who imports whom, and where unsafe and C may appear. Auditing either is then
// a look at the file names.
func TestLayout(t *testing.T) {
	fset := token.NewFileSet()
	files := 0
	seen := map[string]bool{}
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if base := d.Name(); name != "." && (strings.HasPrefix(base, ".") || base == "testdata" || base == "build" || base == "vendor") {
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil && name != "." {
				return filepath.SkipDir // a module of its own
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		files++
		dir := filepath.ToSlash(filepath.Dir(name))
		if dir == "." {
			dir = ""
		}
		rank, known := rankOf(dir)
		if !known {
			t.Errorf("%s: package %q has no place in the order of packages", name, dir)
		}
		seen[dir] = true
		f, err := parser.ParseFile(fset, name, nil, parser.ImportsOnly)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return nil
		}
		test := strings.HasSuffix(name, "_test.go")
		for _, im := range f.Imports {
			p, err := strconv.Unquote(im.Path.Value)
			if err != nil {
				return err
			}
			switch {
			case test && p != module && !strings.HasPrefix(p, module+"/"):
				// tests may look at memory and use what helps testing
			case p == "unsafe":
				if !strings.HasSuffix(name, "_unsafe.go") && !strings.HasSuffix(name, "_cgo.go") && !onlySizes(t, name) {
					t.Errorf("%s imports unsafe; that is for *_unsafe.go and *_cgo.go", name)
				}
			case p == "C":
				if !strings.HasSuffix(name, "_cgo.go") {
					t.Errorf("%s imports C; that is for *_cgo.go", name)
				}
			case p == module || strings.HasPrefix(p, module+"/"):
				to := strings.TrimPrefix(strings.TrimPrefix(p, module), "/")
				inside := test && dir != "" && strings.HasPrefix(to, dir+"/") // what a package keeps for its tests
				if r, ok := rankOf(to); !ok || !inside && (r > rank || r == rank && to != dir && !(test && strings.HasPrefix(to, "internal/"))) {
					t.Errorf("%s imports %s, which is not below it", name, p)
				}
			case (strings.HasPrefix(dir, "arena") || strings.HasPrefix(dir, "ring") || strings.HasPrefix(dir, "ucx")) && strings.Contains(p, ".") && !strings.HasPrefix(p, "golang.org/x/sys/"):
				t.Errorf("%s imports %s; arena, ring and ucx make do with the standard library and x/sys", name, p)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for dir := range ranks {
		if !seen[dir] {
			t.Errorf("there is no package %q any more", dir)
		}
	}
	if files < 30 {
		t.Errorf("only %d files were looked at", files)
	}
}

// onlySizes reports whether a file uses unsafe for nothing but sizes and
// offsets, which are constants.
func onlySizes(t *testing.T, name string) bool {
	f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return false
	}
	ok := true
	ast.Inspect(f, func(n ast.Node) bool {
		if s, is := n.(*ast.SelectorExpr); is {
			if x, is := s.X.(*ast.Ident); is && x.Name == "unsafe" {
				ok = ok && (s.Sel.Name == "Sizeof" || s.Sel.Name == "Offsetof" || s.Sel.Name == "Alignof")
			}
		}
		return true
	})
	return ok
}
