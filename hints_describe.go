package kvcr

import (
	"log/slog"

	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/hints/work"
	"github.com/kvcr-go/kvcr/peer"
)

// guardedDescriber is what an adapter says of blocks, under guard.
type guardedDescriber struct {
	hints.Describer
	guard
}

func (g *guardedDescriber) AppendDescription(dst []byte, limit int, k hints.Key) (out []byte) {
	defer g.caught(func() { out = dst })
	return g.Describer.AppendDescription(dst, limit, k)
}

func (g *guardedDescriber) TakeDescription(k hints.Key, description []byte) (err error) {
	defer g.caught(func() { err = errAdapterPanic })
	return g.Describer.TakeDescription(k, description)
}

// AppendDescription makes the adapter a peer.Describer.
func (h *hinted) AppendDescription(dst []byte, limit int, namespace string, key []byte) []byte {
	if h.describer == nil {
		return dst
	}
	return h.describer.AppendDescription(dst, limit, hints.Key{Namespace: namespace, Key: key})
}

// describe hands what a source has said of a block to the adapter, once: of a block
// that is here, that is coming, or that is going to be fetched now.
func (h *hinted) describe(b *work.Block) {
	if h.describer != nil && len(b.Description) > 0 {
		if err := h.describer.TakeDescription(hints.Key{Namespace: b.Namespace, Key: b.Key}, b.Description); err != nil {
			h.refuseDescription(b, err)
		}
	}
	b.Description = nil
}

// refuseDescription counts it, and tells of the first: what it means is that routers
// cannot match the block.
func (h *hinted) refuseDescription(b *work.Block, err error) {
	level := slog.LevelDebug
	if h.refusedDescriptions.Add(1) == 1 {
		level = slog.LevelWarn
	}
	if log := h.cfg.Logger; log != nil {
		log.Log(h.e.background, level, "a peer's description of a block is refused", "hash", b.Hash, "namespace", b.Namespace, "err", err)
	}
}

var _ peer.Describer = (*hinted)(nil)
