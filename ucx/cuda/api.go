package cuda

// api is the driver library as the rest of this package sees it: the C side
// implements it, so that everything but the calls themselves is plain Go.
// Handles (contexts, streams) are the driver's pointers as numbers. Every call
// but query may block and is made without a lock.
type api interface {
	info() (Info, error)

	// retain and release count a device's primary context; active says whether
	// it still exists, for whoever else holds it.
	retain(device int) (ctx uintptr, err error)
	release(device int) error
	active(device int) (bool, error)

	pointer(ctx, addr uintptr) (PointerInfo, error)
	alloc(ctx uintptr, size int64) (DevicePtr, error)
	free(ctx uintptr, p DevicePtr) error
	register(ctx, addr uintptr, size int64) error
	unregister(ctx, addr uintptr) error

	stream(ctx uintptr) (uintptr, error)
	destroy(ctx, stream uintptr) error
	// query reports whether a stream has work left, or why its device is lost.
	query(ctx, stream uintptr) (idle bool, err error)
	synchronize(ctx, stream uintptr) error

	// batches reports whether the library has a call for many copies that takes
	// host addresses as they are; on some devices registered memory has a second
	// address, which only the single copies look up.
	batches(device int) bool
	// issue puts copies on a stream, and after them the notice with the given
	// number.
	issue(i *issue) issued

	// openBoard makes the list of notices numbered below n, and its eventfd,
	// which belongs to the caller.
	openBoard(n int) (fd int, err error)
	// take moves all notices into buf, which has room for n, and returns how
	// many there are.
	take(buf []uint32) int
	// closeBoard frees the list. No notice may be outstanding.
	closeBoard()
}

// issue is one part of a batch: what one stream gets at a time. The numbers are
// host addresses and device pointers; both are fixed while the batch lives.
type issue struct {
	ctx, stream    uintptr
	dir            Direction
	dst, src, size []uint64
	batch          bool   // try the call for many copies
	notice         uint32 // number of the notice
}

// issued says what became of an issue.
type issued struct {
	err       error // the copies, or some of them, were refused
	announced bool  // the notice will come, unless the device is lost
	refused   bool  // the call for many copies is not usable on this driver
}
