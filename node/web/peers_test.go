package web

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

func TestPeersStatus(t *testing.T) {
	f := newFake()
	got := readStatus(f, false).Peers
	want := &PeersStatus{
		Endpoints: []string{"tcp://10.0.0.1:7390"}, Total: 3,
		Peers: []PeerStatus{
			{ID: "tcp://10.0.0.2:7390", Name: "kvcr beta", Endpoint: "tcp://10.0.0.2:7390", Fetching: true, Connected: true, Route: "shm", Operations: 9, Traffic: TrafficStatus{1200, 1200 << 20}},
			{ID: "tcp://10.0.0.3:7390", Endpoint: "tcp://10.0.0.3:7390", Fetching: true, Route: "none", Error: "connection refused"},
			{ID: "8000000000000000", Name: "kvcr gamma", Connected: true, Route: "stream", Traffic: TrafficStatus{56, 56 << 20}},
		},
		Routes: []RouteStatus{
			{Route: "shm", Fetched: TrafficStatus{1200, 1200 << 20}}, {Route: "ucx"}, {Route: "ucx-put"},
			{"stream", TrafficStatus{34, 34 << 20}, TrafficStatus{56, 56 << 20}},
		},
		Fetched: TrafficStatus{1234, 1234 << 20}, Served: TrafficStatus{56, 56 << 20}, Taken: MovesStatus{11, 12}, Given: MovesStatus{13, 14},
		Operations: 78, Refusals: 1, Refused: 2, Dials: 3, Reconnects: 4, Posted: 5 << 20, Quarantined: 6 << 20, Connections: 2,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("peers\n%+v, want\n%+v", got, want)
	}

	// A peer that has two endpoints of this node has two rows.
	f.set(func(f *fake) {
		again := f.peers.Peers[2]
		again.Link = 12
		f.peers.Peers = append(f.peers.Peers, again)
	})
	if rows := readStatus(f, false).Peers.Peers; rows[3].ID != "8000000000000000-12" || rows[2].ID == rows[3].ID {
		t.Errorf("rows %q and %q of one peer", rows[2].ID, rows[3].ID)
	}
	f.set(func(f *fake) { f.peers.Peers = f.peers.Peers[:3] })

	// The document stays small, and says that it is not all.
	f.set(func(f *fake) {
		for i := range 3000 {
			f.peers.Peers = append(f.peers.Peers, peer.PeerState{Name: "x", Incarnation: peer.Incarnation(i + 1), Route: wire.RouteStream})
		}
	})
	if st := readStatus(f, false).Peers; st.Total != 3003 || len(st.Peers) != maxPeersShown {
		t.Errorf("%d of %d peers listed, want %d of 3003", len(st.Peers), st.Total, maxPeersShown)
	}

	// Without peers there is nothing to say of them.
	f.set(func(f *fake) { f.peers = nil })
	if b, err := json.Marshal(readStatus(f, false)); err != nil || strings.Contains(string(b), `"peers"`) {
		t.Errorf("the status of a node without peers has them: %s, %v", b, err)
	}
}

// Every route that a peer can have been reached by is one of those shown.
func TestRoutesAreAll(t *testing.T) {
	known := map[wire.Route]bool{wire.RouteNone: true}
	for _, r := range Routes() {
		known[r] = true
	}
	for r := wire.Route(0); !strings.HasPrefix(r.String(), "route("); r++ {
		if !known[r] {
			t.Errorf("route %v is not shown", r)
		}
	}
}
