package arena

import (
	"errors"
	"fmt"
	"strconv"
)

// ErrClosed is returned by calls on an arena after Close.
var ErrClosed = errors.New("arena: closed")

// OptionError reports an option that cannot be used, whatever the machine.
type OptionError struct {
	Field string // the option
	Value string // what it was
	Fix   string // what to do instead
}

func (e *OptionError) Error() string {
	return fmt.Sprintf("arena: %s %s: %s", e.Field, e.Value, e.Fix)
}

// SizeError reports an arena larger than the memory this process may use.
type SizeError struct {
	Size   int64  // bytes asked for
	Limit  int64  // bytes this process may use
	Source string // where the limit comes from
}

func (e *SizeError) Error() string {
	return fmt.Sprintf("arena: size %s is above the limit of %s (%s): choose a smaller size or raise the limit",
		byteString(e.Size), byteString(e.Limit), e.Source)
}

// SpaceError reports that the file system or shared memory behind an arena has
// no room for it. Nothing is left behind.
type SpaceError struct {
	Need int64  // bytes asked for
	Free int64  // bytes free when it failed; -1 when unknown
	Path string // the file, or memfd:name
	Err  error  // the system's error, if one was met
}

func (e *SpaceError) Error() string {
	free := "an unknown amount"
	if e.Free >= 0 {
		free = byteString(e.Free)
	}
	s := fmt.Sprintf("arena: %s needs %s, %s free: choose a smaller size, enlarge the file system (mount -o remount,size=...), or use anonymous backing",
		e.Path, byteString(e.Need), free)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *SpaceError) Unwrap() error { return e.Err }

// PagesError reports that Options.Strict refused to go on without the pages
// that were asked for.
type PagesError struct {
	Want Pages
	Size int64 // bytes of the arena
	Why  string
	Err  error // the system's error, if one was met
}

func (e *PagesError) Error() string {
	return fmt.Sprintf("arena: no %s pages for %s: %s; or allow other pages (not strict)",
		e.Want, byteString(e.Size), e.Why)
}

func (e *PagesError) Unwrap() error { return e.Err }

// LockError reports that Options.LockStrict refused to go on with memory that
// may be swapped out.
type LockError struct {
	Want       int64  // bytes to lock
	Soft, Hard uint64 // RLIMIT_MEMLOCK in bytes; ^0 is unlimited
	Err        error
}

func (e *LockError) Error() string { return "arena: " + e.why() }

func (e *LockError) why() string {
	return fmt.Sprintf("cannot lock %s: RLIMIT_MEMLOCK is %s (hard limit %s): raise it (ulimit -l, LimitMEMLOCK=, --ulimit memlock=) or grant CAP_IPC_LOCK: %v",
		byteString(e.Want), limitString(e.Soft), limitString(e.Hard), e.Err)
}

func (e *LockError) Unwrap() error { return e.Err }

// MapError reports a system call that failed while an arena was made.
type MapError struct {
	Name string // Options.Name
	Op   string // mmap, open, populate, ...
	Size int64  // bytes asked for
	Path string // the file, if there is one
	Err  error
}

func (e *MapError) Error() string {
	s := fmt.Sprintf("arena: %s of %s", e.Op, byteString(e.Size))
	if e.Name != "" {
		s += " for " + strconv.Quote(e.Name)
	}
	if e.Path != "" {
		s += " at " + e.Path
	}
	return s + ": " + e.Err.Error()
}

func (e *MapError) Unwrap() error { return e.Err }

// byteString writes n bytes exactly when n is a whole number of a binary unit,
// else with one decimal and the exact count.
func byteString(n int64) string {
	const units = "KMGTP"
	if n < 1024 {
		return strconv.FormatInt(n, 10) + " B"
	}
	shift, u := uint(10), 0
	for u+1 < len(units) && n>>(shift+10) > 0 {
		shift += 10
		u++
	}
	if n&(1<<shift-1) == 0 {
		return fmt.Sprintf("%d %ciB", n>>shift, units[u])
	}
	return fmt.Sprintf("%.1f %ciB (%d B)", float64(n)/float64(int64(1)<<shift), units[u], n)
}

func limitString(n uint64) string {
	if n > 1<<62 {
		return "unlimited"
	}
	return byteString(int64(n))
}
