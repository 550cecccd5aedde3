package bench

import (
	"context"
	"runtime/pprof"

	"github.com/kvcr-go/kvcr/internal/role"
)

// A profile's samples say who was at work: the label suite, and role, which is
//
//	generator  the suite's own goroutine: makes keys, fills caches, keeps the clock
//	client     whoever issues what is measured
//
// and in other processes of the suite what the process is for (load, server, source),
// beside what goroutines of the engine and the node say of themselves: owner (with
// shard), event-loop, peer-loop, peer-stream, client-reader, hint-work and others. What
// the runtime does on goroutines of its own is collector, scheduler or runtime.
const (
	labelSuite = "suite"
	labelRole  = role.Label
)

// roleClient is that of whoever issues what is measured.
const roleClient = "client"

// rolePublisher is that of whoever publishes events of an engine, where the suite does.
const rolePublisher = "publisher"

// RoleGenerator is the role of a suite's own goroutine.
const RoleGenerator = "generator"

// Labelled runs f in a role of a suite. Goroutines that it starts inherit the
// labels, until they set their own.
func Labelled(ctx context.Context, suite, role string, f func(context.Context)) {
	pprof.Do(ctx, pprof.Labels(labelSuite, suite, labelRole, role), f)
}

// asClient says that the calling goroutine is a client from now on, and returns
// the way back to what ctx says.
func asClient(ctx context.Context) (back func()) { return as(ctx, roleClient) }

func as(ctx context.Context, role string) (back func()) {
	pprof.SetGoroutineLabels(pprof.WithLabels(ctx, pprof.Labels(labelRole, role)))
	return func() { pprof.SetGoroutineLabels(ctx) }
}
