package bench

import (
	"context"
	"os"
	"strings"
	"testing"
)

// TestEngineSuite runs when a person asks for it: BENCH_SUITES=quick or full,
// BENCH_ONLY=name,name.
func TestEngineSuite(t *testing.T) {
	mode := os.Getenv("BENCH_SUITES")
	if mode == "" {
		t.Skip("BENCH_SUITES is not set")
	}
	o := Options{Quick: mode == "quick"}
	if only := os.Getenv("BENCH_ONLY"); only != "" {
		o.Only = strings.Split(only, ",")
	}
	rep, err := Engine(context.Background(), o)
	rep.WriteText(os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
}
