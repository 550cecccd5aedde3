package work

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvcr-go/kvcr/hints"
)

// Whatever sources answer and when, each block of each action ends once, then the
// action does, and nothing is said afterwards (W1, W2).
func TestEveryActionEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var mu sync.Mutex
		draw := func(label string, n int) int {
			mu.Lock()
			defer mu.Unlock()
			return rapid.IntRange(0, n-1).Draw(t, label)
		}
		f := newFake()
		working := map[string]int{} // by source and hash
		f.resolve = func(ctx context.Context, source string, hashes []uint64) (out []Block, why string) {
			if draw("resolve", 8) == 0 {
				return nil, "timeout"
			}
			for _, h := range hashes {
				b := blockOf(h)
				if draw("found", 5) == 0 {
					b = Block{Hash: h, Reason: "not_found", Here: draw("here", 2) == 0}
				}
				out = append(out, b)
			}
			return out, ""
		}
		f.look = func(*Block) (Standing, string) { return Standing(draw("standing", 4)), "layout" }
		var later []func()
		f.fetch = func(c *fetch) {
			for i, b := range c.blocks {
				id := fmt.Sprint(c.source, b.Hash)
				mu.Lock()
				if working[id]++; working[id] > 1 {
					t.Errorf("%s is fetched twice at a time", id)
				}
				mu.Unlock()
				a := Arrival{Existing: draw("existing", 2) == 0}
				if draw("fails", 4) == 0 {
					a.Reason = "capacity"
				}
				go func() {
					mu.Lock()
					working[id]--
					mu.Unlock()
					c.arrived(i, a)
				}()
				if !c.move || a.Reason != "" {
					continue
				}
				reason := map[bool]string{true: "held"}[draw("kept", 2) == 0]
				switch draw("moves", 3) {
				case 0:
					go c.moved(i, reason)
				case 1:
					mu.Lock()
					later = append(later, func() { c.moved(i, reason) })
					mu.Unlock()
				}
			}
		}
		x := New(Config{
			Engine: f, Pacer: NewPacer(4<<10, 1, time.Millisecond), MaxActions: 1 << 20, Sources: 2,
			BatchBlocks: 3, ChunkBlocks: 2, MoveTimeout: 5 * time.Millisecond,
		})
		type order struct {
			*record
			move   bool
			hashes map[uint64]bool
		}
		var orders []order
		for range draw("actions", 12) {
			o := order{newRecord(t), draw("move", 2) == 0, map[uint64]bool{}}
			a := Action{Source: string(rune('a' + draw("source", 3))), Move: o.move, Report: o.record}
			for range draw("hashes", 6) {
				h := uint64(draw("hash", 6))
				a.Hashes = append(a.Hashes, h)
				o.hashes[h] = true
			}
			if err := x.Submit(a); err != nil {
				t.Fatal(err)
			}
			orders = append(orders, o)
			if draw("wait", 3) == 0 {
				o.wait()
			}
		}
		if draw("stop", 3) == 0 {
			x.Stop()
		}
		mu.Lock()
		for _, f := range later {
			go f()
		}
		mu.Unlock()
		for _, o := range orders {
			o.wait()
		}
		if !x.Close(10 * time.Second) {
			t.Fatal("it does not close")
		}
		if a, b := x.Queued(); a != 0 || b != 0 || x.cfg.Pacer.InFlight() != 0 {
			t.Errorf("left: %d actions, %d blocks, %d bytes", a, b, x.cfg.Pacer.InFlight())
		}
		for _, o := range orders {
			if len(o.stages) != len(o.hashes) {
				t.Errorf("%d hashes have an end, of %d", len(o.stages), len(o.hashes))
			}
			for h, stages := range o.stages {
				at, finals := hints.StageAccepted, 0
				for _, s := range stages {
					if s < at {
						t.Errorf("%d: %v", h, stages)
					}
					at = s
					if s != hints.StageResolved && !(s == hints.StageCopied && o.move) {
						finals++
					}
				}
				if finals != 1 {
					t.Errorf("%d (move %t) ends %d times: %v", h, o.move, finals, stages)
				}
			}
		}
	})
}
