package trace

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Open finds a trace. nameOrPath is read if it is a file. A bare name, such as
// "conversation", is looked for as NAME, NAME.jsonl and NAME_trace.jsonl in
// ../shared/traces beside root, the repository's root. If there is none, a trace
// of that name is generated with DefaultParams, and Made says so. A path that
// does not exist is an error, fs.ErrNotExist.
func Open(nameOrPath, root string, opts Options) (*Trace, error) {
	candidates := []string{nameOrPath}
	bare := filepath.Base(nameOrPath) == nameOrPath && !strings.Contains(nameOrPath, ".")
	if bare {
		dir := filepath.Join(root, "..", "shared", "traces")
		for _, suffix := range []string{"", ".jsonl", "_trace.jsonl"} {
			candidates = append(candidates, filepath.Join(dir, nameOrPath+suffix))
		}
	}
	for _, path := range candidates {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			continue
		}
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) && bare {
			continue
		}
		if err != nil {
			return nil, err
		}
		defer f.Close()
		name := strings.TrimSuffix(strings.TrimSuffix(filepath.Base(path), ".jsonl"), "_trace")
		return Read(f, name, opts)
	}
	if !bare {
		return nil, &fs.PathError{Op: "open", Path: nameOrPath, Err: errors.New("is a directory")}
	}
	return Generate(nameOrPath, DefaultParams(1)), nil
}
