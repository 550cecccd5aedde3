package ucx

import "time"

// Options describes a context. The zero Options is valid; every zero field means
// the default its comment names.
type Options struct {
	// Transports are names of UCX transports (UCX_TLS), as `ucx_info -d` prints
	// them. Default: tcp. Shared memory transports cannot report a dead peer, so
	// endpoints over them alone are refused by UCX.
	Transports []string

	// Devices restricts the network devices (UCX_NET_DEVICES). Default: all; for
	// tcp all but bridges without a physical port, such as docker0.
	Devices []string

	// Settings are further UCX settings, names without the prefix UCX_.
	Settings map[string]string

	// Puts lets workers of this context put into peers' memory and be put into. On
	// devices that write unaided a peer can then reach what its keys cover. Where
	// UCX emulates puts (tcp) nothing checks a key: every connected peer can then
	// write anywhere in this process. Default: sends and receives only.
	Puts bool

	// MaxRegions and MaxRegisteredBytes bound what Register takes. Defaults: 256
	// regions, 1 TiB. Both are arbitrary; they exist so that a loop that forgets
	// to deregister ends in an error and not in exhausted device tables.
	MaxRegions         int
	MaxRegisteredBytes int64
}

// WorkerOptions describes a worker. The zero WorkerOptions is valid.
type WorkerOptions struct {
	// MaxRequests bounds operations in flight; their table is reserved by
	// NewWorker (about 200 bytes each). Default 4096, at most 1 Mi.
	MaxRequests int

	// MaxEndpoints bounds open endpoints, MaxKeys imported keys for each of them.
	// Defaults 1024 and 64, at most 64 Ki each.
	MaxEndpoints int
	MaxKeys      int

	// Spin is how long the progress goroutine keeps polling without progress
	// before it waits in Go's poller. Default 0: no spinning. It yields between
	// polls, but keeps a processor busy; negative is refused.
	Spin time.Duration
}

// Setting is one UCX setting this package chose, and where its value came from.
type Setting struct {
	Name   string // without the prefix UCX_
	Value  string
	Source string // "default" (this package's), "option", or "environment"
	Why    string // for defaults of this package
}

// MemoryType says where registered memory lies.
type MemoryType uint8

// The memory types UCX knows.
const (
	Host MemoryType = iota
	CUDA
	CUDAManaged
	ROCm
	ROCmManaged
	memoryTypes
)

var memoryTypeText = [...]string{"host", "cuda", "cuda-managed", "rocm", "rocm-managed"}

func (t MemoryType) String() string {
	if int(t) < len(memoryTypeText) {
		return memoryTypeText[t]
	}
	return "invalid"
}

// Kind is what an Op does.
type Kind uint8

// The operations.
const (
	// OpPut writes Len bytes at Off of Mem to RemoteOff of Key.
	OpPut Kind = iota + 1
	// OpSend sends Len bytes at Off of Mem to the receive with the same Tag.
	OpSend
	// OpRecv receives at most Len bytes to Off of Mem from whoever sends Tag.
	OpRecv
	// OpFlush completes when every operation submitted before it on Endpoint is
	// complete at the peer.
	OpFlush
)

var kindText = [...]string{"invalid", "put", "send", "recv", "flush"}

func (k Kind) String() string {
	if int(k) < len(kindText) {
		return kindText[k]
	}
	return "invalid"
}

// Op is one operation. Submit copies it.
type Op struct {
	Kind     Kind
	Endpoint *Endpoint  // put, send, flush
	Mem      *Memory    // put, send, recv
	Off, Len uint64     // bytes, within Mem
	Tag      uint64     // send, recv: matched whole
	Key      *RemoteKey // put: imported on Endpoint

	RemoteOff uint64 // put: bytes from the start of the peer's region

	// Done is called once, on the progress goroutine. It must not be nil. A
	// function value that is kept for many operations costs no allocation.
	Done func(Completion)

	// User comes back in the Completion.
	User uint64
}

// Request names an operation in flight, for Cancel. It is never reused within
// 4 Gi operations of one slot, so a late Cancel hits nobody else. The zero
// Request names nothing.
type Request uint64

// Completion is the end of one operation.
type Completion struct {
	Request Request
	Kind    Kind
	User    uint64
	Bytes   uint64 // received, sent or written; 0 after an error
	Err     error  // nil, or a Status
}

// WorkerStats counts since NewWorker.
type WorkerStats struct {
	Submitted, Completed, Failed uint64 // operations
	Crossings                    uint64 // calls into C that progressed the worker
	Parks                        uint64 // waits in Go's poller
	InFlight                     int
	Endpoints                    int
}

const (
	// registerChunk is the most one registration of UCX covers: larger regions
	// are registered in pieces, so that progress can be shown and pinning of many
	// gigabytes does not sit in one call.
	registerChunk = 1 << 30

	// closeGrace bounds what the closing of a failed endpoint waits for UCX to
	// end its operations, before it is closed over them.
	closeGrace = time.Second

	maxRequests  = 1 << 20
	maxEndpoints = 1 << 16
)

func (o WorkerOptions) withDefaults() (WorkerOptions, error) {
	for _, f := range []struct {
		v        *int
		def, max int
	}{{&o.MaxRequests, 4096, maxRequests}, {&o.MaxEndpoints, 1024, maxEndpoints}, {&o.MaxKeys, 64, maxEndpoints}} {
		if *f.v == 0 {
			*f.v = f.def
		}
		if *f.v < 0 || *f.v > f.max {
			return o, ErrInvalid
		}
	}
	if o.Spin < 0 {
		return o, ErrInvalid
	}
	return o, nil
}

func (o Options) withDefaults() (Options, error) {
	if len(o.Transports) == 0 {
		o.Transports = []string{"tcp"}
	}
	if o.MaxRegions == 0 {
		o.MaxRegions = 256
	}
	if o.MaxRegisteredBytes == 0 {
		o.MaxRegisteredBytes = 1 << 40
	}
	if o.MaxRegions < 0 || o.MaxRegisteredBytes < 0 {
		return o, ErrInvalid
	}
	return o, nil
}
