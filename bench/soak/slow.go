package soak

import (
	"context"
	"time"
)

// slowWorker asks for more than fits all buffers, and does not read for a while; then
// it takes all of it, or is gone.
type slowWorker struct{ respWorker }

func (w *slowWorker) work(ctx context.Context) {
	defer w.hangUp()
	for w.rest(ctx) {
		if w.c == nil && !w.dial() {
			continue
		}
		var asked []*block
		for range 20 + w.rng.IntN(60) {
			asked = append(asked, w.blocks(1)[0])
		}
		w.out.Reset()
		for _, b := range asked {
			w.out.WriteString("*2\r\n$3\r\nGET\r\n$8\r\n")
			w.out.Write(b.key)
			w.out.WriteString("\r\n")
		}
		_ = w.c.SetDeadline(time.Now().Add(callBound))
		if _, err := w.c.Write(w.out.Bytes()); err != nil {
			w.lost(err)
			continue
		}
		w.run.faults.add("slow reader", 1)
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(w.rng.IntN(int(w.run.o.slow)))):
		}
		if w.rng.IntN(2) == 0 {
			w.run.faults.add("reader that left", 1)
			w.hangUp()
			continue
		}
		_ = w.c.SetDeadline(time.Now().Add(callBound + callGrace))
		for _, b := range asked {
			a, err := w.read()
			if err != nil {
				w.lost(err)
				break
			}
			w.run.ops.add("slow get", 1)
			w.value("GET", &a, func(v []byte) { w.saw("slow GET", b, v) })
		}
	}
}
