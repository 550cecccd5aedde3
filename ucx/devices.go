package ucx

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// leaveOutBridges adds the choice of network devices, unless somebody has made it.
// Container engines give every host a bridge with the same addresses; UCX takes it
// for a network like others, in some runs before the right one, and connects a host
// to itself. Bridges with a physical port, which carry the host's own address, stay.
//
// UCX knows lists of devices to use, not of devices to leave out; and devices of
// other transports are named otherwise. So this is for tcp alone.
func leaveOutBridges(chosen []Setting, o Options, getenv func(string) (string, bool), net string) []Setting {
	_, set := getenv("UCX_NET_DEVICES")
	if set || slices.ContainsFunc(chosen, func(s Setting) bool { return s.Name == "NET_DEVICES" }) ||
		slices.ContainsFunc(o.Transports, func(t string) bool { return t != "tcp" && t != "self" }) {
		return chosen
	}
	use, skip := devices(net)
	if len(skip) == 0 || len(use) == 0 {
		return chosen
	}
	chosen = append(chosen, Setting{
		Name: "NET_DEVICES", Value: strings.Join(use, ","), Source: "default",
		Why: "bridges of this host and what hangs on them lead to no peer: " + strings.Join(skip, ", "),
	})
	slices.SortFunc(chosen, func(a, b Setting) int { return strings.Compare(a.Name, b.Name) })
	return chosen
}

// devices tells the network devices below net, which is /sys/class/net, that may
// lead to peers from bridges without a physical port and their ports.
func devices(net string) (use, skip []string) {
	all, err := os.ReadDir(net)
	if err != nil {
		return nil, nil
	}
	exists := func(parts ...string) bool {
		_, err := os.Stat(filepath.Join(append([]string{net}, parts...)...))
		return err == nil
	}
	inner := map[string]bool{}
	for _, d := range all {
		if !exists(d.Name(), "bridge") {
			continue
		}
		ports, err := os.ReadDir(filepath.Join(net, d.Name(), "brif"))
		if err != nil || slices.ContainsFunc(ports, func(p os.DirEntry) bool { return exists(p.Name(), "device") }) {
			continue
		}
		inner[d.Name()] = true
		for _, p := range ports {
			inner[p.Name()] = true
		}
	}
	for _, d := range all {
		switch {
		case inner[d.Name()]:
			skip = append(skip, d.Name())
		case exists(d.Name(), "ifindex"): // bonding_masters is a file
			use = append(use, d.Name())
		}
	}
	return use, skip
}
