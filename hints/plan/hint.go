package plan

import (
	"encoding/json"
	"strconv"
)

// Hint returns what a choice of the last Plan says: where the source is reached, and
// the hashes of the blocks from the root through its end. False: no hint.
func (s *Scratch) Hint(c Choice) (endpoint string, hashes []uint64, ok bool) {
	if c.Kind == None {
		return "", nil, false
	}
	return s.rangeHint(c.Source, 0, c.End)
}

// SegmentHint is Hint for a segment of the last PlanMulti: the hashes are those of
// its own blocks.
func (s *Scratch) SegmentHint(seg Segment) (endpoint string, hashes []uint64, ok bool) {
	return s.rangeHint(seg.Source, seg.From, seg.To)
}

func (s *Scratch) rangeHint(source Owner, from, to int) (endpoint string, hashes []uint64, ok bool) {
	chain := s.walk.chain
	if from < 0 || from >= to || to > len(chain) || s.match.topology == nil {
		return "", nil, false
	}
	m := s.match.topology.member(source)
	if m == nil || m.Endpoint == "" {
		return "", nil, false
	}
	return m.Endpoint, chain[from:to:to], true
}

// AppendEnvelope appends the JSON of the envelope that carries the hint of a choice of
// the last Plan: version 0.1, one kv.fetch. It appends nothing for a choice without a
// hint.
func (s *Scratch) AppendEnvelope(dst []byte, messageID string, c Choice) []byte {
	endpoint, hashes, ok := s.Hint(c)
	if !ok {
		return dst
	}
	dst = append(dst, `{"protocol_version":"0.1","message_id":`...)
	dst = appendString(dst, messageID)
	dst = append(dst, `,"actions":[{"action_id":"a1","action_type":"kv.fetch","action_version":"1.0","payload":{"source_control_endpoint":`...)
	dst = appendString(dst, endpoint)
	dst = append(dst, `,"block_hashes":[`...)
	for i, h := range hashes {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, h, 10)
	}
	return append(dst, `]}}]}`...)
}

func appendString(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(s) // a string has no error
			return append(dst, quoted...)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}
