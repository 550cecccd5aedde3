package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"runtime"

	"github.com/kvcr-go/kvcr/hints"
)

// Hints measures what hints cost a worker and a router: an envelope served and its
// advice discarded, events published by an engine, events ingested by an index.
func Hints(ctx context.Context, o Options) (*Report, error) {
	return runParts(ctx, o, []part{
		{[]string{"submit-discard", "submit-discard-allocs", "submit-discard-kept"}, 6, measureSubmit},
		{[]string{"publish"}, 16, measurePublish},
		{[]string{"recovery"}, 4, measureRecovery},
		{[]string{"ingest"}, 8, measureIngest},
		{[]string{"index-bytes"}, 5, measureIndexBytes},
	})
}

// submitCase is one way to hand an envelope over.
type submitCase struct {
	form   string
	hashes int
	bar    float64 // ns
	allocs float64 // at most, whatever the traffic
	// reference is the time that the dispatcher pull request states for a decoded
	// envelope, in ns; 0: none.
	reference float64
}

var submitCases = []submitCase{
	{"value", 1, 400, 0, 4300}, {"value", 1024, 6000, 0, 68600},
	{"json", 1, 2000, 1, 0}, {"json", 1024, 40000, 1, 0},
}

func (c submitCase) params() []Param { return []Param{{"form", c.form}, {"hashes", c.hashes}} }

// submitEnvelopes is how many different ones there are: more than one, so that hashes
// do not lie in the caches closest to the processor.
const submitEnvelopes = 64

// submitter submits the same envelopes again and again, each for another request.
type submitter struct {
	d      *hints.Dispatcher
	advice *hints.Advice
	values []*hints.Envelope
	texts  [][]byte // nil: values are submitted
	ids    []string
	dst    []hints.Result
	n      int
}

func newSubmitter(c submitCase, requests int) (*submitter, error) {
	s := &submitter{}
	var err error
	if s.advice, err = hints.NewAdvice(hints.AdviceConfig{}); err != nil {
		return nil, err
	}
	if s.d, err = hints.NewDispatcher(hints.Config{}); err != nil {
		return nil, err
	}
	if err := hints.Register(s.d, hints.FetchType(s.advice)); err != nil {
		return nil, err
	}
	for i := range submitEnvelopes {
		hashes := make([]uint64, c.hashes)
		for j := range hashes {
			hashes[j] = mix64(uint64(i*c.hashes+j)) | 1<<63 // 19 or 20 digits, as most have
		}
		endpoint, message := fmt.Sprintf("tcp://10.0.4.%d:17771", i%8), fmt.Sprintf("req-%04x", i)
		s.values = append(s.values, &hints.Envelope{ProtocolVersion: "0.1", MessageID: message, Actions: []hints.Action{{
			ID: "a1", Type: hints.TypeFetch, Version: "1.0", Payload: &hints.Transfer{Source: endpoint, Hashes: hashes},
		}}})
		if c.form == "json" {
			text, err := json.Marshal(map[string]any{"protocol_version": "0.1", "message_id": message, "actions": []any{map[string]any{
				"action_id": "a1", "action_type": hints.TypeFetch, "action_version": "1.0",
				"payload": map[string]any{"source_control_endpoint": endpoint, "block_hashes": hashes},
			}}})
			if err != nil {
				return nil, err
			}
			s.texts = append(s.texts, text)
		}
	}
	for i := range requests {
		s.ids = append(s.ids, fmt.Sprintf("request-%d", i))
	}
	return s, nil
}

// submit does ops operations: an envelope submitted, its advice discarded.
func (s *submitter) submit(_, ops int) error {
	for range ops {
		id := s.ids[s.n%len(s.ids)]
		var err error
		if s.texts != nil {
			s.dst, err = s.d.AppendJSON(s.dst[:0], id, s.texts[s.n%len(s.texts)])
		} else {
			s.dst, err = s.d.AppendEnvelope(s.dst[:0], id, s.values[s.n%len(s.values)])
		}
		if err != nil {
			return err
		}
		if len(s.dst) != 1 || s.dst[0].Status != hints.Accepted {
			return fmt.Errorf("the answers to a hint are %+v", s.dst)
		}
		s.advice.Discard(id)
		s.n++
	}
	return nil
}

func measureSubmit(ctx context.Context, o Options, rep *Report) error {
	result := func(c submitCase, name, unit string, limit float64) *Result {
		return rep.result(Result{Suite: "hints", Name: name, Params: c.params(), Unit: unit, Better: Lower, Bar: Bar{Limit: limit, HasLimit: true}, Across: name != "submit-discard"})
	}
	for _, c := range submitCases { // in the order that they are printed in
		r := result(c, "submit-discard", "ns/op", c.bar)
		r.series(ours)
		if c.reference > 0 {
			s := r.series(implReference)
			s.Runs, s.Note = []float64{c.reference}, "as published for a decoded envelope, on the host of a B200"
		}
	}
	for _, c := range submitCases {
		result(c, "submit-discard-allocs", "allocs/op", c.allocs)
	}
	for _, c := range submitCases {
		result(c, "submit-discard-kept", "bytes/op that stay", keptLimit)
	}
	for i, c := range submitCases {
		r := result(c, "submit-discard", "", 0)
		s, err := newSubmitter(c, 1024)
		if err != nil {
			return err
		}
		err = o.slice(i, len(submitCases)).rounds(ctx, func(round int) error {
			o.Progress(fmt.Sprintf("submit and discard, %d hashes as %s, round %d of %d", c.hashes, c.form, round+1, o.Runs))
			ns, err := closedLoop(ctx, 1, o.span(), 16, s.submit)
			if err != nil {
				return err
			}
			r.series(ours).Runs = append(r.series(ours).Runs, ns)
			const ops = 2000
			n, err := mallocs(func() error { return s.submit(0, ops) })
			if err != nil {
				return err
			}
			allocs := result(c, "submit-discard-allocs", "", 0).series(ours)
			// One digit: the process itself allocates a little meanwhile.
			allocs.Runs = append(allocs.Runs, math.Floor(10*float64(n)/ops)/10)
			return nil
		})
		if err != nil {
			return err
		}
		kept, err := keptBytes(c, o)
		if err != nil {
			return err
		}
		result(c, "submit-discard-kept", "", 0).series(ours).Runs = []float64{kept}
	}
	return nil
}

// keptLimit is less than anything takes that is kept for a request, and more than the
// process itself moves by.
const keptLimit = 8

// keptBytes is how much the heap grows by each of many operations of requests that
// never come again: what would grow with traffic.
func keptBytes(c submitCase, o Options) (float64, error) {
	requests := 100_000
	switch {
	case o.Smoke:
		requests = 200
	case c.form == "json" && c.hashes > 64:
		requests = 10_000 // of the same order of time
	}
	s, err := newSubmitter(c, 2*requests)
	if err != nil {
		return 0, err
	}
	var grown [2]int64
	for i := range grown {
		if err := s.submit(0, requests); err != nil { // the first half is warm-up
			return 0, err
		}
		grown[i] = liveHeap()
	}
	runtime.KeepAlive(s)
	return max(0, float64(grown[1]-grown[0])/float64(requests)), nil
}

// liveHeap is what the heap holds after a collection.
func liveHeap() int64 {
	runtime.GC()
	runtime.GC() // pools are emptied by the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
