package ucx

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Bridges that only containers hang on are left out, and only where nobody has
// chosen devices.
func TestLeaveOutBridges(t *testing.T) {
	net := t.TempDir()
	for _, f := range []string{
		"lo/ifindex", "eth0/ifindex", "eth0/device/x", "bonding_masters",
		"docker0/ifindex", "docker0/bridge/x", "docker0/brif/veth1", "veth1/ifindex",
		"virbr0/ifindex", "virbr0/bridge/x", "virbr0/brif/",
		"br0/ifindex", "br0/bridge/x", "br0/brif/eth1", "eth1/ifindex", "eth1/device/x",
	} {
		p := filepath.Join(net, f)
		dir := filepath.Dir(p)
		if strings.HasSuffix(f, "/") {
			dir = p
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if dir != p {
			if err := os.WriteFile(p, nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	none := func(string) (string, bool) { return "", false }
	tcp := Options{Transports: []string{"tcp"}}
	got := leaveOutBridges([]Setting{{Name: "TLS"}}, tcp, none, net)
	if len(got) != 2 || got[0].Name != "NET_DEVICES" || got[0].Value != "br0,eth0,eth1,lo" || !strings.Contains(got[0].Why, "docker0, veth1, virbr0") {
		t.Errorf("chosen: %+v", got)
	}
	environment := func(k string) (string, bool) { return "", k == "UCX_NET_DEVICES" }
	for name, got := range map[string][]Setting{
		"by the environment":   leaveOutBridges(nil, tcp, environment, net),
		"by an option":         leaveOutBridges([]Setting{{Name: "NET_DEVICES", Value: "docker0"}}, tcp, none, net)[1:],
		"for other transports": leaveOutBridges(nil, Options{Transports: []string{"tcp", "rc"}}, none, net),
		"without devices":      leaveOutBridges(nil, tcp, none, filepath.Join(net, "none")),
	} {
		if len(got) != 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
