package faults

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"
)

var (
	killsFlag = flag.Int("faults", 20, "how often TestKills kills")
	seedFlag  = flag.Uint64("seed", 0, "repeat the order of TestKills that had this seed; 0: a new one")
)

func TestMain(m *testing.M) {
	if config := os.Getenv(envChild); config != "" {
		childMain(config)
		return
	}
	flag.Parse()
	// A pool that a dependency of gnet keeps for the life of the process.
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/panjf2000/ants/v2.(*poolCommon).purgeStaleWorkers"),
		goleak.IgnoreTopFunction("github.com/panjf2000/ants/v2.(*poolCommon).ticktock"))
}
