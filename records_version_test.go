package kvcr

import (
	"fmt"
	"testing"

	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// A block that has become resident by another road is held only when it has the bytes
// that came: with another's hold, the source would remove what nobody else has.
func TestRecordsHoldTheOffered(t *testing.T) {
	for _, sums := range []Checksums{ChecksumOff, ChecksumOn} {
		for _, kind := range []Kind{Flat, Chained} {
			for _, same := range []bool{false, true} {
				t.Run(fmt.Sprintf("sums=%d/%v/same=%t", sums, kind, same), func(t *testing.T) {
					p := openPair(t, Config{Capacity: 4 << 20, Shards: 1, Namespaces: one(Namespace{Kind: kind, MaxValue: 64 << 10, Checksums: sums})})
					here, there := handleIn(t, p.dst, "ns"), handleIn(t, p.src, "ns")
					value := stamped(1, 5000)
					other := stamped(2, 5000)
					want := wire.StatusRedeposited
					if same {
						other, want = value, wire.StatusOK
					}
					r := p.dst.Records()
					for _, early := range []bool{false, true} {
						for op, hold := range []peer.HoldID{{}, {Source: 5, Op: p.op + 2}} {
							k := fmt.Appendf(nil, "%t-%d", early, op)
							if err := there.Set(k, value); err != nil {
								t.Fatal(err)
							}
							if early { // before Reserve
								if err := here.Set(k, other); err != nil {
									t.Fatal(err)
								}
							}
							p.op++
							it := item{key: k}
							it.claim, _ = p.src.Records().Claim("ns", &wire.Wanted{Key: k}, &it.o)
							it.slot, it.st = r.Reserve(p.op, 0, "ns", k, &it.o)
							hold.Op = p.op
							switch {
							case early && it.st != wire.StatusExists || !early && it.st != wire.StatusOK:
								t.Fatal(it.st)
							case early:
								want := want
								if sums == ChecksumOff {
									want = wire.StatusRedeposited // nobody knows
								}
								hold.Source = 5
								if st := r.TakeHold("ns", k, hold); st != want {
									t.Errorf("TakeHold: %v, want %v", st, want)
								}
							default:
								p.copy(&it)
								if err := here.Set(k, other); err != nil { // before Commit
									t.Fatal(err)
								}
								want := want
								if hold.Source == 0 {
									hold, want = peer.HoldID{}, wire.StatusOK // a copy: whatever is here is the answer
								}
								if st := r.Commit([]peer.Slot{it.slot}, hold); st != want {
									t.Errorf("Commit with hold %v: %v, want %v", hold, st, want)
								}
							}
							if v, ok := here.Get(k); !ok || string(v.Bytes()) != string(other) {
								t.Error("what was here has gone")
							} else {
								v.Release()
							}
							r.DropHold("ns", k, hold)
							p.src.Records().Unclaim(it.claim)
						}
					}
					quiet(t, p.src)
					quiet(t, p.dst)
				})
			}
		}
	}
}
