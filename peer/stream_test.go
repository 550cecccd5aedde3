package peer

import (
	"testing"
	"time"
)

// Connections that were idle for longer than any of their deadlines carry on.
func TestStreamAfterSilence(t *testing.T) {
	const n, size = 17, 1 << 20
	src, dst := newTable(t, n, size, false), newTable(t, n, size, false)
	for i := range n - 1 {
		src.put(t, keyOf(i), size)
	}
	src.put(t, keyOf(n-1), 4096) // little enough to be written at once
	impatient := func(c *Config) { c.Stall = 50 * time.Millisecond; c.HandshakeTimeout = 100 * time.Millisecond }
	a, b := openNode(t, src, impatient), openNode(t, dst, impatient)
	for _, pause := range []time.Duration{0, 150 * time.Millisecond, linger + 150*time.Millisecond} {
		time.Sleep(pause)
		mustFetch(t, b, a.Endpoints()[0], 0, n)
		dst.drop()
		time.Sleep(pause)
		mustFetch(t, b, a.Endpoints()[0], n-1, 1)
		dst.drop()
	}
	if c := a.Stats().Connections; c != 1 {
		t.Errorf("%d control connections", c)
	}
}
