package kvcr

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/ucx"
)

// newUCXRoute opens route ucx over the payload memory of all namespaces, which it
// registers in the background. In a build without UCX it fails.
func newUCXRoute(e *Engine) (peer.Route, error) {
	if !ucx.Built {
		return nil, ucx.ErrNotBuilt
	}
	cfg := peer.UCXConfig{UCX: e.cfg.Peers.UCX, Logger: e.cfg.Peers.Logger, CUDA: e.cfg.CUDA}
	for _, ns := range e.list {
		if ns.payload.Placement().GoHeap {
			return nil, errors.New("the memory is Go's heap, as in race builds, and cannot be registered: set Memory.Backing to memfd")
		}
		cfg.Memory = append(cfg.Memory, ns.payload.Bytes(0, int(ns.payload.Size())))
	}
	if e.devices != nil {
		cfg.Memory = append(cfg.Memory, e.devices.ring)
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	cfg.OnRegistered = func(done, total int64, err error) {
		log.Info("memory is being registered with UCX", "bytes", done, "of", total, "err", err)
	}
	u, err := peer.OpenUCX(cfg)
	if err != nil {
		return nil, fmt.Errorf("UCX %s: %w", ucx.Version(), err)
	}
	return u, nil
}
