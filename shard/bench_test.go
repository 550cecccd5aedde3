package shard

import "testing"

// BenchmarkPut is what a writer pays on each of the roads: a new key that evicts
// another, a deposit of a resident key, a value replaced in place, and a delete
// with the deposit that follows it.
func BenchmarkPut(b *testing.B) {
	const records = 4096
	for _, policy := range []string{"density", "lru"} {
		for _, road := range []string{"evict", "existing", "overwrite", "delete"} {
			b.Run("policy="+policy+"/road="+road, func(b *testing.B) {
				s := newTest(b, rig{pools: []Pool{{256, records}}, policy: policy})
				l := newLane(b, s)
				ks := make([][]byte, 4*records)
				for i := range ks {
					ks[i] = key(i)
				}
				v := make([]byte, 200)
				for i := range records {
					mustPut(b, l, ks[i], v)
				}
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					ok := true
					switch road {
					case "evict":
						ok = give(l, ks[i%len(ks)], v).Reason == OK
					case "existing":
						ok = give(l, ks[i%records], v).Old
					case "overwrite":
						ok = put(l, ks[i%records], v) == OK
					case "delete":
						ok = del(l, ks[i%records]) == OK && give(l, ks[i%records], v).Reason == OK
					}
					if !ok {
						b.Fatal("refused")
					}
				}
			})
		}
	}
}
