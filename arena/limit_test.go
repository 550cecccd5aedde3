package arena

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tree writes files below a fresh directory that stands for "/".
func tree(t *testing.T, files map[string]string) *kernel {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	k := *realKernel
	k.root = root
	return &k
}

const (
	hostMem  = "MemTotal:       65536000 kB\nMemFree:  1 kB\nMemAvailable:    32768000 kB\n"
	v2Mount  = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
	v1Mount  = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
	v1Free   = "9223372036854771712"
	hostSize = 65536000 << 10
)

func TestMemoryLimit(t *testing.T) {
	tests := []struct {
		name   string
		files  map[string]string
		want   int64
		source string
	}{
		{"host only", map[string]string{"proc/meminfo": hostMem}, hostSize, "machine"},
		{"nothing readable", map[string]string{}, 1<<63 - 1, "no limit"},
		{"v2 without limit", map[string]string{
			"proc/meminfo": hostMem, "proc/self/mountinfo": v2Mount, "proc/self/cgroup": "0::/\n",
		}, hostSize, "machine"},
		{"v2, own namespace", map[string]string{
			"proc/meminfo": hostMem, "proc/self/mountinfo": v2Mount, "proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "536870912\n",
		}, 512 << 20, "/sys/fs/cgroup/memory.max"},
		{"v2, max written out", map[string]string{
			"proc/meminfo": hostMem, "proc/self/mountinfo": v2Mount, "proc/self/cgroup": "0::/a\n",
			"sys/fs/cgroup/a/memory.max": "max\n",
		}, hostSize, "machine"},
		{"v2, nested, tighter above", map[string]string{
			"proc/meminfo": hostMem, "proc/self/mountinfo": v2Mount, "proc/self/cgroup": "0::/pod/box/task\n",
			"sys/fs/cgroup/pod/box/task/memory.max": "max\n",
			"sys/fs/cgroup/pod/box/memory.max":      "1073741824\n",
			"sys/fs/cgroup/pod/memory.max":          "536870912\n",
		}, 512 << 20, "/sys/fs/cgroup/pod/memory.max"},
		{"v2, nested, tighter below", map[string]string{
			"proc/meminfo": hostMem, "proc/self/mountinfo": v2Mount, "proc/self/cgroup": "0::/pod/box\n",
			"sys/fs/cgroup/pod/box/memory.max": "268435456\n",
			"sys/fs/cgroup/pod/memory.max":     "536870912\n",
		}, 256 << 20, "/sys/fs/cgroup/pod/box/memory.max"},
		{"v2, memory.high", map[string]string{
			"proc/meminfo": hostMem, "proc/self/mountinfo": v2Mount, "proc/self/cgroup": "0::/a\n",
			"sys/fs/cgroup/a/memory.max": "1073741824\n", "sys/fs/cgroup/a/memory.high": "805306368\n",
		}, 768 << 20, "memory.high"},
		{"v2, host namespace", map[string]string{
			// The path is the host's; the mount shows that group as its root.
			"proc/meminfo": hostMem, "proc/self/cgroup": "0::/system.slice/docker-12.scope\n",
			"proc/self/mountinfo":      "30 23 0:26 /system.slice/docker-12.scope /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
			"sys/fs/cgroup/memory.max": "536870912\n",
		}, 512 << 20, "/sys/fs/cgroup/memory.max"},
		{"v2, host namespace, nested", map[string]string{
			"proc/meminfo": hostMem, "proc/self/cgroup": "0::/docker/9/inner\n",
			"proc/self/mountinfo":            "30 23 0:26 /docker/9 /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
			"sys/fs/cgroup/memory.max":       "1073741824\n",
			"sys/fs/cgroup/inner/memory.max": "536870912\n",
		}, 512 << 20, "/sys/fs/cgroup/inner/memory.max"},
		{"v2, path outside of the namespace", map[string]string{
			"proc/meminfo": hostMem, "proc/self/mountinfo": v2Mount, "proc/self/cgroup": "0::/../other\n",
			"sys/fs/cgroup/memory.max": "536870912\n", "sys/fs/cgroup/other/memory.max": "1\n",
		}, 512 << 20, "/sys/fs/cgroup/memory.max"},
		{"v2, path the mount does not show", map[string]string{
			"proc/meminfo": hostMem, "proc/self/cgroup": "0::/kubepods/x\n",
			"proc/self/mountinfo":      "30 23 0:26 /docker/9 /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
			"sys/fs/cgroup/memory.max": "536870912\n",
		}, 512 << 20, "/sys/fs/cgroup/memory.max"},
		{"v1", map[string]string{
			"proc/meminfo": hostMem, "proc/self/mountinfo": v1Mount, "proc/self/cgroup": "5:cpu,cpuacct:/c\n4:memory:/a\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "536870912\n",
			"sys/fs/cgroup/cpu/c/memory.limit_in_bytes":    "1\n", // not a memory group
		}, 512 << 20, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes"},
		{"v1, unlimited", map[string]string{
			"proc/self/mountinfo": v1Mount, "proc/self/cgroup": "4:memory:/a\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": v1Free,
			"sys/fs/cgroup/memory/a/memory.stat":           "hierarchical_memory_limit " + v1Free + "\n",
		}, 1<<63 - 1, "no limit"},
		{"v1, nested, unlimited itself", map[string]string{
			"proc/meminfo": hostMem, "proc/self/mountinfo": v1Mount, "proc/self/cgroup": "4:memory:/a/b\n",
			"sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": v1Free,
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes":   "536870912\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":     v1Free,
		}, 512 << 20, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes"},
		{"v1, host namespace", map[string]string{
			"proc/meminfo": hostMem, "proc/self/cgroup": "4:memory:/docker/77\n",
			"proc/self/mountinfo":                        "35 31 0:32 /docker/77 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "536870912\n",
		}, 512 << 20, "/sys/fs/cgroup/memory/memory.limit_in_bytes"},
		{"v1, limit above the mount", map[string]string{
			"proc/meminfo": hostMem, "proc/self/cgroup": "4:memory:/docker/77\n",
			"proc/self/mountinfo":                        "35 31 0:32 /docker/77 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": v1Free,
			"sys/fs/cgroup/memory/memory.stat":           "cache 1\nhierarchical_memory_limit 536870912\nhierarchical_memsw_limit 1\n",
		}, 512 << 20, "hierarchical_memory_limit"},
		{"v1 memory beside v2", map[string]string{
			"proc/meminfo": hostMem, "proc/self/cgroup": "4:memory:/a\n0::/\n",
			"proc/self/mountinfo":                          v1Mount + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "536870912\n",
		}, 512 << 20, "/sys/fs/cgroup/memory/a/"},
		{"limit above the machine", map[string]string{
			"proc/meminfo": hostMem, "proc/self/mountinfo": v2Mount, "proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "1099511627776\n",
		}, hostSize, "machine"},
		{"mount point with a space", map[string]string{
			"proc/meminfo": hostMem, "proc/self/cgroup": "0::/a\n",
			"proc/self/mountinfo":    `30 23 0:26 / /my\040groups rw shared:9 master:1 - cgroup2 cgroup2 rw` + "\n",
			"my groups/a/memory.max": "536870912\n",
		}, 512 << 20, "/my groups/a/memory.max"},
		{"garbage", map[string]string{
			"proc/meminfo": "MemTotal:\nMemTotal: x kB\n" + hostMem, "proc/self/cgroup": "0\n::\nx:y\n\n0::/a\n",
			"proc/self/mountinfo": "1 2 3\n- - - - - - -\n" + v2Mount, "sys/fs/cgroup/a/memory.max": "-7\n",
		}, hostSize, "machine"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			k := tree(t, tt.files)
			got, source := k.memoryLimit()
			if got != tt.want || !strings.Contains(source, tt.source) {
				t.Errorf("limit %d from %q, want %d from %q", got, source, tt.want, tt.source)
			}
			size, why := k.defaultSize()
			if size <= 0 || size > tt.want/100*60 || size < tt.want/100*60-2<<20 || !strings.Contains(why, source) {
				t.Errorf("default size %d (%s) for a limit of %d", size, why, tt.want)
			}
		})
	}
}

// TestMemoryLimitHere: whatever machine this is, the answer fits it.
func TestMemoryLimitHere(t *testing.T) {
	limit, source := MemoryLimit()
	total := realKernel.memInfo("MemTotal")
	if limit <= 0 || limit > total || source == "" {
		t.Errorf("limit %d from %q on a machine of %d", limit, source, total)
	}
	size, why := DefaultSize()
	if size <= 0 || size >= limit || why == "" {
		t.Errorf("default size %d (%s), limit %d", size, why, limit)
	}
}
