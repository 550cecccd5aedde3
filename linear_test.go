package kvcr

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// Histories of concurrent calls, checked afterwards: is there an order of the
// calls, each somewhere between its begin and its end, that a single register
// for each key could have followed?

type opKind uint8

const (
	opGet opKind = iota
	opSet
	opDeposit
	opDelete
)

// input and output of one call. seed 0 is "absent".
type input struct {
	kind opKind
	key  int
	seed uint64
}

type output struct {
	seed uint64 // Get: what it read
	was  bool   // Delete: it was there; Deposit: it was there and stays
	full bool   // Set, Deposit: refused, since all that could leave was claimed
}

// register is the strict model: nothing leaves by itself.
//
// With evicts a resident key may leave at any moment. It is not necessary to
// guess when: a call that finds the key absent proves that it has left, and a
// call that finds it present that it has not; in between nobody can tell.
func register(evicts bool) porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			byKey := map[int][]porcupine.Operation{}
			for _, op := range history {
				k := op.Input.(input).key
				byKey[k] = append(byKey[k], op)
			}
			var out [][]porcupine.Operation
			for _, ops := range byKey {
				out = append(out, ops)
			}
			return out
		},
		Init: func() any { return uint64(0) },
		Step: func(state, in, out any) (bool, any) {
			s, i, o := state.(uint64), in.(input), out.(output)
			gone := s == 0 || evicts
			if o.full {
				return evicts, s
			}
			switch i.kind {
			case opGet:
				if o.seed != 0 {
					return s == o.seed, s
				}
				return gone, uint64(0)
			case opSet:
				return true, i.seed
			case opDeposit:
				if o.was {
					return s != 0, s
				}
				return gone, i.seed
			default:
				if o.was {
					return s != 0, uint64(0)
				}
				return gone, uint64(0)
			}
		},
		DescribeOperation: func(in, out any) string {
			i, o := in.(input), out.(output)
			switch i.kind {
			case opGet:
				return fmt.Sprintf("get(%d) -> %#x", i.key, o.seed)
			case opSet:
				return fmt.Sprintf("set(%d, %#x)", i.key, i.seed)
			case opDeposit:
				return fmt.Sprintf("deposit(%d, %#x) -> existing %v", i.key, i.seed, o.was)
			default:
				return fmt.Sprintf("delete(%d) -> %v", i.key, o.was)
			}
		},
	}
}

// The checker must be able to say no.
func TestRegisterModelRefuses(t *testing.T) {
	at := func(client int, in input, out output, call, ret int64) porcupine.Operation {
		return porcupine.Operation{ClientId: client, Input: in, Output: out, Call: call, Return: ret}
	}
	get := func(seed uint64, call, ret int64) porcupine.Operation {
		return at(1, input{kind: opGet}, output{seed: seed}, call, ret)
	}
	set := func(seed uint64, call, ret int64) porcupine.Operation {
		return at(0, input{kind: opSet, seed: seed}, output{}, call, ret)
	}
	for _, c := range []struct {
		name            string
		history         []porcupine.Operation
		strict, evicted bool
	}{
		{"stale read", []porcupine.Operation{set(1, 0, 1), set(2, 2, 3), get(1, 4, 5)}, false, false},
		{"overlapping", []porcupine.Operation{set(1, 0, 1), set(2, 2, 6), get(1, 4, 5)}, true, true},
		{"lost", []porcupine.Operation{set(1, 0, 1), get(0, 2, 3)}, false, true},
		{"risen from the dead", []porcupine.Operation{set(1, 0, 1), get(0, 2, 3), get(1, 4, 5)}, false, false},
		{"invented", []porcupine.Operation{get(7, 0, 1)}, false, false},
		{"deleted twice", []porcupine.Operation{set(1, 0, 1), at(0, input{kind: opDelete}, output{was: true}, 2, 3), at(1, input{kind: opDelete}, output{was: true}, 4, 5)}, false, false},
	} {
		if got := porcupine.CheckOperations(register(false), c.history); got != c.strict {
			t.Errorf("%s: strict model says %v", c.name, got)
		}
		if got := porcupine.CheckOperations(register(true), c.history); got != c.evicted {
			t.Errorf("%s: model with eviction says %v", c.name, got)
		}
	}
}

func TestLinearizable(t *testing.T) {
	flat := func(shards int, edit func(*Namespace)) func(func(*Namespace)) Config {
		return func(v func(*Namespace)) Config {
			ns := Namespace{Name: "ns", MaxValue: 128 << 10}
			if edit != nil {
				edit(&ns)
			}
			v(&ns)
			return Config{Capacity: int64(shards) * 4 << 20, Shards: shards, Namespaces: []Namespace{ns}}
		}
	}
	chained := func(ns *Namespace) {
		ns.Kind, ns.MaxValue = Chained, 0
		ns.Pools = []Pool{{Name: "p", SlotBytes: 16 << 10}}
	}
	for _, c := range []struct {
		name   string
		config func(func(*Namespace)) Config
		keys   int
		evicts bool
		hash   func([]byte) uint64
	}{
		{"one shard", flat(1, nil), 3, false, nil},
		{"four shards", flat(4, nil), 5, false, nil},
		{"all keys collide", flat(1, nil), 4, false, func([]byte) uint64 { return 42 }},
		{"chained, pools", flat(1, chained), 3, false, nil},
		{"three blocks", flat(1, func(ns *Namespace) { ns.MaxBlocks = 3 }), 6, true, nil},
		{"three blocks, all keys collide", flat(1, func(ns *Namespace) { ns.MaxBlocks = 3 }), 6, true, func([]byte) uint64 { return 42 }},
		{"bytes run out", func(v func(*Namespace)) Config {
			ns := Namespace{Name: "ns", MaxValue: 256 << 10, Policy: "lru"}
			v(&ns)
			return Config{Capacity: 1 << 20, Shards: 1, Namespaces: []Namespace{ns}}
		}, 60, true, nil},
	} {
		for _, v := range helping {
			t.Run(c.name+"/"+v.name, func(t *testing.T) {
				cfg := c.config(v.config)
				cfg.Hash = c.hash
				for round := range pick(2, 8) {
					linearizable(t, cfg, c.keys, c.evicts, uint64(round))
				}
			})
		}
	}
}

func linearizable(t *testing.T, cfg Config, keys int, evicts bool, seed uint64) {
	e := open(t, cfg)
	const clients = 5
	calls := pick(100, 250)
	histories := make([][]porcupine.Operation, clients)
	start := time.Now()
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for c := range clients {
		h := handle(t, e)
		rng := rand.New(rand.NewPCG(seed, uint64(c)))
		wg.Add(1)
		go func() {
			defer wg.Done()
			<-begin
			var held View
			buf := make([]byte, 128<<10)
			for n := range calls {
				in := input{key: rng.IntN(keys), seed: uint64(c+1)<<32 | uint64(n+1)}
				switch r := rng.IntN(20); {
				case r < 9:
					in.kind = opGet
				case r < 14:
					in.kind = opSet
				case r < 17:
					in.kind = opDeposit
				default:
					in.kind = opDelete
				}
				// Deposits of one key must agree in length; Sets may not differ
				// then, either, or a Deposit meets another layout.
				size := 8 + in.key*97%3000
				if in.key%3 == 2 {
					size = 9000 // copied between two holds of the token
				}
				if cap := cfg.Capacity / 12; evicts && keys > 10 {
					size = int(cap)
				}
				var value []byte
				if in.kind == opSet || in.kind == opDeposit {
					value = stamped(in.seed, size)
				}
				key := keyOf(in.key)
				var out output
				call := time.Since(start).Nanoseconds()
				switch in.kind {
				case opGet:
					if n%2 == 0 { // a copying read, which may do without a claim
						n, ok := h.CopyTo(buf, key)
						ret := time.Since(start).Nanoseconds()
						if ok {
							var whole bool
							if out.seed, whole = seedOf(buf[:n]); !whole || n != size {
								t.Errorf("CopyTo(%d): %d broken bytes", in.key, n)
							}
						} else if n != 0 {
							t.Errorf("CopyTo(%d): %d bytes do not fit in %d", in.key, n, len(buf))
						}
						histories[c] = append(histories[c], porcupine.Operation{ClientId: c, Input: in, Call: call, Output: out, Return: ret})
						continue
					}
					v, ok := h.Get(key)
					ret := time.Since(start).Nanoseconds()
					if ok {
						var whole bool
						if out.seed, whole = seedOf(v.Bytes()); !whole || len(v.Bytes()) != size {
							t.Errorf("Get(%d): %d broken bytes", in.key, len(v.Bytes()))
						}
						// Some are kept over the next calls.
						if rng.IntN(4) == 0 {
							held.Release()
							held = v
						} else {
							v.Release()
						}
					}
					histories[c] = append(histories[c], porcupine.Operation{ClientId: c, Input: in, Call: call, Output: out, Return: ret})
					continue
				case opSet:
					err := h.Set(key, value)
					if out.full = errors.Is(err, ErrFull); err != nil && !(evicts && out.full) {
						t.Errorf("Set(%d): %v", in.key, err)
					}
				case opDeposit:
					r := h.DepositBatch([]Item{{Key: key, Value: value}}, DepositOptions{})[0]
					if out.full = r.Reason == ReasonCapacity; !r.OK() && !(evicts && out.full) {
						t.Errorf("Deposit(%d): %v", in.key, r.Err())
					}
					out.was = r.Existing
				case opDelete:
					var err error
					if out.was, err = h.Delete(key); err != nil {
						t.Errorf("Delete(%d): %v", in.key, err)
					}
				}
				ret := time.Since(start).Nanoseconds()
				histories[c] = append(histories[c], porcupine.Operation{ClientId: c, Input: in, Call: call, Output: out, Return: ret})
			}
			held.Release()
		}()
	}
	close(begin)
	within(30*time.Second, "the clients", wg.Wait)
	var history []porcupine.Operation
	for _, ops := range histories {
		history = append(history, ops...)
	}
	switch res, info := porcupine.CheckOperationsVerbose(register(evicts), history, 20*time.Second); res {
	case porcupine.Unknown:
		t.Error("the checker ran out of time")
	case porcupine.Illegal:
		name := fmt.Sprintf("%s/history-%d.html", t.TempDir(), seed)
		t.Errorf("no order of %d calls explains what they returned (seed %d); drawn in %s", len(history), seed, name)
		_ = porcupine.VisualizePath(register(evicts), info, name)
	}
	if evicts && stats(t, e).Counts.Evicted == 0 {
		t.Error("nothing was evicted, so this test has shown nothing")
	}
}
