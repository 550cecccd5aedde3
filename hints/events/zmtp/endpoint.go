package zmtp

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// ErrEndpoint: an endpoint is not of the form tcp://host:port, ipc://path or
// inproc://name.
var ErrEndpoint = errors.New("bad endpoint")

// CheckEndpoint returns ErrEndpoint for an endpoint that can be neither dialled nor
// listened at.
func CheckEndpoint(endpoint string) error {
	_, _, err := split(endpoint)
	return err
}

// split returns how an endpoint is reached: network tcp, unix or inproc.
func split(endpoint string) (network, address string, err error) {
	scheme, rest, ok := strings.Cut(endpoint, "://")
	if !ok || rest == "" {
		return "", "", badEndpoint(endpoint, "want tcp://host:port, ipc://path or inproc://name")
	}
	switch scheme {
	case "ipc":
		return "unix", rest, nil
	case "inproc":
		return "inproc", rest, nil
	case "tcp":
	default:
		return "", "", badEndpoint(endpoint, "only tcp, ipc and inproc are spoken")
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil && strings.HasPrefix(rest, ":::") { // all addresses, as vLLM takes it
		host, port, err = "::", rest[3:], nil
	}
	if err != nil {
		return "", "", badEndpoint(endpoint, err.Error())
	}
	if host == "*" {
		host = ""
	}
	if port == "*" {
		port = "0"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || port != strconv.FormatUint(n, 10) {
		return "", "", badEndpoint(endpoint, fmt.Sprintf("port %q is not within 0 to 65535", port))
	}
	return "tcp", net.JoinHostPort(host, port), nil
}

func badEndpoint(endpoint, why string) error {
	return fmt.Errorf("%w %q: %s", ErrEndpoint, endpoint, why)
}

// name is the endpoint of what listens at an address.
func name(network string, addr net.Addr) string {
	switch network {
	case "unix":
		return "ipc://" + addr.String()
	case "inproc":
		return "inproc://" + addr.String()
	}
	return "tcp://" + addr.String()
}
