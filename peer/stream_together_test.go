package peer

import (
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// A block is told of with those that come behind it at once, but waits for none that
// does not: here the frame of the next has come, and its bytes have not.
func TestBlockWaitsForNoOther(t *testing.T) {
	const size = 4 << 10
	dst := newTable(t, 4, size, false)
	b := openNode(t, dst)
	r := newRawSource(t)
	told := make(chan Settle, 3)
	failed := make(chan error, 1)
	go func() {
		failed <- func() error {
			_, id, err := r.offerAll(size)
			if err != nil {
				return err
			}
			nc := <-r.pay
			frame := func(i int) []byte { return (&wire.Block{Index: uint32(i), Size: size}).Append(nil, id) }
			all := append(frame(0), payload(keyOf(0), size)...)
			all = append(append(all, frame(1)...), payload(keyOf(1), size)...)
			nc.Write(append(all, frame(2)...))
			for range 2 {
				if s := <-told; s.Status != wire.StatusOK || s.Index > 1 {
					t.Errorf("%+v", s)
				}
			}
			nc.Write(payload(keyOf(2), size))
			return nil
		}()
	}()
	b.Submit(r.endpoint(), Submit{Namespace: "ns", Items: wanted(0, 3), Deadline: b.Now() + 10*time.Second}, func(s Settle) { told <- s })
	if err := <-failed; err != nil {
		t.Error(err)
	}
	if s := <-told; s.Status != wire.StatusOK || s.Index != 2 {
		t.Errorf("%+v", s)
	}
	dst.quiet(t)
}
