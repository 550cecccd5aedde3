package ucx

import (
	"fmt"
	"slices"
	"strings"
)

// ours are the settings this package chooses. An option of the same name wins
// over them, the environment over both.
var ours = []Setting{
	{Name: "KEEPALIVE_INTERVAL", Value: "1s", Why: "a peer that vanished without closing is noticed in seconds, not in UCX's 20 s and more"},
	{Name: "KEEPALIVE_NUM_EPS", Value: "1024", Why: "a peer that closed its endpoint is forgotten in a keepalive's turn; UCX's 128 a turn let sockets pile up under a storm of reconnects"},
	{Name: "TCP_CONN_NB", Value: "y", Why: "connecting to a host that does not answer must not stop the worker"},
}

// chooseSettings merges the three sources; getenv reads the environment. The
// result is sorted by name.
func chooseSettings(o Options, getenv func(string) (string, bool)) ([]Setting, error) {
	chosen := map[string]Setting{}
	for _, s := range ours {
		if strings.HasPrefix(s.Name, "TCP_") && !slices.Contains(o.Transports, "tcp") && !slices.Contains(o.Transports, "all") {
			continue // UCX warns of settings that nothing uses
		}
		s.Source = "default"
		chosen[s.Name] = s
	}
	chosen["TLS"] = Setting{Name: "TLS", Value: strings.Join(o.Transports, ","), Source: "option"}
	if len(o.Devices) > 0 {
		chosen["NET_DEVICES"] = Setting{Name: "NET_DEVICES", Value: strings.Join(o.Devices, ","), Source: "option"}
	}
	for name, value := range o.Settings {
		if name == "" || strings.HasPrefix(name, "UCX_") || strings.ContainsAny(name+value, "\x00") {
			return nil, fmt.Errorf("%w: setting %q: write the name without UCX_", ErrInvalid, name)
		}
		chosen[name] = Setting{Name: name, Value: value, Source: "option"}
	}
	out := make([]Setting, 0, len(chosen))
	for name, s := range chosen {
		if v, ok := getenv("UCX_" + name); ok {
			s = Setting{Name: name, Value: v, Source: "environment"}
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Setting) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// modifyName is what ucp_config_modify calls a setting. Until 1.13 it finds those
// of a transport only without the transport's prefix, and ignores them silently
// with it.
func modifyName(name, version string) string {
	var major, minor int
	if n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor); n == 2 && major == 1 && minor <= 13 {
		return strings.TrimPrefix(name, "TCP_")
	}
	return name
}
