package main

import (
	"reflect"
)

// engineFlags are the settings as flags. Each is a string, nil when not given:
// settings.go knows their meaning and defaults.
type engineFlags struct {
	File string `name:"config" placeholder:"FILE" help:"YAML file with settings (also KVCR_CONFIG)."`

	Capacity         *string `group:"Engine" placeholder:"SIZE" help:"Payload memory (auto: what the machine leaves)."`
	Block            *string `group:"Engine" placeholder:"SIZE" help:"Bytes of one block; 0 for size classes."`
	Kind             *string `group:"Engine" placeholder:"KIND" help:"flat or chained."`
	Policy           *string `group:"Engine" placeholder:"NAME" help:"Eviction policy."`
	MaxValue         *string `group:"Engine" placeholder:"SIZE" help:"Largest value of size classes."`
	MeanValue        *string `group:"Engine" placeholder:"SIZE" help:"Expected value size."`
	MaxBlocks        *string `group:"Engine" placeholder:"N" help:"Largest number of blocks."`
	Checksums        *string `group:"Engine" placeholder:"MODE" help:"on, off or auto."`
	VerifyReads      *string `group:"Engine" placeholder:"BOOL" help:"Check copies against their checksum."`
	Watermark        *string `group:"Engine" placeholder:"PERCENT" help:"Pressure watermark."`
	Shards           *string `group:"Engine" placeholder:"N" help:"Shards of a flat namespace."`
	Pin              *string `group:"Engine" placeholder:"CPUS" help:"CPUs for pinned owners."`
	Pages            *string `group:"Engine" placeholder:"KIND" help:"auto, 1G, 2M, thp, base."`
	StrictPages      *string `group:"Engine" placeholder:"BOOL" help:"Refuse other pages."`
	Backing          *string `group:"Engine" placeholder:"KIND" help:"anonymous, memfd or file."`
	Path             *string `group:"Engine" placeholder:"PATH" help:"Place of file backing."`
	Numa             *string `group:"Engine" placeholder:"MODE:NODES" help:"Memory nodes."`
	Lock             *string `group:"Engine" placeholder:"BOOL" help:"Lock payload memory."`
	Prefault         *string `group:"Engine" placeholder:"BOOL" help:"Touch all memory at start."`
	MaxHandles       *string `group:"Engine" placeholder:"N" help:"Handles open at once."`
	OperationTimeout *string `group:"Engine" placeholder:"DURATION" help:"Time for remote fetches."`
	Seed             *string `group:"Engine" placeholder:"N" help:"Seed of sampling."`
}

// nodeFlags are the settings of serve as flags.
type nodeFlags struct {
	Resp             *string `group:"Node" placeholder:"ADDR,..." help:"Addresses for RESP clients (127.0.0.1:6380)."`
	Listen           *string `group:"Node" placeholder:"ADDR,..." help:"Addresses for binary clients (${node})."`
	Http             *string `group:"Node" placeholder:"ADDR" help:"Status page, health, metrics (127.0.0.1:7380)."`
	Public           *string `group:"Node" placeholder:"BOOL" help:"Allow other addresses than loopback without a secret."`
	HttpPublic       *string `group:"Node" placeholder:"BOOL" help:"The same for HTTP."`
	PasswordFile     *string `group:"Node" placeholder:"FILE" help:"Password of RESP clients."`
	SecretFile       *string `group:"Node" placeholder:"FILE" help:"Secret of binary clients."`
	AllowFlush       *string `group:"Node" placeholder:"BOOL" help:"Allow FLUSHALL."`
	PairSuffixes     *string `group:"Node" placeholder:"A,B" help:"Suffixes of keys that live and die in pairs."`
	Debug            *string `group:"Node" placeholder:"BOOL" help:"Serve /debug/pprof."`
	Loops            *string `group:"Node" placeholder:"N" help:"Event loops."`
	MaxConns         *string `group:"Node" placeholder:"N" help:"Connections at once."`
	OutboundCap      *string `group:"Node" placeholder:"SIZE" help:"Answers waiting for one connection."`
	StagingCap       *string `group:"Node" placeholder:"SIZE" help:"Shared memory one client may write to."`
	StagingTotal     *string `group:"Node" placeholder:"SIZE" help:"The same for all clients."`
	HandshakeTimeout *string `group:"Node" placeholder:"DURATION" help:"Time to authenticate."`
	IdleTimeout      *string `group:"Node" placeholder:"DURATION" help:"Time without a command."`
	WriteTimeout     *string `group:"Node" placeholder:"DURATION" help:"Time without taking answers."`
	DrainTimeout     *string `group:"Node" placeholder:"DURATION" help:"Time to finish when told to stop."`
	LogLevel         *string `group:"Node" placeholder:"LEVEL" help:"debug, info, warn, error."`
}

// peerFlags are the settings of serve about other nodes as flags.
type peerFlags struct {
	PeerListen     *string `group:"Peers" placeholder:"ADDR,..." help:"Addresses for other nodes: tcp://host:port, unix:///path."`
	PeerAdvertise  *string `group:"Peers" placeholder:"ADDR" help:"The address that they are told."`
	PeerSecretFile *string `group:"Peers" placeholder:"FILE" help:"Secret shared with them."`
	PeerRoutes     *string `group:"Peers" placeholder:"NAME,..." help:"Ways for payload: shm, ucx, stream."`
	PeerStreams    *string `group:"Peers" placeholder:"N" help:"Payload connections for each."`
	PeerPublic     *string `group:"Peers" placeholder:"BOOL" help:"Allow other addresses than loopback without a secret."`
}

// routerFlags are the settings of serve about routers as flags.
type routerFlags struct {
	HashRecipe    *string `group:"Routers" placeholder:"RECIPE" help:"How keys of blocks are made: dynamo/xxh3-1337/bs64, vllm/sha256/low64/bs16; empty: no hints."`
	WorkerId      *string `group:"Routers" placeholder:"N" help:"By which routers know this node."`
	Rank          *string `group:"Routers" placeholder:"N" help:"Among those of its worker."`
	Events        *string `group:"Routers" placeholder:"ENDPOINT" help:"Publish KV events as vLLM does (tcp://127.0.0.1:5557)."`
	EventsConnect *string `group:"Routers" placeholder:"BOOL" help:"Connect to a router that listens there, instead."`
	EventsReplay  *string `group:"Routers" placeholder:"ENDPOINT" help:"Repeat those that were missed (tcp://127.0.0.1:5558)."`
	EventsTopic   *string `group:"Routers" placeholder:"TEXT" help:"What goes before each."`
	EventsForm    *string `group:"Routers" placeholder:"FORM" help:"map or array."`
	EventPlane    *string `group:"Routers" placeholder:"ENDPOINT" help:"Publish events as Dynamo does (tcp://127.0.0.1:0)."`
}

// given returns the flags that were set, by name. groups are pointers to structs
// of flags.
func given(groups ...any) map[string]string {
	out := map[string]string{}
	for _, g := range groups {
		v := reflect.ValueOf(g).Elem()
		for i := range v.NumField() {
			if p, ok := v.Field(i).Interface().(*string); ok && p != nil {
				out[kebab(v.Type().Field(i).Name)] = *p
			}
		}
	}
	return out
}

// kebab turns MaxValue into max-value, as kong does for flags.
func kebab(name string) string {
	var out []byte
	for i, c := range []byte(name) {
		if c >= 'A' && c <= 'Z' {
			if i > 0 {
				out = append(out, '-')
			}
			c += 'a' - 'A'
		}
		out = append(out, c)
	}
	return string(out)
}

// resolve merges flags, environment and file.
func (f *engineFlags) resolve(e *env, more ...any) (values, *engineConfig, error) {
	vs, cfg, err := resolve(given(append(more, f)...), e.environ, e.configFile(f.File))
	if err == nil {
		err = settlePeers(vs, cfg)
	}
	if err == nil {
		err = settleRouter(vs, cfg)
	}
	if err != nil {
		return nil, nil, usageError{err}
	}
	return vs, cfg, nil
}
