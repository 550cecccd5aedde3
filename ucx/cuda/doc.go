// Package cuda gives access to GPU memory through the CUDA driver library, and
// copies between it and host memory of this process.
//
// # The library
//
// libcuda.so.1 is opened at run time: nothing of CUDA is needed to build, and a
// program with this package starts on machines without a GPU. Open reports
// ErrNoDriver there. Without cgo or the build tag ucx every constructor reports
// ErrNotBuilt. A driver library stays loaded until the process ends, because it
// keeps threads and descriptors of its own.
//
// # Pointers
//
// A DevicePtr is a number the driver understands, not an address: the processor
// faults on it. It is never made into a Go pointer. Host memory comes as slices
// and must lie outside the Go heap, mapped until it is given back (an arena):
// the device reads and writes it while no Go code knows.
//
//	P1  A copy touches only device memory that Alloc made or Adopt looked up,
//	    and only host memory that RegisterHost registered, unless
//	    Options.Pageable allows more. Anything else is refused before the
//	    driver sees it.
//	P2  Memory with copies in flight is not given back: Free, Forget and
//	    Unregister report ErrBusy.
//	P3  A deadline of the caller ends a wait, never a copy: memory is free for
//	    other use when Done has been called, and not earlier.
//
// # Copies
//
// Submit queues a batch of spans and returns; a goroutine for each device hands
// it to the driver on up to 4 streams, at least 64 spans each. When a stream
// gets to the end of its part, the driver calls a C function that puts the
// part's number on a list and rings an eventfd, on which Go's poller waits. So
// C never calls Go, and nothing polls while nothing is in flight.
//
// The driver drops such calls when a device fails. Therefore, while copies are
// in flight and only then, streams are asked every 50 ms whether they are well.
// A device that is not is lost: its batches end with ErrDeviceLost, and their
// Result is Unsettled, since nobody can say whether the device has stopped
// writing. That memory stays registered and counted as in flight; the proof
// that ends it is the destruction of the context, which Close sees when nobody
// else in the process holds the context.
//
//	C1  Done is called exactly once for each Submit that returned nil, and not
//	    for others.
//	C2  Done comes after the driver is through with every span of the batch,
//	    also when one of them failed, Unsettled results aside.
//	C3  Spans of a batch are copied in no order. Batches are copied in no order.
//	    What the spans were written by (kernels, other copies) must have ended
//	    before Submit.
//
// # Testing
//
// The tests run on the driver of the machine, or, where there is none, on a
// double of it in C (testdata), whose device memory faults when the processor
// touches it and whose streams are threads. KVCR_LIBCUDA names another library
// to open.
package cuda
