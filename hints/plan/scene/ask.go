package scene

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/hints/plan"
)

// Answer is what the planner says to one prompt.
type Answer struct {
	Prompt  *Prompt
	Multi   bool
	Targets []Target
	owners  []ownerView // for the picture
}

// Target is the answer for one worker.
type Target struct {
	Owner    plan.Owner
	Frontier int // blocks that it has itself
	Fetches  []Fetch
	// Envelope is the hint as a router would send it; nil without a fetch.
	Envelope []byte
}

// Fetch is blocks from one source.
type Fetch struct {
	Source   plan.Owner
	Kind     string // root prefix, continuation; of several sources: part
	From, To int    // the blocks that the target lacks
	Endpoint string
	Hashes   []uint64 // that the hint names
}

// Kinds of a fetch.
const (
	KindRootPrefix   = "root prefix"
	KindContinuation = "continuation"
	KindPart         = "part"
)

// Ask asks for every prompt. multi: targets may fetch from several sources.
func (s *Scene) Ask(multi bool) []Answer {
	answers := make([]Answer, len(s.Prompts))
	for i := range s.Prompts {
		p := &s.Prompts[i]
		a := &answers[i]
		*a = Answer{Prompt: p, Multi: multi}
		m := s.index.Match(s.scratch, p.Locals)
		if multi {
			for _, c := range s.index.PlanMulti(s.scratch, m, nil) {
				a.Targets = append(a.Targets, s.parts(p, c))
			}
		} else {
			for _, c := range s.index.Plan(s.scratch, m, nil) {
				a.Targets = append(a.Targets, s.single(p, c))
			}
		}
		a.owners = s.look(p, slices.Clone(s.scratch.Chain()))
	}
	return answers
}

func (s *Scene) single(p *Prompt, c plan.Choice) Target {
	t := Target{Owner: plan.Owner{Worker: c.Target}, Frontier: c.Frontier}
	endpoint, hashes, ok := s.scratch.Hint(c)
	if !ok {
		return t
	}
	kind := KindRootPrefix
	if c.Kind == plan.Continuation {
		kind = KindContinuation
	}
	t.Fetches = []Fetch{{c.Source, kind, c.Frontier, c.End, endpoint, slices.Clone(hashes)}}
	t.Envelope = s.scratch.AppendEnvelope(nil, s.messageID(p, t.Owner), c)
	return t
}

func (s *Scene) parts(p *Prompt, m plan.Multi) Target {
	t := Target{Owner: plan.Owner{Worker: m.Target}, Frontier: m.Frontier}
	for _, seg := range m.Segments {
		if endpoint, hashes, ok := s.scratch.SegmentHint(seg); ok {
			t.Fetches = append(t.Fetches, Fetch{seg.Source, KindPart, seg.From, seg.To, endpoint, slices.Clone(hashes)})
		}
	}
	if len(t.Fetches) > 0 {
		t.Envelope = partsEnvelope(s.messageID(p, t.Owner), t.Fetches)
	}
	return t
}

func (s *Scene) messageID(p *Prompt, target plan.Owner) string {
	return fmt.Sprintf("%s, %s", p.Name, s.Name(target))
}

// partsEnvelope is one action for each source.
func partsEnvelope(messageID string, fetches []Fetch) []byte {
	type payload struct {
		Source string   `json:"source_control_endpoint"`
		Hashes []uint64 `json:"block_hashes"`
	}
	type action struct {
		ID      string  `json:"action_id"`
		Type    string  `json:"action_type"`
		Version string  `json:"action_version"`
		Payload payload `json:"payload"`
	}
	envelope := struct {
		Version   string   `json:"protocol_version"`
		MessageID string   `json:"message_id"`
		Actions   []action `json:"actions"`
	}{Version: "0.1", MessageID: messageID}
	for i, f := range fetches {
		envelope.Actions = append(envelope.Actions, action{fmt.Sprintf("a%d", i+1), hints.TypeFetch, "1.0", payload{f.Endpoint, f.Hashes}})
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(envelope); err != nil {
		panic(err) // of texts and numbers: ours
	}
	return bytes.TrimSpace(b.Bytes())
}
