package arena

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxNode bounds node numbers: MAX_NUMNODES is at most 1024 on Linux.
const maxNode = 1023

// allowedNodes returns the memory nodes that this process's cpuset admits.
func (k *kernel) allowedNodes() ([]int, error) {
	text, ok := k.readFile("/proc/self/status")
	if !ok {
		return nil, errors.New("/proc/self/status is not readable")
	}
	for _, line := range strings.Split(text, "\n") {
		if list, ok := strings.CutPrefix(line, "Mems_allowed_list:"); ok {
			return parseNodeList(strings.TrimSpace(list))
		}
	}
	return nil, errors.New("/proc/self/status has no Mems_allowed_list")
}

// parseNodeList reads the kernel's list format, as in "0-3,7".
func parseNodeList(s string) ([]int, error) {
	var nodes []int
	for _, part := range strings.Split(s, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		if !isRange {
			hi = lo
		}
		from, err1 := strconv.Atoi(lo)
		to, err2 := strconv.Atoi(hi)
		if err1 != nil || err2 != nil || from < 0 || to > maxNode || from > to {
			return nil, fmt.Errorf("node list %q is not like 0-3,7", s)
		}
		for n := from; n <= to; n++ {
			nodes = append(nodes, n)
		}
	}
	return nodes, nil
}

// spread applies the memory policy to mem, which must be untouched, and writes
// into place what is in effect. It never fails: memory in the wrong place is
// slow, not wrong, and containers often forbid mbind.
func (k *kernel) spread(mem []byte, want NUMA, place *Placement) {
	if want.Mode == NUMADefault {
		return
	}
	allowed, err := k.allowedNodes()
	if err != nil {
		place.because("memory policy %s: %v", want.Mode, err)
		return
	}
	nodes := allowed
	if len(want.Nodes) > 0 {
		var refused []int
		nodes = nil
		for _, n := range want.Nodes {
			if slices.Contains(allowed, n) {
				nodes = append(nodes, n)
			} else {
				refused = append(refused, n)
			}
		}
		if len(refused) > 0 {
			place.because("memory nodes %v: this process may use only %v (cpuset)", refused, allowed)
		}
		if len(nodes) == 0 {
			return
		}
	}
	nodes = slices.Compact(slices.Sorted(slices.Values(nodes)))
	modes := map[NUMAMode][]int{
		NUMABind:       {unix.MPOL_BIND},
		NUMAInterleave: {unix.MPOL_INTERLEAVE},
		NUMAPreferred:  {unix.MPOL_PREFERRED},
	}[want.Mode]
	if want.Mode == NUMAPreferred && len(nodes) > 1 {
		// Preferring several nodes came with Linux 5.15; before it, the first.
		modes = []int{unix.MPOL_PREFERRED_MANY, unix.MPOL_PREFERRED}
	}
	for _, mode := range modes {
		use := nodes
		if mode == unix.MPOL_PREFERRED && len(nodes) > 1 {
			use = nodes[:1]
		}
		if err = k.mbind(mem, mode, nodeMask(use)); err == nil {
			if len(use) < len(nodes) {
				place.because("memory nodes %v: this kernel prefers one node only", nodes[1:])
			}
			place.NUMA, place.Nodes = want.Mode, use
			return
		}
	}
	place.because("memory policy %s on nodes %v: mbind: %v (containers need CAP_SYS_NICE or a seccomp profile that admits it)", want.Mode, nodes, err)
}

func nodeMask(nodes []int) []uint64 {
	mask := make([]uint64, nodes[len(nodes)-1]/64+1)
	for _, n := range nodes {
		mask[n/64] |= 1 << (n % 64)
	}
	return mask
}
