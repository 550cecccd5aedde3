//go:build !(linux && cgo && ucx)

package ucx

import "time"

// Built says whether this binary has UCX.
const Built = false

// Version is the version of the UCX library in use: none.
func Version() string { return "" }

// Context, Worker, Endpoint, Memory and RemoteKey cannot be made in this build;
// their methods exist so that callers compile. See the build with UCX.
type (
	Context   struct{}
	Worker    struct{}
	Endpoint  struct{}
	Memory    struct{}
	RemoteKey struct{}
)

// Open returns ErrNotBuilt.
func Open(Options) (*Context, error) { return nil, ErrNotBuilt }

// Settings is empty.
func (*Context) Settings() []Setting { return nil }

// Supports is false.
func (*Context) Supports(MemoryType) bool { return false }

// Close does nothing.
func (*Context) Close() error { return nil }

// Register returns ErrNotBuilt.
func (*Context) Register([]byte, func(done, total uint64) bool) (*Memory, error) {
	return nil, ErrNotBuilt
}

// RegisterAt returns ErrNotBuilt.
func (*Context) RegisterAt(uintptr, uint64, MemoryType, func(done, total uint64) bool) (*Memory, error) {
	return nil, ErrNotBuilt
}

// NewWorker returns ErrNotBuilt.
func (*Context) NewWorker(WorkerOptions) (*Worker, error) { return nil, ErrNotBuilt }

// Deregister does nothing.
func (*Memory) Deregister() error { return nil }

// Size is 0.
func (*Memory) Size() uint64 { return 0 }

// OffsetOf returns ErrNotBuilt.
func (*Memory) OffsetOf([]byte) (uint64, error) { return 0, ErrNotBuilt }

// Key returns ErrNotBuilt.
func (*Memory) Key() ([]byte, error) { return nil, ErrNotBuilt }

// Address is nil.
func (*Worker) Address() []byte { return nil }

// Connect returns ErrNotBuilt.
func (*Worker) Connect([]byte, func(error)) (*Endpoint, error) { return nil, ErrNotBuilt }

// Submit returns ErrNotBuilt.
func (*Worker) Submit([]Op, []Request) (int, error) { return 0, ErrNotBuilt }

// Start returns ErrNotBuilt.
func (*Worker) Start(Op) (Request, error) { return 0, ErrNotBuilt }

// Cancel does nothing.
func (*Worker) Cancel(Request) {}

// Stats is zero.
func (*Worker) Stats() WorkerStats { return WorkerStats{} }

// Close does nothing.
func (*Worker) Close(time.Duration) error { return nil }

// Err returns ErrNotBuilt.
func (*Endpoint) Err() error { return ErrNotBuilt }

// Import returns ErrNotBuilt.
func (*Endpoint) Import([]byte) (*RemoteKey, error) { return nil, ErrNotBuilt }

// Close does nothing.
func (*Endpoint) Close(time.Duration) error { return nil }

// Abort does nothing.
func (*Endpoint) Abort() {}

// Closed is nil.
func (*Endpoint) Closed() <-chan struct{} { return nil }

// Size is 0.
func (*RemoteKey) Size() uint64 { return 0 }

// Type is Host.
func (*RemoteKey) Type() MemoryType { return Host }

// Close does nothing.
func (*RemoteKey) Close() {}
