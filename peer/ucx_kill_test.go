package peer

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/ucx"
)

// survives asks a child for a sign of life.
func (c *child) survives() bool {
	fmt.Fprintln(c.in, "use")
	_, ok := c.scan()
	return ok
}

// A peer that is killed while its UCX connection is being made must not take us
// along. UCX before 1.14, built with assertions, may do so; then this says how
// often. KVCR_UCX_KILLS is the number of kills of each side, for longer runs.
func TestUCXKilledWhileConnecting(t *testing.T) {
	kills := 6
	if n, err := strconv.Atoi(os.Getenv("KVCR_UCX_KILLS")); err == nil {
		kills = n
	}
	if testing.Short() {
		kills = 2
	}
	aborted := map[string]int{}
	rounds := func(name string, survivor func() *child, round func(s *child)) {
		s := survivor()
		for range kills {
			round(s)
			if !s.survives() {
				aborted[name]++
				s = survivor()
			}
		}
		s.stop()
	}
	rounds("source", func() *child { return startUCXChild(t, "source") }, func(s *child) {
		c := startUCXChild(t, "dest", envEndpoint+"="+s.endpoint)
		fmt.Fprintln(c.in, "fetch")
		time.Sleep(rand.N(8 * time.Millisecond))
		c.kill()
	})
	rounds("destination", func() *child { return startUCXChild(t, "dest") }, func(s *child) {
		c := startUCXChild(t, "source")
		fmt.Fprintf(s.in, "once %s\n", c.endpoint)
		time.Sleep(rand.N(8 * time.Millisecond))
		c.kill()
		if line, ok := s.scan(); ok && line != "done" {
			t.Errorf("the destination says %q", line)
		}
	})
	t.Logf("UCX %s: of %d kills each, the survivor was aborted %v times", ucx.Version(), kills, aborted)
	var major, minor int
	if fmt.Sscanf(strings.TrimSpace(ucx.Version()), "%d.%d", &major, &minor); len(aborted) > 0 && (major > 1 || minor >= 14) {
		t.Errorf("UCX %s aborts the process of a peer's peer: %v", ucx.Version(), aborted)
	}
}
