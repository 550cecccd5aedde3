package evict

import "testing"

// TestRecordsReach: four levels of a few records reach some 15 turnovers back,
// and what they stand for together is what came in.
func TestRecordsReach(t *testing.T) {
	const n = 4096
	f, p := open(t, "density", n)
	d := p.(*density)
	now := uint32(0)
	for turnover := range 40 {
		for id := ID(1); id <= n; id++ {
			if turnover > 0 {
				p.Remove(id, Evicted, now)
			}
			now++
			f.hash[id] = mix(uint64(now))
			p.Insert([]Insert{{ID: id, Hash: f.hash[id]}}, now)
		}
	}
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}
	weight, oldest := 0.0, uint32(0)
	for _, r := range d.recs.recs[1:] {
		if r.level < levels {
			weight += r.weight()
			oldest = max(oldest, now-r.last)
		}
	}
	if reach := float64(oldest) / n; reach < 13 || reach > 17 {
		t.Errorf("the oldest record is %.1f turnovers old, want about 15", reach)
	}
	if stands := weight * float64(d.recs.every) / n; stands < 13 || stands > 17 {
		t.Errorf("records stand for %.1f turnovers of blocks, want about 15", stands)
	}
	dropped := 0.0
	for b := range ages {
		dropped += d.haz.drops[chainClass(0, 0)][b]
	}
	if dropped == 0 {
		t.Error("records left the last level and were not counted")
	}
}

func TestRecordsBound(t *testing.T) {
	for _, n := range []int{1, 2, 100, 8192, 8193, 15000, 1 << 20, 1 << 28} {
		var rs records
		rs.init(n, 1)
		if len(rs.recs) > maxRecords+2 {
			t.Errorf("%d blocks: %d records, at most %d", n, len(rs.recs)-2, maxRecords)
		}
		if reach := rs.every * uint64(rs.room); n >= 100 && (reach < uint64(n)*9/10 || reach > uint64(n)*3/2) {
			t.Errorf("%d blocks: level 0 holds the sample of %d insertions, want about one turnover", n, reach)
		}
	}
}
