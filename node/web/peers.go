package web

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvcr-go/kvcr/peer"
)

// maxPeersShown bounds the document: a node may have thousands of peers.
const maxPeersShown = 256

// PeersStatus is the exchange of blocks with other nodes: see peer.Stats.
type PeersStatus struct {
	Endpoints   []string      `json:"endpoints"` // where other nodes reach this one
	Total       int           `json:"total"`     // of Peers, when not all are listed
	Peers       []PeerStatus  `json:"peers"`     // those fetched from first
	Routes      []RouteStatus `json:"routes"`    // one for each of Routes, in order
	Fetched     TrafficStatus `json:"fetched"`   // over all routes
	Served      TrafficStatus `json:"served"`
	Taken       MovesStatus   `json:"taken"` // moves hither
	Given       MovesStatus   `json:"given"` // moves away
	Operations  uint64        `json:"operations_total"`
	Refusals    uint64        `json:"refusals_total"`
	Refused     uint64        `json:"refused_connections_total"`
	Dials       uint64        `json:"dials_total"`
	Reconnects  uint64        `json:"reconnects_total"`
	Posted      int64         `json:"posted_bytes"`
	Quarantined int64         `json:"quarantined_bytes"`
	Connections int           `json:"connections"`
}

// PeerStatus is one peer.
type PeerStatus struct {
	ID         string        `json:"id"` // of the row: the endpoint, or the incarnation in hex and, if not 0, its link
	Name       string        `json:"name"`
	Endpoint   string        `json:"endpoint,omitempty"` // empty: it fetches from here
	Fetching   bool          `json:"fetching"`           // this node fetches from it
	Connected  bool          `json:"connected"`
	Route      string        `json:"route"` // of the last connection
	Operations int           `json:"operations"`
	Traffic    TrafficStatus `json:"traffic"`
	Error      string        `json:"error,omitempty"` // of the last attempt to connect
}

// RouteStatus is what went over one route.
type RouteStatus struct {
	Route   string        `json:"route"`
	Fetched TrafficStatus `json:"fetched"`
	Served  TrafficStatus `json:"served"`
}

// TrafficStatus counts blocks and their bytes.
type TrafficStatus struct {
	Blocks uint64 `json:"blocks_total"`
	Bytes  uint64 `json:"bytes_total"`
}

// MovesStatus counts moves of blocks by how they ended.
type MovesStatus struct {
	Moved uint64 `json:"moved_total"`
	Kept  uint64 `json:"kept_total"`
}

func (t *TrafficStatus) add(o peer.Traffic) {
	t.Blocks += o.Blocks
	t.Bytes += o.Bytes
}

func peersStatus(s *PeerStats) *PeersStatus {
	if s == nil {
		return nil
	}
	st := &PeersStatus{
		Endpoints: append([]string{}, s.Endpoints...), Total: len(s.Peers), Peers: []PeerStatus{},
		Taken: MovesStatus(s.Taken), Given: MovesStatus(s.Given), Operations: s.Operations, Refusals: s.Refusals, Refused: s.Refused,
		Dials: s.Dials, Reconnects: s.Reconnects, Posted: s.Posted, Quarantined: s.Quarantined, Connections: s.Connections,
	}
	for _, r := range Routes() {
		st.Routes = append(st.Routes, RouteStatus{r.String(), TrafficStatus(s.Fetched[r]), TrafficStatus(s.Served[r])})
		st.Fetched.add(s.Fetched[r])
		st.Served.add(s.Served[r])
	}
	for _, p := range s.Peers[:min(len(s.Peers), maxPeersShown)] {
		row := PeerStatus{
			ID: p.Endpoint, Name: p.Name, Endpoint: p.Endpoint, Fetching: p.Fetching, Connected: p.Connected,
			Route: p.Route.String(), Operations: p.Operations, Traffic: TrafficStatus(p.Traffic),
		}
		if !p.Fetching {
			row.ID = strconv.FormatUint(uint64(p.Incarnation), 16)
			if p.Link != 0 {
				row.ID += "-" + strconv.FormatUint(p.Link, 10)
			}
		}
		if p.LastError != nil {
			row.Error = p.LastError.Error()
		}
		st.Peers = append(st.Peers, row)
	}
	return st
}

var peerMetrics = []scalar[PeerStats]{
	{"kvcr_peer_operations_total", "Operations with peers that have ended, of which this node was the destination.", counter, "", func(p *PeerStats) float64 { return float64(p.Operations) }},
	{"kvcr_peer_refusals_total", "Operations and handshakes that were refused, on either side.", counter, "", func(p *PeerStats) float64 { return float64(p.Refusals) }},
	{"kvcr_peer_refused_connections_total", "Connections of others that did not get through their handshake.", counter, "", func(p *PeerStats) float64 { return float64(p.Refused) }},
	{"kvcr_peer_dials_total", "Attempts to connect to peers.", counter, "", func(p *PeerStats) float64 { return float64(p.Dials) }},
	{"kvcr_peer_reconnects_total", "Connections to peers that followed an earlier one.", counter, "", func(p *PeerStats) float64 { return float64(p.Reconnects) }},
	{"kvcr_peer_connections", "Control connections with peers.", gauge, "", func(p *PeerStats) float64 { return float64(p.Connections) }},
	{"kvcr_peer_sources", "Endpoints that this node fetches from.", gauge, "", func(p *PeerStats) float64 { return float64(p.Dests) }},
	{"kvcr_peer_destinations", "Peers that fetch from this node, each once for every endpoint that it has of it.", gauge, "", func(p *PeerStats) float64 { return float64(p.Sources) }},
	{"kvcr_peer_posted_bytes", "Memory that transfers under way may write.", gauge, "", func(p *PeerStats) float64 { return float64(p.Posted) }},
	{"kvcr_peer_quarantined_bytes", "Memory that peers may still write though its transfer's time is up.", gauge, "", func(p *PeerStats) float64 { return float64(p.Quarantined) }},
}

// peerSeries have labels of closed sets: the route, or the node's side in a move and
// how it ended.
type peerSeries struct {
	fetchedBlocks, fetchedBytes, servedBlocks, servedBytes, moves *prometheus.Desc
}

func newPeerSeries() peerSeries {
	route := []string{"route"}
	return peerSeries{
		fetchedBlocks: prometheus.NewDesc("kvcr_peer_fetched_blocks_total", "Blocks fetched from peers.", route, nil),
		fetchedBytes:  prometheus.NewDesc("kvcr_peer_fetched_bytes_total", "Bytes of blocks fetched from peers.", route, nil),
		servedBlocks:  prometheus.NewDesc("kvcr_peer_served_blocks_total", "Blocks served to peers, over route shm those lent.", route, nil),
		servedBytes:   prometheus.NewDesc("kvcr_peer_served_bytes_total", "Bytes of blocks served to peers, over route shm of those lent.", route, nil),
		moves: prometheus.NewDesc("kvcr_peer_moves_total", "Moves of blocks that ended: the source's copy was removed (moved) or kept; this node was their destination or source.",
			[]string{"side", "outcome"}, nil),
	}
}

func (d *peerSeries) all() []*prometheus.Desc {
	return []*prometheus.Desc{d.fetchedBlocks, d.fetchedBytes, d.servedBlocks, d.servedBytes, d.moves}
}

func (d *peerSeries) emit(ch chan<- prometheus.Metric, p *PeerStats) {
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, counter, float64(v), labels...)
	}
	for _, r := range Routes() {
		count(d.fetchedBlocks, p.Fetched[r].Blocks, r.String())
		count(d.fetchedBytes, p.Fetched[r].Bytes, r.String())
		count(d.servedBlocks, p.Served[r].Blocks, r.String())
		count(d.servedBytes, p.Served[r].Bytes, r.String())
	}
	count(d.moves, p.Taken.Moved, "destination", "moved")
	count(d.moves, p.Taken.Kept, "destination", "kept")
	count(d.moves, p.Given.Moved, "source", "moved")
	count(d.moves, p.Given.Kept, "source", "kept")
}
