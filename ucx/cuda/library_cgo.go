//go:build linux && cgo && ucx

package cuda

// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "driver_cgo.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// library is an open driver library. Its functions are called from any thread.
type library struct {
	path   string
	driver *C.kvcr_driver // in C memory, never freed: as long-lived as the library
	board  *C.kvcr_board

	// hostPointers has, for each device retained, whether it takes the host
	// address of registered memory. Written by Open only.
	hostPointers map[int]bool
}

// openLibrary opens the driver library and finds its functions.
func openLibrary(path string) (api, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var why [512]C.char
	l := &library{path: path, hostPointers: map[int]bool{}}
	l.driver = (*C.kvcr_driver)(C.calloc(1, C.sizeof_kvcr_driver))
	if C.kvcr_open(l.driver, name, &why[0], C.size_t(len(why))) == 0 {
		C.free(unsafe.Pointer(l.driver))
		return nil, fmt.Errorf("%w: looked for %s: %s", ErrNoDriver, path, C.GoString(&why[0]))
	}
	return l, nil
}

// check makes an error of what the driver answers; every answer passes here.
func (l *library) check(call string, r C.CUresult) error {
	if r == 0 {
		return nil
	}
	var name, text *C.char
	C.kvcr_error(l.driver, r, &name, &text)
	e := &DriverError{Call: call, Code: int(r)}
	if name != nil {
		e.Name = C.GoString(name)
	}
	if text != nil {
		e.Text = C.GoString(text)
	}
	return e
}

// Implements:
//
//	CUresult cuInit(unsigned int Flags);
//	CUresult cuDriverGetVersion(int *driverVersion);
//	CUresult cuDeviceGetCount(int *count);
//	CUresult cuDeviceGetName(char *name, int len, CUdevice dev);
//	CUresult cuDeviceTotalMem(size_t *bytes, CUdevice dev);
func (l *library) info() (Info, error) {
	i := Info{Library: l.path}
	var n C.int
	if err := l.check("cuDriverGetVersion", C.kvcr_version(l.driver, &n)); err != nil {
		return i, err
	}
	i.Version = int(n)
	if err := l.check("cuInit", C.kvcr_init(l.driver, &n)); err != nil {
		return i, err
	}
	for k := range int(n) {
		var name [256]C.char
		var total C.size_t
		r := C.kvcr_device(l.driver, C.int(k), &name[0], C.int(len(name)), &total)
		if err := l.check("cuDeviceTotalMem", r); err != nil {
			return i, fmt.Errorf("cuda: device %d: %w", k, err)
		}
		i.Devices = append(i.Devices, Device{Index: k, Name: C.GoString(&name[0]), Memory: int64(total)})
	}
	return i, nil
}

// Implements:
//
//	CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev);
//	CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev);
func (l *library) retain(device int) (uintptr, error) {
	var ctx C.uintptr_t
	var host C.int
	err := l.check("cuDevicePrimaryCtxRetain", C.kvcr_retain(l.driver, C.int(device), &ctx, &host))
	if err != nil {
		return 0, fmt.Errorf("cuda: device %d: %w", device, err)
	}
	l.hostPointers[device] = host != 0
	return uintptr(ctx), nil
}

// Implements:
//
//	CUresult cuDevicePrimaryCtxRelease(CUdevice dev);
func (l *library) release(device int) error {
	return l.check("cuDevicePrimaryCtxRelease", C.kvcr_release(l.driver, C.int(device)))
}

// Implements:
//
//	CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active);
func (l *library) active(device int) (bool, error) {
	var on C.int
	err := l.check("cuDevicePrimaryCtxGetState", C.kvcr_active(l.driver, C.int(device), &on))
	return on != 0, err
}

func (l *library) batches(device int) bool {
	return l.driver.copyBatch != nil && l.hostPointers[device]
}
