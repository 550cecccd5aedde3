package evict

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// BenchmarkTurnover is what a full shard pays for a deposit: Victim and Remove
// for each block, then Insert, a quarter of the residents being read meanwhile.
func BenchmarkTurnover(b *testing.B) {
	const n = 1 << 20
	for _, name := range Names() {
		for _, chain := range []int{1, 32} {
			b.Run(fmt.Sprintf("policy=%s/chain=%d", name, chain), func(b *testing.B) {
				f, p := open(b, name, n)
				r := rand.New(rand.NewPCG(1, 1))
				now := uint32(0)
				ids := make([]ID, chain)
				free := make([]ID, 0, n)
				for id := ID(n); id > 0; id-- {
					free = append(free, id)
				}
				run := make([]Insert, chain)
				deposit := func() {
					for len(free) < chain {
						v := p.Victim(now)
						p.Remove(v, Evicted, now)
						free = append(free, v)
					}
					parent := ID(0)
					for i := range ids {
						id := free[len(free)-1]
						free = free[:len(free)-1]
						f.hash[id] = r.Uint64()
						run[i] = Insert{ID: id, Hash: f.hash[id], Parent: parent, ChainLen: uint32(chain), Tail: chain > 1 && i == chain-1}
						parent = id
					}
					now += uint32(chain)
					p.Insert(run, now)
				}
				for range 2 * n / chain {
					deposit()
				}
				b.ResetTimer()
				for i := 0; i < b.N; i += chain {
					deposit()
					for range chain / 4 {
						now++
						f.last[1+r.IntN(n)] = now
					}
				}
			})
		}
	}
}
