package soak

import (
	"fmt"
	"sync"
	"time"
)

// cell is what is known of one SET key at one node. It has one writer at a time,
// which waits for the end of each write; any number of readers.
//
// Invariant: a version below floor, and not in open, cannot be read any more.
type cell struct {
	key []byte
	id  uint64

	mu    sync.Mutex
	last  uint32 // the newest version that was begun
	floor uint32
	// open are versions that were sent and whose end nobody knows: they may come to be
	// at any time, since what was given up may still be under way.
	open map[uint32]bool
	void map[uint32]bool // refused: nobody may ever read them
	// until is when a version with a time to live, acknowledged then, must be gone.
	until map[uint32]time.Time
}

func newCell(key []byte) *cell {
	return &cell{key: key, id: idOf(key), floor: 1, open: map[uint32]bool{}, void: map[uint32]bool{}, until: map[uint32]time.Time{}}
}

// begin starts a write. One that is neither stored nor refused afterwards is lost: its
// end is not known, and never will be.
func (c *cell) begin() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	c.open[c.last] = true
	return c.last
}

// stored ends a write that the node has acknowledged; ttl 0: it stays.
func (c *cell) stored(version uint32, ttl time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, version)
	for v := range c.void {
		if v < c.floor {
			delete(c.void, v) // too old to be read anyway
		}
	}
	c.floor = version // no other write is under way but lost ones, which are open
	clear(c.until)
	if ttl > 0 {
		c.until[version] = time.Now().Add(ttl)
	}
}

// refused ends a write of which the node said that it did not happen.
func (c *cell) refused(version uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, version)
	c.void[version] = true
}

// deleted notes that an acknowledged removal came after all writes.
func (c *cell) deleted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.floor = c.last + 1
}

// look is what a reader notes before it asks.
type look struct {
	floor uint32
	at    time.Time
}

func (c *cell) look() look {
	c.mu.Lock()
	defer c.mu.Unlock()
	return look{c.floor, time.Now()}
}

// ttlSlack is how much later than its time a key may be read: a tick of the node's,
// and what a halted node and a busy machine are late.
const ttlSlack = 8 * time.Second

// judge says what is wrong with having read a version; nil: nothing.
func (c *cell) judge(l look, version uint32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	until, limited := c.until[version]
	switch {
	case version == 0 || version > c.last:
		return fmt.Errorf("version %d was never written, the newest is %d", version, c.last)
	case c.void[version]:
		return fmt.Errorf("version %d was refused by the node", version)
	case c.open[version]:
		return nil
	case version < l.floor:
		return fmt.Errorf("version %d is old: %d was acknowledged, or the key deleted, before the read began", version, l.floor)
	case limited && l.at.After(until.Add(ttlSlack)):
		return fmt.Errorf("version %d has outlived its time by %v", version, l.at.Sub(until))
	}
	return nil
}
