package bench

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"runtime/metrics"
	"testing"
	"time"
)

func TestResidentBytes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "status")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("Name:\tx\nVmRSS:\t    1024 kB\nVmData:\t 77 kB\nHugetlbPages:\t    2048 kB\n")
	if n, err := residentBytes(path); err != nil || n != 3072<<10 {
		t.Errorf("%d bytes, %v, want 3 MiB with explicit huge pages", n, err)
	}
	for name, text := range map[string]string{"no VmRSS": "Name:\tx\n", "no number": "VmRSS:\tmany kB\n"} {
		write(text)
		if _, err := residentBytes(path); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if n, err := residentBytes("/proc/self/status"); err != nil || n < 1<<20 {
		t.Errorf("this process: %d bytes, %v", n, err)
	}
}

func TestPausesBetween(t *testing.T) {
	h := func(counts ...uint64) *metrics.Float64Histogram {
		return &metrics.Float64Histogram{Counts: counts, Buckets: []float64{0, 10e-6, 100e-6, 1e-3, math.Inf(1)}}
	}
	tests := []struct {
		name          string
		before, after *metrics.Float64Histogram
		p99, max      float64
		n             uint64
	}{
		{"nothing happened", h(5, 5, 5, 0), h(5, 5, 5, 0), 0, 0, 0},
		{"old pauses do not count", h(0, 0, 9, 0), h(3, 0, 9, 0), 10, 10, 3},
		{"one in a hundred", h(0, 0, 0, 0), h(99, 0, 1, 0), 10, 1000, 100},
		{"two in a hundred", h(0, 0, 0, 0), h(98, 0, 2, 0), 1000, 1000, 100},
		{"beyond the last bucket", h(0, 0, 0, 0), h(0, 0, 0, 1), 1000, 1000, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := pausesBetween(tt.before, tt.after)
			if math.Abs(p.p99-tt.p99) > 1e-6 || math.Abs(p.max-tt.max) > 1e-6 || p.n != tt.n {
				t.Errorf("%+v, want p99 %v, max %v of %d", p, tt.p99, tt.max, tt.n)
			}
		})
	}
}

func TestCollectSeesPauses(t *testing.T) {
	if p := collect(context.Background(), 200*time.Millisecond); p.n == 0 || p.max <= 0 {
		t.Errorf("%+v: no pause while garbage was made", p)
	}
}

func TestMallocs(t *testing.T) {
	var keep [100]*[64]byte
	n, err := mallocs(func() error {
		for i := range keep {
			keep[i] = new([64]byte)
		}
		return nil
	})
	if err != nil || n < 100 {
		t.Errorf("%d allocations counted of 100 and more, %v", n, err)
	}
	_ = keep
}
