package plan

import "errors"

// ErrEvent: an event that means nothing, such as one of a cache owner on the device tier.
// Apply has ignored it.
var ErrEvent = errors.New("invalid event")
