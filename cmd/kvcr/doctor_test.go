package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvcr-go/kvcr/ucx/cuda"
)

func TestDoctorReadsTheMachine(t *testing.T) {
	root := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		full := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "7\n")
	write("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "9\n")
	write("sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages", "0\n")
	write("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0\n")
	write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n")
	write("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size [advise] never\n")
	write("sys/devices/system/node/node0/x", "")
	write("sys/devices/system/node/node1/x", "")
	write("proc/self/status", "Name:\tx\nMems_allowed_list:\t0-1\n")
	write("proc/sys/vm/overcommit_memory", "2\n")

	found := map[string]finding{}
	add := func(name, state, advice, format string, args ...any) {
		found[name] = finding{name, fmt.Sprintf(format, args...), state, advice}
	}
	h := host{root}
	h.hugePages(add)
	h.limits(add)
	h.numa(add)
	for name, want := range map[string]struct{ value, state string }{
		"huge pages 2 MiB":       {"7 free of 9", "ok"},
		"huge pages 1 GiB":       {"0 free of 0", "note"},
		"transparent huge pages": {"never", "bad"},
		"huge pages for memfd":   {"advise", "ok"},
		"memory nodes":           {"2, allowed 0-1", "ok"},
		"overcommit":             {"2", "note"},
	} {
		f := found[name]
		if f.Value != want.value || f.State != want.state {
			t.Errorf("%s = %+v, want %+v", name, f, want)
		}
		if f.State != "ok" && f.Advice == "" {
			t.Errorf("%s: %s without advice", name, f.State)
		}
	}
}

// Whatever the build, doctor says why there is no GPU.
func TestDoctorWithoutADriver(t *testing.T) {
	found := map[string]finding{}
	gpu(func(name, state, advice, format string, args ...any) {
		found[name] = finding{name, fmt.Sprintf(format, args...), state, advice}
	}, cuda.Options{Library: "/nonexistent/libcuda.so.1"})
	f := found["GPU"]
	built := !strings.Contains(f.Value, "not in this build")
	if f.State != "note" || f.Advice == "" || built && !strings.Contains(f.Value, "/nonexistent/libcuda.so.1") || !built && !strings.Contains(f.Advice, "-tags ucx") {
		t.Errorf("%+v", f)
	}
}

func TestDoctorUCX(t *testing.T) {
	for _, tt := range []struct {
		built          bool
		version, state string
	}{{false, "", "note"}, {true, "1.13.1", "bad"}, {true, "1.14.0", "ok"}, {true, "2.0.0", "ok"}, {true, "1.9.0", "bad"}} {
		var f finding
		transports(func(name, state, advice, format string, args ...any) {
			f = finding{name, fmt.Sprintf(format, args...), state, advice}
		}, tt.built, tt.version)
		if f.State != tt.state || f.State != "ok" && f.Advice == "" || tt.built && f.Value != tt.version {
			t.Errorf("%+v: %+v", tt, f)
		}
	}
}

func TestDoctorHere(t *testing.T) {
	code, out, msg := call(t, nil, "doctor", "--json")
	var found []finding
	if code != 0 || json.Unmarshal([]byte(out), &found) != nil || len(found) < 8 {
		t.Fatalf("exit code %d, %d findings, %s", code, len(found), msg)
	}
}
