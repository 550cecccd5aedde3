package soak

import (
	"context"
	"time"
)

// scraper reads the node's pages, as monitoring does.
type scraper struct{ worker }

func (w *scraper) work(ctx context.Context) {
	w.direct = true
	for ctx.Err() == nil {
		for _, page := range []string{"/metrics", "/api/status", "/healthz", "/debug/claims"} {
			excused := w.excuse()
			if _, err := w.node.ask(context.Background(), page); err != nil && !excused() {
				w.run.trouble.add(unexpected, w.where(), "%s: %v", page, err)
			}
			w.run.ops.add("pages", 1)
		}
		pause(ctx, time.Duration(w.rng.IntN(500))*time.Millisecond)
	}
}
