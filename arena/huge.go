package arena

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// readFile reads an absolute path below k.root, without surrounding space.
func (k *kernel) readFile(path string) (string, bool) {
	b, err := os.ReadFile(filepath.Join(k.root, path))
	if err != nil {
		return "", false
	}
	return strings.TrimSpace(string(b)), true
}

func (k *kernel) readInt(path string) (int64, bool) {
	s, ok := k.readFile(path)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}

// hugeFree returns how many explicit huge pages of the given size can still be
// had: free ones that no mapping has reserved, and those the kernel may make on
// demand. ok is false when the kernel has no pages of that size.
func (k *kernel) hugeFree(pageBytes int64) (n int64, ok bool) {
	dir := fmt.Sprintf("/sys/kernel/mm/hugepages/hugepages-%dkB/", pageBytes>>10)
	free, ok := k.readInt(dir + "free_hugepages")
	if !ok {
		return 0, false
	}
	reserved, _ := k.readInt(dir + "resv_hugepages")
	extra, _ := k.readInt(dir + "nr_overcommit_hugepages")
	used, _ := k.readInt(dir + "surplus_hugepages")
	return max(free-reserved, 0) + max(extra-used, 0), true
}

// hugeKnown reports whether the kernel has explicit huge pages of this kind.
func (k *kernel) hugeKnown(kind Pages) bool {
	_, ok := k.hugeFree(kind.hugeBytes())
	return ok
}

// hugeShort says why an arena of length bytes cannot be on explicit pages of
// this kind, or "" when there are enough of them.
func (k *kernel) hugeShort(kind Pages, length int64) string {
	free, ok := k.hugeFree(kind.hugeBytes())
	if !ok {
		return "this kernel has none"
	}
	need := length / kind.hugeBytes()
	if free >= need {
		return ""
	}
	return fmt.Sprintf("%d needed, %d free (reserve with: echo %d > /sys/kernel/mm/hugepages/hugepages-%dkB/nr_hugepages)",
		need, free, need, kind.hugeBytes()>>10)
}

// thpBytes returns the size of a transparent huge page, 0 without them.
func (k *kernel) thpBytes() int64 {
	n, ok := k.readInt("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
	if !ok || n <= 0 || n&(n-1) != 0 {
		return 0
	}
	return n
}

// chosen returns the word in brackets of a kernel switch, as in
// "always [madvise] never".
func chosen(s string) string {
	_, s, _ = strings.Cut(s, "[")
	s, _, _ = strings.Cut(s, "]")
	return s
}

// thpShort says why an arena cannot get transparent huge pages, or "".
// mountHuge is the huge= option of the tmpfs a file is on.
func (k *kernel) thpShort(backing Backing, size int64, mountHuge string) string {
	const dir = "/sys/kernel/mm/transparent_hugepage/"
	huge := k.thpBytes()
	mode, ok := k.readFile(dir + "enabled")
	if !ok || huge == 0 {
		return "this kernel has none"
	}
	if size < huge {
		return fmt.Sprintf("the arena is smaller than one of %s", byteString(huge))
	}
	switch backing {
	case Anonymous:
		if chosen(mode) == "never" {
			return "switched off (" + dir + "enabled is never)"
		}
	case Memfd:
		mode, _ := k.readFile(dir + "shmem_enabled")
		switch c := chosen(mode); c {
		case "never", "deny", "":
			return fmt.Sprintf("switched off for shared memory (%sshmem_enabled is %q)", dir, c)
		}
	case File:
		switch mountHuge {
		case "always", "within_size", "advise":
		default:
			return "the file system is not mounted with huge=advise"
		}
	}
	return ""
}

// mount is one line of /proc/self/mountinfo.
type mount struct {
	root, point, fsType, super string
}

// mounts parses /proc/self/mountinfo, whose lines read
//
//	36 35 98:0 /root /mount/point options tag... - type source superoptions
//
// with space, tab, newline and backslash of a path written in octal.
func (k *kernel) mounts() []mount {
	text, _ := k.readFile("/proc/self/mountinfo")
	var ms []mount
	for _, line := range strings.Split(text, "\n") {
		f := strings.Fields(line)
		sep := 6
		for sep < len(f) && f[sep] != "-" {
			sep++
		}
		if sep+3 >= len(f) {
			continue
		}
		ms = append(ms, mount{root: unoctal(f[3]), point: unoctal(f[4]), fsType: f[sep+1], super: f[sep+3]})
	}
	return ms
}

func unoctal(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// mountHuge returns the huge= option of the mount that path, absolute and free
// of symbolic links, is on.
func (k *kernel) mountHuge(path string) string {
	best := mount{}
	for _, m := range k.mounts() {
		if below(path, m.point) && len(m.point) >= len(best.point) { // >=: a later mount hides an earlier one
			best = m
		}
	}
	for _, o := range strings.Split(best.super, ",") {
		if v, ok := strings.CutPrefix(o, "huge="); ok {
			return v
		}
	}
	return ""
}

// below reports whether path is dir or inside it. Both are absolute and clean.
func below(path, dir string) bool {
	return dir == "/" || path == dir || strings.HasPrefix(path, dir+"/")
}

// HugeBytes returns how much of the arena is on huge pages now. It reads
// /proc/self/smaps, which takes milliseconds and more for large arenas.
func (a *Arena) HugeBytes() (int64, error) {
	if len(a.mem) == 0 {
		return 0, ErrClosed
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return 0, err
	}
	lo := uint64(addressOf(a.mem))
	return min(hugeInSmaps(smaps, lo, lo+uint64(a.place.Mapped)), a.place.Mapped), nil
}

// hugeInSmaps adds up the huge pages of the mappings that begin in [lo, hi).
func hugeInSmaps(smaps []byte, lo, hi uint64) (sum int64) {
	inside := false
	for sc := bufio.NewScanner(bytes.NewReader(smaps)); sc.Scan(); {
		f := strings.Fields(sc.Text())
		if len(f) < 2 {
			continue
		}
		if from, _, ok := strings.Cut(f[0], "-"); ok {
			if at, err := strconv.ParseUint(from, 16, 64); err == nil {
				inside = at >= lo && at < hi
				continue
			}
		}
		if !inside {
			continue
		}
		switch f[0] {
		case "AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:", "Shared_Hugetlb:", "Private_Hugetlb:":
			if n, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				sum += n << 10
			}
		}
	}
	return sum
}
