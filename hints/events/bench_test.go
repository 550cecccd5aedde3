package events

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"
)

// benchBlocks runs f for batches of 128 blocks, in events of eight blocks of 16 tokens,
// and reports the time for a block.
func benchBlocks(b *testing.B, form Form, f func(batch *Batch, wire []byte)) {
	const events, blocks = 16, 8
	batch := hotBatch(events, blocks)
	wire := AppendBatch(nil, batch, form)
	b.ReportAllocs()
	b.SetBytes(int64(len(wire)))
	for b.Loop() {
		f(batch, wire)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(events*blocks), "ns/block")
}

func forms(b *testing.B, f func(*testing.B, Form)) {
	b.Run("form=maps", func(b *testing.B) { f(b, Maps) })
	b.Run("form=arrays", func(b *testing.B) { f(b, Arrays) })
}

func BenchmarkEncode(b *testing.B) {
	forms(b, func(b *testing.B, form Form) {
		var out []byte
		benchBlocks(b, form, func(batch *Batch, _ []byte) { out = AppendBatch(out[:0], batch, form) })
	})
}

func BenchmarkDecode(b *testing.B) {
	forms(b, func(b *testing.B, form Form) {
		var d Decoder
		var got Batch
		benchBlocks(b, form, func(_ *Batch, wire []byte) {
			if err := d.Decode(wire, &got); err != nil {
				b.Fatal(err)
			}
		})
	})
}

// Decoding and normalising, tokens hashed: what an index waits for.
func BenchmarkIngest(b *testing.B) {
	forms(b, func(b *testing.B, form Form) {
		var d Decoder
		var got Batch
		var out []RouterEvent
		n := NewNormalizer(NormalizerConfig{BlockSize: 16})
		benchBlocks(b, form, func(_ *Batch, wire []byte) {
			if err := d.Decode(wire, &got); err != nil {
				b.Fatal(err)
			}
			out = n.Normalize(out[:0], Worker{}, 1, &got)
		})
	})
}

// Blocks stored and removed, published over loopback and followed by a Consumer of this
// process, until the last one is there. Batches are as small as an engine's step makes
// them, or as large.
func BenchmarkPublish(b *testing.B) {
	for _, perBatch := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("blocks=%d", perBatch), func(b *testing.B) {
			p := newPublisher(b, PublisherConfig{Replay: "tcp://127.0.0.1:0"})
			var blocks atomic.Int64
			c, err := NewConsumer(ConsumerConfig{Endpoint: p.Endpoint(), Replay: p.ReplayEndpoint(), Normalizer: NormalizerConfig{BlockSize: 16},
				OnEvents: func(events []RouterEvent) {
					n := 0
					for _, ev := range events {
						n += len(ev.Blocks) + len(ev.Hashes)
					}
					blocks.Add(int64(n))
				}})
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			eventually(b, "subscribed", func() bool { return p.Stats().Subscribers == 1 })
			stored := hotBatch(1, perBatch)
			removed := &Batch{TS: 1, Events: []Event{{Kind: BlockRemoved, Hashes: stored.Events[0].Hashes, Medium: "GPU"}}}
			sent := int64(0)
			for b.Loop() {
				for _, batch := range []*Batch{stored, removed} {
					if _, err := p.Publish(batch); err != nil {
						b.Fatal(err)
					}
					sent += int64(perBatch)
				}
				for sent-blocks.Load() > int64(20_000*perBatch) {
					time.Sleep(10 * time.Microsecond) // the queue is not what is measured
				}
			}
			for blocks.Load() < sent {
				time.Sleep(10 * time.Microsecond)
			}
			b.ReportMetric(float64(sent)/b.Elapsed().Seconds(), "blocks/s")
			if st := c.Stats(); st.Gaps != [gapKinds]uint64{} || p.Stats().Dropped > 0 || st.Drops != (Drops{}) {
				b.Errorf("%+v, %+v", st, p.Stats())
			}
		})
	}
}
