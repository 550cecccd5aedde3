package bench

import (
	"context"
	"errors"
	"testing"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/bench/model"
	"github.com/kvcr-go/kvcr/bench/trace"
)

// small is a generated trace of some 5,000 blocks.
func small() *trace.Trace {
	p := trace.DefaultParams(1)
	p.Conversations = 150
	return trace.Generate("small", p)
}

func TestReplayFindsEveryByteRight(t *testing.T) {
	tr := small()
	var last ReplayProgress
	r, err := Replay(context.Background(), ReplayOptions{
		Trace: tr, Blocks: CapacityOf(tr, 20), BlockBytes: 512,
		Progress: func(p ReplayProgress) { last = p },
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.WrongBytes != 0 || r.WrongBlocks != 0 {
		t.Errorf("%d wrong bytes in %d blocks", r.WrongBytes, r.WrongBlocks)
	}
	if r.Requests != len(tr.Requests) || r.Blocks != tr.Blocks() || r.Unique != tr.Unique() {
		t.Errorf("played %d requests, %d blocks, %d different; the trace has %d, %d, %d",
			r.Requests, r.Blocks, r.Unique, len(tr.Requests), tr.Blocks(), tr.Unique())
	}
	if r.PrefixHits == 0 || r.VerifiedBytes != int64(r.PrefixHits*512) {
		t.Errorf("%d usable hits, %d bytes verified", r.PrefixHits, r.VerifiedBytes)
	}
	if r.BlockHits < r.PrefixHits || r.Deposited != r.Blocks-r.BlockHits || r.Refused != 0 {
		t.Errorf("%d block hits, %d usable, %d deposited, %d refused of %d", r.BlockHits, r.PrefixHits, r.Deposited, r.Refused, r.Blocks)
	}
	if r.Unreachable != 0 {
		t.Errorf("%d residents unreachable under %s", r.Unreachable, r.Policy)
	}
	if r.Get.Count == 0 || r.Deposit.Count != int64(r.Deposited) || r.Get.P50 <= 0 || r.Get.P50 > r.Get.P999 || r.Get.P999 > r.Get.Max {
		t.Errorf("latencies %+v, %+v", r.Get, r.Deposit)
	}
	if used := int64(r.Capacity * r.BlockBytes); r.MemoryUsed > used || r.MemoryUsed < used*8/10 || r.MemoryReserved < used {
		t.Errorf("%d bytes used, %d reserved, of a cache of %d", r.MemoryUsed, r.MemoryReserved, used)
	}
	if last.Requests != last.Total || last.Hits != r.PrefixHits || last.Blocks != r.Blocks {
		t.Errorf("last progress %+v", last)
	}
}

// TestReplayCountsDamage spoils one byte of one block that is read again.
func TestReplayCountsDamage(t *testing.T) {
	tr := &trace.Trace{Name: "twice", Requests: []trace.Request{{IDs: []uint64{1, 2, 3}}, {IDs: []uint64{1, 2, 3}}, {IDs: []uint64{1, 2, 4}}}}
	r, err := Replay(context.Background(), ReplayOptions{
		Trace: tr, Blocks: 100, BlockBytes: 4096,
		damage: func(n int, block []byte) {
			if n == 1 {
				block[4095] ^= 0x80
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	// Block 2 is hit by the second and the third request.
	if r.WrongBytes != 2 || r.WrongBlocks != 2 {
		t.Errorf("%d wrong bytes in %d blocks, want 2 in 2", r.WrongBytes, r.WrongBlocks)
	}
	if r.PrefixHits != 5 || r.BlockHits != 5 {
		t.Errorf("%d usable hits, %d block hits, want 5", r.PrefixHits, r.BlockHits)
	}
}

func TestWrongBytes(t *testing.T) {
	ks := sequence(2)
	block, scratch := make([]byte, 256), make([]byte, 256)
	fillBlock(block, ks.At(0))
	if n := wrongBytes(block, scratch, ks.At(0)); n != 0 {
		t.Errorf("right block: %d wrong bytes", n)
	}
	if n := wrongBytes(block, scratch, ks.At(1)); n < 200 {
		t.Errorf("another key's block: only %d of 256 bytes are wrong", n)
	}
	if n := wrongBytes(block[:255], scratch, ks.At(0)); n != 256 {
		t.Errorf("short block: %d wrong bytes, want all 256", n)
	}
	block[0]++
	block[200]++
	if n := wrongBytes(block, scratch, ks.At(0)); n != 2 {
		t.Errorf("two bytes changed: %d wrong", n)
	}
}

// TestReplayCutsLongRequests plays requests longer than the cache.
func TestReplayCutsLongRequests(t *testing.T) {
	ids := make([]uint64, 50)
	for i := range ids {
		ids[i] = uint64(i)
	}
	tr := &trace.Trace{Name: "long", Requests: []trace.Request{{IDs: ids}, {IDs: ids}}}
	r, err := Replay(context.Background(), ReplayOptions{Trace: tr, Blocks: 20, BlockBytes: 4096})
	if err != nil {
		t.Fatal(err)
	}
	if r.PrefixHits != 20 || r.Blocks != 100 {
		t.Errorf("%d hits of %d blocks, want 20 of 100", r.PrefixHits, r.Blocks)
	}
}

func TestReplayDoesNotCountWarmUp(t *testing.T) {
	tr := &trace.Trace{Name: "warm", Requests: []trace.Request{{IDs: []uint64{1, 2}, Uncounted: true}, {IDs: []uint64{1, 2, 3}}}}
	r, err := Replay(context.Background(), ReplayOptions{Trace: tr, Blocks: 20})
	if err != nil {
		t.Fatal(err)
	}
	if r.Requests != 1 || r.Blocks != 3 || r.PrefixHits != 2 {
		t.Errorf("%d requests, %d blocks, %d hits; want 1, 3, 2", r.Requests, r.Blocks, r.PrefixHits)
	}
}

// TestUnreachableIsCounted removes the head of a chain by hand.
func TestUnreachableIsCounted(t *testing.T) {
	e, err := kvcr.Open(kvcr.Config{Capacity: 1 << 20, Namespaces: []kvcr.Namespace{{
		Name: "chain", Kind: kvcr.Chained, Pools: []kvcr.Pool{{Name: "kv", SlotBytes: 4096}}}}})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	h, err := e.Handle()
	if err != nil {
		t.Fatal(err)
	}
	tr := &trace.Trace{Requests: []trace.Request{{IDs: []uint64{0, 1, 2}}, {IDs: []uint64{0, 3}}}}
	for _, r := range tr.Requests {
		keys, items := NewKeys(r.IDs), []kvcr.Item{}
		for i := range keys.Len() {
			items = append(items, kvcr.Item{Key: keys.At(i).Bytes, Value: make([]byte, 4096)})
		}
		for _, res := range h.DepositBatch(items, kvcr.DepositOptions{}) {
			if !res.OK() {
				t.Fatal(res.Err())
			}
		}
	}
	if n, err := unreachable(e, tr); err != nil || n != 0 {
		t.Errorf("whole chains: %d unreachable, %v", n, err)
	}
	if ok, err := h.Delete(NewKeys([]uint64{0}).At(0).Bytes); !ok || err != nil {
		t.Fatal(ok, err)
	}
	// 1 and 3 followed the removed block; 2 still has its predecessor.
	if n, err := unreachable(e, tr); err != nil || n != 2 {
		t.Errorf("without their head: %d unreachable, %v, want 2", n, err)
	}
}

func TestReplayRefusesBadOptions(t *testing.T) {
	tr := small()
	for name, o := range map[string]ReplayOptions{
		"no trace":  {Blocks: 1},
		"no blocks": {Trace: tr},
	} {
		var bad *OptionError
		if _, err := Replay(context.Background(), o); !errors.As(err, &bad) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	for name, o := range map[string]ReplayOptions{
		"policy":     {Trace: tr, Blocks: 100, Policy: "best"},
		"block size": {Trace: tr, Blocks: 100, BlockBytes: 100},
	} {
		if _, err := Replay(context.Background(), o); !errors.Is(err, kvcr.ErrConfig) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Replay(ctx, ReplayOptions{Trace: tr, Blocks: 100}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: error %v", err)
	}
}

// TestEngineIsNearItsModel compares the engine with a simulation of the policy
// it runs: what differs is the shard's clock and its magazines. On so few
// blocks chance moves density by several points; TestRecordedTrace judges it.
func TestEngineIsNearItsModel(t *testing.T) {
	tr := small()
	for _, policy := range []string{"lru", "fifo"} {
		blocks := CapacityOf(tr, 20)
		r, err := Replay(context.Background(), ReplayOptions{Trace: tr, Blocks: blocks, BlockBytes: 512, Policy: policy})
		if err != nil {
			t.Fatal(err)
		}
		m := model.Run(tr, blocks, &model.Evict{Policy: policy, Late: true})
		if d := r.PrefixPercent() - m.Percent(); d < -1 || d > 1 {
			t.Errorf("%s: engine %.2f %%, model %.2f %%", policy, r.PrefixPercent(), m.Percent())
		}
	}
}

// TestRecordedTrace replays a recorded trace, as kvcr replay does.
func TestRecordedTrace(t *testing.T) {
	if testing.Short() {
		t.Skip("a whole trace: seconds")
	}
	tr, err := trace.Open("conversation", "..", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if tr.Made {
		t.Skip("../shared/traces/conversation_trace.jsonl is not there")
	}
	for percent, floor := range map[float64]float64{1: 9, 10: 28.4} {
		r, err := Replay(context.Background(), ReplayOptions{Trace: tr, Blocks: CapacityOf(tr, percent)})
		if err != nil {
			t.Fatal(err)
		}
		if r.WrongBytes != 0 || r.Unreachable != 0 || r.PrefixPercent() < floor {
			t.Errorf("at %g %%: %.2f %% usable hits, floor %g; %d wrong bytes, %d unreachable", percent, r.PrefixPercent(), floor, r.WrongBytes, r.Unreachable)
		}
	}
}
