package soak

import (
	"testing"
	"time"
)

// What may be read of a SET key: see S1.
func TestHistory(t *testing.T) {
	newest := func(c *cell) uint32 { return c.begin() }
	stored := func(c *cell) uint32 {
		v := c.begin()
		c.stored(v, 0)
		return v
	}
	tests := []struct {
		name string
		// do makes the history; before the read begins, and while it is under way.
		before, during func(c *cell)
		read           uint32
		ok             bool
	}{
		{"the newest", func(c *cell) { stored(c); stored(c) }, nil, 2, true},
		{"an old one", func(c *cell) { stored(c); stored(c) }, nil, 1, false},
		{"one that was replaced during the read", func(c *cell) { stored(c) }, func(c *cell) { stored(c) }, 1, true},
		{"the one that replaced it", func(c *cell) { stored(c) }, func(c *cell) { stored(c) }, 2, true},
		{"one that is being written", func(c *cell) { stored(c); newest(c) }, nil, 2, true},
		{"the one before that", func(c *cell) { stored(c); newest(c) }, nil, 1, true},
		{"one that was lost long ago", func(c *cell) { newest(c); stored(c); stored(c) }, nil, 1, true},
		{"one between, though one was lost", func(c *cell) { newest(c); stored(c); stored(c) }, nil, 2, false},
		{"one that was never written", func(c *cell) { stored(c) }, nil, 2, false},
		{"no version", func(c *cell) { stored(c) }, nil, 0, false},
		{"one that was refused", func(c *cell) { stored(c); c.refused(c.begin()) }, nil, 2, false},
		{"the one before a refused one", func(c *cell) { stored(c); c.refused(c.begin()) }, nil, 1, true},
		{"one that was deleted", func(c *cell) { stored(c); c.deleted() }, nil, 1, false},
		{"one that was deleted during the read", func(c *cell) { stored(c) }, func(c *cell) { c.deleted() }, 1, true},
		{"one that was written after a delete", func(c *cell) { stored(c); c.deleted(); stored(c) }, nil, 2, true},
		{"one that was lost before a delete", func(c *cell) { newest(c); c.deleted() }, nil, 1, true},
		{"one within its time", func(c *cell) { c.stored(c.begin(), time.Hour) }, nil, 1, true},
		{"one long beyond its time", func(c *cell) {
			c.stored(c.begin(), time.Millisecond)
			c.until[1] = time.Now().Add(-time.Minute)
		}, nil, 1, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newCell([]byte("k"))
			tt.before(c)
			l := c.look()
			if tt.during != nil {
				tt.during(c)
			}
			if err := c.judge(l, tt.read); (err == nil) != tt.ok {
				t.Errorf("version %d: %v, want ok %t", tt.read, err, tt.ok)
			}
		})
	}
}

// A value says whose it is and which version, and one wrong bit anywhere is seen.
func TestContent(t *testing.T) {
	var scratch []byte
	for id := range uint64(40) {
		for version := range uint32(8) {
			v := appendValue(nil, id, version)
			if len(v) != sizeOf(id, version) {
				t.Fatalf("value %d of %d has %d bytes, not %d", version, id, len(v), sizeOf(id, version))
			}
			got, wrong, s := check(v, id, scratch)
			if scratch = s; got != version || wrong != 0 {
				t.Fatalf("value %d of %d: version %d, %d wrong bytes", version, id, got, wrong)
			}
			for _, at := range []int{0, 7, 8, 11, 12, 15, len(v) / 2, len(v) - 1} {
				v[at] ^= 0x40
				got, wrong, s = check(v, id, scratch)
				if scratch = s; wrong == 0 && got == version {
					t.Errorf("value %d of %d, %d bytes: a wrong bit at %d is not seen", version, id, len(v), at)
				}
				v[at] ^= 0x40
			}
			if _, wrong, _ := check(v[:len(v)-1], id, scratch); wrong == 0 {
				t.Errorf("value %d of %d: a byte less is not seen", version, id)
			}
			if _, wrong, _ := check(v, id+1, scratch); wrong == 0 {
				t.Errorf("value %d of %d passes for that of another key", version, id)
			}
		}
	}
	if _, wrong, _ := check(nil, 1, nil); wrong == 0 {
		t.Error("no bytes at all are right")
	}
}
