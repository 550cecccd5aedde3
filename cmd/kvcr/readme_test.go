package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every command of ours in README.md and docs is one, with flags that exist.
func TestDocumentedCommands(t *testing.T) {
	names, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	command := regexp.MustCompile("(?m)(?:^    |`)(?:build/)?kvcr ([a-z][^`#|\n]*)")
	seen := map[string]bool{}
	for _, name := range append(names, "../../README.md") {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range command.FindAllStringSubmatch(strings.ReplaceAll(string(b), "\\\n", ""), -1) {
			args := strings.Fields(m[1])
			seen[args[0]] = true
			e := &env{t.Context(), io.Discard, io.Discard, nil}
			if _, err := newParser(e, args, func(int) {}).Parse(args); err != nil {
				t.Errorf("%s: kvcr %s: %v", name, m[1], err)
			}
		}
	}
	for _, name := range []string{"serve", "try", "get", "bench", "hint"} {
		if !seen[name] {
			t.Errorf("no example of kvcr %s", name)
		}
	}
}
