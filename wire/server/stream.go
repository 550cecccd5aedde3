package server

import (
	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/wire"
)

// stream is a value on its way out in frames of the binary protocol. Streams of
// a session take turns, a frame each, and whatever else the session has to say
// goes first: a ping never waits for more than one frame.
type stream struct {
	id          uint64
	view        kvcr.View
	piece       int // of the block
	at          int // in that piece
	sent, total uint64
}

// stream begins to send a claimed block.
func (s *session) stream(id uint64, v kvcr.View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		v.Release()
		return
	}
	s.streams = append(s.streams, &stream{id: id, view: v, total: uint64(v.Len())})
}

// streaming is the number of values on their way.
func (s *session) streaming() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.streams)
}

// endStream stops sending a value and reports whether it was on its way.
func (s *session) endStream(id uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, st := range s.streams {
		if st.id == id {
			st.view.Release()
			s.streams = append(s.streams[:i], s.streams[i+1:]...)
			return true
		}
	}
	return false
}

// nextFrame takes the next frame of the stream whose turn it is, as parcels. mu
// held.
func (s *session) nextFrame(into []parcel) []parcel {
	st := s.streams[0]
	piece, _ := st.view.Piece(st.piece)
	b := piece[st.at:min(len(piece), st.at+wire.MaxChunk)]
	more := st.sent+uint64(len(b)) < st.total
	var head []byte
	if st.sent == 0 {
		head = wire.AppendValueHeader(nil, st.id, st.total, len(b), more)
	} else {
		head = wire.AppendDataHeader(nil, st.id, st.sent, len(b), more)
	}
	st.sent += uint64(len(b))
	if st.at += len(b); st.at == len(piece) {
		st.piece, st.at = st.piece+1, 0
	}
	s.srv.bytesOut.Add(int64(len(head) + len(b)))
	s.streams = s.streams[1:]
	if !more {
		return append(into, parcel{b: head}, parcel{b, st.view})
	}
	s.streams = append(s.streams, st)
	// The part's own claim: a cancelled stream ends its own at once.
	return append(into, parcel{b: head}, parcel{b, st.view.Again()})
}
