//go:build linux && cgo && ucx

package ucx

/*
#cgo pkg-config: ucx
#cgo CFLAGS: -std=gnu11 -O2 -Wall
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "core.h"
*/
import "C"

import (
	"fmt"
	"os"
	"sync"
	"unsafe"
)

// Built says whether this binary has UCX.
const Built = true

// Version is the version of the UCX library in use.
func Version() string {
	var major, minor, release C.uint
	C.ucp_get_version(&major, &minor, &release)
	return fmt.Sprintf("%d.%d.%d", major, minor, release)
}

// Context is one instance of UCX: its devices and the memory registered with
// them. Safe for use by many goroutines.
type Context struct {
	settings []Setting
	limits   Options
	types    uint64 // bit i: MemoryType i
	chunk    uint64 // registerChunk; less in tests

	mu      sync.Mutex
	ucp     C.ucp_context_h // nil after Close
	workers int
	regions int
	bytes   int64 // registered, or about to be
}

// statusError turns every return code of UCX into an error.
func statusError(op string, s C.ucs_status_t) error {
	if s == C.UCS_OK {
		return nil
	}
	return &OpError{Op: op, Err: Status(s)}
}

// Open makes a context. It opens devices, which takes milliseconds.
//
// Implements:
//
//	ucs_status_t ucp_config_read(const char *env_prefix, const char *filename, ucp_config_t **config_p);
//	ucs_status_t ucp_config_modify(ucp_config_t *config, const char *name, const char *value);
//	ucs_status_t ucp_init(const ucp_params_t *params, const ucp_config_t *config, ucp_context_h *context_p);
//	ucs_status_t ucp_context_query(ucp_context_h context_p, ucp_context_attr_t *attr);
func Open(o Options) (*Context, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Context{limits: o, chunk: registerChunk}
	if c.settings, err = chooseSettings(o, os.LookupEnv); err != nil {
		return nil, err
	}
	c.settings = leaveOutBridges(c.settings, o, os.LookupEnv, "/sys/class/net")
	var config *C.ucp_config_t
	if err := statusError("ucp_config_read", C.ucp_config_read(nil, nil, &config)); err != nil {
		return nil, err
	}
	defer C.ucp_config_release(config)
	for _, s := range c.settings {
		if s.Source == "environment" {
			continue // UCX has read it
		}
		name, value := C.CString(modifyName(s.Name, Version())), C.CString(s.Value)
		status := C.ucp_config_modify(config, name, value)
		C.free(unsafe.Pointer(name))
		C.free(unsafe.Pointer(value))
		if err := statusError("ucp_config_modify", status); err != nil {
			return nil, fmt.Errorf("setting UCX_%s=%s: %w", s.Name, s.Value, err)
		}
	}
	params := C.ucp_params_t{
		field_mask: C.UCP_PARAM_FIELD_FEATURES | C.UCP_PARAM_FIELD_MT_WORKERS_SHARED,
		features:   C.UCP_FEATURE_TAG | C.UCP_FEATURE_AM | C.UCP_FEATURE_WAKEUP,
		// Register runs beside the workers' goroutines.
		mt_workers_shared: 1,
	}
	if o.Puts {
		params.features |= C.UCP_FEATURE_RMA
	}
	if err := statusError("ucp_init", C.ucp_init(&params, config, &c.ucp)); err != nil {
		return nil, fmt.Errorf("transports %v: %w", o.Transports, err)
	}
	attr := C.ucp_context_attr_t{field_mask: C.UCP_ATTR_FIELD_MEMORY_TYPES}
	if err := statusError("ucp_context_query", C.ucp_context_query(c.ucp, &attr)); err != nil {
		C.ucp_cleanup(c.ucp)
		return nil, err
	}
	c.types = uint64(attr.memory_types)
	return c, nil
}

// Settings lists what this package chose, with its source. The caller owns it.
func (c *Context) Settings() []Setting { return append([]Setting(nil), c.settings...) }

// Supports reports whether this UCX, with these transports, can register memory
// of type t. For CUDA that takes a libucx built with it.
func (c *Context) Supports(t MemoryType) bool { return t < memoryTypes && c.types&(1<<t) != 0 }

// Close ends the context. It refuses with a BusyError while workers are open or
// regions registered. It may be called again; a closed context closes to nil.
func (c *Context) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ucp == nil:
		return nil
	case c.workers > 0:
		return &BusyError{What: "workers", N: c.workers}
	case c.regions > 0:
		return &BusyError{What: "regions", N: c.regions}
	}
	C.ucp_cleanup(c.ucp)
	c.ucp = nil
	return nil
}
