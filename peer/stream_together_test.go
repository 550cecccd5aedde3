package peer

import (
	"net"
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

// The connection may be lost while a reader tells of blocks that came together: who
// closes it waits for no lock that the reader needs, nor the other way round.
func TestLostWhileBlocksAreToldOf(t *testing.T) {
	const size = 4 << 10
	dst := newTable(t, 4, size, false)
	b := openNode(t, dst)
	r := newRawSource(t)
	told := make(chan Settle, 3)
	ctrl := make(chan net.Conn, 1)
	go func() {
		c, id, err := r.offerAll(size)
		if err != nil {
			t.Error(err)
			return
		}
		ctrl <- c
		nc := <-r.pay
		all := append((&wire.Block{Size: size}).Append(nil, id), payload(keyOf(0), size)...)
		nc.Write(append(all, (&wire.Block{Index: 1, Size: size}).Append(nil, id)...))
	}()
	b.Submit(r.endpoint(), Submit{Namespace: "ns", Items: wanted(0, 3), Deadline: b.Now() + 2*time.Second}, func(s Settle) {
		if s.Index == 0 {
			(<-ctrl).Close()
			time.Sleep(100 * time.Millisecond) // for who closes what is left of the connection
		}
		told <- s
	})
	for range 3 {
		select {
		case s := <-told:
			if (s.Status == wire.StatusOK) != (s.Index == 0) {
				t.Errorf("%+v", s)
			}
		case <-time.After(15 * time.Second):
			t.Fatal("the link stands still")
		}
	}
	dst.quiet(t)
}
