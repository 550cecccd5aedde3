package oracle

import (
	"math/rand/v2"
	"testing"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

// Long chains that branch, of many owners, with stores and removals all over: tables
// grow and shrink, runs break and join.
func TestLarge(t *testing.T) {
	owners, length, acts := 24, 900, 500
	if testing.Short() {
		owners, length, acts = 10, 300, 200
	}
	for seed := range uint64(2) {
		r := rand.New(rand.NewPCG(seed, 9))
		chains := []chain{newChain(seed, length)}
		for range 11 {
			from := chains[r.IntN(len(chains))]
			cut := r.IntN(length)
			c := newChain(r.Uint64(), length)
			copy(c.local, from.local[:cut])
			copy(c.ext, from.ext[:cut])
			if cut < length {
				for i := cut; i < length; i++ {
					c.ext[i] = mix(c.ext[i] ^ from.ext[cut])
				}
			}
			chains = append(chains, c)
		}
		var members []plan.Member
		for i := range owners {
			o := rank(uint64(i/3), uint32(i%3))
			if i%4 == 3 {
				o = k(byte(i))
			}
			members = append(members, plan.Member{Owner: o, Type: "prefill", Endpoint: "tcp://s:1", Capable: i%2 == 0})
		}
		v, x := NewInventory(), Index()
		x.SetMembers(members)
		compare := func(c chain) {
			q := v.ask(members, c.local)
			if what := q.compareSome(q.answer(), x.Ask(c.local)); what != "" {
				t.Fatalf("seed %d: %s", seed, what)
			}
		}
		for i := range acts {
			c := chains[r.IntN(len(chains))]
			o := members[r.IntN(len(members))].Owner
			s := o.Worker
			if o.Cache {
				s = speaker
			}
			e := randomEvent(r, c, o, s)
			if r.IntN(40) == 0 {
				// One by one, from the back.
				for j := len(c.local) - 1; j >= 0; j -= 1 + r.IntN(3) {
					one := c.store(events.HostPinned, o, s, j, j+1)
					v.Apply(one)
					x.Apply(one)
				}
			}
			v.Apply(e)
			x.Apply(e)
			if i%20 == 19 {
				compare(c)
			}
			if i%200 == 199 {
				dump := x.Dump()
				if what := sameDumps(dump, v.Dump()); what != "" {
					t.Fatalf("seed %d: %.1000s", seed, what)
				}
				r.Shuffle(len(dump), func(i, j int) { dump[i], dump[j] = dump[j], dump[i] })
				x = Index()
				x.SetMembers(members)
				for _, e := range dump {
					x.Apply(e)
				}
			}
		}
		for _, c := range chains {
			compare(c)
		}
		for _, m := range members {
			v.Remove(m.Owner)
			x.Remove(m.Owner)
		}
		if pairs, blocks := x.Count(); pairs != [4]int{} || blocks != [4]int{} {
			t.Fatalf("seed %d: pairs %v and blocks %v are left when all are gone", seed, pairs, blocks)
		}
	}
}

// compareSome is compare without the counting of segments, which takes the square of
// the blocks.
func (q *question) compareSome(a Answer, r Reply) string {
	r.Multi = nil
	b := a
	b.Choices = nil
	if what := sameHints(r.Hints, a.Hints()); what != "" {
		return what
	}
	r.Hints = nil
	return q.compare(b, r)
}
