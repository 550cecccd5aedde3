package keys

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if printKeysOfChild() {
		return
	}
	goleak.VerifyTestMain(m)
}
