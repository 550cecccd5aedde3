package arena

import (
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"
)

// MemoryLimit returns the bytes of memory this process may use and where that
// comes from: the smallest of the limits of its control group and of every
// group above it (versions 1 and 2), and of the machine's memory. It reads
// files and may block.
func MemoryLimit() (limit int64, source string) { return realKernel.memoryLimit() }

// DefaultSize returns a size in bytes for an arena that takes most of the
// memory this process may use, and how it was found: 60 % of MemoryLimit,
// rounded down to 2 MiB. The rest is for the Go heap, for buffers, for page
// tables and for what else runs in the same control group.
func DefaultSize() (bytes int64, why string) { return realKernel.defaultSize() }

// defaultShare is a choice, not a measurement: at the smallest container we
// care about, 512 MiB, it leaves 205 MiB for everything else.
const defaultShare = 60

func (k *kernel) defaultSize() (bytes int64, why string) {
	limit, source := k.memoryLimit()
	bytes = limit / 100 * defaultShare
	if bytes > 2<<20 {
		bytes &^= 2<<20 - 1
	}
	return bytes, fmt.Sprintf("%s: %d %% of %s (%s)", byteString(bytes), defaultShare, byteString(limit), source)
}

func (k *kernel) memoryLimit() (limit int64, source string) {
	limit, source = math.MaxInt64, "no limit found"
	lower := func(n int64, from string) {
		if n > 0 && n < limit {
			limit, source = n, from
		}
	}
	lower(k.memInfo("MemTotal"), "memory of the machine")
	mounts := k.mounts()
	text, _ := k.readFile("/proc/self/cgroup")
	for _, line := range strings.Split(text, "\n") {
		// hierarchy-ID:controller-list:path, the list empty for version 2
		f := strings.SplitN(line, ":", 3)
		if len(f) != 3 {
			continue
		}
		switch {
		case f[0] == "0" && f[1] == "":
			for _, dir := range groupDirs(mounts, "cgroup2", "", f[2]) {
				lower(k.groupLimit(dir+"/memory.max"), "control group "+dir+"/memory.max")
				// Above memory.high the kernel throttles allocation until
				// nothing moves: for a region that never shrinks that is a
				// limit, too.
				lower(k.groupLimit(dir+"/memory.high"), "control group "+dir+"/memory.high")
			}
		case hasWord(f[1], "memory"):
			for _, dir := range groupDirs(mounts, "cgroup", "memory", f[2]) {
				lower(k.groupLimit(dir+"/memory.limit_in_bytes"), "control group "+dir+"/memory.limit_in_bytes")
				// The limit of groups above the mount, which we cannot see.
				lower(k.statValue(dir+"/memory.stat", "hierarchical_memory_limit"), "control group "+dir+"/memory.stat hierarchical_memory_limit")
			}
		}
	}
	return limit, source
}

// groupDirs returns the directories of the control group at cgroupPath and of
// those above it, innermost first, as far as they are mounted.
//
// cgroupPath is relative to the root of the hierarchy, or of the process's
// control group namespace; a mount shows the part below its own root. In a
// container that has the host's namespace the path is the host's,
// /docker/ID, and the mount's root is the same: the group is the mount point
// itself. Where the two do not fit (the mount shows another part), the mount
// point is the best guess: it is what the runtime wanted the process to see.
func groupDirs(mounts []mount, fsType, controller, cgroupPath string) (dirs []string) {
	for _, m := range mounts {
		if m.fsType != fsType || (controller != "" && !hasWord(m.super, controller)) {
			continue
		}
		dir := m.point
		if p := path.Clean("/" + cgroupPath); !strings.Contains(cgroupPath, "..") && below(p, m.root) {
			dir = path.Join(m.point, strings.TrimPrefix(p, m.root))
		}
		for {
			dirs = append(dirs, dir)
			if dir == m.point || dir == "/" {
				break
			}
			dir = path.Dir(dir)
		}
	}
	return dirs
}

// groupLimit reads one limit, 0 when there is none. Version 2 writes "max",
// version 1 the largest multiple of the page size an int64 holds.
func (k *kernel) groupLimit(file string) int64 {
	n, ok := k.readInt(file)
	if !ok || n >= 1<<62 {
		return 0
	}
	return n
}

func (k *kernel) statValue(file, key string) int64 {
	text, _ := k.readFile(file)
	for _, line := range strings.Split(text, "\n") {
		if v, ok := strings.CutPrefix(line, key+" "); ok {
			if n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64); err == nil && n < 1<<62 {
				return n
			}
		}
	}
	return 0
}

// memInfo returns one value of /proc/meminfo in bytes, 0 when it is missing.
func (k *kernel) memInfo(key string) int64 {
	text, _ := k.readFile("/proc/meminfo")
	for _, line := range strings.Split(text, "\n") {
		if v, ok := strings.CutPrefix(line, key+":"); ok {
			f := strings.Fields(v)
			if len(f) > 0 {
				if n, err := strconv.ParseInt(f[0], 10, 64); err == nil {
					return n << 10
				}
			}
		}
	}
	return 0
}

// hasWord reports whether word is in a list separated by commas.
func hasWord(list, word string) bool {
	for _, w := range strings.Split(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}
