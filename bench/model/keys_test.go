package model

import (
	"math"
	"testing"
)

// TestKeysFloors: density on values without chains.
func TestKeysFloors(t *testing.T) {
	density := func() Cache { return &Evict{Policy: "density"} }
	long := Zipf(1, 20_000, 2_000_000)
	long.Name = "zipf, long"
	for _, tt := range []struct {
		k        Keys
		capacity int
		than     Cache   // nil: floor is absolute
		floor    float64 // points, relative to than if given
	}{
		{Zipf(1, 1_000_000, 4_000_000), 100_000, &S3FIFO{Small: 0.1, Promote: 2}, -0.3},
		{Loop(100_000, 2_000_000), 10_000, nil, 8},
		{Changing(1, 100_000, 1_200_000, 200_000), 10_000, &LRU{}, -1.2},
		{Bursts(1, 100_000, 1_000_000, 5000), 10_000, &LRU{}, 1.5},
		// 1000 times the capacity: what is learned must not drift.
		{long, 2000, &S3FIFO{Small: 0.1, Promote: 2}, -0.3},
		{Uniform(1, 100_000, 600_000), 10_000, &LRU{}, -0.3},
	} {
		t.Run(tt.k.Name, func(t *testing.T) {
			if (racing || testing.Short()) && len(tt.k.IDs) > 2_000_000 {
				t.Skip("heavy: not with -short nor in race builds")
			}
			t.Parallel()
			floor := tt.floor
			if tt.than != nil {
				floor += RunKeys(tt.k, tt.capacity, tt.than).Percent()
			}
			got := RunKeys(tt.k, tt.capacity, density()).Percent()
			t.Logf("%.2f %%, floor %.2f", got, floor)
			if got < floor {
				t.Errorf("%.2f %%, want at least %.2f", got, floor)
			}
		})
	}
}

// TestZipf: frequencies follow 1/rank^0.99.
func TestZipf(t *testing.T) {
	const keys, n = 1000, 1_000_000
	var count [keys]float64
	k := Zipf(1, keys, n)
	for _, id := range k.IDs {
		count[id]++
	}
	zeta := 0.0
	for i := 1; i <= keys; i++ {
		zeta += math.Pow(float64(i), -zipfSkew)
	}
	for _, rank := range []int{1, 2} { // exact in the method; others approximate
		want := n * math.Pow(float64(rank), -zipfSkew) / zeta
		if math.Abs(count[rank-1]-want) > 4*math.Sqrt(want) {
			t.Errorf("rank %d drawn %.0f times, want %.0f", rank, count[rank-1], want)
		}
	}
	for lo := 4; lo < keys; lo *= 4 {
		hi, got, want := min(keys, 4*lo), 0.0, 0.0
		for i := lo; i < hi; i++ {
			got += count[i-1]
			want += n * math.Pow(float64(i), -zipfSkew) / zeta
		}
		if got < 0.9*want || got > 1.1*want {
			t.Errorf("ranks %d to %d drawn %.0f times, want %.0f", lo, hi-1, got, want)
		}
	}
}

func TestKeyStreams(t *testing.T) {
	for _, k := range []Keys{
		Zipf(1, 50, 1000), Uniform(1, 50, 1000), Loop(50, 1000), Bursts(1, 50, 1000, 10), Changing(1, 50, 1000, 300),
	} {
		if len(k.IDs) != 1000 {
			t.Errorf("%s: %d accesses, want 1000", k.Name, len(k.IDs))
		}
		for _, id := range k.IDs {
			if int(id) >= k.Unique {
				t.Fatalf("%s: key %d of %d", k.Name, id, k.Unique)
			}
		}
	}
	if k := Bursts(1, 50, 1000, 10); k.Unique != 50+500 {
		t.Errorf("bursts have %d keys, want 500 used once", k.Unique-50)
	}
	if k := Changing(1, 50, 1000, 300); k.IDs[299] >= 50 || k.IDs[300] < 50 || k.IDs[300] >= 100 {
		t.Errorf("keys change from %d to %d, want at access 300", k.IDs[299], k.IDs[300])
	}
}
