package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/hints/keys"
	"github.com/kvcr-go/kvcr/wire"
	"github.com/kvcr-go/kvcr/wire/client"
)

const hintedSlot = 16 << 10

// startHinted serves an engine with peers and hints, whose keys are hashes.
func startHinted(t *testing.T, edit func(*Options)) (*Server, *client.Client) {
	t.Helper()
	return startAdapted(t, keys.Direct{Namespace: "kv", Style: keys.Dynamo{}}, edit)
}

func startAdapted(t *testing.T, adapter hints.KeyAdapter, edit func(*Options)) (*Server, *client.Client) {
	t.Helper()
	cfg := kvcr.Config{
		Capacity:   8 << 20,
		Namespaces: []kvcr.Namespace{{Name: "kv", Pools: []kvcr.Pool{{Name: "kv", SlotBytes: hintedSlot}}}},
		Peers:      &kvcr.Peers{Listen: []string{"tcp://127.0.0.1:0"}, Routes: []string{"stream"}},
		Hints:      &kvcr.Hints{Adapter: adapter},
	}
	s := startWith(t, cfg, func(o *Options) {
		o.Binary = []string{"127.0.0.1:0"}
		if edit != nil {
			edit(o)
		}
	})
	_, addrs := s.Addrs()
	cl, err := client.Dial(t.Context(), client.Options{Addr: addrs[0].String()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	return s, cl
}

func hashKey(hash uint64) []byte { return binary.BigEndian.AppendUint64(nil, hash) }

func hashValue(hash uint64) []byte { return bytes.Repeat(hashKey(hash), hintedSlot/8) }

// envelope is one with an action of each type given.
func envelope(t *testing.T, source string, types []string, hashes ...uint64) []byte {
	t.Helper()
	type action struct {
		ID      string         `json:"action_id"`
		Type    string         `json:"action_type"`
		Version string         `json:"action_version"`
		Payload map[string]any `json:"payload"`
	}
	var all []action
	for i, typ := range types {
		all = append(all, action{fmt.Sprint("a", i), typ, "1.0", map[string]any{"source_control_endpoint": source, "block_hashes": hashes}})
	}
	b, err := json.Marshal(map[string]any{"protocol_version": "0.1", "message_id": "m1", "actions": all})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A client's hints reach the engine: what is advised for a request is fetched for it,
// what is to be moved moves, and outcomes say how it ended.
func TestHintsOverWire(t *testing.T) {
	a, from := startHinted(t, nil)
	_, to := startHinted(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for h := uint64(1); h <= 8; h++ {
		if _, err := from.Deposit(ctx, hashKey(h), hashValue(h)); err != nil {
			t.Fatal(err)
		}
	}
	source := a.opt.Engine.Peers().Endpoints()[0]
	outcomes, err := to.SubscribeOutcomes(ctx, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer outcomes.Close()

	body, err := to.Hint(ctx, "r1", wire.FormatJSON, envelope(t, source, []string{"kv.fetch", "kv.someday"}, 1, 2, 3))
	if err != nil {
		t.Fatal(err)
	}
	var results []hints.Result
	if err := json.Unmarshal(body, &results); err != nil || len(results) != 2 || results[0].Status != hints.Accepted || results[0].MessageID != "m1" ||
		results[1].Status != hints.Rejected || results[1].Reason != hints.UnsupportedActionType || results[1].ActionID != "a1" {
		t.Fatalf("%s, %v", body, err)
	}
	want := [][]byte{hashKey(1), hashKey(2), hashKey(3), hashKey(4)}
	if rs, err := to.QueryFor(ctx, "r1", want); err != nil || rs[0] != (wire.Result{Tier: uint8(kvcr.TierRemote)}) || rs[3].Status != wire.StatusMiss {
		t.Errorf("query of the request: %v, %v", rs, err)
	}
	if rs, err := to.Query(ctx, want); err != nil || rs[0].Status != wire.StatusMiss {
		t.Errorf("query of nobody: %v, %v", rs, err)
	}
	if cs, err := to.Fetch(ctx, want); err != nil || cs[0].Status != wire.StatusMiss {
		t.Errorf("fetch of nobody: %v, %v", cs, err)
	}
	claims, err := to.FetchFor(ctx, "r1", want)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range claims {
		if want := map[bool]wire.Status{true: wire.StatusOK, false: wire.StatusMiss}[i < 3]; c.Status != want {
			t.Fatalf("block %d: %v", i+1, c.Status)
		}
		if i == 3 {
			break
		}
		b, err := to.Deliver(ctx, c, nil)
		if err != nil || !bytes.Equal(b, hashValue(uint64(i+1))) {
			t.Fatalf("block %d: %d bytes, %v", i+1, len(b), err)
		}
	}
	if err := to.Release(ctx, claims[:3]...); err != nil {
		t.Fatal(err)
	}
	if err := to.DiscardHint(ctx, "r1"); err != nil {
		t.Fatal(err)
	}
	if rs, err := to.QueryFor(ctx, "r1", [][]byte{hashKey(5)}); err != nil || rs[0].Status != wire.StatusMiss {
		t.Errorf("after the discard: %v, %v", rs, err)
	}

	if _, err := to.Hint(ctx, "", wire.FormatJSON, envelope(t, source, []string{"kv.move"}, 5, 6, 99)); err != nil {
		t.Fatal(err)
	}
	stages := map[wire.OutcomeStage][]uint64{}
	for end := false; !end; {
		f, err := outcomes.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range f.Items {
			if f.Gap || o.MessageID != "m1" || o.ActionID != "a0" || o.Type != "kv.move" || o.UnixNanos == 0 {
				t.Errorf("%+v", o)
			}
			stages[o.Stage] = append(stages[o.Stage], o.Hashes...)
			if end = o.Stage == wire.OutcomeEnd; end && (o.Moved != 2 || o.Failed != 1 || o.Bytes != 2*hintedSlot) {
				t.Errorf("%+v", o)
			}
		}
	}
	slices.Sort(stages[wire.OutcomeMoved])
	if !slices.Equal(stages[wire.OutcomeMoved], []uint64{5, 6}) || !slices.Equal(stages[wire.OutcomeFailed], []uint64{99}) {
		t.Errorf("%v", stages)
	}
	if there, err := from.Exists(ctx, hashKey(5), hashKey(7)); err != nil || there[0] || !there[1] {
		t.Errorf("at the source: %v, %v", there, err)
	}
	_, err = to.Hint(ctx, "", wire.FormatJSON, []byte(`{"actions":`))
	var e *client.Error
	if !errors.As(err, &e) || e.Err != client.ErrRefused || e.Text == "" {
		t.Errorf("no envelope: %v", err)
	}
	if err := to.Set(ctx, hashKey(50), hashValue(50)); err != nil {
		t.Errorf("after it: %v", err)
	}
}

// A connection that ends takes with it what its requests wait for.
func TestFetchForLostClient(t *testing.T) {
	a, from := startHinted(t, nil)
	b, to := startHinted(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var all [][]byte
	var hashes []uint64
	for h := uint64(1); h <= 64; h++ {
		if _, err := from.Deposit(ctx, hashKey(h), hashValue(h)); err != nil {
			t.Fatal(err)
		}
		all, hashes = append(all, hashKey(h)), append(hashes, h)
	}
	if _, err := to.Hint(ctx, "r", wire.FormatJSON, envelope(t, a.opt.Engine.Peers().Endpoints()[0], []string{"kv.fetch"}, hashes...)); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		c := dialBinary(t, b)
		c.greet(nil, nil)
		c.Write((&wire.Fetch{Keys: all, RequestID: "r"}).Append(nil, 7))
		c.Close()
	}
	// Cancelled: each key is answered, and nothing is left (see startWith).
	c := dialBinary(t, b)
	c.greet(nil, nil)
	c.Write((&wire.Cancel{Target: 7}).Append((&wire.Fetch{Keys: all, RequestID: "r"}).Append(nil, 7), 8))
	h, payload, err := c.next()
	var got wire.Claims
	if err != nil || h.ID != 7 || got.Parse(payload) != nil || len(got.Claims) != 64 {
		t.Errorf("%+v, %d claims, %v", h, len(got.Claims), err)
	}
}

// Outcomes go on after the last that a client has; another life's are a gap.
func TestOutcomesResume(t *testing.T) {
	_, cl := startHinted(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := cl.Deposit(ctx, hashKey(1), hashValue(1)); err != nil {
		t.Fatal(err)
	}
	live, err := cl.SubscribeOutcomes(ctx, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	if _, err := cl.Hint(ctx, "", wire.FormatJSON, envelope(t, "", []string{"kv.evict", "kv.invalidate"}, 1)); err != nil {
		t.Fatal(err)
	}
	next := func(s *client.OutcomeStream) wire.Outcomes {
		t.Helper()
		f, err := s.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	first := next(live)
	again, err := cl.SubscribeOutcomes(ctx, first.Epoch, first.Items[0].Sequence)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if f := next(again); f.Gap || f.Items[0].Sequence != first.Items[0].Sequence+1 {
		t.Errorf("%+v after %+v", f, first)
	}
	other, err := cl.SubscribeOutcomes(ctx, first.Epoch+1, 77)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if f := next(other); !f.Gap || len(f.Items) != 0 {
		t.Errorf("of another life: %+v", f)
	}
	if f := next(other); f.Gap || f.Items[0].Sequence != 1 {
		t.Errorf("of another life: %+v", f)
	}
}

// However fast outcomes follow, none comes before the frame that says where they begin,
// which clients take for it.
func TestOutcomesFollowTheirBeginning(t *testing.T) {
	_, cl := startHinted(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	live, err := cl.SubscribeOutcomes(ctx, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	if _, err := cl.Hint(ctx, "", wire.FormatJSON, envelope(t, "", []string{"kv.evict", "kv.evict", "kv.evict"}, 1)); err != nil {
		t.Fatal(err)
	}
	first, err := live.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := range 100 {
				s, err := cl.SubscribeOutcomes(ctx, first.Epoch, first.Items[0].Sequence)
				if err != nil {
					t.Errorf("subscription %d: %v", i, err)
					return
				}
				f, err := s.Next(ctx)
				s.Close()
				if err != nil || len(f.Items) == 0 || f.Items[0].Sequence != first.Items[0].Sequence+1 {
					t.Errorf("subscription %d: %+v, %v after outcome %d", i, f, err, first.Items[0].Sequence)
					return
				}
			}
		}()
	}
	all.Wait()
}

// A node without hints says so, as does one that nobody can describe blocks to.
func TestHintsUnsupported(t *testing.T) {
	s := startBinary(t, nil)
	_, addrs := s.Addrs()
	cl, err := client.Dial(t.Context(), client.Options{Addr: addrs[0].String()})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, hint := cl.Hint(ctx, "r", wire.FormatJSON, []byte(`{"actions":[]}`))
	_, sub := cl.SubscribeOutcomes(ctx, 0, 0)
	_, desc := cl.Describe(ctx, &wire.Describe{BlockSize: 16, Blocks: []wire.Description{{Key: []byte("k")}}})
	for what, err := range map[string]error{"hint": hint, "outcomes": sub, "describe": desc, "discard": cl.DiscardHint(ctx, "r")} {
		if !errors.Is(err, client.ErrUnsupported) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if cs, err := cl.FetchFor(ctx, "r", [][]byte{[]byte("k")}); err != nil || cs[0].Status != wire.StatusMiss {
		t.Errorf("fetch for a request: %v, %v", cs, err)
	}
}

// The protocol's stages are the hints', by number and name.
func TestOutcomeStages(t *testing.T) {
	for s := hints.Stage(0); s <= hints.StageEnd+1; s++ {
		ours, theirs := wire.OutcomeStage(s).String(), s.String()
		if (ours == theirs) != (s <= hints.StageEnd) {
			t.Errorf("%d is %s and %s", s, ours, theirs)
		}
	}
}

// A claim that came while its connection ended is not lost: the client may have been
// told of it, and read it where it lies.
func TestClaimsThatComeAtTheEnd(t *testing.T) {
	s, cl := startHinted(t, nil)
	if err := cl.Set(t.Context(), hashKey(1), hashValue(1)); err != nil {
		t.Fatal(err)
	}
	h, err := s.opt.Engine.HandleIn("kv")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	for _, late := range []bool{false, true} {
		c := newBinary(s)
		op := h.Fetch([][]byte{hashKey(1)})
		c.advised.coming = 1
		if late {
			c.advised.close()
		}
		var told wire.Claims
		answer := c.arrive(7, op, 1, 1, false)
		if err := told.Parse(answer[wire.HeaderSize:]); err != nil {
			t.Fatal(err)
		}
		c.advised.close()
		if n, want := s.opt.Engine.Claims(), map[bool]int{false: 1}[late]; n != want {
			t.Errorf("late %t: %d claims after the client was told %v", late, n, told.Claims[0].Status)
		}
		c.abort()
		if n := s.opt.Engine.Claims(); n != 0 {
			t.Errorf("late %t: %d claims are left", late, n)
		}
	}
}

// A FETCH that waits for another node is answered before a server that shuts down
// closes its connection.
func TestShutdownOwesFetchFor(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // it takes connections, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	s, cl := startHinted(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := cl.Hint(ctx, "r", wire.FormatJSON, envelope(t, "tcp://"+silent.Addr().String(), []string{"kv.fetch"}, 1)); err != nil {
		t.Fatal(err)
	}
	c := dialBinary(t, s)
	c.greet(nil, nil)
	c.Write((&wire.Fetch{Keys: [][]byte{hashKey(1)}, RequestID: "r"}).Append(nil, 7))
	for begun := false; !begun; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		for ss := range s.sessions {
			begun = begun || ss.proto.(*binaryConn).advised.requests() > 0
		}
		s.mu.Unlock()
	}
	if err := s.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	h, payload, err := c.next()
	var got wire.Claims
	if err != nil || h.ID != 7 || got.Parse(payload) != nil || got.Claims[0].Status == wire.StatusOK {
		t.Errorf("%+v, %+v, %v", h, got.Claims, err)
	}
}

// slowAdapter answers when it may.
type slowAdapter struct {
	keys.Direct
	may chan struct{}
}

func (a slowAdapter) FromRouter(hash uint64) (hints.Key, error) {
	<-a.may
	return a.Direct.FromRouter(hash)
}

// Long envelopes that a client sends faster than they are served are refused, and not
// gathered.
func TestLongHintsAreBounded(t *testing.T) {
	slow := slowAdapter{keys.Direct{Namespace: "kv", Style: keys.Dynamo{}}, make(chan struct{})}
	s, _ := startAdapted(t, slow, nil)
	goOn := sync.OnceFunc(func() { close(slow.may) })
	t.Cleanup(goOn) // before the server's end
	c := dialBinary(t, s)
	c.greet(nil, nil)
	body := envelope(t, "", []string{"kv.invalidate"}, 1)
	body = append(body, bytes.Repeat([]byte(" "), 2*hintOnLoop)...)
	const sent = 3 * maxInFlight
	go func() {
		for id := range uint64(sent) {
			if _, err := c.Write((&wire.Hint{Body: body}).Append(nil, id+100)); err != nil {
				return
			}
		}
	}()
	busy, served := 0, 0
	for busy+served < sent {
		h, payload, err := c.next()
		if err != nil {
			t.Fatal(err)
		}
		var st wire.StatusReply
		switch {
		case h.Type == wire.TypeHintResults:
			served++
		case st.Parse(payload) != nil || st.Status != wire.StatusBusy:
			t.Fatalf("%+v: %v", h, st.Status)
		default:
			busy++
			goOn()
		}
	}
	if served < maxInFlight || busy == 0 {
		t.Errorf("%d served, %d refused", served, busy)
	}
}
