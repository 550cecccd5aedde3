// Package role names goroutines in profiles: the label role says what a goroutine is
// for, and a shard's owner says which shard in a label of its own.
package role

import (
	"context"
	"runtime/pprof"
)

// Label is the name under which profiles show roles.
const Label = "role"

// Role is what a goroutine is for. Names are few and fixed: make each once, as a
// variable of a package.
type Role struct{ labels context.Context }

// New returns the role of this name.
func New(name string) Role {
	return Role{pprof.WithLabels(context.Background(), pprof.Labels(Label, name))}
}

// Take gives the calling goroutine the role, in place of the labels that it has:
// those of whoever began it. It allocates nothing. Goroutines that it begins inherit
// the role.
func (r Role) Take() { pprof.SetGoroutineLabels(r.labels) }

// Run takes the role and runs f: go r.Run(f).
func (r Role) Run(f func()) {
	r.Take()
	f()
}
