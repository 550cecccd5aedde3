package cuda

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	defaultLibrary = "libcuda.so.1"
	libraryEnv     = "KVCR_LIBCUDA"

	// maxStreams and minSpans shape how a batch is spread: more streams than
	// copy engines gain nothing, and a stream costs a notice, which is dear
	// beside a few spans.
	maxStreams = 4
	minSpans   = 64
)

// Options say what to open. The zero Options open the machine's driver and use
// every device.
type Options struct {
	// Library is the driver library: a path, or a name for the loader. Default
	// the environment's KVCR_LIBCUDA, else libcuda.so.1.
	Library string

	// Devices are the ordinals to use; nil means all. A device in use costs
	// some hundred MiB of its memory for the context.
	Devices []int

	// MaxBatches caps the batches queued and in flight on one device, 1 to
	// 4096. Default 64.
	MaxBatches int

	// MaxSpans caps the spans of one batch, 1 to 1048576. Default 16384.
	MaxSpans int

	// HostLimit caps the host bytes registered at one time. Default: the
	// machine's memory.
	HostLimit int64

	// HostChunk is how many bytes of host memory are registered in one call of
	// the driver, a multiple of the page size. A call cannot be interrupted;
	// 1 GiB takes some tenths of a second. Default 1 GiB.
	HostChunk int64

	// Pageable allows copies of host memory that is not registered. The driver
	// then copies twice, and other batches of the device wait meanwhile.
	Pageable bool

	// CloseTimeout bounds Close. Default 5 s.
	CloseTimeout time.Duration
}

func (o Options) withDefaults() Options {
	if o.Library == "" {
		o.Library = os.Getenv(libraryEnv)
	}
	if o.Library == "" {
		o.Library = defaultLibrary
	}
	if o.MaxBatches == 0 {
		o.MaxBatches = 64
	}
	if o.MaxSpans == 0 {
		o.MaxSpans = 16384
	}
	if o.HostLimit == 0 {
		var si unix.Sysinfo_t
		if unix.Sysinfo(&si) == nil {
			o.HostLimit = int64(si.Totalram) * int64(si.Unit)
		}
	}
	if o.HostChunk == 0 {
		o.HostChunk = 1 << 30
	}
	if o.CloseTimeout == 0 {
		o.CloseTimeout = 5 * time.Second
	}
	return o
}

func (o Options) validate() error {
	switch page := int64(os.Getpagesize()); {
	case o.MaxBatches < 1 || o.MaxBatches > 4096:
		return &OptionError{"MaxBatches", strconv.Itoa(o.MaxBatches), "1 to 4096"}
	case o.MaxSpans < 1 || o.MaxSpans > 1<<20:
		return &OptionError{"MaxSpans", strconv.Itoa(o.MaxSpans), "1 to 1048576"}
	case o.HostLimit < 0:
		return &OptionError{"HostLimit", strconv.FormatInt(o.HostLimit, 10), "bytes, 0 for the machine's memory"}
	case o.HostChunk < page || o.HostChunk%page != 0:
		return &OptionError{"HostChunk", strconv.FormatInt(o.HostChunk, 10), fmt.Sprintf("a multiple of the page size of %d", page)}
	case o.CloseTimeout < 0:
		return &OptionError{"CloseTimeout", o.CloseTimeout.String(), "a positive duration"}
	}
	seen := map[int]bool{}
	for _, n := range o.Devices {
		if n < 0 || seen[n] {
			return &OptionError{"Devices", fmt.Sprint(o.Devices), "each ordinal once, from 0"}
		}
		seen[n] = true
	}
	return nil
}

// Info is what a driver library says of itself.
type Info struct {
	Library string   // what was opened
	Version int      // of the driver: 1000*major + 10*minor
	Devices []Device // all of the machine, used or not
}

// VersionString is the version as people write it: "12.8".
func (i Info) VersionString() string {
	return fmt.Sprintf("%d.%d", i.Version/1000, i.Version%1000/10)
}

// Device is one GPU.
type Device struct {
	Index  int    // the ordinal, as CUDA_VISIBLE_DEVICES leaves it
	Name   string // "NVIDIA H100 80GB HBM3"
	Memory int64  // bytes
}

// DevicePtr is a position in a device's memory. It is no address: only the
// driver can use it. The zero DevicePtr is none.
type DevicePtr uint64

func (p DevicePtr) String() string { return "0x" + strconv.FormatUint(uint64(p), 16) }

// MemoryType says whose memory a pointer leads to.
type MemoryType uint8

const (
	Unregistered MemoryType = iota // unknown to the driver
	Host                           // host memory the driver has registered or allocated
	DeviceMemory                   // memory of a device
	Managed                        // memory that moves between host and devices
)

func (t MemoryType) String() string {
	switch t {
	case Host:
		return "host"
	case DeviceMemory:
		return "device"
	case Managed:
		return "managed"
	}
	return "unregistered"
}

// PointerInfo is what the driver knows of a pointer. All but Type is zero when
// the memory is unregistered.
type PointerInfo struct {
	Type   MemoryType
	Device int     // the device of the memory, or that registered it
	Base   uintptr // where the allocation or registration begins
	Size   int64   // its bytes
}

// Direction says which side of a Copy is written.
type Direction uint8

const (
	ToDevice Direction = iota + 1 // host memory is read, device memory written
	ToHost                        // device memory is read, host memory written
)

func (d Direction) String() string {
	switch d {
	case ToDevice:
		return "to device"
	case ToHost:
		return "to host"
	}
	return "direction " + strconv.Itoa(int(d))
}

// Span is a piece of a device's memory.
type Span struct {
	Ptr  DevicePtr
	Size int64 // bytes
}

// Copy is a batch: Host[i] and Mem[i] are the two sides of span i and have the
// same number of bytes. Spans that are written must not overlap.
//
// The Driver owns both slices, and the bytes of both sides, from Submit until
// Done.
type Copy struct {
	Direction Direction
	Device    int // the ordinal of the device all of Mem lies on
	Host      [][]byte
	Mem       []Span

	// Done gets the result, on a goroutine of the Driver. It must not block
	// and must not call Close; it may call Submit.
	Done func(Result)
}

// Result is how a batch ended.
type Result struct {
	// Err is nil when every span was copied. Otherwise the bytes of the
	// written side are undefined.
	Err error
	// Bytes of the spans; 0 when Err is not nil.
	Bytes int64
	// Unsettled: the device failed and may still write host memory or read it.
	// The caller must not use that memory again until Close returned nil.
	Unsettled bool
}

// Stats are counts since Open, aside from those that say "now".
type Stats struct {
	Batches, Failed   uint64 // batches that ended; those of them with an error
	Spans             uint64 // copied
	ToDevice, ToHost  uint64 // bytes copied
	InFlight          int    // batches queued or in flight now
	Allocated         int64  // bytes of device memory from Alloc now
	Registered        int64  // bytes of host memory registered now
	BatchCall         bool   // copies go to the driver as batches; false once refused
	LostDevices       int    // devices that failed
	UnsettledBatches  int    // batches whose memory a lost device may still touch
	SlowNotifications uint64 // parts waited for by blocking, as their notice was refused
}
