package events

import "testing"

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
