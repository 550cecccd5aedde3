package hints

import (
	"encoding/json"
	"fmt"
	"strconv"
	"testing"
)

// benchHashes are n hashes of 20 digits.
func benchHashes(n int) []uint64 {
	h := make([]uint64, n)
	for i := range h {
		h[i] = 1e19 + uint64(i)*7919*1e9
	}
	return h
}

func benchEnvelope(n int) *Envelope {
	return &Envelope{ProtocolVersion: "0.1", MessageID: "req-7f3a", Actions: []Action{{
		ID: "a1", Type: TypeFetch, Version: "1.0",
		Payload: &Transfer{Source: "tcp://10.0.4.21:17771", Hashes: benchHashes(n)},
	}}}
}

func benchJSON(n int) []byte {
	b, err := json.Marshal(map[string]any{"protocol_version": "0.1", "message_id": "req-7f3a", "actions": []any{map[string]any{
		"action_id": "a1", "action_type": TypeFetch, "action_version": "1.0",
		"payload": map[string]any{"source_control_endpoint": "tcp://10.0.4.21:17771", "block_hashes": benchHashes(n)},
	}}})
	if err != nil {
		panic(err)
	}
	return b
}

func benchDispatcher(tb testing.TB) (*Dispatcher, *Advice) {
	a, err := NewAdvice(AdviceConfig{})
	if err != nil {
		tb.Fatal(err)
	}
	d, err := NewDispatcher(Config{})
	if err != nil {
		tb.Fatal(err)
	}
	if err := Register(d, FetchType(a)); err != nil {
		tb.Fatal(err)
	}
	return d, a
}

// benchSubmit submits advice and discards it, for one of many requests at a time.
func benchSubmit(b *testing.B, submit func(d *Dispatcher, dst []Result, id string) ([]Result, error)) {
	d, a := benchDispatcher(b)
	ids := make([]string, 1024)
	for i := range ids {
		ids[i] = "request-" + strconv.Itoa(i)
	}
	var dst []Result
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		id := ids[i%len(ids)]
		var err error
		if dst, err = submit(d, dst[:0], id); err != nil || dst[0].Status != Accepted {
			b.Fatal(dst, err)
		}
		a.Discard(id)
	}
}

func BenchmarkSubmitDiscardValue(b *testing.B) {
	for _, n := range []int{1, 1024} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			e := benchEnvelope(n)
			benchSubmit(b, func(d *Dispatcher, dst []Result, id string) ([]Result, error) { return d.AppendEnvelope(dst, id, e) })
		})
	}
}

func BenchmarkSubmitDiscardJSON(b *testing.B) {
	for _, n := range []int{1, 1024} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			data := benchJSON(n)
			b.SetBytes(int64(len(data)))
			benchSubmit(b, func(d *Dispatcher, dst []Result, id string) ([]Result, error) { return d.AppendJSON(dst, id, data) })
		})
	}
}
