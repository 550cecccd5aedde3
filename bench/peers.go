package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/VictoriaMetrics/fastcache"
	"github.com/Yiling-J/theine-go"
	"github.com/allegro/bigcache/v3"
	"github.com/coocood/freecache"
	ristretto0 "github.com/dgraph-io/ristretto"
	"github.com/dgraph-io/ristretto/v2"
	"github.com/maypok86/otter/v2"
	"github.com/puzpuzpuz/xsync/v3"
)

// Shape says what a cache is opened for.
type Shape struct {
	Capacity  int64 // bytes of values
	ValueSize int   // bytes, the same for every value
	Keys      int   // distinct keys that will be written
}

// Cache is one cache under measurement.
type Cache interface {
	// Worker returns a view of the cache for one goroutine.
	Worker() (Worker, error)
	// Settle waits until earlier writes can be read.
	Settle()
	Close() error
}

// Worker is used by one goroutine at a time.
type Worker interface {
	// View finds k and reads the first eight bytes of its value in place,
	// by reference where the cache lends one.
	View(k Key) (head uint64, ok bool)
	// Copy copies the value of k into dst, which is large enough.
	Copy(dst []byte, k Key) (n int, ok bool)
	// Set stores value, which the caller will overwrite afterwards: a cache
	// that keeps references has to copy it first, as it has to for any caller
	// that reads its values from a connection.
	Set(k Key, value []byte) error
	Close() error
}

// Peer is a way to keep values by key.
type Peer struct {
	Name string
	// Bounded peers evict. An unbounded one is a bound for the others.
	Bounded bool
	// References is false for peers that only give copies.
	References bool
	// MaxValue is the largest value in bytes for a capacity; 0: any.
	MaxValue func(capacity int64) int
	// Overhead is what the cache counts against its capacity for each entry
	// beside the value, in bytes. It is opened with that much more, so that all
	// of them hold the same values.
	Overhead int
	Open     func(Shape) (Cache, error)
}

// open opens a cache of p that holds the values of s.
func (p Peer) open(s Shape) (Cache, error) {
	s.Capacity += int64(s.Keys) * int64(p.Overhead)
	return p.Open(s)
}

// Holds reports whether p can store values of this shape.
func (p Peer) Holds(s Shape) bool {
	return p.MaxValue == nil || s.ValueSize <= p.MaxValue(s.Capacity)
}

// Peers lists the caches that KVCR is measured beside.
func Peers() []Peer {
	return []Peer{
		{Name: "otter", Bounded: true, References: true, Open: openOtter},
		{Name: "theine", Bounded: true, References: true, Open: openTheine},
		{Name: "ristretto", Bounded: true, References: true, Open: openRistretto},
		{Name: "ristretto-v0", Bounded: true, References: true, Open: openRistretto0},
		{Name: "freecache", Bounded: true, References: true, Open: openFreecache, Overhead: freecacheHeader + KeyBytes,
			// An entry is at most 1/1024 of the cache.
			MaxValue: func(capacity int64) int { return int(capacity/1024) - freecacheHeader - KeyBytes }},
		{Name: "bigcache", Bounded: true, Open: openBigcache, Overhead: bigcacheHeader + KeyBytes},
		{Name: "fastcache", Bounded: true, Open: openFastcache},
		{Name: "xsync", References: true, Open: openXsync},
	}
}

func head(value []byte) uint64 { return binary.LittleEndian.Uint64(value) }

// errRefused says that a cache dropped a write, which some may do at any time.
var errRefused = errors.New("bench: the cache refused the value")

// heapCache adapts caches that keep []byte values on the Go heap and lend
// them: a View is the slice itself.
type heapCache struct {
	get    func(k Key) ([]byte, bool)
	set    func(k Key, value []byte) bool
	settle func()
	close  func()
}

func (c *heapCache) Worker() (Worker, error) { return heapWorker{c}, nil }
func (c *heapCache) Close() error            { c.close(); return nil }
func (c *heapCache) Settle()                 { c.settle() }

// heapWorker is a type of its own since a worker's Close must not close the
// cache.
type heapWorker struct{ *heapCache }

func (w heapWorker) View(k Key) (uint64, bool) {
	v, ok := w.get(k)
	if !ok {
		return 0, false
	}
	return head(v), true
}

func (w heapWorker) Copy(dst []byte, k Key) (int, bool) {
	v, ok := w.get(k)
	return copy(dst, v), ok
}

func (w heapWorker) Set(k Key, value []byte) error {
	if !w.set(k, bytes.Clone(value)) {
		return errRefused
	}
	return nil
}

func (w heapWorker) Close() error { return nil }

func nothing() {}

func openOtter(s Shape) (Cache, error) {
	c, err := otter.New(&otter.Options[[KeyBytes]byte, []byte]{
		MaximumWeight: uint64(s.Capacity),
		Weigher:       func(_ [KeyBytes]byte, v []byte) uint32 { return uint32(len(v)) },
	})
	if err != nil {
		return nil, fmt.Errorf("otter: %w", err)
	}
	return &heapCache{
		get:    func(k Key) ([]byte, bool) { return c.GetIfPresent(k.Array()) },
		set:    func(k Key, v []byte) bool { c.Set(k.Array(), v); return true },
		settle: c.CleanUp,
		close:  func() { c.InvalidateAll(); c.StopAllGoroutines() },
	}, nil
}

func openTheine(s Shape) (Cache, error) {
	c, err := theine.NewBuilder[[KeyBytes]byte, []byte](s.Capacity).
		Cost(func(v []byte) int64 { return int64(len(v)) }).Build()
	if err != nil {
		return nil, fmt.Errorf("theine: %w", err)
	}
	return &heapCache{
		get: func(k Key) ([]byte, bool) { return c.Get(k.Array()) },
		// Cost 0 means: ask the cost function.
		set:    func(k Key, v []byte) bool { return c.Set(k.Array(), v, 0) },
		settle: c.Wait,
		close:  c.Close,
	}, nil
}

func openRistretto(s Shape) (Cache, error) {
	c, err := ristretto.NewCache(&ristretto.Config[[]byte, []byte]{
		NumCounters: 10 * int64(s.Keys), // its documentation's advice
		MaxCost:     s.Capacity,
		BufferItems: 64,
		// Capacity is bytes of values here, as for the others.
		IgnoreInternalCost: true,
	})
	if err != nil {
		return nil, fmt.Errorf("ristretto: %w", err)
	}
	return &heapCache{
		get:    func(k Key) ([]byte, bool) { return c.Get(k.Bytes) },
		set:    func(k Key, v []byte) bool { return c.Set(k.Bytes, v, int64(len(v))) },
		settle: c.Wait,
		close:  c.Close,
	}, nil
}

func openRistretto0(s Shape) (Cache, error) {
	c, err := ristretto0.NewCache(&ristretto0.Config{
		NumCounters:        10 * int64(s.Keys),
		MaxCost:            s.Capacity,
		BufferItems:        64,
		IgnoreInternalCost: true,
	})
	if err != nil {
		return nil, fmt.Errorf("ristretto-v0: %w", err)
	}
	return &heapCache{
		get: func(k Key) ([]byte, bool) {
			v, ok := c.Get(k.Text) // boxing the key allocates: part of this API
			if !ok {
				return nil, false
			}
			return v.([]byte), true
		},
		set:    func(k Key, v []byte) bool { return c.Set(k.Text, v, int64(len(v))) },
		settle: c.Wait,
		close:  c.Close,
	}, nil
}

func openXsync(s Shape) (Cache, error) {
	m := xsync.NewMapOf[[KeyBytes]byte, []byte](xsync.WithPresize(s.Keys))
	return &heapCache{
		get:    func(k Key) ([]byte, bool) { return m.Load(k.Array()) },
		set:    func(k Key, v []byte) bool { m.Store(k.Array(), v); return true },
		settle: nothing,
		close:  m.Clear,
	}, nil
}

// freecacheHeader is the header of an entry: its size, times and hash.
const freecacheHeader = 24

type freecacheCache struct{ c *freecache.Cache }

func openFreecache(s Shape) (Cache, error) {
	return freecacheCache{freecache.NewCache(int(s.Capacity))}, nil
}

func (c freecacheCache) Settle()      {}
func (c freecacheCache) Close() error { return nil }
func (c freecacheCache) Worker() (Worker, error) {
	w := &freecacheWorker{c: c.c}
	w.peek = func(v []byte) error { w.head = head(v); return nil }
	return w, nil
}

type freecacheWorker struct {
	c    *freecache.Cache
	peek func([]byte) error
	head uint64
}

func (w *freecacheWorker) View(k Key) (uint64, bool) {
	if w.c.GetFn(k.Bytes, w.peek) != nil {
		return 0, false
	}
	return w.head, true
}

func (w *freecacheWorker) Copy(dst []byte, k Key) (int, bool) {
	v, err := w.c.GetWithBuf(k.Bytes, dst)
	return len(v), err == nil
}

func (w *freecacheWorker) Set(k Key, value []byte) error {
	if err := w.c.Set(k.Bytes, value, 0); err != nil {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	return nil
}

func (w *freecacheWorker) Close() error { return nil }

// bigcacheHeader is what stands before an entry: length of the entry, time,
// hash, length of the key; and an eighth more, since its queues hold a little
// less than they are given.
const bigcacheHeader = 32

type bigcacheCache struct{ c *bigcache.BigCache }

func openBigcache(s Shape) (Cache, error) {
	shards := 256
	if s.ValueSize > 16<<10 {
		shards = 32 // or a shard holds too few values to fill evenly
	}
	c, err := bigcache.New(context.Background(), bigcache.Config{
		Shards:             shards,
		LifeWindow:         24 * time.Hour,
		MaxEntriesInWindow: s.Keys,
		MaxEntrySize:       s.ValueSize,
		HardMaxCacheSize:   int(s.Capacity >> 20),
	})
	if err != nil {
		return nil, fmt.Errorf("bigcache: %w", err)
	}
	return bigcacheCache{c}, nil
}

func (c bigcacheCache) Settle()                 {}
func (c bigcacheCache) Close() error            { return c.c.Close() }
func (c bigcacheCache) Worker() (Worker, error) { return bigcacheWorker{c.c}, nil }

type bigcacheWorker struct{ c *bigcache.BigCache }

func (w bigcacheWorker) View(k Key) (uint64, bool) {
	v, err := w.c.Get(k.Text)
	if err != nil {
		return 0, false
	}
	return head(v), true
}

// Copy is Get, which returns a fresh copy: that is the caller's buffer.
func (w bigcacheWorker) Copy(dst []byte, k Key) (int, bool) {
	v, err := w.c.Get(k.Text)
	if err != nil {
		return 0, false
	}
	copy(dst[:8], v)
	copy(dst[len(v)-8:], v[len(v)-8:])
	return len(v), true
}

func (w bigcacheWorker) Set(k Key, value []byte) error {
	if err := w.c.Set(k.Text, value); err != nil {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	return nil
}

func (w bigcacheWorker) Close() error { return nil }

// fastcacheLargest is the largest value that Set stores in one piece; larger
// ones go through SetBig, which splits them.
const fastcacheLargest = 64<<10 - KeyBytes - 5

type fastcacheCache struct {
	c    *fastcache.Cache
	size int
}

func openFastcache(s Shape) (Cache, error) {
	return fastcacheCache{fastcache.New(int(s.Capacity)), s.ValueSize}, nil
}

func (c fastcacheCache) Settle()      {}
func (c fastcacheCache) Close() error { c.c.Reset(); return nil }
func (c fastcacheCache) Worker() (Worker, error) {
	return fastcacheWorker{c, make([]byte, c.size)}, nil
}

type fastcacheWorker struct {
	fastcacheCache
	scratch []byte
}

func (w fastcacheWorker) View(k Key) (uint64, bool) {
	if _, ok := w.Copy(w.scratch, k); !ok {
		return 0, false
	}
	return head(w.scratch), true
}

func (w fastcacheWorker) Copy(dst []byte, k Key) (int, bool) {
	if w.size > fastcacheLargest {
		v := w.c.GetBig(dst[:0], k.Bytes)
		return len(v), len(v) > 0
	}
	v, ok := w.c.HasGet(dst[:0], k.Bytes)
	return len(v), ok
}

func (w fastcacheWorker) Set(k Key, value []byte) error {
	if len(value) > fastcacheLargest {
		w.c.SetBig(k.Bytes, value)
	} else {
		w.c.Set(k.Bytes, value)
	}
	return nil
}

func (w fastcacheWorker) Close() error { return nil }
