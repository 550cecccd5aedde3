package server

import (
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// PeerStats are what STATS says of the exchange of blocks with other nodes: see
// peer.Stats. Routes go by name.
type PeerStats struct {
	Endpoints               []string
	Peers                   []PeerInfo
	Fetched, Served         map[string]peer.Traffic
	Taken, Given            peer.Moves
	Operations, Refusals    uint64
	Refused                 uint64 // connections that did not get through their handshake
	PostedBytes, Quarantine int64
	NotListed               int // peers beyond those in Peers
}

// PeerInfo is one peer.
type PeerInfo struct {
	Name       string
	Endpoint   string // empty: it fetches from here
	Route      string
	Connected  bool
	Operations int
	Traffic    peer.Traffic
	Error      string `json:",omitempty"` // of the last attempt to connect
}

// maxPeersTold bounds STATS, which must fit a frame.
const maxPeersTold = 256

// peers is nil for an engine that exchanges nothing with others.
func (s *Server) peers() *PeerStats {
	n := s.opt.Engine.Peers()
	if n == nil {
		return nil
	}
	st, all := n.Stats(), n.Peers()
	out := &PeerStats{
		Endpoints: n.Endpoints(), Peers: []PeerInfo{}, Fetched: byName(st.Fetched), Served: byName(st.Served), Taken: st.Taken, Given: st.Given,
		Operations: st.Operations, Refusals: st.Refusals, Refused: st.Refused, PostedBytes: st.Posted, Quarantine: st.Quarantined,
		NotListed: max(0, len(all)-maxPeersTold),
	}
	for _, p := range all[:len(all)-out.NotListed] {
		info := PeerInfo{Name: p.Name, Endpoint: p.Endpoint, Route: p.Route.String(), Connected: p.Connected, Operations: p.Operations, Traffic: p.Traffic}
		if p.LastError != nil {
			info.Error = p.LastError.Error()
		}
		out.Peers = append(out.Peers, info)
	}
	return out
}

func byName(m map[wire.Route]peer.Traffic) map[string]peer.Traffic {
	out := map[string]peer.Traffic{}
	for r, t := range m {
		out[r.String()] = t
	}
	return out
}
