package evict

import (
	"math/rand/v2"
	"slices"
	"sort"
	"testing"
)

func TestLRUOrder(t *testing.T) {
	f, p := open(t, "lru", 8)
	p.Insert(f.chain(0, 1, 2, 3), 10)
	p.Insert(f.chain(0, 4, 5), 20)
	p.Insert(f.chain(0, 6), 30)
	f.last[1], f.last[2] = 25, 25 // the prefix was read between
	if got, want := drain(t, p, 40), []ID{3, 5, 4, 2, 1, 6}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
}

// TestLRUPieces: a chain deposited block by block leaves from its end.
func TestLRUPieces(t *testing.T) {
	f, p := open(t, "lru", 1024)
	parent := ID(0)
	for id := ID(1); id <= 6; id++ {
		p.Insert(f.chain(parent, id), 10+uint32(id))
		parent = id
	}
	if got, want := drain(t, p, 40), []ID{6, 5, 4, 3, 2, 1}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
}

// TestLRUIsNearlyExact compares with exact LRU: a victim's rank by last access
// stays within what marks can tell, also when the clock wraps.
func TestLRUIsNearlyExact(t *testing.T) {
	const n = 2048
	f, p := open(t, "lru", n)
	r := rand.New(rand.NewPCG(1, 2))
	now := ^uint32(0) - 20*n
	var resident []ID
	for id := ID(1); id <= n; id++ {
		now++
		p.Insert(f.chain(0, id), now)
		resident = append(resident, id)
	}
	worst := 0
	for step := range 20 * n {
		now++
		f.last[resident[r.IntN(n)]] = now
		f.last[resident[r.IntN(n/4)]] = now
		if step%4 != 0 {
			continue
		}
		now++
		v := p.Victim(now)
		older := 0
		for _, id := range resident {
			if now-f.last[id] > now-f.last[v] {
				older++
			}
		}
		worst = max(worst, older)
		p.Remove(v, Evicted, now)
		p.Insert(f.chain(0, v), now)
	}
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}
	t.Logf("at most %d of %d blocks were used longer ago than a victim", worst, n)
	if worst > n/16 {
		t.Errorf("%d of %d blocks were used longer ago than a victim, want at most %d", worst, n, n/16)
	}
}

// TestLRUMarksRunOut: touches keep every block, so marks pile up and thin out.
func TestLRUMarksRunOut(t *testing.T) {
	const n = 512
	f, p := open(t, "lru", n)
	for id := ID(1); id <= n/2; id++ {
		p.Insert(f.chain(0, id), 1)
	}
	now := uint32(2)
	for range 20 * lruMarks {
		for id := ID(n/2 + 1); id <= n; id++ {
			if now += 3; p.(*lru).number(id) != queueNone {
				p.Remove(id, Deleted, now)
			}
			p.Insert(f.chain(0, id), now)
		}
	}
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}
	got := drain(t, p, now)
	if !sort.SliceIsSorted(got, func(i, j int) bool { return now-f.last[got[i]] > now-f.last[got[j]] }) {
		t.Errorf("blocks left out of order: %v", got)
	}
}
