package peer

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"time"

	"github.com/kvcr-go/kvcr/internal/listen"
	"github.com/kvcr-go/kvcr/wire"
)

// Config describes a node. Records is required; every other zero field means the
// default its comment names.
type Config struct {
	// Self is this life of the process. Default random.
	Self Incarnation
	// Name is told to peers, for people; at most wire.MaxName bytes.
	Name string
	// Listen are the addresses at which peers reach this node:
	// tcp://host:port or unix:///path. Port 0 takes a free one, see
	// Node.Endpoints. None: the node can only fetch.
	Listen []string
	// Advertise is told to peers as the address to dial; default the first of
	// Listen.
	Advertise string
	// Public allows addresses that are not loopback without a secret.
	Public bool
	// Secret is what peers must prove to have, at least wire.MinSecret bytes.
	// Empty: none is asked for, and none is accepted.
	Secret []byte
	// Records is the block table.
	Records Records
	// Routes are the ways for payload that may be used, in order of preference.
	// Default: shm, UCX where there is one, stream.
	Routes []wire.Route
	// UCX is the route over UCX. nil: none.
	UCX Route
	// Streams is the number of payload connections for each peer of which this
	// node fetches over route stream: 1 to 16, default 2.
	Streams int
	// Timing is how long the machines wait.
	Timing Timing

	// MaxPeers bounds the peers fetched from, and those that fetch from here. One that
	// is known by several endpoints, of which there may be 8, counts as many times.
	// Default 1024 each.
	MaxPeers int
	// MaxOps bounds the operations with one peer by one endpoint, in either direction.
	// Default 1024.
	MaxOps int
	// MaxQuarantine is how many bytes of memory that peers may still write, beyond
	// its time, are borne before operations are refused. Default 1 GiB.
	MaxQuarantine int64
	// MaxOutbound is how many bytes of messages, of all peers together, may wait for
	// peers to read them. Beyond it a connection that has more than 64 KiB waiting is
	// closed, and each is at 16 MiB. Default 256 MiB.
	MaxOutbound int64
	// Handshakes bounds the connections that have not proved anything yet.
	// Default 64; more are closed at once.
	Handshakes int
	// HandshakeTimeout is all the time that a handshake has. Default 5 s.
	HandshakeTimeout time.Duration
	// Stall is how long a connection may take nothing that waits for it, or bring
	// nothing of a block that has begun, before it is closed. Default 10 s.
	Stall time.Duration
	// Loops is the number of event loops for control connections. Default 1 for
	// each two processors, at most 4.
	Loops int

	// Fingerprint is that of a namespace's layout, which both sides compare. nil,
	// or all zero: not compared.
	Fingerprint func(namespace string) [32]byte
	// Layout describes what Fingerprint is of, for what differs to be named. nil: it is
	// not.
	Layout func(namespace string) string
	// Resolver tells the keys of hashes that peers ask for, and has them answered by
	// Records; one that is a Describer describes the blocks as well. nil: peers hear
	// that this node does not resolve hashes.
	Resolver Resolver
	// ResolveTimeout is all the time that Resolve has. Default 5 s.
	ResolveTimeout time.Duration
	// Namespace is the one whose blocks will most likely be asked for: connections that
	// Resolve makes are made for it, as far as routes care (shm). Default none.
	Namespace string
	// Pinner lends blocks of the host program to sources. nil: none.
	Pinner Pinner
	// OnOutcome hears how moves ended. It must not block.
	OnOutcome func(Outcome)
	// OnTrouble hears of memory that a peer may still write beyond its time, and
	// of the end of that. It must not block.
	OnTrouble func(Trouble)
	// Logger; default discards.
	Logger *slog.Logger
}

// Pinner lends blocks of the host program for one operation. done is called exactly
// once, from any goroutine, perhaps before Ask returns; stop has it called with
// what there is by then. The claims are given back to the Records.
type Pinner interface {
	Ask(namespace string, indices []int, keys [][]byte, done func([]PinnedItem)) (stop func())
}

// Trouble is a report about memory that a peer may still write.
type Trouble struct {
	Endpoint string
	Op       OpID
	Index    int
	Bytes    int64
	// Quiesced: that has been ruled out by now. Each report without it is followed
	// by one with it.
	Quiesced bool
}

// ConfigError says which field of a Config is wrong.
type ConfigError struct {
	Field string
	Value any
	Fix   string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("peer: Config.%s is %v: %s", e.Field, e.Value, e.Fix)
}

func (c *Config) withDefaults() {
	for c.Self == 0 {
		c.Self = Incarnation(rand.Uint64())
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if len(c.Routes) == 0 {
		c.Routes = []wire.Route{wire.RouteShm}
		if c.UCX != nil {
			c.Routes = append(c.Routes, c.UCX.Kind())
		}
		c.Routes = append(c.Routes, wire.RouteStream)
	}
	number := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	number(&c.Streams, 2)
	number(&c.MaxPeers, 1024)
	number(&c.MaxOps, 1024)
	number(&c.Handshakes, 64)
	number(&c.Loops, max(1, min(4, runtime.GOMAXPROCS(0)/2)))
	if c.MaxQuarantine == 0 {
		c.MaxQuarantine = 1 << 30
	}
	if c.MaxOutbound == 0 {
		c.MaxOutbound = 256 << 20
	}
	if c.HandshakeTimeout == 0 {
		c.HandshakeTimeout = 5 * time.Second
	}
	if c.Stall == 0 {
		c.Stall = 10 * time.Second
	}
	if c.ResolveTimeout == 0 {
		c.ResolveTimeout = 5 * time.Second
	}
	c.Timing = c.Timing.withDefaults()
}

// Check says what is wrong with a configuration, all at once, as Open would; of
// Records and Routes only Open can tell.
func (c Config) Check() error {
	c.Routes = []wire.Route{wire.RouteStream}
	c.withDefaults()
	return c.check()
}

func (c *Config) validate() error {
	if c.Records == nil {
		return errors.Join(&ConfigError{"Records", nil, "a node needs a block table"}, c.check())
	}
	return c.check()
}

func (c *Config) check() error {
	var errs []error
	bad := func(field string, value any, fix string) {
		errs = append(errs, &ConfigError{field, value, fix})
	}
	if len(c.Name) > wire.MaxName {
		bad("Name", fmt.Sprintf("%d bytes", len(c.Name)), fmt.Sprintf("use at most %d", wire.MaxName))
	}
	if len(c.Namespace) > wire.MaxName {
		bad("Namespace", fmt.Sprintf("%d bytes", len(c.Namespace)), fmt.Sprintf("use at most %d", wire.MaxName))
	}
	if len(c.Advertise) > wire.MaxName {
		bad("Advertise", fmt.Sprintf("%d bytes", len(c.Advertise)), fmt.Sprintf("use at most %d", wire.MaxName))
	}
	if len(c.Secret) > 0 {
		if err := wire.CheckSecret(c.Secret); err != nil {
			bad("Secret", fmt.Sprintf("%d bytes", len(c.Secret)), fmt.Sprintf("use at least %d", wire.MinSecret))
		}
	}
	if c.Streams < 1 || c.Streams > 16 {
		bad("Streams", c.Streams, "use 1 to 16")
	}
	for _, r := range c.Routes {
		switch {
		case r == wire.RouteShm || r == wire.RouteStream:
		case c.UCX != nil && c.UCX.Kind() == r:
		default:
			bad("Routes", r, "use shm, stream, or that of Config.UCX")
		}
	}
	if c.ResolveTimeout < 0 {
		bad("ResolveTimeout", c.ResolveTimeout, "use a time, or 0 for the default")
	}
	if c.MaxQuarantine < 1 {
		bad("MaxQuarantine", c.MaxQuarantine, "use at least 1 byte")
	}
	for field, v := range map[string]int{"MaxPeers": c.MaxPeers, "MaxOps": c.MaxOps, "Handshakes": c.Handshakes, "Loops": c.Loops, "MaxOutbound": int(c.MaxOutbound)} {
		if v < 1 {
			bad(field, v, "use at least 1")
		}
	}
	for _, a := range c.Listen {
		network, addr, err := splitEndpoint(a)
		switch {
		case err != nil:
			bad("Listen", a, err.Error())
		case network == "tcp" && len(c.Secret) == 0 && !c.Public && !listen.Loopback(addr):
			bad("Listen", a, "set a secret, listen on loopback, or allow it with Public")
		}
	}
	return errors.Join(errs...)
}

// CheckEndpoint says what is wrong with an address of Config.Listen.
func CheckEndpoint(e string) error {
	_, _, err := splitEndpoint(e)
	return err
}

// splitEndpoint takes tcp://host:port and unix:///path apart.
func splitEndpoint(e string) (network, addr string, err error) {
	if path, ok := strings.CutPrefix(e, "unix://"); ok {
		if path == "" {
			return "", "", errors.New("name a path, as in unix:///run/kvcr.sock")
		}
		return "unix", path, nil
	}
	addr, ok := strings.CutPrefix(e, "tcp://")
	if !ok {
		return "", "", errors.New("begin with tcp:// or unix://")
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" || port == "" {
		return "", "", errors.New("name host and port, as in tcp://10.0.0.1:7070")
	}
	return "tcp", addr, nil
}
