package events

import (
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/zeebo/xxh3"
)

// The JSON of events, as dumps of indexes have it. Numbers have all of their 64 bits,
// which readers other than Go's may lose.
type (
	jsonEvent struct {
		WorkerID uint64          `json:"worker_id"`
		Tier     *string         `json:"storage_tier,omitempty"`
		Domain   json.RawMessage `json:"residency_domain,omitempty"`
		Event    *jsonInner      `json:"event"`
		Source   json.RawMessage `json:"state_source,omitempty"`
	}
	jsonInner struct {
		ID   uint64          `json:"event_id"`
		Data json.RawMessage `json:"data"`
		Rank uint32          `json:"dp_rank"`
	}
	jsonData struct {
		Stored *struct {
			Parent *uint64     `json:"parent_hash"`
			Start  *uint32     `json:"start_position"`
			Blocks []jsonBlock `json:"blocks"`
		} `json:"stored,omitempty"`
		Removed *struct {
			Hashes []uint64 `json:"block_hashes"`
		} `json:"removed,omitempty"`
	}
	jsonBlock struct {
		Hash    uint64          `json:"block_hash"`
		Local   uint64          `json:"tokens_hash"`
		Objects json.RawMessage `json:"mm_extra_info"`
	}
)

// MarshalJSON writes the event as in dumps; a cache owner as the digits of its key.
func (ev RouterEvent) MarshalJSON() ([]byte, error) {
	tier := ev.Tier.String()
	out := jsonEvent{WorkerID: ev.Worker.ID, Tier: &tier, Event: &jsonInner{ID: ev.ID, Rank: ev.Worker.Rank}}
	if ev.Domain != DomainLegacy {
		out.Domain = json.RawMessage(`"` + ev.Domain.name() + `"`)
	}
	if ev.Domain == DomainCacheOwner {
		out.Source = json.RawMessage(`"` + hex.EncodeToString(ev.Owner[:]) + `"`)
	}
	if ev.Op == Cleared {
		out.Event.Data = json.RawMessage(`"cleared"`)
		return json.Marshal(out)
	}
	// Empty lists are lists.
	data := []byte(`{"removed":{"block_hashes":[`)
	if ev.Op == Stored {
		data = []byte(`{"stored":{"parent_hash":null,"start_position":null,"blocks":[`)
		if ev.HasParent {
			data = fmt.Appendf(nil, `{"stored":{"parent_hash":%d,"start_position":null,"blocks":[`, ev.Parent)
		}
		for i, b := range ev.Blocks {
			if i > 0 {
				data = append(data, ',')
			}
			data = fmt.Appendf(data, `{"block_hash":%d,"tokens_hash":%d,"mm_extra_info":null}`, b.Hash, b.Local)
		}
	} else {
		for i, h := range ev.Hashes {
			if i > 0 {
				data = append(data, ',')
			}
			data = fmt.Appendf(data, "%d", h)
		}
	}
	out.Event.Data = append(data, "]}}"...)
	return json.Marshal(out)
}

// UnmarshalJSON reads an event, by the rules of RouterEventDecoder.Decode. A cache
// owner that is not given by its key has the hash of its JSON for one.
func (ev *RouterEvent) UnmarshalJSON(b []byte) error {
	var in jsonEvent
	if err := json.Unmarshal(b, &in); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if in.Event == nil || in.Event.Data == nil {
		return fmt.Errorf("%w: a router event has an event with data", ErrMalformed)
	}
	out := RouterEvent{Worker: Worker{ID: in.WorkerID, Rank: in.Event.Rank}, ID: in.Event.ID}
	w := wireEvent{ev: &out}
	if in.Tier != nil {
		d := RouterEventDecoder{r: reader{b: appendText(nil, *in.Tier)}}
		tier, f := d.tier()
		if f != "" {
			return fmt.Errorf("%w: %s %q", ErrMalformed, string(f), *in.Tier)
		}
		out.Tier = tier
	}
	switch string(in.Domain) {
	case "":
	case `"worker"`:
		out.Domain = DomainWorker
	case `"cache_owner"`:
		out.Domain = DomainCacheOwner
	default:
		w.strangeDomain = true
	}
	if w.hasSource = in.Source != nil && string(in.Source) != "null"; w.hasSource && out.Domain == DomainCacheOwner {
		out.Owner = ownerOfJSON(in.Source)
	}
	if string(in.Event.Data) == `"cleared"` {
		out.Op = Cleared
	} else {
		var data jsonData
		if err := json.Unmarshal(in.Event.Data, &data); err != nil {
			return fmt.Errorf("%w: %w", ErrMalformed, err)
		}
		switch {
		case data.Stored != nil && data.Removed == nil:
			if data.Stored.Parent != nil {
				out.HasParent, out.Parent = true, *data.Stored.Parent
			}
			for _, b := range data.Stored.Blocks {
				out.Blocks = append(out.Blocks, Block{b.Hash, b.Local})
			}
		case data.Removed != nil && data.Stored == nil:
			out.Op, out.Hashes = Removed, data.Removed.Hashes
		default:
			return fmt.Errorf("%w: data of an event is stored, removed or cleared", ErrMalformed)
		}
	}
	if err := w.check(); err != nil {
		return err
	}
	*ev = out
	return nil
}

func ownerOfJSON(b []byte) (k OwnerKey) {
	var s string
	if json.Unmarshal(b, &s) == nil {
		if p, err := hex.DecodeString(s); err == nil && len(p) == len(k) {
			return OwnerKey(p)
		}
	}
	h := xxh3.Hash128(b)
	for i := range 8 {
		k[i], k[8+i] = byte(h.Hi>>(56-8*i)), byte(h.Lo>>(56-8*i))
	}
	return k
}
