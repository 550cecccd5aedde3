package shard

// Reason says how an operation on one key ended. The set is closed.
type Reason uint8

const (
	OK       Reason = iota
	Miss            // the key is not here
	Capacity        // no memory could be freed: everything is claimed, held or being filled
	Dropped         // the policy refused the block
	TooLarge        // the value exceeds the maximum of its namespace
	Layout          // unknown pool, wrong piece size, or another layout than the resident block's
	Key             // the key is empty or over 1024 bytes
	Closed          // the engine was closed before or during the call
	Timeout         // the operation's deadline passed
	Aborted         // the caller aborted
	Source          // the remote source failed
	Checksum        // the bytes do not match their checksum
	reasons
)

var reasonNames = [reasons]string{"ok", "miss", "capacity", "dropped", "too_large", "layout", "key", "closed", "timeout", "aborted", "source", "checksum"}

func (r Reason) String() string {
	if r < reasons {
		return reasonNames[r]
	}
	return "unknown"
}
