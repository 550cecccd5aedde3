package oracle

import "testing"

// TestIndex is the comparison: thousands of inventories here, a million by Run.
func TestIndex(t *testing.T) {
	n := 1500
	if testing.Short() {
		n = 250
	}
	c, err := Run(n, 1, Index, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", c)
}
