package kvcr

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// texts are what people read first.
func texts(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob("docs/*.md")
	if err != nil || len(names) == 0 {
		t.Fatalf("docs: %v, %v", names, err)
	}
	out := map[string]string{}
	for _, name := range append(names, "README.md") {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = string(b)
	}
	return out
}

// goBlocks are the fenced blocks of Go in a text.
func goBlocks(text string) (blocks []string) {
	for _, m := range regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(text, -1) {
		blocks = append(blocks, m[1])
	}
	return blocks
}

// What fragments may use without declaring it.
const given = `
var (
	ctx    context.Context
	h      *kvcr.Handle
	prompt [][]byte    // keys of its blocks
	items  []kvcr.Item // the blocks that are missing
	pools  []kvcr.Pool
	recipe keys.Recipe
	secret, envelope []byte
)

func use([]byte) {}
`

var importable = map[string]string{
	"context": "context",
	"time":    "time",
	"kvcr":    "github.com/kvcr-go/kvcr",
	"arena":   "github.com/kvcr-go/kvcr/arena",
	"keys":    "github.com/kvcr-go/kvcr/hints/keys",
	"client":  "github.com/kvcr-go/kvcr/wire/client",
}

// function makes one of a fragment, in which all variables count as used.
func function(name, fragment string) (string, error) {
	body := "func " + name + "() {\n" + fragment
	f, err := parser.ParseFile(token.NewFileSet(), name, "package main\n"+body+"}\n", 0)
	if err != nil {
		return "", err
	}
	for _, st := range f.Decls[0].(*ast.FuncDecl).Body.List {
		if as, ok := st.(*ast.AssignStmt); ok && as.Tok == token.DEFINE {
			for _, v := range as.Lhs {
				body += "_ = " + v.(*ast.Ident).Name + "\n"
			}
		}
	}
	return body + "}\n", nil
}

// Every block of Go in README.md and docs is formatted, compiles and passes vet:
// programs as they are, fragments as functions of one program.
func TestSnippetsCompile(t *testing.T) {
	if raceOn {
		t.Skip("done in the plain pass")
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("no go command")
	}
	programs := map[string]string{}
	body, calls := given, ""
	for name, text := range texts(t) {
		for i, block := range goBlocks(text) {
			id := fmt.Sprintf("%s_block%d", strings.TrimSuffix(filepath.Base(name), ".md"), i+1)
			if pretty, err := format.Source([]byte(block)); err != nil || string(pretty) != block {
				t.Errorf("%s: gofmt: %v\n%s", id, err, pretty)
			}
			if strings.HasPrefix(block, "package ") {
				programs[id] = block
				continue
			}
			fn, err := function(id, block)
			if err != nil {
				t.Errorf("%s: %v", id, err)
				continue
			}
			body += fn
			calls += id + "()\n"
		}
	}
	if len(programs) < 2 || strings.Count(calls, "\n") < 3 {
		t.Errorf("%d programs, and fragments %q", len(programs), calls)
	}
	var imports string
	for name, path := range importable {
		if regexp.MustCompile(`\b` + name + `\.[A-Z]`).MatchString(body) {
			imports += fmt.Sprintf("import %q\n", path)
		}
	}
	programs["fragments"] = "package main\n" + imports + body + "func main() {\n" + calls + "}\n"
	dir := t.TempDir()
	for id, src := range programs {
		file := filepath.Join(dir, id+".go")
		if err := os.WriteFile(file, []byte(src), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), "go", "vet", file).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", id, err, out)
		}
	}
}

// The README's first program is Example, which is run.
func TestFirstProgramIsRun(t *testing.T) {
	example, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	first := bodyOf(t, goBlocks(texts(t)["README.md"])[0], "main")
	if run := bodyOf(t, string(example), "Example"); first != run {
		t.Errorf("README:\n%s\nExample:\n%s", first, run)
	}
}

// bodyOf is the text of a function's statements.
func bodyOf(t *testing.T, src, name string) string {
	t.Helper()
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, name, src, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Name.Name == name {
			list := fn.Body.List
			return src[set.Position(list[0].Pos()).Offset:set.Position(list[len(list)-1].End()).Offset]
		}
	}
	t.Fatalf("no func %s", name)
	return ""
}

// Links between our texts lead to files and headings that exist.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for name, text := range texts(t) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			path, heading, _ := strings.Cut(m[1], "#")
			if strings.Contains(path, "://") {
				continue
			}
			to := name
			if path != "" {
				to = filepath.Join(filepath.Dir(name), path)
			}
			b, err := os.ReadFile(to)
			if err != nil {
				t.Errorf("%s: %s: %v", name, m[1], err)
			} else if heading != "" && !hasHeading(b, heading) {
				t.Errorf("%s: %s has no heading %s", name, to, heading)
			}
		}
	}
}

// hasHeading says whether a text has a heading whose anchor, as GitHub makes it, is
// anchor.
func hasHeading(text []byte, anchor string) bool {
	for line := range bytes.Lines(text) {
		title, ok := bytes.CutPrefix(bytes.TrimLeft(line, "#"), []byte(" "))
		if !ok || line[0] != '#' {
			continue
		}
		var a strings.Builder
		for _, r := range strings.ToLower(strings.TrimSpace(string(title))) {
			switch {
			case r == ' ':
				a.WriteByte('-')
			case r == '-' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
				a.WriteRune(r)
			}
		}
		if a.String() == anchor {
			return true
		}
	}
	return false
}
