//go:build linux && cgo && ucx

package ucx

import (
	"testing"
	"time"
)

// Connecting to a worker that is no longer there ends in an error, for every
// kind of operation that was waiting for the connection.
func TestConnectToNobody(t *testing.T) {
	r := newRig(t, Options{})
	m, _ := r.memory(1 << 20)
	w := r.worker(WorkerOptions{})
	for i := range 10 {
		gone, err := r.ctx.NewWorker(WorkerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		addr := gone.Address()
		if err := gone.Close(time.Second); err != nil {
			t.Fatal(err)
		}
		failed := make(chan error, 1)
		ep, err := w.Connect(addr, func(err error) { failed <- err })
		if err != nil {
			t.Fatal(err)
		}
		_, small := start(t, w, Op{Kind: OpSend, Endpoint: ep, Mem: m, Len: 8, Tag: 1})
		_, large := start(t, w, Op{Kind: OpSend, Endpoint: ep, Mem: m, Len: 1 << 20, Tag: 2})
		_, flush := start(t, w, Op{Kind: OpFlush, Endpoint: ep})
		for name, ch := range map[string]<-chan Completion{"small": small, "large": large, "flush": flush} {
			if c := await(t, name, ch); c.Err == nil && name != "small" {
				t.Errorf("round %d: %s to nobody: %+v", i, name, c)
			}
		}
		select {
		case <-failed:
		case <-time.After(testPatience):
			t.Fatal("the endpoint does not fail")
		}
		if ep.Err() == nil {
			t.Error("a failed endpoint without a reason")
		}
		if err := ep.Close(time.Second); err != nil {
			t.Error(err)
		}
	}
}
