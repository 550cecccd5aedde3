package work

import (
	"context"
	"testing"

	"github.com/kvcr-go/kvcr/hints"
)

// A source that stops to answer in the middle is asked for hashes again, which is where
// work ends if it is gone; what it could still give is brought once it answers.
func TestSourceStopsAnswering(t *testing.T) {
	for _, tt := range []struct {
		name           string
		hashes, blocks bool // whether it answers again, when asked for which
		chunks         int  // that are asked for
		copied         int
	}{
		{"for a moment", true, true, 10, 18},
		{"for good", false, false, 2, 2},
		{"with blocks only", true, false, 3, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake()
			resolved := 0
			f.resolve = func(_ context.Context, _ string, hashes []uint64) (out []Block, why string) {
				if resolved++; resolved > 1 && !tt.hashes {
					return nil, "timeout"
				}
				for _, h := range hashes {
					out = append(out, blockOf(h))
				}
				return out, ""
			}
			chunks := 0
			f.fetch = func(c *fetch) {
				if chunks++; chunks == 1 || chunks > 2 && tt.blocks {
					f.bring(c)
					return
				}
				for i := range c.blocks {
					c.arrived(i, Arrival{Reason: "lost", Lost: true})
				}
			}
			x := start(t, f, func(c *Config) { c.ChunkBlocks = 2 })
			var all []uint64
			for h := range uint64(20) {
				all = append(all, h)
			}
			r := order(t, x, "a", false, all...)
			r.wait()
			copied := 0
			for _, h := range all {
				switch r.last(h) {
				case hints.StageCopied:
					copied++
				case hints.StageFailed:
				default:
					t.Errorf("%d: %v", h, r.last(h))
				}
			}
			if copied != tt.copied || chunks != tt.chunks {
				t.Errorf("%d copied in %d chunks, want %d in %d", copied, chunks, tt.copied, tt.chunks)
			}
		})
	}
}

// Parts of a group are fetched together, also where a chunk would end between them.
func TestGroupsStayWhole(t *testing.T) {
	f := newFake()
	f.resolve = func(_ context.Context, _ string, hashes []uint64) (out []Block, why string) {
		for _, h := range hashes {
			b := blockOf(h)
			b.Follows = h%3 != 0 // groups of three
			out = append(out, b)
		}
		return out, ""
	}
	x := start(t, f, func(c *Config) { c.ChunkBlocks, c.Pacer = 5, NewPacer(16<<10, 8, 0) }) // four blocks in a quarter
	var all []uint64
	for h := range uint64(21) {
		all = append(all, h)
	}
	r := order(t, x, "a", true, all...)
	r.wait()
	for _, c := range f.calls() {
		if n := len(c.blocks); c.blocks[0].Hash%3 != 0 || n%3 != 0 || n > 5 {
			t.Errorf("%d blocks from %d on are fetched together", n, c.blocks[0].Hash)
		}
	}
	// What is larger than a chunk is cut all the same.
	x = start(t, f, func(c *Config) { c.ChunkBlocks = 2 })
	order(t, x, "a", true, 0, 1, 2).wait()
}

// What an engine does not let go of ends with Close, also where a move of the same
// block was queued behind it.
func TestCloseEndsWhatIsStuck(t *testing.T) {
	for _, behind := range []bool{false, true} {
		f := newFake()
		begun, goOn := make(chan struct{}), make(chan struct{})
		f.fetch = func(call *fetch) {
			close(begun)
			<-goOn
			f.bring(call)
		}
		x := New(Config{Engine: f, Pacer: NewPacer(1<<20, 8, 0)})
		copied := order(t, x, "a", false, 1)
		<-begun
		if behind {
			order(t, x, "a", true, 1)
		}
		if x.Close(0) {
			t.Error("a worker that is stuck is not noticed")
		}
		copied.wait()
		copied.is(1, hints.StageFailed, ReasonClosed)
		close(goOn)
		eventually(t, "the worker ends", func() bool { x.mu.Lock(); defer x.mu.Unlock(); return x.workers == 0 })
	}
}

// Parts of a group of which somebody else fetches one are waited for together: a part
// alone is refused by every source.
func TestGroupsAreAwaitedWhole(t *testing.T) {
	f := newFake()
	f.resolve = func(_ context.Context, _ string, hashes []uint64) (out []Block, why string) {
		for _, h := range hashes {
			b := blockOf(h)
			b.Follows = h%3 != 0 // groups of three
			out = append(out, b)
		}
		return out, ""
	}
	f.await = func(_ *Block, ended func()) {
		f.mu.Lock()
		f.look = nil
		f.mu.Unlock()
		ended()
	}
	f.look = func(b *Block) (Standing, string) {
		if b.Hash == 4 {
			return Coming, ""
		}
		return Absent, ""
	}
	x := start(t, f, nil)
	r := order(t, x, "a", true, 0, 1, 2, 3, 4, 5, 6, 7, 8)
	r.wait()
	for _, c := range f.calls() {
		for i, b := range c.blocks {
			if (b.Hash%3 == 0) != (i%3 == 0) || len(c.blocks)%3 != 0 {
				t.Errorf("%d is number %d of %d", b.Hash, i, len(c.blocks))
			}
		}
	}
	if n := len(f.calls()); n != 2 {
		t.Errorf("%d fetches", n)
	}
}
