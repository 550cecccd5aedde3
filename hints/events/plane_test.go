package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"
	"pgregory.net/rapid"

	"github.com/kvcr-go/kvcr/hints/events/zmtp"
	"github.com/kvcr-go/kvcr/internal/pyzmq"
)

func drawRouterEvent(t *rapid.T) RouterEvent {
	ev := RouterEvent{
		Worker: Worker{ID: rapid.Uint64().Draw(t, "worker"), Rank: rapid.Uint32().Draw(t, "rank")},
		Tier:   Tier(rapid.IntRange(0, 3).Draw(t, "tier")),
		Domain: Domain(rapid.IntRange(0, 2).Draw(t, "domain")),
		ID:     rapid.Uint64().Draw(t, "id"),
		Op:     Op(rapid.IntRange(0, 2).Draw(t, "op")),
	}
	if ev.Domain == DomainCacheOwner {
		if ev.Op != Cleared && ev.Tier == Device {
			ev.Tier = HostPinned
		}
		copy(ev.Owner[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "owner"))
	}
	switch ev.Op {
	case Stored:
		if ev.HasParent = rapid.Bool().Draw(t, "has parent"); ev.HasParent {
			ev.Parent = rapid.Uint64().Draw(t, "parent")
		}
		for range rapid.IntRange(0, 5).Draw(t, "blocks") {
			ev.Blocks = append(ev.Blocks, Block{rapid.Uint64().Draw(t, "hash"), rapid.Uint64().Draw(t, "local")})
		}
	case Removed:
		ev.Hashes = rapid.SliceOfN(rapid.Uint64(), 1, 5).Draw(t, "hashes")
	}
	return ev
}

func sameRouterEvent(a, b RouterEvent) bool {
	for _, ev := range []*RouterEvent{&a, &b} {
		if len(ev.Blocks) == 0 {
			ev.Blocks = nil
		}
		if len(ev.Hashes) == 0 {
			ev.Hashes = nil
		}
	}
	return reflect.DeepEqual(a, b)
}

func TestRouterEventRoundTrip(t *testing.T) {
	var d RouterEventDecoder
	rapid.Check(t, func(t *rapid.T) {
		ev := drawRouterEvent(t)
		wire := AppendRouterEvent(nil, &ev, nil)
		var got RouterEvent
		if err := d.Decode(wire, &got); err != nil || !sameRouterEvent(got, ev) {
			t.Fatalf("%v\n got %+v\nwant %+v", err, got, ev)
		}
		var any map[string]any
		if err := msgpack.Unmarshal(wire, &any); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(ev)
		if err != nil {
			t.Fatal(err)
		}
		var again RouterEvent
		if err := json.Unmarshal(text, &again); err != nil || !sameRouterEvent(again, ev) {
			t.Fatalf("%s: %v\n got %+v\nwant %+v", text, err, again, ev)
		}
		if err := d.Decode(wire[:rapid.IntRange(0, len(wire)-1).Draw(t, "cut")], &got); err == nil {
			t.Fatal("a cut event is taken")
		}
	})
}

// What Dynamo accepts and refuses, in both forms.
func TestRouterEventRules(t *testing.T) {
	stored := dict{"stored": dict{"parent_hash": nil, "start_position": 3, "blocks": list{dict{"block_hash": 1, "tokens_hash": 2, "mm_extra_info": dict{"mm_objects": list{}}}}}}
	removed := dict{"removed": dict{"block_hashes": list{uint64(1<<64 - 1)}}}
	event := func(data any) dict { return dict{"event_id": 5, "data": data, "dp_rank": 2} }
	w := Worker{7, 2}
	for _, c := range []struct {
		name string
		in   dict
		want RouterEvent
		err  error
	}{
		{"stored", dict{"worker_id": 7, "event": event(stored)}, RouterEvent{Worker: w, ID: 5, Blocks: []Block{{1, 2}}}, nil},
		{"removed from disk", dict{"worker_id": 7, "storage_tier": "disk", "residency_domain": "worker", "event": event(removed)},
			RouterEvent{Worker: w, ID: 5, Tier: Disk, Domain: DomainWorker, Op: Removed, Hashes: []uint64{1<<64 - 1}}, nil},
		{"cleared", dict{"worker_id": 7, "event": dict{"event_id": 5, "data": "cleared"}}, RouterEvent{Worker: Worker{ID: 7}, ID: 5, Op: Cleared}, nil},
		{"cleared owner", dict{"worker_id": 7, "residency_domain": "cache_owner", "event": event("cleared")}, RouterEvent{Worker: w, ID: 5, Op: Cleared, Domain: DomainCacheOwner}, nil},
		{"unknown keys", dict{"worker_id": 7, "new": list{1}, "state_source": nil, "event": dict{"event_id": 5, "data": removed, "x": nil, "dp_rank": 2}},
			RouterEvent{Worker: w, ID: 5, Op: Removed, Hashes: []uint64{1<<64 - 1}}, nil},
		{"source of a worker's event", dict{"worker_id": 7, "state_source": "abc", "residency_domain": "worker", "event": event("cleared")}, RouterEvent{Worker: w, ID: 5, Op: Cleared, Domain: DomainWorker}, nil},
		{"nil domain", dict{"worker_id": 7, "residency_domain": nil, "event": event("cleared")}, RouterEvent{}, ErrDomain},
		{"strange domain", dict{"worker_id": 7, "residency_domain": "cluster", "event": event("cleared")}, RouterEvent{}, ErrDomain},
		{"number for a domain", dict{"worker_id": 7, "residency_domain": 1, "event": event("cleared")}, RouterEvent{}, ErrDomain},
		{"owner on a device", dict{"worker_id": 7, "residency_domain": "cache_owner", "state_source": "abc", "event": event(removed)}, RouterEvent{}, ErrDomain},
		{"owner without a source", dict{"worker_id": 7, "storage_tier": "disk", "residency_domain": "cache_owner", "event": event(removed)}, RouterEvent{}, ErrDomain},
		{"unknown tier", dict{"worker_id": 7, "storage_tier": "tape", "event": event(removed)}, RouterEvent{}, ErrMalformed},
		{"unknown data", dict{"worker_id": 7, "event": event("moved")}, RouterEvent{}, ErrMalformed},
		{"no data", dict{"worker_id": 7, "event": dict{"event_id": 1}}, RouterEvent{}, ErrMalformed},
		{"no event", dict{"worker_id": 7}, RouterEvent{}, ErrMalformed},
		{"two things", dict{"worker_id": 7, "event": event(dict{"stored": stored["stored"], "removed": removed["removed"]})}, RouterEvent{}, ErrMalformed},
		{"negative hash", dict{"worker_id": 7, "event": event(dict{"removed": dict{"block_hashes": list{-1}}})}, RouterEvent{}, ErrMalformed},
		{"negative rank", dict{"worker_id": 7, "event": dict{"event_id": 1, "data": "cleared", "dp_rank": -1}}, RouterEvent{}, ErrMalformed},
	} {
		var d RouterEventDecoder
		var got RouterEvent
		if err := d.Decode(pack(t, c.in), &got); !errors.Is(err, c.err) || !sameRouterEvent(got, c.want) {
			t.Errorf("%s: %v, %+v, want %v, %+v", c.name, err, got, c.err, c.want)
		}
		text, err := json.Marshal(c.in)
		if err != nil {
			t.Fatal(err)
		}
		got = RouterEvent{}
		if err := json.Unmarshal(text, &got); !errors.Is(err, c.err) || !sameRouterEvent(got, c.want) {
			t.Errorf("%s as JSON: %v, %+v, want %v, %+v", c.name, err, got, c.err, c.want)
		}
	}
	// Owners differ by what their sources are.
	seen := map[OwnerKey]bool{}
	for _, source := range []any{"abc", "abd", dict{"pool": 1}, list{1, 2}, 5, []byte("sixteen bytes ..")} {
		var d RouterEventDecoder
		var got RouterEvent
		if err := d.Decode(pack(t, dict{"worker_id": 7, "storage_tier": "disk", "residency_domain": "cache_owner", "state_source": source, "event": event(removed)}), &got); err != nil {
			t.Fatal(err)
		}
		seen[got.Owner] = true
	}
	if len(seen) != 6 || !seen[OwnerKey([]byte("sixteen bytes .."))] {
		t.Errorf("6 owners have %d keys", len(seen))
	}
}

func TestPlaneFrames(t *testing.T) {
	e := AppendEnvelope(nil, &Envelope{Topic: "kv-events", PublisherID: 1, Sequence: 2, Payload: []byte("x")})
	good := AppendPlaneFrames(nil, "kv-events", 1, 2, e)
	if got, err := ParsePlaneFrames(good); err != nil || string(got.Payload) != "x" {
		t.Errorf("%+v, %v", got, err)
	}
	long := slices.Concat(good[3], []byte{0})
	version := slices.Clone(good[3])
	version[0] = 2
	for name, frames := range map[string][][]byte{
		"another publisher": AppendPlaneFrames(nil, "kv-events", 3, 2, e),
		"another sequence":  AppendPlaneFrames(nil, "kv-events", 1, 3, e),
		"three frames":      good[:3],
		"short number":      {good[0], {1}, good[2], good[3]},
		"no head":           {good[0], good[1], good[2], {1}},
		"longer":            {good[0], good[1], good[2], long},
		"another version":   {good[0], good[1], good[2], version},
	} {
		if _, err := ParsePlaneFrames(frames); !errors.Is(err, ErrFrames) {
			t.Errorf("%s: %v, want ErrFrames", name, err)
		}
	}
	for _, e := range []any{nil, list{}, dict{"topic": "a"}, dict{"topic": "a", "publisher_id": -1, "sequence": 0, "payload": []byte{}}, dict{"topic": "a", "publisher_id": 1, "sequence": 0, "payload": "text"}} {
		if _, err := ParseEnvelope(pack(t, e)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%v: %v, want ErrMalformed", e, err)
		}
	}
}

func TestSubject(t *testing.T) {
	for _, c := range []struct {
		s    Scope
		want string
	}{
		{Scope{Namespace: "dynamo"}, "namespace.dynamo.kv-events"},
		{Scope{"my ns", "back.end", ""}, "namespace.my%20ns.component.back%2Eend.kv-events"},
		{Scope{"a-b_c", "ü", "gen%"}, "namespace.a-b_c.component.%C3%BC.endpoint.gen%25.kv-events"},
	} {
		if got := c.s.Subject("kv-events"); got != c.want {
			t.Errorf("%+v is %q, want %q", c.s, got, c.want)
		}
	}
}

// Python reads what a PlanePublisher sends; directly, and over a broker.
func TestPlanePublisher(t *testing.T) {
	py := pyzmq.Start(t)
	now := time.UnixMilli(1_700_000_000_123)
	ev := RouterEvent{Worker: Worker{7, 2}, Tier: HostPinned, Domain: DomainCacheOwner, Owner: OwnerKey([]byte("sixteen bytes ..")), ID: 9, HasParent: true, Parent: 3, Blocks: []Block{{1, 2}}}
	for _, broker := range []bool{false, true} {
		cfg := PlanePublisherConfig{Endpoint: "tcp://127.0.0.1:0", Scope: Scope{"ns", "c", ""}, PublisherID: 77, Linger: -1, Now: func() time.Time { return now }}
		first := "kv-events"
		sub := pyzmq.Command{"op": "socket", "id": "sub", "type": "SUB", "subscribe": []string{"kv-events", "namespace.ns."}}
		if broker {
			sub["type"], sub["bind"] = "XSUB", "tcp://127.0.0.1:*"
			delete(sub, "subscribe")
			cfg.Brokers = []string{py.Do(sub).Endpoint}
			py.Do(pyzmq.Command{"op": "send", "id": "sub", "frames": []string{fmt.Sprintf("%x", "\x01namespace.ns.")}})
			first = "namespace.ns.component.c.kv-events"
		}
		p, err := NewPlanePublisher(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if !broker {
			sub["connect"] = p.Endpoint()
			py.Do(sub)
		}
		eventually(t, "subscribed", func() bool {
			py.Do(pyzmq.Command{"op": "recv", "id": "sub", "n": 1, "timeout": 1}) // libzmq connects in passing
			return p.Stats().Subscribers == 1
		})
		for i := range uint64(3) {
			if seq, err := p.Publish(&ev); err != nil || seq != i {
				t.Fatalf("sequence %d, want %d: %v", seq, i, err)
			}
		}
		if st := p.Stats(); st != (PlaneStats{Messages: 3, Subscribers: 1}) {
			t.Errorf("%+v", st)
		}
		for i, frames := range py.Recv("sub", 3) {
			if string(frames[0]) != first {
				t.Errorf("the first frame is %q, want %q", frames[0], first)
			}
			e, err := ParsePlaneFrames(frames)
			if err != nil || e.Topic != "kv-events" || e.PublisherID != 77 || e.Sequence != uint64(i) || !e.PublishedAt.Equal(now) {
				t.Fatalf("%+v, %v", e, err)
			}
			var d RouterEventDecoder
			var got RouterEvent
			if err := d.Decode(e.Payload, &got); err != nil || !sameRouterEvent(got, ev) {
				t.Errorf("%v, %+v", err, got)
			}
			value := fmt.Sprint(py.Do(pyzmq.Command{"op": "unpack", "payload": fmt.Sprintf("%x", e.Payload)}).Value)
			if want := "map[event:map[data:map[stored:map[blocks:[map[block_hash:1 mm_extra_info:<nil> tokens_hash:2]] parent_hash:3 start_position:<nil>]] dp_rank:2 event_id:9]" +
				" residency_domain:cache_owner state_source:map[hex:7369787465656e206279746573202e2e] storage_tier:host_pinned worker_id:7]"; value != want {
				t.Errorf("Python reads %s\nwant %s", value, want)
			}
			outer := py.Do(pyzmq.Command{"op": "unpack", "payload": fmt.Sprintf("%x", frames[3][5:])}).Value.(map[string]any)
			if outer["topic"] != "kv-events" || outer["sequence"] != float64(i) || outer["published_at"] != 1.700000000123e12 {
				t.Errorf("Python reads the envelope as %v", outer)
			}
		}
		py.Do(pyzmq.Command{"op": "close", "id": "sub"})
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if _, err := p.Publish(&ev); err != ErrClosed {
			t.Errorf("after Close: %v", err)
		}
	}
	if _, err := NewPlanePublisher(PlanePublisherConfig{PublisherID: 1 << 53}); !errors.Is(err, ErrConfig) {
		t.Errorf("54 bits of id: %v", err)
	}
	if _, err := NewPlanePublisher(PlanePublisherConfig{Brokers: []string{"tcp://x"}}); !errors.Is(err, zmtp.ErrEndpoint) {
		t.Errorf("a bad broker: %v", err)
	}
	p, err := NewPlanePublisher(PlanePublisherConfig{Endpoint: "inproc://plane"})
	if err != nil || p.PublisherID() == 0 || p.PublisherID() > maxPublisherID {
		t.Errorf("random id %d, %v", p.PublisherID(), err)
	}
	p.Close()
}

// FuzzPlane: no frames panic, and what is read is the same after it was written.
func FuzzPlane(f *testing.F) {
	ev := RouterEvent{Worker: Worker{7, 2}, Tier: Disk, Domain: DomainCacheOwner, ID: 9, HasParent: true, Parent: 3, Blocks: []Block{{1, 2}, {3, 4}}}
	frame := func(ev RouterEvent) []byte {
		e := AppendEnvelope(nil, &Envelope{Topic: "kv-events", PublisherID: 1, Sequence: 2, PublishedAt: time.UnixMilli(5), Payload: AppendRouterEvent(nil, &ev, nil)})
		return slices.Concat(AppendPlaneFrames(nil, "", 1, 2, e)[3:]...)
	}
	f.Add(frame(ev))
	f.Add(frame(RouterEvent{Op: Cleared, Domain: DomainWorker}))
	f.Add(frame(RouterEvent{Op: Removed, Hashes: []uint64{1, 1 << 63}}))
	f.Add([]byte{1, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, last []byte) {
		e, err := ParsePlaneFrames([][]byte{nil, be64(1), be64(2), last})
		if err != nil {
			if !errors.Is(err, ErrFrames) && !errors.Is(err, ErrMalformed) {
				t.Fatalf("unclassified error %v", err)
			}
			return
		}
		if again, err := ParseEnvelope(AppendEnvelope(nil, &e)); err != nil || again.Topic != e.Topic || !bytes.Equal(again.Payload, e.Payload) {
			t.Fatalf("%+v comes back as %+v, %v", e, again, err)
		}
		var d, d2 RouterEventDecoder
		var got, again RouterEvent
		if err := d.Decode(e.Payload, &got); err != nil {
			if !errors.Is(err, ErrDomain) && !errors.Is(err, ErrMalformed) {
				t.Fatalf("unclassified error %v", err)
			}
			return
		}
		if err := d2.Decode(AppendRouterEvent(nil, &got, nil), &again); err != nil || !sameRouterEvent(got, again) {
			t.Fatalf("%+v comes back as %+v, %v", got, again, err)
		}
	})
}
