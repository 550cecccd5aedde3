package server

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/arena"
	"github.com/kvcr-go/kvcr/wire"
	"github.com/kvcr-go/kvcr/wire/client"
)

// BenchmarkPingBesideCommits pings once in half a millisecond, on the only loop,
// while another client commits values of 16 MiB without a pause.
func BenchmarkPingBesideCommits(b *testing.B) {
	needSharing(b)
	dir, err := os.MkdirTemp("", "kvcr")
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "socket")
	e, err := kvcr.Open(kvcr.Config{Capacity: 256 << 20, Shards: 1, Namespaces: []kvcr.Namespace{{Name: "default", MaxValue: 16 << 20}}, Memory: kvcr.Memory{Backing: arena.Memfd, Prefault: true}})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	s, err := Start(Options{Engine: e, Binary: []string{"unix:" + path}, Loops: 1})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Shutdown(soon(b))
	writer, err := client.Dial(soon(b), client.Options{Addr: "unix:" + path})
	if err != nil {
		b.Fatal(err)
	}
	defer writer.Close()
	sh, err := writer.Attach(soon(b), 16<<20)
	if err != nil {
		b.Fatal(err)
	}
	defer sh.Close()
	pinger, err := client.Dial(soon(b), client.Options{Addr: "unix:" + path})
	if err != nil {
		b.Fatal(err)
	}
	defer pinger.Close()
	stop, commits := make(chan struct{}), make(chan int)
	value := make([]byte, 16<<20)
	go func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				commits <- n
				return
			default:
			}
			if _, err := sh.Put(b.Context(), []byte("k"), value, wire.VerbSet); err != nil {
				b.Error(err)
				commits <- n
				return
			}
		}
	}()
	var took []time.Duration
	for b.Loop() {
		d, err := pinger.Ping(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		took = append(took, d)
		time.Sleep(500 * time.Microsecond)
	}
	close(stop)
	n := <-commits
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "commits/s")
}
