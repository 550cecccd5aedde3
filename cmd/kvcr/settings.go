package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/arena"
	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/node"
	"github.com/kvcr-go/kvcr/shard/evict"
)

// setting is one thing that flag, environment and file can set. Its name is
// that of the flag; the environment has KVCR_ and capitals, the file the name.
type setting struct {
	name, def, help string
	// apply checks a value and puts it into the configuration.
	apply func(c *engineConfig, v string) error
}

// engineConfig is the engine's configuration with its only namespace, and that
// of the node around it, which only serve uses.
type engineConfig struct {
	kvcr.Config
	ns    kvcr.Namespace
	node  node.Config
	peers kvcr.Peers // becomes Config.Peers when it listens

	router node.Router // becomes node.Config.Router when it knows how keys are made
	events events.PublisherConfig
	plane  events.PlanePublisherConfig
}

func (c *engineConfig) engine() kvcr.Config {
	cfg := c.Config
	cfg.Namespaces = []kvcr.Namespace{c.ns}
	return cfg
}

var settings = slices.Concat(engineSettings, nodeSettings, peerSettings, routerSettings)

var engineSettings = []setting{
	{"capacity", "auto", "payload memory: a size, or auto for what the container or host leaves", func(c *engineConfig, v string) error {
		if v == "auto" {
			c.Capacity = 0
			return nil
		}
		return size(&c.Capacity, v)
	}},
	{"block", "0", "bytes of one block: makes the namespace a pool of fixed slots; 0 for size classes", func(c *engineConfig, v string) error {
		var n int64
		err := size(&n, v)
		if n > 0 {
			c.ns.Pools = []kvcr.Pool{{Name: "kv", SlotBytes: int(n)}}
		}
		return err
	}},
	{"kind", "flat", "flat, or chained for blocks with parents", func(c *engineConfig, v string) error {
		switch v {
		case "flat":
			c.ns.Kind = kvcr.Flat
		case "chained":
			c.ns.Kind = kvcr.Chained
		default:
			return fmt.Errorf("%q: must be flat or chained", v)
		}
		return nil
	}},
	{"policy", "density", "eviction policy: " + strings.Join(evict.Names(), ", "), func(c *engineConfig, v string) error {
		c.ns.Policy = v
		return oneOf(v, evict.Names()...)
	}},
	{"max-value", "0", "largest value of size classes; 0 for 64 MiB or a quarter of a shard", func(c *engineConfig, v string) error {
		var n int64
		err := size(&n, v)
		c.ns.MaxValue = int(n)
		return err
	}},
	{"mean-value", "4KiB", "expected value size: capacity divided by it is the number of entries", func(c *engineConfig, v string) error {
		var n int64
		err := size(&n, v)
		c.ns.MeanValue = int(n)
		return err
	}},
	{"max-blocks", "0", "largest number of blocks; 0 for as many as fit", func(c *engineConfig, v string) error {
		return integer(&c.ns.MaxBlocks, v)
	}},
	{"checksums", "auto", "payload checksums: on, off, or auto (on for blocks)", func(c *engineConfig, v string) error {
		c.ns.Checksums = map[string]kvcr.Checksums{"on": kvcr.ChecksumOn, "off": kvcr.ChecksumOff}[v]
		return oneOf(v, "auto", "on", "off")
	}},
	{"verify-reads", "false", "compare copies of blocks over 4 KiB with their checksum", func(c *engineConfig, v string) error {
		return boolean(&c.ns.VerifyReads, v)
	}},
	{"watermark", "0", "percent of free or evictable memory below which pressure is reported; 0 for never", func(c *engineConfig, v string) error {
		return integer(&c.ns.Watermark, v)
	}},
	{"shards", "0", "shards of a flat namespace, a power of two; 0 for four for each processor", func(c *engineConfig, v string) error {
		return integer(&c.Shards, v)
	}},
	{"pin", "", "CPUs that owners are pinned to, such as 2,3; empty for none", func(c *engineConfig, v string) error {
		return integers(&c.Pin, v)
	}},
	{"pages", "auto", "pages to ask for: auto, 1G, 2M, thp, base", func(c *engineConfig, v string) (err error) {
		c.Memory.Pages, err = arena.ParsePages(v)
		return err
	}},
	{"strict-pages", "false", "refuse to start on other pages", func(c *engineConfig, v string) error {
		return boolean(&c.Memory.Strict, v)
	}},
	{"backing", "anonymous", "kind of memory: anonymous, memfd, file", func(c *engineConfig, v string) (err error) {
		c.Memory.Backing, err = arena.ParseBacking(v)
		return err
	}},
	{"path", "", "directory or file for backing file", func(c *engineConfig, v string) error {
		c.Memory.Path = v
		return nil
	}},
	{"numa", "default", "memory nodes: default, or bind, interleave or preferred with nodes, such as bind:0,1", func(c *engineConfig, v string) (err error) {
		mode, nodes, _ := strings.Cut(v, ":")
		if c.Memory.NUMA.Mode, err = arena.ParseNUMAMode(mode); err != nil {
			return err
		}
		return integers(&c.Memory.NUMA.Nodes, nodes)
	}},
	{"lock", "false", "lock payload memory", func(c *engineConfig, v string) error { return boolean(&c.Memory.Lock, v) }},
	{"prefault", "false", "touch all payload memory at start", func(c *engineConfig, v string) error {
		return boolean(&c.Memory.Prefault, v)
	}},
	{"max-handles", "256", "handles open at once", func(c *engineConfig, v string) error { return integer(&c.MaxHandles, v) }},
	{"operation-timeout", "1s", "time for fetches from remote sources", func(c *engineConfig, v string) (err error) {
		c.OperationTimeout, err = time.ParseDuration(v)
		return err
	}},
	{"seed", "0", "seed of the policies' sampling", func(c *engineConfig, v string) (err error) {
		c.Seed, err = strconv.ParseUint(v, 0, 64)
		return err
	}},
}

func size(dst *int64, v string) (err error) {
	*dst, err = parseSize(v)
	return err
}

func integer(dst *int, v string) error {
	n, err := strconv.Atoi(v)
	if err != nil {
		return fmt.Errorf("%q is no whole number", v)
	}
	*dst = n
	return nil
}

func integers(dst *[]int, v string) error {
	*dst = nil
	if v == "" {
		return nil
	}
	for _, part := range strings.Split(v, ",") {
		var n int
		if err := integer(&n, strings.TrimSpace(part)); err != nil {
			return err
		}
		*dst = append(*dst, n)
	}
	return nil
}

func boolean(dst *bool, v string) (err error) {
	if *dst, err = strconv.ParseBool(v); err != nil {
		return fmt.Errorf("%q: must be true or false", v)
	}
	return nil
}

func oneOf(v string, names ...string) error {
	for _, n := range names {
		if v == n {
			return nil
		}
	}
	return fmt.Errorf("%q: must be one of %s%s", v, strings.Join(names, ", "), nearest(v, names))
}

// value is an effective setting and where it came from.
type value struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"` // default, file PATH, env NAME, flag
}

// values are the effective settings, in the order of the table.
type values []value

func (vs values) get(name string) *value {
	for i := range vs {
		if vs[i].Name == name {
			return &vs[i]
		}
	}
	return nil
}

// resolve merges the sources. flags holds what was given on the command line.
// All problems are reported at once.
func resolve(flags map[string]string, environ []string, file string) (values, *engineConfig, error) {
	var vs values
	var names []string
	for _, s := range settings {
		vs = append(vs, value{s.name, s.def, "default"})
		names = append(names, s.name)
	}
	var errs []error
	set := func(name, v, source string) {
		if known := vs.get(name); known != nil {
			known.Value, known.Source = v, source
			return
		}
		errs = append(errs, fmt.Errorf("%s: unknown setting %q%s", source, name, nearest(name, names)))
	}
	if file != "" {
		fromFile, err := readFile(file)
		errs = append(errs, err)
		for _, name := range sortedKeys(fromFile) {
			set(name, fromFile[name], "file "+file)
		}
	}
	for _, kv := range environ {
		k, v, _ := strings.Cut(kv, "=")
		rest, ours := strings.CutPrefix(k, "KVCR_")
		if !ours || slices.Contains(otherEnv, k) {
			continue
		}
		set(strings.ReplaceAll(strings.ToLower(rest), "_", "-"), v, "env "+k)
	}
	for _, name := range sortedKeys(flags) {
		set(name, flags[name], "flag")
	}
	cfg := &engineConfig{ns: kvcr.Namespace{Name: "default"}}
	for i, s := range settings {
		if err := s.apply(cfg, vs[i].Value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", vs[i].Source, s.name, err))
		}
	}
	return vs, cfg, errors.Join(errs...)
}

// readFile reads a flat YAML map of settings. Numbers, booleans and strings
// are all taken as written.
func readFile(path string) (map[string]string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var doc map[string]yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return nil, fmt.Errorf("file %s: %w", path, err)
	}
	out := map[string]string{}
	for name, node := range doc {
		if node.Kind != yaml.ScalarNode {
			return nil, fmt.Errorf("file %s: line %d: %s must be a single value", path, node.Line, name)
		}
		out[name] = node.Value
	}
	return out, nil
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// nearest suggests a known name that is close to a wrong one.
func nearest(wrong string, names []string) string {
	best, at := "", 3+len(wrong)/4
	for _, n := range names {
		if d := distance(wrong, n); d < at {
			best, at = n, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// distance is Levenshtein's.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost++
			}
			diagonal = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}

// otherEnv are variables of ours that are no settings of an engine.
var otherEnv = []string{"KVCR_CONFIG", "KVCR_LIBCUDA", "KVCR_NODE"}
