package events

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/kvcr-go/kvcr/hints/events/zmtp"
)

// Binds reports whether a publisher listens at an endpoint, rather than connecting to
// who listens there: the rule of vLLM's publisher, by the text alone. Two forms are
// ours, which vLLM would take for hosts to connect to: port 0, and the address 0.0.0.0.
func Binds(endpoint string) bool {
	return strings.Contains(endpoint, "*") || strings.Contains(endpoint, "::") || strings.HasPrefix(endpoint, "ipc://") || strings.HasPrefix(endpoint, "inproc://") ||
		strings.HasPrefix(endpoint, "tcp://0.0.0.0:") || strings.HasPrefix(endpoint, "tcp://") && strings.HasSuffix(endpoint, ":0")
}

// OffsetEndpoint returns the endpoint of a data-parallel rank: the port of a tcp
// endpoint is the rank further, the name of another one gets a suffix. A port that the
// system chooses stays so.
func OffsetEndpoint(endpoint string, rank uint32) (string, error) {
	if endpoint == "" || rank == 0 {
		return endpoint, nil
	}
	if !strings.HasPrefix(endpoint, "tcp://") {
		return fmt.Sprintf("%s_dp%d", endpoint, rank), nil
	}
	at := strings.LastIndexByte(endpoint, ':')
	if p := endpoint[at+1:]; p == "*" || p == "0" {
		return endpoint, nil
	}
	port, err := strconv.ParseUint(endpoint[at+1:], 10, 16)
	if err != nil {
		return "", fmt.Errorf("%w %q: no port to which rank %d could be added", zmtp.ErrEndpoint, endpoint, rank)
	}
	if port+uint64(rank) > 65535 {
		return "", fmt.Errorf("%w %q: port %d and rank %d exceed 65535", zmtp.ErrEndpoint, endpoint, port, rank)
	}
	return fmt.Sprintf("%s:%d", endpoint[:at], port+uint64(rank)), nil
}
