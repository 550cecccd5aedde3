package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"
)

// WrongBytesError says that a cache answered with bytes of another key.
type WrongBytesError struct {
	Key  []byte
	Want uint64 // what its values begin and end with
}

func (e *WrongBytesError) Error() string {
	return fmt.Sprintf("wrong bytes under key %x: values of it begin and end with %016x", e.Key, e.Want)
}

// lane is one goroutine at work on one cache.
type lane struct {
	worker Worker
	walk   *walk
	at     int // step of walk
	values *values
	dst    []byte

	hits, misses, refused int
}

func (l *lane) step() (Key, bool) {
	i := l.at
	if l.at++; l.at == l.walk.keys.Len() {
		l.at = 0
	}
	return l.walk.keys.At(i), l.walk.put[i]
}

func (l *lane) view(k Key) error {
	first, ok := l.worker.View(k)
	if !ok {
		l.misses++
		return nil
	}
	if first != k.stamp() {
		return &WrongBytesError{k.Bytes, k.stamp()}
	}
	l.hits++
	return nil
}

func (l *lane) copy(k Key) error {
	n, ok := l.worker.Copy(l.dst, k)
	if !ok {
		l.misses++
		return nil
	}
	if n != len(l.dst) || !stamped(l.dst, k) {
		return &WrongBytesError{k.Bytes, k.stamp()}
	}
	l.hits++
	return nil
}

func (l *lane) set(k Key) error {
	err := l.worker.Set(k, l.values.of(k))
	if errors.Is(err, errRefused) {
		l.refused++
		return nil
	}
	return err
}

func (l *lane) views(ops int) error {
	for range ops {
		k, _ := l.step()
		if err := l.view(k); err != nil {
			return err
		}
	}
	return nil
}

func (l *lane) copies(ops int) error {
	for range ops {
		k, _ := l.step()
		if err := l.copy(k); err != nil {
			return err
		}
	}
	return nil
}

func (l *lane) sets(ops int) error {
	for range ops {
		k, _ := l.step()
		if err := l.set(k); err != nil {
			return err
		}
	}
	return nil
}

// mix writes where its walk says so and views elsewhere: by reference, which
// is how a heap cache is quickest too.
func (l *lane) mix(ops int) error {
	for range ops {
		k, put := l.step()
		var err error
		if put {
			err = l.set(k)
		} else {
			err = l.view(k)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bay is a cache with its lanes.
type bay struct {
	cache Cache
	lanes []*lane
	size  int
}

// openBay opens a cache of peer p and loads keys 0..s.Keys-1 into it.
func openBay(ctx context.Context, p Peer, s Shape, lanes int) (*bay, error) {
	c, err := p.open(s)
	if err != nil {
		return nil, err
	}
	b := &bay{cache: c, size: s.ValueSize}
	for i := range lanes {
		w, err := c.Worker()
		if err != nil {
			return nil, errors.Join(err, b.close())
		}
		b.lanes = append(b.lanes, &lane{worker: w, values: newValues(s.ValueSize, uint64(i)), dst: make([]byte, s.ValueSize)})
	}
	if err := b.load(ctx, s.Keys); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

// load writes every key once, each lane its share: a cache of small values has
// millions.
func (b *bay) load(ctx context.Context, keys int) error {
	share := (keys + len(b.lanes) - 1) / len(b.lanes)
	errs := make([]error, len(b.lanes))
	var wg sync.WaitGroup
	for i, l := range b.lanes {
		wg.Add(1)
		go func() {
			defer wg.Done()
			errs[i] = b.loadRange(ctx, l, i*share, min(keys, (i+1)*share))
		}()
	}
	wg.Wait()
	b.cache.Settle()
	return errors.Join(errs...)
}

func (b *bay) loadRange(ctx context.Context, l *lane, from, to int) error {
	const part = 32 << 10 // keys rendered at a time; arbitrary
	for ; from < to; from += part {
		if err := ctx.Err(); err != nil {
			return err
		}
		numbers := make([]uint32, min(part, to-from))
		for i := range numbers {
			numbers[i] = uint32(from + i)
		}
		keys := NewKeys(numbers)
		for i := range numbers {
			if err := b.persist(l.worker, keys.At(i), l.values); err != nil {
				return err
			}
		}
	}
	return nil
}

// persist writes k until the cache takes it: some refuse while their queue of
// writes is full.
func (b *bay) persist(w Worker, k Key, v *values) error {
	const tries = 1000
	for range tries {
		err := w.Set(k, v.of(k))
		if !errors.Is(err, errRefused) {
			return err
		}
		b.cache.Settle()
	}
	return fmt.Errorf("key %x refused %d times", k.Bytes, tries)
}

// measure runs op on every lane, lane i along walks[i], and returns ns for
// each operation and the share of reads that hit.
func (b *bay) measure(ctx context.Context, walks []*walk, d time.Duration, op func(*lane, int) error) (ns, hitShare float64, err error) {
	for i, l := range b.lanes {
		*l = lane{worker: l.worker, values: l.values, dst: l.dst, walk: walks[i]}
	}
	ns, err = closedLoop(ctx, len(b.lanes), d, chunkFor(b.size), func(i, ops int) error { return op(b.lanes[i], ops) })
	hits, reads := 0, 0
	for _, l := range b.lanes {
		hits += l.hits
		reads += l.hits + l.misses
	}
	if reads == 0 {
		return ns, math.NaN(), err
	}
	return ns, float64(hits) / float64(reads), err
}

func (b *bay) close() error {
	var errs []error
	for _, l := range b.lanes {
		errs = append(errs, l.worker.Close())
	}
	return errors.Join(append(errs, b.cache.Close())...)
}
