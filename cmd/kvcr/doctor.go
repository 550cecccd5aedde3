package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr/arena"
	"github.com/kvcr-go/kvcr/ucx"
	"github.com/kvcr-go/kvcr/ucx/cuda"
)

type doctorCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

// finding is one thing the machine gives or does not give.
type finding struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	State  string `json:"state"` // ok, note (works, could be better), bad
	Advice string `json:"advice,omitempty"`
}

func (c *doctorCmd) Run(e *env) error {
	found := examine(host{root: "/"})
	if c.JSON {
		enc := json.NewEncoder(e.stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(found)
	}
	w := tabwriter.NewWriter(e.stdout, 0, 4, 2, ' ', 0)
	for _, f := range found {
		fmt.Fprintf(w, "%s\t%s\t%s\n", strings.ToUpper(f.State), f.Name, f.Value)
		if f.Advice != "" {
			fmt.Fprintf(w, "\t\t-> %s\n", f.Advice)
		}
	}
	return w.Flush()
}

// host reads the machine's files below a root, so that tests can give theirs.
type host struct{ root string }

func (h host) read(path string) string {
	b, err := os.ReadFile(filepath.Join(h.root, path))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func examine(h host) []finding {
	var out []finding
	add := func(name, state, advice, format string, args ...any) {
		out = append(out, finding{name, fmt.Sprintf(format, args...), state, advice})
	}
	h.processor(add)
	h.memory(add)
	h.hugePages(add)
	h.limits(add)
	h.shm(add)
	h.numa(add)
	trial(add)
	h.network(add)
	transports(add, ucx.Built, ucx.Version())
	gpu(add, cuda.Options{})
	return out
}

type adder func(name, state, advice, format string, args ...any)

func (h host) processor(add adder) {
	var set unix.CPUSet
	allowed := runtime.NumCPU()
	if unix.SchedGetaffinity(0, &set) == nil {
		allowed = set.Count()
	}
	add("kernel", "ok", "", "%s %s/%s", h.read("proc/sys/kernel/osrelease"), runtime.GOOS, runtime.GOARCH)
	procs := runtime.GOMAXPROCS(0)
	state, advice := "ok", ""
	if procs < 4 {
		state, advice = "note", "pinned owners need GOMAXPROCS of at least 3; owners that help need nothing"
	}
	add("processors", state, advice, "%d allowed, GOMAXPROCS %d", allowed, procs)
}

func (h host) memory(add adder) {
	limit, source := arena.MemoryLimit()
	add("memory limit", "ok", "", "%s (%s)", formatSize(limit), source)
	size, why := arena.DefaultSize()
	add("default capacity", "ok", "", "%s (%s)", formatSize(size), why)
}

func (h host) hugePages(add adder) {
	dirs, _ := filepath.Glob(filepath.Join(h.root, "sys/kernel/mm/hugepages/hugepages-*kB"))
	for _, d := range dirs {
		kb, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(d), "hugepages-"), "kB"), 10, 64)
		rel, _ := filepath.Rel(h.root, d)
		free, total := h.read(rel+"/free_hugepages"), h.read(rel+"/nr_hugepages")
		state, advice := "ok", ""
		if free == "0" || free == "" {
			state = "note"
			advice = fmt.Sprintf("reserve some: echo N > /%s/nr_hugepages", rel)
		}
		add("huge pages "+formatSize(kb<<10), state, advice, "%s free of %s", free, total)
	}
	thp := chosen(h.read("sys/kernel/mm/transparent_hugepage/enabled"))
	switch thp {
	case "always", "madvise":
		add("transparent huge pages", "ok", "", "%s", thp)
	case "":
		add("transparent huge pages", "note", "", "not in this kernel")
	default:
		add("transparent huge pages", "bad", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled", "%s", thp)
	}
	shmem := chosen(h.read("sys/kernel/mm/transparent_hugepage/shmem_enabled"))
	switch shmem {
	case "always", "within_size", "advise", "force":
		add("huge pages for memfd", "ok", "", "%s", shmem)
	case "":
	default:
		add("huge pages for memfd", "note", "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled, or reserve huge pages", "%s", shmem)
	}
}

// chosen is the bracketed word of a sysfs choice.
func chosen(s string) string {
	_, rest, ok := strings.Cut(s, "[")
	if !ok {
		return ""
	}
	word, _, _ := strings.Cut(rest, "]")
	return word
}

func (h host) limits(add adder) {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r) == nil {
		state, advice, text := "ok", "", "unlimited"
		if r.Cur != unix.RLIM_INFINITY {
			text = formatSize(int64(r.Cur))
			state, advice = "note", "to lock the arena or register it with a device, raise it: ulimit -l unlimited, or LimitMEMLOCK=infinity"
		}
		add("locked memory", state, advice, "%s", text)
	}
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) == nil {
		state, advice := "ok", ""
		if r.Cur < 4096 {
			state, advice = "note", "raise it for servers: ulimit -n 65536"
		}
		add("open files", state, advice, "%d", r.Cur)
	}
	if v := h.read("proc/sys/vm/overcommit_memory"); v == "2" {
		add("overcommit", "note", "strict accounting counts the whole arena: vm.overcommit_memory=0 avoids refusals", "%s", v)
	}
}

func (h host) shm(add adder) {
	var st unix.Statfs_t
	path := filepath.Join(h.root, "dev/shm")
	if err := unix.Statfs(path, &st); err != nil {
		add("/dev/shm", "note", "needed for file backing only; memfd works without", "%v", err)
		return
	}
	free, total := int64(st.Bavail)*st.Bsize, int64(st.Blocks)*st.Bsize
	state, advice := "ok", ""
	if want, _ := arena.DefaultSize(); free < want {
		state, advice = "note", "smaller than the default capacity: for file backing enlarge it, or use backing memfd"
	}
	add("/dev/shm", state, advice, "%s free of %s", formatSize(free), formatSize(total))
}

func (h host) numa(add adder) {
	nodes, _ := filepath.Glob(filepath.Join(h.root, "sys/devices/system/node/node[0-9]*"))
	allowed := ""
	f, err := os.Open(filepath.Join(h.root, "proc/self/status"))
	if err == nil {
		defer f.Close()
		for sc := bufio.NewScanner(f); sc.Scan(); {
			if v, ok := strings.CutPrefix(sc.Text(), "Mems_allowed_list:"); ok {
				allowed = strings.TrimSpace(v)
			}
		}
	}
	advice := ""
	if len(nodes) > 1 {
		advice = "choose: numa interleave for one engine over all nodes, bind:N for one engine each"
	}
	add("memory nodes", "ok", advice, "%d, allowed %s", len(nodes), allowed)
}

// trial maps a small arena and says what it got.
func trial(add adder) {
	a, err := arena.Map(arena.Options{Name: "trial", Size: 64 << 20, Prefault: true})
	if err != nil {
		add("trial arena", "bad", "", "%v", err)
		return
	}
	defer a.Close()
	add("trial arena", "ok", "", "%s", a.Placement())
	if m, err := arena.Map(arena.Options{Name: "trial-memfd", Size: 4 << 20, Backing: arena.Memfd}); err != nil {
		add("trial memfd", "note", "shared memory with neighbours needs it", "%v", err)
	} else {
		add("trial memfd", "ok", "", "%s", m.Placement())
		m.Close()
	}
}

func (h host) network(add adder) {
	ifs, err := net.Interfaces()
	if err != nil {
		add("network", "note", "", "%v", err)
		return
	}
	var names []string
	for _, i := range ifs {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		name := i.Name
		if speed := h.read("sys/class/net/" + i.Name + "/speed"); speed != "" && speed != "-1" {
			name += " " + speed + " Mb/s"
		}
		names = append(names, name)
	}
	add("network", "ok", "", "%s", strings.Join(names, ", "))
}

// transports says which UCX there is, and whether it can be trusted with peers that
// crash.
func transports(add adder, built bool, version string) {
	switch {
	case !built:
		add("UCX", "note", "for RDMA between nodes, build for linux with cgo and -tags ucx", "not in this build")
	case ucx.AbortsWithPeers(version):
		add("UCX", "bad", "install UCX 1.14 or later (or one built without assertions), or set the peers' routes to shm,stream: when a peer is killed while a connection to it is being made, this version may abort the node", "%s", version)
	default:
		add("UCX", "ok", "", "%s", version)
	}
}

// gpu says what the CUDA driver finds. It makes no context, so that devices in
// use are not disturbed.
func gpu(add adder, o cuda.Options) {
	info, err := cuda.Probe(o)
	var wrong *cuda.DriverError
	switch {
	case errors.Is(err, cuda.ErrNotBuilt):
		add("GPU", "note", "for GPU memory, build for linux with cgo and -tags ucx", "not in this build")
		return
	case errors.Is(err, cuda.ErrNoDriver) && !errors.As(err, &wrong):
		add("GPU", "note", "for GPU memory, install the NVIDIA driver; in a container, let the host's in (NVIDIA container toolkit)", "%v", err)
		return
	case errors.Is(err, cuda.ErrNoDevice):
		add("GPU", "note", "for GPU memory, give this process a device: CUDA_VISIBLE_DEVICES, /dev/nvidia*", "CUDA driver %s (%s), no device", info.VersionString(), info.Library)
		return
	case err != nil:
		add("GPU", "bad", "the CUDA driver is here and does not work: see nvidia-smi and the kernel's log", "%v", err)
		return
	}
	add("GPU", "ok", "", "CUDA driver %s (%s), %d devices", info.VersionString(), info.Library, len(info.Devices))
	for _, d := range info.Devices {
		add(fmt.Sprintf("GPU %d", d.Index), "ok", "", "%s, %s", d.Name, formatSize(d.Memory))
	}
}
