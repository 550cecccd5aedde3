package ring

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fillMsg gives every word of message i its own value, so that a torn,
// repeated or misplaced message shows.
func fillMsg(m *Msg, i uint64) {
	for w := range m {
		m[w] = (i + 1) * (0x9e3779b97f4a7c15 + 2*uint64(w))
	}
}

// checkMsg reports how m differs from message i.
func checkMsg(m *Msg, i uint64) error {
	var want Msg
	if fillMsg(&want, i); *m != want {
		return fmt.Errorf("message %d is %x, want %x", i, *m, want)
	}
	return nil
}

func TestNewRefusesCapacity(t *testing.T) {
	for _, capacity := range []int{-8, 0, 1, 3, 6, 1000, 1<<20 + 1, 1 << 21} {
		t.Run(fmt.Sprint(capacity), func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Errorf("New(%d) did not panic", capacity)
				}
			}()
			New(capacity)
		})
	}
	for _, capacity := range []int{2, 1 << 10, 1 << 20} {
		if got := New(capacity).Cap(); got != capacity {
			t.Errorf("New(%d).Cap() = %d", capacity, got)
		}
	}
}

// TestFullAndEmpty pins both ends on every lap of a small ring: exactly Cap
// messages fit, a full ring changes nothing, an empty one leaves *m alone.
func TestFullAndEmpty(t *testing.T) {
	for _, capacity := range []int{2, 4, 64} {
		q := New(capacity)
		in, out := uint64(0), uint64(0)
		var m Msg
		for lap := 0; lap < 100; lap++ {
			for i := 0; i < capacity; i++ {
				fillMsg(&m, in)
				if !q.Push(&m) {
					t.Fatalf("capacity %d, lap %d: no room for message %d of %d", capacity, lap, i, capacity)
				}
				in++
			}
			if q.Push(&m) || q.PushBatch([]Msg{m}) != 0 || q.Len() != capacity {
				t.Fatalf("capacity %d, lap %d: a full ring took a message, or Len() = %d", capacity, lap, q.Len())
			}
			// An odd number, so that laps start at every slot.
			for i := 0; i < capacity-1; i++ {
				if !q.Pop(&m) {
					t.Fatalf("capacity %d, lap %d: empty after %d", capacity, lap, i)
				}
				if err := checkMsg(&m, out); err != nil {
					t.Fatal(err)
				}
				out++
			}
			if q.Len() != 1 || q.Empty() {
				t.Fatalf("capacity %d, lap %d: Len() = %d, Empty() = %t, want 1 left", capacity, lap, q.Len(), q.Empty())
			}
			q.Pop(&m)
			if err := checkMsg(&m, out); err != nil {
				t.Fatal(err)
			}
			out++
			kept := m
			if q.Pop(&m) || m != kept || !q.Empty() || q.Len() != 0 {
				t.Fatalf("capacity %d, lap %d: an empty ring gave %x", capacity, lap, m)
			}
			// One more in and out moves the next lap's first slot.
			fillMsg(&m, in)
			q.Push(&m)
			in++
			q.Pop(&m)
			out++
		}
	}
}

// TestModel runs random operations against a slice.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := 1 << rapid.IntRange(1, 6).Draw(t, "log2 capacity")
		q := New(capacity)
		var model []uint64 // numbers of the messages inside, oldest first
		next := uint64(0)
		batch := rapid.IntRange(0, capacity+3)
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				var m Msg
				fillMsg(&m, next)
				if ok, want := q.Push(&m), len(model) < capacity; ok != want {
					t.Fatalf("Push = %t with %d of %d inside", ok, len(model), capacity)
				} else if ok {
					model = append(model, next)
					next++
				}
			},
			"pushBatch": func(t *rapid.T) {
				ms := make([]Msg, batch.Draw(t, "n"))
				for i := range ms {
					fillMsg(&ms[i], next+uint64(i))
				}
				n := q.PushBatch(ms)
				if want := min(len(ms), capacity-len(model)); n != want {
					t.Fatalf("PushBatch of %d = %d with %d of %d inside", len(ms), n, len(model), capacity)
				}
				for range n {
					model = append(model, next)
					next++
				}
			},
			"pop": func(t *rapid.T) {
				var m Msg
				if ok := q.Pop(&m); ok != (len(model) > 0) {
					t.Fatalf("Pop = %t with %d inside", ok, len(model))
				} else if ok {
					if err := checkMsg(&m, model[0]); err != nil {
						t.Fatal(err)
					}
					model = model[1:]
				}
			},
			"popBatch": func(t *rapid.T) {
				ms := make([]Msg, batch.Draw(t, "n"))
				n := q.PopBatch(ms)
				if want := min(len(ms), len(model)); n != want {
					t.Fatalf("PopBatch of %d = %d with %d inside", len(ms), n, len(model))
				}
				for i := range ms {
					if i >= n {
						if ms[i] != (Msg{}) {
							t.Fatalf("PopBatch wrote message %d of %d", i, n)
						}
					} else if err := checkMsg(&ms[i], model[i]); err != nil {
						t.Fatal(err)
					}
				}
				model = model[n:]
			},
			"": func(t *rapid.T) {
				if q.Len() != len(model) || q.Empty() != (len(model) == 0) {
					t.Fatalf("Len() = %d, Empty() = %t with %d inside", q.Len(), q.Empty(), len(model))
				}
			},
		})
	})
}

// TestConcurrent has both sides at work over many laps, in batches of every
// kind, while a third goroutine reads Len; the consumer checks each message.
func TestConcurrent(t *testing.T) {
	n := uint64(100_000)
	if testing.Short() || raceBuild {
		n = 20_000
	}
	for _, capacity := range []int{2, 8, 64, 1024} {
		for _, size := range []int{0, 1, 3, 16, capacity, capacity + 5} { // 0: one at a time
			t.Run(fmt.Sprintf("capacity=%d/batch=%d", capacity, size), func(t *testing.T) {
				q := New(capacity)
				var wg sync.WaitGroup
				var over atomic.Bool
				wg.Add(2)
				go func() {
					defer wg.Done()
					produce(q, n, size)
				}()
				go func() {
					defer wg.Done()
					for !over.Load() {
						if l := q.Len(); l < 0 || l > capacity {
							t.Errorf("Len() = %d, capacity %d", l, capacity)
							return
						}
						runtime.Gosched()
					}
				}()
				// Another size on this side, so that the two do not fall in step.
				err := consume(q, n, (size*2+1)%(capacity+7))
				over.Store(true)
				wg.Wait()
				if err != nil {
					t.Fatal(err)
				}
				if !q.Empty() || q.Len() != 0 {
					t.Fatalf("messages left: Len() = %d", q.Len())
				}
			})
		}
	}
}

// produce pushes messages 0 to n-1, size at a time, or with Push if size is 0.
// It ends if the consumer goes on.
func produce(q *SPSC, n uint64, size int) {
	ms := make([]Msg, max(size, 1))
	for i := uint64(0); i < n; {
		k := min(uint64(len(ms)), n-i)
		for j := range k {
			fillMsg(&ms[j], i+j)
		}
		i += k
		for rest, polls := ms[:k], 1; len(rest) > 0; polls++ {
			moved := 0
			if size > 0 {
				moved = q.PushBatch(rest)
			} else if q.Push(&rest[0]) {
				moved = 1
			}
			rest = rest[moved:]
			if polls%32 == 0 {
				runtime.Gosched()
			}
		}
	}
}

// consume takes messages 0 to n-1 and checks each. After a failure it goes
// on, so that the producer ends too.
func consume(q *SPSC, n uint64, size int) (err error) {
	ms := make([]Msg, max(size, 1))
	for i, polls := uint64(0), 1; i < n; polls++ {
		k := 0
		if size > 0 {
			k = q.PopBatch(ms)
		} else if empty := q.Empty(); q.Pop(&ms[0]) {
			k = 1
		} else if !empty && err == nil {
			err = fmt.Errorf("message %d: Empty() = false, then Pop() = false", i)
		}
		for j := range ms[:k] {
			if e := checkMsg(&ms[j], i+uint64(j)); e != nil && err == nil {
				err = e
			}
		}
		i += uint64(k)
		if polls%32 == 0 {
			runtime.Gosched()
		}
	}
	return err
}

// TestBatchIsSeenWhole: a consumer that sees any of a batch can take all of
// it, because the first slot is announced last.
func TestBatchIsSeenWhole(t *testing.T) {
	const size, batches = 16, 10_000
	q := New(4 * size) // a multiple, so that a batch always fits whole or not at all
	done := make(chan struct{})
	go func() {
		defer close(done)
		var ms [size]Msg
		for b := 0; b < batches; {
			if q.Cap()-q.Len() < size { // Len errs upwards on this side
				runtime.Gosched()
				continue
			}
			for i := range ms {
				fillMsg(&ms[i], uint64(b*size+i))
			}
			if n := q.PushBatch(ms[:]); n != size {
				t.Errorf("PushBatch = %d with room for %d", n, size)
				return
			}
			b++
		}
	}()
	var ms [size]Msg
	for i := uint64(0); i < size*batches; {
		n := q.PopBatch(ms[:])
		if n != 0 && n != size {
			t.Fatalf("PopBatch saw %d of a batch of %d", n, size)
		}
		for j := range ms[:n] {
			if err := checkMsg(&ms[j], i+uint64(j)); err != nil {
				t.Fatal(err)
			}
		}
		i += uint64(n)
		if n == 0 {
			select {
			case <-done:
				if q.Empty() {
					t.Fatalf("the producer ended after message %d", i)
				}
			default:
				runtime.Gosched()
			}
		}
	}
	<-done
}

// TestRolesHandedOver moves both roles among several goroutines through one
// atomic token each. The token's release and acquire are all that orders the
// roles' plain words, which a race build verifies.
func TestRolesHandedOver(t *testing.T) {
	n := uint64(200_000)
	if testing.Short() || raceBuild {
		n = 30_000
	}
	const goroutines = 3
	for _, capacity := range []int{2, 64} {
		t.Run(fmt.Sprintf("capacity=%d", capacity), func(t *testing.T) {
			q := New(capacity)
			var producing, consuming atomic.Bool // the tokens
			var in, out uint64                   // guarded by them
			var wg sync.WaitGroup
			for g := range goroutines {
				wg.Add(2)
				go func() {
					defer wg.Done()
					var ms [5]Msg
					for over := false; !over; runtime.Gosched() {
						if !producing.CompareAndSwap(false, true) {
							continue
						}
						for turn := 0; turn < 8 && in < n; turn++ {
							k := min(uint64(1+g), n-in)
							for j := range k {
								fillMsg(&ms[j], in+j)
							}
							in += uint64(q.PushBatch(ms[:k]))
							if in < n {
								fillMsg(&ms[0], in)
								if q.Push(&ms[0]) {
									in++
								}
							}
						}
						over = in == n
						producing.Store(false)
					}
				}()
				go func() {
					defer wg.Done()
					var ms [5]Msg
					for over := false; !over; runtime.Gosched() {
						if !consuming.CompareAndSwap(false, true) {
							continue
						}
						for turn := 0; turn < 8; turn++ {
							k := q.PopBatch(ms[:1+g])
							if q.Pop(&ms[k]) {
								k++
							}
							for j := range ms[:k] {
								if err := checkMsg(&ms[j], out+uint64(j)); err != nil {
									t.Error(err)
								}
							}
							out += uint64(k)
						}
						over = out == n
						consuming.Store(false)
					}
				}()
			}
			wg.Wait()
			if !q.Empty() || q.Len() != 0 {
				t.Fatalf("messages left: Len() = %d", q.Len())
			}
		})
	}
}

// TestFence runs the handshake Fence exists for, store against load on both
// sides, and fails if both sides look before the other's store. Without the
// fence amd64 lets the load overtake the push.
func TestFence(t *testing.T) {
	if runtime.GOMAXPROCS(0) < 2 {
		t.Skip("needs two processors: with one, no load overtakes a store")
	}
	rounds := uint64(300_000)
	if testing.Short() || raceBuild {
		rounds = 30_000
	}
	q := New(2)
	var flag atomic.Uint64             // last round the consumer announced
	var start, stop atomic.Uint64      // rounds begun by one side, ended by the other
	missed := make([]bool, 2*rounds+2) // by the producer, in each round
	await := func(w *atomic.Uint64, v uint64) {
		for polls := 1; w.Load() < v; polls++ {
			if polls%4096 == 0 {
				runtime.Gosched()
			}
		}
	}
	delay := func(r uint64) { // scatter the two sides by some ns
		for range r % 16 {
			flag.Load()
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var m Msg
		for r := uint64(1); r <= rounds; r++ {
			fillMsg(&m, r)
			await(&start, r)
			delay(r)
			q.Push(&m)
			Fence()
			missed[r] = flag.Load() != r
			stop.Store(r)
		}
	}()
	both := 0
	var m Msg
	for r := uint64(1); r <= rounds; r++ {
		start.Store(r)
		delay(r / 16)
		flag.Swap(r)
		empty := q.Empty()
		await(&stop, r)
		if !q.Pop(&m) {
			t.Fatalf("round %d: message lost", r)
		}
		if empty && missed[r] {
			both++
		}
	}
	<-done
	if both > 0 {
		t.Errorf("in %d of %d rounds neither side saw the other", both, rounds)
	}
}

// TestGCKeepsSlots: the slots hang on a pointer into the middle of their
// allocation; a collection must not take them away.
func TestGCKeepsSlots(t *testing.T) {
	q := New(256)
	var m Msg
	for i := uint64(0); i < 256; i++ {
		fillMsg(&m, i)
		q.Push(&m)
	}
	var garbage [][]byte
	for range 4 {
		runtime.GC()
		for range 256 {
			b := make([]byte, 256*slotSize+line) // the size class of the slots
			for i := range b {
				b[i] = 0xa5
			}
			garbage = append(garbage, b)
		}
	}
	for i := uint64(0); i < 256; i++ {
		if !q.Pop(&m) {
			t.Fatalf("message %d is gone", i)
		}
		if err := checkMsg(&m, i); err != nil {
			t.Fatal(err)
		}
	}
	runtime.KeepAlive(garbage)
}

func TestAllocs(t *testing.T) {
	q := New(64)
	var m Msg
	ms := make([]Msg, 16)
	for name, f := range map[string]func(){
		"Push, Pop":           func() { q.Push(&m); q.Pop(&m) },
		"PushBatch, PopBatch": func() { q.PushBatch(ms); q.PopBatch(ms) },
		"Push when full": func() {
			for q.Push(&m) {
			}
			for q.Pop(&m) {
			}
		},
		"Empty, Len": func() { _, _ = q.Empty(), q.Len() },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
