package role

import (
	"runtime/pprof"
	"strings"
	"testing"
)

// A goroutine has its role for as long as it runs, and so has what it begins; whoever
// began it keeps its own labels.
func TestRole(t *testing.T) {
	r := New("of-a-test")
	begun, end := make(chan struct{}), make(chan struct{})
	go r.Run(func() {
		go func() {
			begun <- struct{}{}
			<-end
		}()
		begun <- struct{}{}
		<-end
	})
	<-begun
	<-begun
	defer close(end)
	var b strings.Builder
	if err := pprof.Lookup("goroutine").WriteTo(&b, 1); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(b.String(), `{"role":"of-a-test"}`); n != 2 {
		t.Errorf("%d goroutines of the role, want 2:\n%s", n, b.String())
	}
}

func TestTakeAllocatesNothing(t *testing.T) {
	done := make(chan float64)
	r := New("cheap")
	go func() { done <- testing.AllocsPerRun(100, r.Take) }()
	if n := <-done; n != 0 {
		t.Errorf("%v allocations", n)
	}
}
