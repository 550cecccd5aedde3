package oracle

import "testing"

func TestMakeRepeats(t *testing.T) {
	for seed := range uint64(50) {
		if a, b := Make(seed).String(), Make(seed).String(); a != b {
			t.Fatalf("seed %d makes two scenarios:\n%s\n%s", seed, a, b)
		}
	}
}

// The oracle agrees with itself, also after its own dump; and the scenarios are
// about what they should be about.
func TestSelf(t *testing.T) {
	n := 2000
	if testing.Short() {
		n = 500
	}
	c, err := Run(n, 1, Self, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d scenarios: %+v", n, c)
	if c.Asks < 4*n || c.Roots < n/2 || c.Continuations < n/2 || c.Nones < n || c.Caches < n/4 {
		t.Errorf("%d scenarios are about too little: %+v", n, c)
	}
}
