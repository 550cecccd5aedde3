package events

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrFrames: a message does not have the frames that it should.
var ErrFrames = errors.New("unexpected frames")

// endSeq is the sequence of the message that ends a replay.
const endSeq = ^uint64(0)

// Live is a message of a publisher. Its parts lie in the frames.
type Live struct {
	Topic   []byte
	Seq     uint64
	Payload []byte
}

// ParseLive reads topic, sequence and payload. Failure: ErrFrames.
func ParseLive(frames [][]byte) (l Live, err error) {
	if len(frames) != 3 || len(frames[1]) != 8 {
		return Live{}, fmt.Errorf("%w: %s, want topic, sequence of 8 bytes, payload", ErrFrames, lengths(frames))
	}
	return Live{Topic: frames[0], Seq: binary.BigEndian.Uint64(frames[1]), Payload: frames[2]}, nil
}

// ReplayForm is how replies to a replay request look.
type ReplayForm uint8

// The forms, after the empty frame that both begin with.
const (
	ReplayWithTopic ReplayForm = iota // topic, sequence, payload: as live
	ReplayOld                         // sequence, payload
)

// AppendReplayFrames appends to frames the request for all batches from seq on, as a
// DEALER sends it.
func AppendReplayFrames(frames [][]byte, seq uint64) [][]byte {
	return append(frames, nil, binary.BigEndian.AppendUint64(nil, seq))
}

// ParseReplayRequest returns from which sequence on batches are wanted. The frames are
// those after the identity. Failure: ErrFrames.
func ParseReplayRequest(frames [][]byte) (seq uint64, err error) {
	if len(frames) != 2 || len(frames[0]) != 0 || len(frames[1]) != 8 {
		return 0, fmt.Errorf("%w: %s, want an empty one and a sequence of 8 bytes", ErrFrames, lengths(frames))
	}
	return binary.BigEndian.Uint64(frames[1]), nil
}

// ParseReplay reads one reply of a replay, of either form; of the old form the topic is
// nil. last says that the replay ends with it. Failure: ErrFrames.
func ParseReplay(frames [][]byte) (l Live, last bool, err error) {
	f := frames
	if len(f) > 0 && len(f[0]) == 0 {
		f = f[1:]
	}
	if len(f) == 3 {
		l.Topic, f = f[0], f[1:]
	}
	if len(f) != 2 || len(f[0]) != 8 {
		return Live{}, false, fmt.Errorf("%w: %s, want an empty one, perhaps a topic, a sequence of 8 bytes, payload", ErrFrames, lengths(frames))
	}
	l.Seq, l.Payload = binary.BigEndian.Uint64(f[0]), f[1]
	return l, len(l.Payload) == 0 || l.Seq == endSeq, nil
}

// lengths describes frames for an error.
func lengths(frames [][]byte) string {
	s := fmt.Sprintf("%d frames of", len(frames))
	for i, f := range frames {
		if i == 8 {
			return s + " ..."
		}
		s += fmt.Sprintf(" %d", len(f))
	}
	return s + " bytes"
}
