package node

import "github.com/kvcr-go/kvcr/hints/publish"

// totals are what routers know and are told.
func (rt *routing) totals() *publish.Totals {
	out := &publish.Totals{Table: rt.table.Stats()}
	if rt.feed != nil {
		st := rt.feed.Stats()
		out.Published = &st
	}
	if p := rt.events; p != nil {
		st := p.Stats()
		out.Events, out.EventsAt, out.EventsReplayAt = &st, p.Endpoint(), p.ReplayEndpoint()
	}
	if p := rt.plane; p != nil {
		st := p.Stats()
		out.Plane, out.PlaneAt = &st, p.Endpoint()
	}
	return out
}
