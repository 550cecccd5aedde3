package oracle

import "testing"

func TestMakeRepeats(t *testing.T) {
	for seed := range uint64(20) {
		if a, b := Make(seed).String(), Make(seed).String(); a != b {
			t.Fatalf("seed %d makes two scenarios:\n%s\n%s", seed, a, b)
		}
	}
}

// The oracle agrees with itself, also after its own dump; and the scenarios are
// about what they should be about.
func TestSelf(t *testing.T) {
	n := 800
	if testing.Short() {
		n = 200
	}
	c, err := Run(n, 1, Self, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", c)
	if c.Inventories < n || c.Events < 10*n || c.Asks < 4*n || c.Roots < 2*n || c.Continuations < n/4 || c.Nones < 3*n || c.Caches < n/4 || c.OffChain == 0 || c.Shared < n/4 {
		t.Errorf("%d inventories are about too little: %+v", n, c)
	}
}
