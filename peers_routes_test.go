package kvcr

import (
	"slices"
	"testing"

	"github.com/kvcr-go/kvcr/ucx"
	"github.com/kvcr-go/kvcr/ucx/cuda"
)

// UCX over TCP is slower than our own streams, so it comes before them only where
// it has more to drive.
func TestPreferredRoutes(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  Config
		want []string
	}{
		{"tcp alone", Config{Peers: &Peers{}}, []string{"shm", "stream", "ucx"}},
		{"transports that were chosen", Config{Peers: &Peers{UCX: ucx.Options{Transports: []string{"rc"}}}}, []string{"shm", "ucx", "stream"}},
		{"GPUs", Config{Peers: &Peers{}, CUDA: new(cuda.Driver)}, []string{"shm", "ucx", "stream"}},
	} {
		if got := (&Engine{cfg: tt.cfg}).preferredRoutes(); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
