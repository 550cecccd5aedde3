package bench

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// RunName is the name of the row that tells how a suite was run: its value is how
// long that took, its parameters are the Conditions.
const RunName = "run"

// Conditions are what a suite was run under: what must be known to repeat it or to
// compare its figures with others.
type Conditions struct {
	Command  string    `json:"command"` // as typed
	Date     time.Time `json:"date"`    // of its begin
	Revision string    `json:"revision"`
	Go       string    `json:"go"`
	// The machine: what /proc and /sys say of it, empty or 0 where they do not.
	CPU         string `json:"cpu"`
	CPUs        int    `json:"cpus"` // that this process may use
	MemoryBytes int64  `json:"memory_bytes"`
	Kernel      string `json:"kernel"`
	HugePages   string `json:"huge_pages"`
	Load        string `json:"load"` // averages at the begin
	// Workers are the goroutines that times for each operation are of.
	Workers int  `json:"workers,omitempty"`
	Quick   bool `json:"quick,omitempty"`
	Smoke   bool `json:"smoke,omitempty"`
	// Profiles that were taken meanwhile: they cost time.
	Profiles []string `json:"profiles,omitempty"`
	LeftOut  []string `json:"left_out,omitempty"`
	// Unmeasured bars are the suite's that this run says nothing of.
	Unmeasured []Unmeasured `json:"unmeasured,omitempty"`
	// Error that ended the suite early.
	Error string `json:"error,omitempty"`

	Took time.Duration `json:"-"` // the row's value
}

// Here describes this machine, now. root is /, or another place in tests.
func Here(root string) Conditions {
	read := func(path string) string {
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(text))
	}
	c := Conditions{
		Date: time.Now().Truncate(time.Second), Go: runtime.Version() + " " + runtime.GOARCH, CPUs: allowedCPUs(),
		CPU: field(read("proc/cpuinfo"), "model name"), Kernel: read("proc/sys/kernel/osrelease"),
	}
	if kb, err := strconv.ParseInt(strings.TrimSuffix(field(read("proc/meminfo"), "MemTotal"), " kB"), 10, 64); err == nil {
		c.MemoryBytes = kb << 10
	}
	var pages []string
	for _, p := range []struct{ name, path string }{
		{"transparent", "sys/kernel/mm/transparent_hugepage/enabled"},
		{"of shared memory", "sys/kernel/mm/transparent_hugepage/shmem_enabled"},
	} {
		// The file lists all choices and marks the one that holds: always [madvise] never.
		if _, rest, ok := strings.Cut(read(p.path), "["); ok {
			chosen, _, _ := strings.Cut(rest, "]")
			pages = append(pages, p.name+": "+chosen)
		}
	}
	if n := field(read("proc/meminfo"), "HugePages_Total"); n != "" {
		pages = append(pages, "reserved: "+n)
	}
	c.HugePages = strings.Join(pages, ", ")
	if load := strings.Fields(read("proc/loadavg")); len(load) >= 3 {
		c.Load = strings.Join(load[:3], " ")
	}
	return c
}

// field is what stands after the name at the begin of a line.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// row puts the conditions into the schema of results.
func (c *Conditions) row(suite string) Row {
	r := Row{Suite: suite, Name: RunName, Params: map[string]any{}, Impl: ours, Value: c.Took.Seconds(), Unit: "s", Better: Lower, Runs: []float64{c.Took.Seconds()}}
	text, err := json.Marshal(c)
	if err == nil {
		err = json.Unmarshal(text, &r.Params)
	}
	if err != nil {
		panic(err) // of plain fields: ours
	}
	return r
}

// ConditionsOf reads them back from a row of the name RunName.
func ConditionsOf(r Row) (c Conditions, err error) {
	text, err := json.Marshal(r.Params)
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	c.Took = time.Duration(r.Value * float64(time.Second))
	return c, err
}

// Machine is the part of the conditions that is the machine's, on one line.
func (c *Conditions) Machine() string {
	return strings.Join([]string{c.CPU, strconv.Itoa(c.CPUs), strconv.FormatInt(c.MemoryBytes, 10), c.Kernel, c.HugePages}, "; ")
}
