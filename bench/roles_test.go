package bench

import (
	"bytes"
	"context"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
)

// goroutines is a profile of those that run now.
func goroutines(t *testing.T) *profile.Profile {
	t.Helper()
	var b bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&b, 0); err != nil {
		t.Fatal(err)
	}
	p, err := profile.Parse(&b)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// begins is the function of this module that a goroutine began with, without the
// module's path.
func begins(s *profile.Sample) string {
	for _, loc := range slices.Backward(s.Location) {
		for _, line := range slices.Backward(loc.Line) {
			if name, ok := strings.CutPrefix(line.Function.Name, modulePath+"/"); ok && !strings.HasPrefix(name, "internal/role.") {
				return name
			}
		}
	}
	return ""
}

// Whatever begins in the packages that a suite measures has a role, of its own and not
// of whoever began it: here nobody has one to hand on.
func TestGoroutinesHaveRoles(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	publishingTo(t, ctx, 4)
	peers, err := (&peerSuite{PeerOptions: briefly(Options{}), dir: t.TempDir()}).open(ctx, routeStream, "tcp", 64<<10, 4, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := peers.close(); err != nil {
			t.Error(err)
		}
	}()
	want := []string{"owner", "peer-loop", "peer-stream", "event-consumer", "zmtp-accept", "zmtp-socket", rolePublisher}
	seen := map[string]bool{}
	sawAll := func() bool {
		return !slices.ContainsFunc(want, func(role string) bool { return !seen[role] })
	}
	for n := 0; n < 50 || !sawAll() && ctx.Err() == nil; n++ {
		if _, err := peers.dst.fetch(ctx, 0, 4, false); err != nil {
			t.Fatal(err)
		}
		for _, s := range goroutines(t).Sample {
			at := begins(s)
			for _, role := range s.Label[labelRole] {
				seen[role] = true
			}
			if len(s.Location) < 2 || strings.HasSuffix(s.Location[0].Line[0].Function.Name, at) {
				continue // it has only just begun, and not come to its role
			}
			if len(s.Label[labelRole]) > 0 || strings.HasPrefix(at, "bench.") {
				continue
			}
			for _, pkg := range []string{"shard.", "peer.", "wire/", "hints/", "node."} {
				if strings.HasPrefix(at, pkg) && !seen["none of "+at] {
					seen["none of "+at] = true
					t.Errorf("a goroutine of %s has no role", at)
				}
			}
		}
	}
	for _, role := range want {
		if !seen[role] {
			t.Errorf("no goroutine had the role %s", role)
		}
	}
}
