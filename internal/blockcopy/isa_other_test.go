//go:build !amd64 || race

package blockcopy

import "testing"

// withISAs runs f as one subtest: this build has ordinary copies only.
func withISAs(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Run("isa=none", f)
}
