package peer

import (
	"context"
	"net"

	"github.com/kvcr-go/kvcr/wire"
)

// Route is a way for payload, one for all peers of a node. The machines above it
// know claims and slots, the route knows how bytes travel. Its methods may be
// called from any goroutine.
//
// What a session must keep to:
//
//	R1  A Post is answered by exactly one Landed or Shut, a Write by exactly one
//	    Written, whatever happens to the connection.
//	R2  After the answer nobody on this side touches the slot, or the claim.
//	R3  After Close(op, i), and after Down, the answers come without the peer's
//	    help, in bounded time: the own end of the route is shut if need be. (Proof
//	    that a peer does not write by itself is the machine's affair.)
type Route interface {
	// Kind is the route's number. A provider that knows several (UCX) tells the
	// preferred one here and the rest by Usable.
	Kind() wire.Route
	// Announce adds what peers must know of this node to use the route.
	Announce(info *wire.PeerInfo)
	// Usable reports whether payload can travel between this node, as source, and
	// the peer.
	Usable(peer *wire.PeerInfo) bool
	// Dest begins the destination's side of a session, Source the source's. They
	// may block until ctx ends. A route that fails here is not used with that
	// peer: another is agreed on.
	Dest(ctx context.Context, s *Session) (DestRoute, error)
	Source(ctx context.Context, s *Session) (SourceRoute, error)
	// Close ends the route. All sessions are down by then.
	Close() error
}

// DestRoute is the destination's side of a session.
type DestRoute interface {
	// Describe appends what Accepted.Desc tells the source of a posted item.
	// Post has been called before.
	Describe(dst []byte, op OpID, index int) []byte
	// Post expects an item's bytes.
	Post(p Post, namespace string)
	// Done: the source says that it has sent, or written, all of an item's bytes,
	// which may not have come yet. Where the source writes by itself (ucx-put) they
	// are there, and the route verifies them and says Landed. Items that are not
	// posted are a peer's error, and passed over.
	Done(op OpID, index int)
	// Close ends a Post early.
	Close(op OpID, index int)
	// Down ends the session: the control connection is gone. Nothing is posted
	// afterwards.
	Down()
}

// SourceRoute is the source's side of a session.
type SourceRoute interface {
	// Write sends an item.
	Write(w Write)
	// Flush is called when no Write follows at once.
	Flush()
	// CancelWrite asks that a Write which has not begun shall not.
	CancelWrite(op OpID, index int)
	// Down ends the session.
	Down()
}

// Session is a control connection as its route sees it.
type Session struct {
	// Peer and Info are who is at the other end.
	Peer Incarnation
	Info wire.PeerInfo
	// Namespace is one that is about to be used.
	Namespace string
	Memory    Memory
	// Event takes Landed, Shut and Written; any goroutine, also from within calls.
	Event func(Event)
	// Fail ends the control connection: the route cannot go on.
	Fail func(error)

	node  *Node
	link  *link // that Event posts to; nil: none
	token uint64
	local string // unix socket of the source
	// dial opens a payload connection to the source: the socket is authenticated
	// and tied to this session; without an address, to where the control connection
	// goes. Destination only.
	dial func(ctx context.Context, network, addr, namespace string, index int) (net.Conn, error)
	// watch has the machine hear of the end of the process behind a unix socket.
	watch func(nc net.Conn) error
}

// hold and release are around events that are to be taken together.
func (s *Session) hold() {
	if s.link != nil {
		s.link.hold()
	}
}

func (s *Session) release() {
	if s.link != nil {
		s.link.release()
	}
}

// item names one item of one operation.
type item struct {
	op    OpID
	index int
}

// attacher is a SourceRoute that payload connections are dialled for. attach takes
// the connection over.
type attacher interface {
	attach(nc net.Conn, index int, namespace string)
}

// opWatcher is a DestRoute that hears when the machine has forgotten an operation.
type opWatcher interface{ ended(op OpID) }

// runWatcher is a DestRoute that hears of the end of each run of its link.
type runWatcher interface{ ran() }
