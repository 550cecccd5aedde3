package soak

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	before := goleak.IgnoreCurrent()
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(before); err != nil {
			os.Stderr.WriteString("after all tests: " + err.Error() + "\n")
			code = 1
		}
	}
	os.Exit(code)
}
