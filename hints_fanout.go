package kvcr

import (
	"context"
	"errors"

	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/internal/role"
)

// fanOut returns what joins the outcomes of ranks. The first call begins to hand it
// those of this engine.
func (h *hinted) fanOut() (*hints.FanOut, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return nil, &OpError{Op: "fan out", Err: ErrClosed}
	case h.fan != nil:
		return h.fan, nil
	}
	fan, err := hints.NewFanOut(h.cfg.FanOut)
	if err != nil {
		return nil, err
	}
	own, err := h.outcomes.Subscribe()
	if err != nil {
		return nil, err
	}
	h.fan, h.fanOver = fan, make(chan struct{})
	go roleOutcomes.Run(func() { h.observe(own) })
	return fan, nil
}

// roleOutcomes is that of the goroutine that hands on outcomes, in profiles.
var roleOutcomes = role.New("hint-outcomes")

// observe hands on outcomes until their stream ends.
func (h *hinted) observe(own *hints.OutcomeReader) {
	defer close(h.fanOver)
	defer own.Close()
	for {
		switch o, err := own.Next(context.Background()); {
		case errors.Is(err, hints.ErrGap):
			h.fan.RankLost(h.cfg.Rank)
		case err != nil:
			return
		default:
			h.fan.Observe(o)
		}
	}
}
