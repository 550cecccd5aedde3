package publish

import (
	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/keys"
)

// Totals are what routers know of one engine, and what they are told by all ways, for
// those who show it. Endpoints are empty for what there is not.
type Totals struct {
	Table     keys.TableStats
	Published *Stats // nil: nothing is published

	// KV events as vLLM publishes them; nil: none.
	Events                   *events.PublisherStats
	EventsAt, EventsReplayAt string
	// Events of Dynamo's plane; nil: none.
	Plane   *events.PlaneStats
	PlaneAt string
}
