package hints

import (
	"fmt"
	"hash/maphash"
	"net/netip"
	"strings"
	"sync/atomic"
)

// maxEndpoint is the longest address that can be right: a DNS name has at most 253
// bytes.
const maxEndpoint = len("tcp://") + 253 + len(".:65535")

// CheckEndpoint reports why an address is no tcp://host:port that can be dialled: the
// host a name, an IPv4 address or an IPv6 address in brackets without zone, none of
// them the unspecified one or a wildcard; the port in 1..65535 without leading zeros;
// nothing after it. The error is a *Rejection, MissingSource or InvalidSource.
func CheckEndpoint(address string) error {
	if address == "" {
		return &Rejection{MissingSource, "source_control_endpoint is empty"}
	}
	if what := endpointFault(address); what != "" {
		return &Rejection{InvalidSource, fmt.Sprintf("source_control_endpoint %q: %s", cut(address), what)}
	}
	return nil
}

func endpointFault(address string) string {
	rest, ok := strings.CutPrefix(address, "tcp://")
	if !ok {
		return "want tcp://host:port"
	}
	if len(address) > maxEndpoint {
		return fmt.Sprintf("%d bytes long, more than %d", len(address), maxEndpoint)
	}
	colon := strings.LastIndexByte(rest, ':')
	if colon < 0 || strings.HasSuffix(rest, "]") {
		return "no port"
	}
	host, port := rest[:colon], rest[colon+1:]
	if !validPort(port) {
		return "the port is not in 1..65535"
	}
	if host == "" || host == "*" {
		return "the host is a wildcard, which nobody can dial"
	}
	if host[0] == '[' {
		if host[len(host)-1] != ']' {
			return "a bracket is missing"
		}
		ip, err := netip.ParseAddr(host[1 : len(host)-1])
		if err != nil || !ip.Is6() || ip.Zone() != "" {
			return "no IPv6 address, without zone, in the brackets"
		}
		return specified(ip)
	}
	if strings.IndexByte(host, ':') >= 0 {
		return "an IPv6 address needs brackets"
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return specified(ip)
	}
	return nameFault(host)
}

func specified(ip netip.Addr) string {
	if ip.Unmap().IsUnspecified() {
		return "the host is the unspecified address, which nobody can dial"
	}
	return ""
}

func validPort(s string) bool {
	if len(s) == 0 || len(s) > 5 || s[0] == '0' {
		return false
	}
	n := 0
	for i := range len(s) {
		if s[i]-'0' > 9 {
			return false
		}
		n = n*10 + int(s[i]-'0')
	}
	return n <= 65535
}

// nameFault says what is wrong with a host that is no address.
func nameFault(host string) string {
	name := strings.TrimSuffix(host, ".")
	if len(name) > 253 {
		return "the host name is longer than 253 bytes"
	}
	label := 0
	for i := 0; i <= len(name); i++ {
		if i == len(name) || name[i] == '.' {
			if i == label || i-label > 63 {
				return "a part of the host name has no byte, or more than 63"
			}
			if i < len(name) {
				label = i + 1
			}
			continue
		}
		if c := name[i]; !(c-'0' <= 9 || c|0x20-'a' <= 'z'-'a' || c == '-' || c == '_') {
			return "a byte of the host is none of a host name"
		}
	}
	// "0", "1.2" and "0x7f.1" are IPv4 addresses to some resolvers, and "0" the
	// unspecified one. No name on earth ends in such a part.
	last := strings.ToLower(name[label:])
	hex, isHex := strings.CutPrefix(last, "0x")
	if strings.Trim(last, "0123456789") == "" || isHex && strings.Trim(hex, "0123456789abcdef") == "" {
		return "the host is no IPv4 address of four decimal parts"
	}
	return ""
}

// endpoints holds good addresses that were seen lately: known ones need no check and
// no new string, and a string that is kept is one of ours, not a part of a large text
// of somebody else. It is a cache of one entry for each slot, so it stays small
// whatever comes.
var endpoints endpointCache

type endpointCache struct{ slots [1024]atomic.Pointer[string] }

var endpointSeed = maphash.MakeSeed()

// good returns the address as a string to keep, or the error of CheckEndpoint.
func (c *endpointCache) good(address string) (string, error) {
	slot := &c.slots[maphash.String(endpointSeed, address)%uint64(len(c.slots))]
	if p := slot.Load(); p != nil && *p == address {
		return *p, nil
	}
	if err := CheckEndpoint(address); err != nil {
		return "", err
	}
	own := strings.Clone(address)
	slot.Store(&own)
	return own, nil
}

// goodBytes is good for bytes, without making a string of them first.
func (c *endpointCache) goodBytes(address []byte) (string, error) {
	slot := &c.slots[maphash.Bytes(endpointSeed, address)%uint64(len(c.slots))]
	if p := slot.Load(); p != nil && *p == string(address) {
		return *p, nil
	}
	return c.good(string(address[:min(len(address), maxEndpoint+1)]))
}
