package load

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kvcr-go/kvcr/internal/blockcopy"
	"github.com/kvcr-go/kvcr/wire/client"
)

// RunShared reads values in place from memory shared with a node, spec.Pipeline
// claims in flight, and reads every byte of each. Proto "shm" takes and releases a
// claim for each value; "plain" reads the same sequence of the same memory without
// any, which is what the memory itself allows. Addr is the path of the node's
// binary listener.
func RunShared(spec Spec) (res Result, err error) {
	ctx := context.Background()
	cl, err := client.Dial(ctx, client.Options{Addr: "unix:" + spec.Addr, Name: "bench"})
	if err != nil {
		return res, err
	}
	defer cl.Close()
	shared, err := cl.Attach(ctx, 0)
	if err != nil {
		return res, err
	}
	defer shared.Close()
	// Once around: every page of the mapping is there, and every value looked at.
	places := make([][]byte, spec.Keys)
	for key := range places {
		v, err := shared.View(ctx, appendKey(nil, key))
		if err != nil {
			return res, err
		}
		if !v.OK() || len(v.Bytes()) != spec.Size || binary.LittleEndian.Uint64(v.Bytes()) != stampOf(key) {
			return res, fmt.Errorf("load: WRONG BYTES in shared memory for key %d", key)
		}
		blockcopy.Sum(v.Bytes())
		places[key] = v.Bytes()
		if err := v.Release(); err != nil {
			return res, err
		}
	}
	var wg sync.WaitGroup
	errs := make([]error, spec.Pipeline)
	ops := make([]uint64, spec.Pipeline)
	begin := time.Now()
	for i := range spec.Pipeline {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			for time.Since(begin) < spec.Duration {
				key := rng.IntN(spec.Keys)
				if spec.Proto == "plain" {
					blockcopy.Sum(places[key])
					ops[i]++
					continue
				}
				v, err := shared.View(ctx, appendKey(nil, key))
				if err != nil {
					errs[i] = err
					return
				}
				if binary.LittleEndian.Uint64(v.Bytes()) != stampOf(key) {
					errs[i] = fmt.Errorf("load: WRONG BYTES in shared memory for key %d", key)
					return
				}
				blockcopy.Sum(v.Bytes())
				if errs[i] = v.Release(); errs[i] != nil {
					return
				}
				ops[i]++
			}
		}()
	}
	wg.Wait()
	res.Seconds = time.Since(begin).Seconds()
	for i := range ops {
		if errs[i] != nil {
			return res, errs[i]
		}
		res.Ops += ops[i]
	}
	res.Checked = res.Ops
	res.OperationsPerSec = float64(res.Ops) / res.Seconds
	res.BytesPerSecond = res.OperationsPerSec * float64(spec.Size)
	return res, nil
}
