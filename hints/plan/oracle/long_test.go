package oracle

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// TestIndexLong is TestIndex for as many inventories as KVCR_PLAN_INVENTORIES says, from
// the seed KVCR_PLAN_SEED on (1).
func TestIndexLong(t *testing.T) {
	n, err := strconv.Atoi(os.Getenv("KVCR_PLAN_INVENTORIES"))
	if err != nil {
		t.Skip("KVCR_PLAN_INVENTORIES is not set")
	}
	seed := uint64(1)
	if s, err := strconv.ParseUint(os.Getenv("KVCR_PLAN_SEED"), 10, 64); err == nil {
		seed = s
	}
	begin := time.Now()
	c, err := Run(n, seed, Index, func(done int) {
		if done/50_000 != (done-1000)/50_000 {
			t.Logf("%d inventories in %v", done, time.Since(begin).Round(time.Second))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", c)
}
