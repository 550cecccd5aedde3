package kvcr

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func residentBytes(t testing.TB) int64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// One tight loop puts 100 times the capacity: what is resident is never above
// it, at no moment, and neither is the process above what was reserved.
func TestCapacityIsNeverExceeded(t *testing.T) {
	for _, tc := range []struct {
		name string
		ns   Namespace
		size func(*rand.Rand) int
	}{
		{"classes", Namespace{MaxValue: 256 << 10}, func(r *rand.Rand) int {
			switch r.IntN(20) {
			case 0:
				return 1 + r.IntN(200<<10)
			case 1, 2, 3:
				return 1 + r.IntN(20<<10)
			}
			return 1 + r.IntN(1000)
		}},
		{"pool", Namespace{Pools: []Pool{{SlotBytes: 16 << 10}}}, func(*rand.Rand) int { return 16 << 10 }},
	} {
		for _, v := range helping {
			t.Run(tc.name+"/"+v.name, func(t *testing.T) {
				const capacity = 8 << 20
				ns := tc.ns
				v.config(&ns)
				before := residentBytes(t)
				e := open(t, Config{Capacity: capacity, Shards: 2, Namespaces: one(ns)})
				h := handle(t, e)
				rng := rand.New(rand.NewPCG(1, 12))
				value := make([]byte, 256<<10)
				stop := make(chan struct{})
				var wg sync.WaitGroup
				var samples, most atomic.Int64
				wg.Add(1)
				go func() {
					defer wg.Done()
					for {
						select {
						case <-stop:
							return
						default:
						}
						st := stats(t, e)
						samples.Add(1)
						most.Store(max(most.Load(), int64(st.PayloadBytes)))
						if int64(st.PayloadBytes) > capacity || st.CapacityBytes > capacity || st.Namespaces[0].FreeBytes < 0 {
							t.Errorf("%d bytes are resident, %d free, of %d", st.PayloadBytes, st.Namespaces[0].FreeBytes, capacity)
						}
						if int(st.Blocks) > st.Namespaces[0].MaxBlocks {
							t.Errorf("%d blocks of at most %d", st.Blocks, st.Namespaces[0].MaxBlocks)
						}
						time.Sleep(200 * time.Microsecond)
					}
				}()
				times := int64(pick(10, 100))
				begin := time.Now()
				enough := func() bool { return samples.Load() >= 10 || time.Since(begin) > 20*time.Second }
				for put, i := int64(0), 0; put < times*capacity || !enough(); i++ {
					n := tc.size(rng)
					if err := h.Set(keyOf(i), value[:n]); err != nil {
						t.Fatalf("Set of %d bytes after %d: %v", n, put, err)
					}
					put += int64(n)
				}
				close(stop)
				wg.Wait()
				if samples.Load() < 10 || most.Load() < capacity/2 {
					t.Errorf("%d samples, at most %d bytes seen: the cache was not full", samples.Load(), most.Load())
				}
				plan := e.MemoryPlan()
				// The rest is the Go heap, stacks, and pages of other tests that
				// the runtime has not given back yet.
				const slack = 64 << 20
				if grew := residentBytes(t) - before; grew > plan.PayloadBytes+plan.MetadataBytes+slack {
					t.Errorf("the process grew by %d bytes; %d were reserved", grew, plan.PayloadBytes+plan.MetadataBytes)
				}
			})
		}
	}
}

// Every size up to the limit that is accepted can be read back, by every road.
func TestEverySizeReadsBack(t *testing.T) {
	const limit = 300 << 10
	for _, v := range helping {
		t.Run(v.name, func(t *testing.T) {
			ns := Namespace{MaxValue: limit, Checksums: ChecksumOn, VerifyReads: true}
			v.config(&ns)
			e := open(t, Config{Capacity: 4 << 20, Shards: 2, Namespaces: one(ns)})
			h := handle(t, e)
			sizes := []int{0, 1, 2, 7, 8, 15, 16, 17, 2047, 2048, 2049, 4095, 4096, 4097, 8192, 65535, 65536, 65537, limit - 1, limit}
			for i := 8; i < limit; i = i*9/8 + 1 {
				sizes = append(sizes, i)
			}
			buf := make([]byte, limit)
			for _, n := range sizes {
				want := make([]byte, n)
				if n >= 8 {
					stamp(want, uint64(n))
				} else {
					for i := range want {
						want[i] = byte(n)
					}
				}
				k := fmt.Appendf(nil, "size-%d", n)
				if err := h.Set(k, want); err != nil {
					t.Fatalf("%d bytes: %v", n, err)
				}
				same := func(how string, got []byte) {
					t.Helper()
					if string(got) != string(want) {
						t.Errorf("%d bytes by %s: other bytes, %d of them", n, how, len(got))
					}
				}
				v, ok := h.Get(k)
				if !ok {
					t.Fatalf("%d bytes: miss", n)
				}
				same("Get", v.Bytes())
				if v.Len() != n || v.Pieces() != 1 || !v.Verify() || cap(v.Bytes()) != n {
					t.Errorf("%d bytes: length %d, capacity %d, %d pieces", n, v.Len(), cap(v.Bytes()), v.Pieces())
				}
				v.Release()
				m, ok := h.CopyTo(buf, k)
				if !ok || m != n {
					t.Errorf("%d bytes: CopyTo %d, %v", n, m, ok)
				}
				same("CopyTo", buf[:m])
				if n > 0 {
					if m, ok := h.CopyTo(buf[:n-1], k); ok || m != n {
						t.Errorf("%d bytes: CopyTo of less: %d, %v", n, m, ok)
					}
				}
				for _, dst := range [][]byte{buf, buf[:n], buf[:max(n, 1)-1]} {
					m, v, ok := h.GetOrCopy(dst, k)
					got := dst[:m]
					if v.Pieces() > 0 {
						got = v.Bytes()
					}
					if !ok || len(got) != n || m != 0 && v.Pieces() > 0 {
						t.Errorf("%d bytes: GetOrCopy into %d: %d, %d pieces, %v", n, len(dst), m, v.Pieces(), ok)
					}
					same("GetOrCopy", got)
					v.Release()
				}
				got, _ := h.AppendTo([]byte("x"), k)
				same("AppendTo", got[1:])
				dst := make([]byte, n)
				if r := h.Deliver([]Target{{k, dst}}).Results()[0]; !r.OK() {
					t.Errorf("%d bytes: Deliver: %v", n, r.Err())
				}
				same("Deliver", dst)
				rs := h.Fetch([][]byte{k}).Results()
				same("Fetch", rs[0].View.Bytes())
				rs[0].View.Release()
			}
			isErr(t, "limit+1", h.Set([]byte("k"), make([]byte, limit+1)), ErrTooLarge)
			r, err := h.Reserve([]byte("in place"), limit)
			if err != nil {
				t.Fatal(err)
			}
			stamp(r.Bytes(), 77)
			if len(r.Bytes()) != limit || cap(r.Bytes()) != limit {
				t.Errorf("reserved %d bytes, capacity %d", len(r.Bytes()), cap(r.Bytes()))
			}
			if h.Has([]byte("in place")) {
				t.Error("visible before Commit")
			}
			if err := r.Commit(); err != nil {
				t.Fatal(err)
			}
			v, ok := h.Get([]byte("in place"))
			if seed, whole := seedOf(v.Bytes()); !ok || !whole || seed != 77 || !v.Verify() {
				t.Error("committed in place and not read back")
			}
			v.Release()
		})
	}
}

// Where nothing is evicted, answers do not depend on how the engine is built.
func TestAnswersDoNotDependOnBuild(t *testing.T) {
	type step struct {
		op  int
		key int
		n   int
	}
	rng := rand.New(rand.NewPCG(3, 13))
	steps := make([]step, pick(1500, 6000))
	for i := range steps {
		steps[i] = step{rng.IntN(10), rng.IntN(60), 8 + rng.IntN(7000)}
	}
	play := func(t *testing.T, cfg Config) (log []string) {
		e := open(t, cfg)
		h := handle(t, e)
		buf := make([]byte, 8192)
		var open map[int]*Reservation = map[int]*Reservation{}
		for i, s := range steps {
			k := keyOf(s.key)
			var got any
			switch s.op {
			case 0, 1:
				got = h.Set(k, stamped(uint64(i), s.n))
			case 2:
				got = h.Deposit(k, stamped(uint64(i), s.n))
			case 3:
				ok, err := h.Delete(k)
				got = fmt.Sprint(ok, err)
			case 4:
				n, ok := h.CopyTo(buf, k)
				seed, whole := uint64(0), false
				if ok {
					seed, whole = seedOf(buf[:n])
				}
				got = fmt.Sprint(n, ok, seed, whole)
			case 5:
				if r, err := h.Reserve(k, s.n); err == nil {
					stamp(r.Bytes(), uint64(i))
					if old := open[s.key]; old != nil {
						got = old.Commit()
					}
					open[s.key] = r
				} else {
					got = err
				}
			case 6:
				if r := open[s.key]; r != nil {
					got = r.Abort()
					delete(open, s.key)
				}
			default:
				v, ok := h.Get(k)
				seed, whole := uint64(0), false
				if ok {
					seed, whole = seedOf(v.Bytes())
				}
				got = fmt.Sprint(ok, v.Len(), seed, whole, v.Verify())
				v.Release()
			}
			log = append(log, fmt.Sprintf("%d %v: %v", i, s, got))
		}
		for _, r := range open {
			r.Abort()
		}
		st := stats(t, e)
		c := st.Counts
		if c.Evicted != 0 || c.Refused != 0 {
			t.Fatalf("evicted %d, refused %d: this engine is too small for the comparison", c.Evicted, c.Refused)
		}
		log = append(log, fmt.Sprint(st.Blocks, st.PayloadBytes, c.Hits, c.Misses, c.Sets, c.Deposits, c.Deletes, c.Stored, c.Replaced, c.Existing, c.Deleted))
		return log
	}
	ns := func(edit func(*Namespace)) []Namespace {
		n := Namespace{Name: "ns", MaxValue: 8 << 10}
		if edit != nil {
			edit(&n)
		}
		return []Namespace{n}
	}
	want := play(t, Config{Capacity: 16 << 20, Shards: 1, Namespaces: ns(nil)})
	for name, cfg := range map[string]Config{
		"16 shards":     {Capacity: 64 << 20, Shards: 16, Namespaces: ns(nil)},
		"large":         {Capacity: 256 << 20, Shards: 4, Namespaces: ns(nil)},
		"tight":         {Capacity: 2 << 20, Shards: 1, Namespaces: ns(nil)},
		"sums":          {Capacity: 16 << 20, Shards: 2, Namespaces: ns(func(n *Namespace) { n.Checksums = ChecksumOn; n.VerifyReads = true })},
		"no sums, pool": {Capacity: 16 << 20, Shards: 2, Namespaces: ns(func(n *Namespace) { n.Checksums = ChecksumOff; n.MaxValue = 0; n.Pools = []Pool{{SlotBytes: 8192}} })},
		"chained":       {Capacity: 16 << 20, Namespaces: ns(func(n *Namespace) { n.Kind = Chained })},
		"rings":         {Capacity: 16 << 20, Shards: 4, Namespaces: ns(foreign("fifo"))},
		"one hash":      {Capacity: 16 << 20, Shards: 4, Namespaces: ns(nil), Hash: func([]byte) uint64 { return 1<<63 | 5 }},
		"other policy":  {Capacity: 16 << 20, Shards: 2, Namespaces: ns(func(n *Namespace) { n.Policy = "s3fifo" })},
		"memfd":         memfd(Config{Capacity: 16 << 20, Shards: 2, Namespaces: ns(nil)}),
	} {
		t.Run(name, func(t *testing.T) {
			got := play(t, cfg)
			for i := range want {
				if got[i] != want[i] {
					t.Fatalf("step %s\nelsewhere %s", got[i], want[i])
				}
			}
		})
	}
}
