package peer

import (
	"runtime/pprof"
	"strings"
	"testing"
)

// What a node begins says in profiles what it is for.
func TestSpawnedHasRole(t *testing.T) {
	n := &Node{}
	begun, end := make(chan struct{}), make(chan struct{})
	if !n.spawn(func() {
		close(begun)
		<-end
	}) {
		t.Fatal("the node says that it is closing")
	}
	<-begun
	var b strings.Builder
	if err := pprof.Lookup("goroutine").WriteTo(&b, 1); err != nil {
		t.Fatal(err)
	}
	close(end)
	n.work.Wait()
	if !strings.Contains(b.String(), `{"role":"peer-work"}`) {
		t.Errorf("no goroutine of the role peer-work:\n%s", b.String())
	}
}
