package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/kvcr-go/kvcr/wire"
	"github.com/kvcr-go/kvcr/wire/client"
)

// tryCmd is a newcomer's first hit, and anybody's proof that a node works.
type tryCmd struct {
	nodeAddr
	Size string `default:"64KiB" help:"Bytes of the block."`
}

// maxTry bounds what --size makes this command allocate, twice.
const maxTry = 1 << 30

// cache is what tryNode needs of a client; tests have one that lies.
type cache interface {
	Get(ctx context.Context, key, dst []byte) (value []byte, ok bool, err error)
	Set(ctx context.Context, key, value []byte) error
	Delete(ctx context.Context, keys ...[]byte) ([]wire.Status, error)
	Stats(ctx context.Context) ([]byte, error)
}

// A node's counters, of those that STATS tells.
type nodeCounts struct {
	Engine struct {
		Counts               struct{ Hits, Misses uint64 }
		Blocks, PayloadBytes uint64
		CapacityBytes        int64
	}
	Page string
}

func (c *tryCmd) Run(e *env) error {
	size, err := parseSize(c.Size)
	if err == nil && (size < 1 || size > maxTry) {
		err = fmt.Errorf("--size is %d bytes, not 1 to %d (1 GiB)", size, maxTry)
	}
	if err != nil {
		return usageError{err}
	}
	return c.with(e, func(ctx context.Context, cl *client.Client) error { return tryNode(ctx, e, cl, c.Addr, int(size)) })
}

// tryNode asks for a key that nobody has, stores it, asks again, and removes it.
func tryNode(ctx context.Context, e *env, cl cache, addr string, size int) error {
	before, err := countsOf(ctx, cl)
	if err != nil {
		return err
	}
	key, value := make([]byte, 0, 32), make([]byte, size)
	rand.Read(value) // never fails
	key = fmt.Appendf(key, "try-%s", rand.Text()[:12])
	e.printf("node at %s: %s for blocks, %d resident\n", addr, formatSize(before.Engine.CapacityBytes), before.Engine.Blocks)

	took, _, ok, err := timedGet(ctx, cl, key)
	if err != nil {
		return err
	}
	if ok {
		return fmt.Errorf("the node has %q, which nobody stored", key)
	}
	e.printf("  %-8s %-8v %q is not there yet\n", "miss", took, key)

	began := time.Now()
	if err := cl.Set(ctx, key, value); err != nil {
		var refused *client.Error
		if errors.As(err, &refused) && errors.Is(err, client.ErrTooLarge) && refused.Size > 0 {
			return fmt.Errorf("%w; try --size %d", err, refused.Size)
		}
		return err
	}
	gone := false
	defer func() {
		if !gone { // nothing is left behind, whatever went wrong
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_, _ = cl.Delete(ctx, key) // what went wrong is the answer
		}
	}()
	e.printf("  %-8s %-8v %s under that key\n", "stored", rounded(time.Since(began)), formatSize(int64(size)))

	took, back, ok, err := timedGet(ctx, cl, key)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("%q was stored, and is gone: evicted by other writers, or deleted", key)
	}
	if !bytes.Equal(back, value) {
		return fmt.Errorf("%q came back with other bytes: %d of them, %d were stored", key, len(back), len(value))
	}
	e.printf("  %-8s %-8v all %d bytes are those that were stored\n", "hit", took, len(back))

	after, err := countsOf(ctx, cl)
	if err != nil {
		return err
	}
	sts, err := cl.Delete(ctx, key)
	if err != nil {
		return err
	}
	if sts[0] != wire.StatusOK && sts[0] != wire.StatusMiss {
		return fmt.Errorf("delete %q: %v", key, sts[0])
	}
	gone = true
	e.printf("  %-8s the block; the counters stay\n", "removed")
	e.printf("the node counts %s (%d before) and %s (%d before)\n",
		plural(after.Engine.Counts.Hits, "hit", "hits"), before.Engine.Counts.Hits,
		plural(after.Engine.Counts.Misses, "miss", "misses"), before.Engine.Counts.Misses)
	if after.Page != "" {
		e.printf("live: %s\n", after.Page)
	}
	return nil
}

func timedGet(ctx context.Context, cl cache, key []byte) (took time.Duration, value []byte, ok bool, err error) {
	began := time.Now()
	value, ok, err = cl.Get(ctx, key, nil)
	return rounded(time.Since(began)), value, ok, err
}

// rounded leaves the digits that mean something.
func rounded(d time.Duration) time.Duration {
	if d > 10*time.Millisecond {
		return d.Round(100 * time.Microsecond)
	}
	return d.Round(time.Microsecond)
}

func countsOf(ctx context.Context, cl cache) (n nodeCounts, err error) {
	raw, err := cl.Stats(ctx)
	if err != nil {
		return n, err
	}
	if err := json.Unmarshal(raw, &n); err != nil {
		return n, fmt.Errorf("the node's counters: %w", err)
	}
	return n, nil
}

func plural(n uint64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.FormatUint(n, 10) + " " + many
}
