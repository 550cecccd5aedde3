package prefetch

import "testing"

func TestLineLeavesMemoryAlone(t *testing.T) {
	b := []byte{1, 2, 3}
	Line(&b[0])
	LineToWrite(&b[0])
	if b[0] != 1 || b[1] != 2 || b[2] != 3 {
		t.Errorf("b = %v", b)
	}
}
