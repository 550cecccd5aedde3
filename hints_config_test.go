package kvcr_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints"
)

// Open names all that is wrong with hints, beside the rest.
func TestHintsConfig(t *testing.T) {
	_, err := kvcr.Open(kvcr.Config{
		Capacity: 1,
		Hints: &kvcr.Hints{
			Rank: -1, MaxActions: -1, MaxBlocks: 1 << 30, MaxInFlight: -1, YieldAbove: -1, YieldFor: -1, SourcesAtOnce: 1000,
			ResolveTimeout: -1, TransferTimeout: -1, MoveTimeout: -1,
			Limits: hints.Limits{Depth: -1}, Advice: hints.AdviceConfig{Sources: -1}, Outcomes: hints.OutcomesConfig{Kept: -1}, FanOut: hints.FanOutConfig{Joins: -1},
		},
	})
	if !errors.Is(err, kvcr.ErrConfig) {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Capacity", "Hints.Rank", "Hints.MaxActions", "Hints.MaxBlocks", "Hints.MaxInFlight", "Hints.YieldAbove", "Hints.YieldFor", "Hints.SourcesAtOnce",
		"Hints.ResolveTimeout", "Hints.TransferTimeout", "Hints.MoveTimeout", "Hints.Limits", "Hints.Advice", "Hints.Outcomes", "Hints.FanOut",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %s: %v", want, err)
		}
	}
	e, err := kvcr.Open(kvcr.Config{Capacity: 8 << 20, OperationTimeout: 9 * time.Second, Hints: &kvcr.Hints{}})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	c := e.Config()
	if h := c.Hints; h.MaxActions != 256 || h.ResolveTimeout != 9*time.Second || h.TransferTimeout != 9*time.Second || h.MaxInFlight != 64<<20 {
		t.Errorf("defaults: %+v", *h)
	}
	c.Hints.Rank = 7
	if e.Config().Hints.Rank == 7 {
		t.Error("the configuration can be changed")
	}
}

// Without Config.Hints every call says so, and none does harm.
func TestWithoutHints(t *testing.T) {
	e, err := kvcr.Open(kvcr.Config{Capacity: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	_, err1 := e.SubmitHint("r", []byte("{}"), kvcr.HintAny)
	_, err2 := e.SubmitHintValue("r", &hints.Envelope{})
	_, err3 := e.SubscribeOutcomes()
	_, err4 := e.SubscribeOutcomesFrom(1)
	_, err5 := e.FanOut()
	for _, err := range []error{err1, err2, err3, err4, err5} {
		if !errors.Is(err, kvcr.ErrNoHints) || !strings.Contains(err.Error(), "Config.Hints") {
			t.Error(err)
		}
	}
	e.DiscardHint("r")
	h, err := e.Handle()
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if q := h.QueryFor("r", [][]byte{[]byte("k")}); q[0].Status != kvcr.StatusMiss {
		t.Error(q)
	}
	if rs := wait(t, h.FetchFrom([][]byte{[]byte("k")}, kvcr.FetchOptions{RequestID: "r"})); rs[0].Reason != kvcr.ReasonMiss {
		t.Error(rs)
	}
	if st, err := e.Stats(); err != nil || st.Hints != nil {
		t.Error(st, err)
	}
}

// Hints come in any form; one that is no envelope is the only error.
func TestHintFormats(t *testing.T) {
	e, err := kvcr.Open(kvcr.Config{Capacity: 8 << 20, Hints: &kvcr.Hints{}})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	json := []byte(`{"protocol_version":"0.1","message_id":"m","actions":[{"action_id":"a","action_type":"kv.fetch","action_version":"1.0","payload":{"source_control_endpoint":"tcp://h:1","block_hashes":[18446744073709551615]}}]}`)
	msgpack := []byte("\x82\xa7actions\x91\x83\xa9action_id\xa1a\xabaction_type\xa8kv.fetch\xa7payload\x82\xb7source_control_endpoint\xa9tcp://h:1\xacblock_hashes\x91\x07\xaamessage_id\xa1m")
	for _, tt := range []struct {
		body   []byte
		format kvcr.HintFormat
		ok     bool
	}{
		{json, kvcr.HintAny, true}, {json, kvcr.HintJSON, true}, {json, kvcr.HintMsgpack, false},
		{msgpack, kvcr.HintAny, true}, {msgpack, kvcr.HintMsgpack, true}, {msgpack, kvcr.HintJSON, false},
		{nil, kvcr.HintAny, false}, {[]byte("{"), kvcr.HintAny, false}, {[]byte("[]"), kvcr.HintJSON, false}, {[]byte{0x81}, kvcr.HintAny, false},
	} {
		rs, err := e.SubmitHint("r", tt.body, tt.format)
		switch {
		case !tt.ok && !errors.Is(err, hints.ErrMalformed):
			t.Errorf("%q as %d: %v, %v", tt.body, tt.format, rs, err)
		case tt.ok && (err != nil || len(rs) != 1 || rs[0].Status != hints.Accepted || rs[0].ActionID != "a" || rs[0].MessageID != "m"):
			t.Errorf("%q as %d: %v, %v", tt.body, tt.format, rs, err)
		}
	}
	before := make([]hints.Result, 1, 8)
	if rs, err := e.AppendHint(before, "r", json, kvcr.HintJSON); err != nil || len(rs) != 2 {
		t.Error(rs, err)
	}
	st, err := e.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if s := st.Hints.Submitted; s.Malformed != 6 || s.Types[0].Accepted != 5 {
		t.Errorf("%+v", s)
	}
}
