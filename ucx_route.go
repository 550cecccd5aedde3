package kvcr

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"

	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/ucx"
)

// loopbacks are the interfaces that only this machine reaches. UCX listens for
// whoever comes, so that it goes where an address of ours without a secret may go.
func loopbacks() (names []string) {
	all, err := net.Interfaces()
	if err != nil {
		return []string{"lo"}
	}
	for _, i := range all {
		if i.Flags&net.FlagLoopback != 0 {
			names = append(names, i.Name)
		}
	}
	return names
}

// newUCXRoute opens route ucx over the payload memory of all namespaces, which it
// registers in the background. In a build without UCX it fails.
func newUCXRoute(e *Engine) (peer.Route, error) {
	if !ucx.Built {
		return nil, ucx.ErrNotBuilt
	}
	cfg := peer.UCXConfig{UCX: e.cfg.Peers.UCX, Logger: e.cfg.Peers.Logger, CUDA: e.cfg.CUDA,
		Direct: e.cfg.Peers.Direct, DirectUnverified: e.cfg.Peers.DirectUnverified}
	for _, r := range []*peer.Regions{e.cfg.Regions, e.cfg.Peers.Regions} {
		if r != nil && !slices.Contains(cfg.Regions, r) {
			cfg.Regions = append(cfg.Regions, r)
		}
	}
	if len(cfg.UCX.Devices) == 0 && !e.cfg.Peers.Public && len(e.cfg.Peers.Secret) == 0 {
		cfg.UCX.Devices = loopbacks()
	}
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
