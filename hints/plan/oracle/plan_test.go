package oracle

import "testing"

// TestIndex is the comparison: thousands of scenarios here, a million by Run.
func TestIndex(t *testing.T) {
	n := 4000
	if testing.Short() {
		n = 500
	}
	c, err := Run(n, 1, Index, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d scenarios: %+v", n, c)
}
