package peer

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr/wire"
)

// The source of these benchmarks is another process. Each contender moves the same
// 64 distinct blocks of 1 MiB; rounds of the two take turns, so that what else the
// machine does meets both.

// bytesPerRound is what one round moves.
const bytesPerRound = childBlocks * childSize

// fetchRound fetches all blocks into an empty table.
func fetchRound(b testing.TB, n *Node, dst *table, endpoint string) time.Duration {
	got := make(chan Settle, childBlocks)
	start := time.Now()
	n.Submit(endpoint, Submit{Namespace: "ns", Items: wanted(0, childBlocks), Deadline: n.Now() + 10*time.Second}, func(s Settle) { got <- s })
	for range childBlocks {
		if s := <-got; s.Status != wire.StatusOK || s.Existing {
			b.Fatalf("%+v", s)
		}
	}
	took := time.Since(start)
	dst.drop()
	return took
}

// sides runs two contenders in turns and reports medians and their ratio.
func sides(b *testing.B, ours, theirs func() time.Duration) {
	ours()
	theirs()
	var a, z []time.Duration
	for b.Loop() {
		a = append(a, ours())
		z = append(z, theirs())
	}
	slices.Sort(a)
	slices.Sort(z)
	gb := func(d time.Duration) float64 { return bytesPerRound / d.Seconds() / 1e9 }
	ma, mz := a[len(a)/2], z[len(z)/2]
	b.ReportMetric(gb(ma), "GB/s")
	b.ReportMetric(gb(mz), "baseline-GB/s")
	b.ReportMetric(mz.Seconds()/ma.Seconds(), "ratio")
	b.ReportMetric(0, "ns/op")
}

// besidePlain measures fetches beside plain copies of as many bytes over TCP.
func besidePlain(b *testing.B, n *Node, dst *table, src *child) {
	plain := dialPlain(b, src)
	into := newTable(b, childBlocks, childSize, true)
	sides(b, func() time.Duration { return fetchRound(b, n, dst, src.endpoint) }, func() time.Duration {
		start := time.Now()
		if _, err := plain.Write([]byte{1}); err != nil {
			b.Fatal(err)
		}
		for i := range childBlocks {
			if _, err := io.ReadFull(plain, into.mem[i*childSize:(i+1)*childSize]); err != nil {
				b.Fatal(err)
			}
		}
		return time.Since(start)
	})
}

func BenchmarkFetchStream(b *testing.B) {
	src := startChild(b, "copy", "KVCR_PEER_TEST_STREAM=1")
	dst := newTable(b, childBlocks, childSize, true)
	n := openNode(b, dst)
	besidePlain(b, n, dst, src)
}

// BenchmarkFetchUCX: ucx_perftest -t tag_bw, run beside it, is what UCX itself
// reaches here; the baseline is a plain copy over TCP, as in BenchmarkFetchStream.
func BenchmarkFetchUCX(b *testing.B) {
	src := startUCXChild(b, "copy")
	dst := newTable(b, childBlocks, childSize, true)
	n := openNode(b, dst, withUCX(b, dst))
	besidePlain(b, n, dst, src)
	if s, _ := n.Known(src.endpoint); s.Route != wire.RouteUCX {
		b.Errorf("route %v", s.Route)
	}
}

// dialPlain connects to the copy loop of the other process.
func dialPlain(b testing.TB, src *child) net.Conn {
	nc, err := net.Dial("tcp", strings.TrimPrefix(src.ask("plain"), "tcp://"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { nc.Close() })
	return nc
}

func BenchmarkFetchShm(b *testing.B) {
	needShm(b)
	src := startChild(b, "copy")
	dst := newTable(b, childBlocks, childSize, true)
	n := openNode(b, dst, shmFirst)
	from, into := newTable(b, childBlocks, childSize, true), newTable(b, childBlocks, childSize, true)
	for i := range childBlocks {
		from.put(b, keyOf(i), childSize)
	}
	sides(b, func() time.Duration { return fetchRound(b, n, dst, src.endpoint) }, func() time.Duration {
		start := time.Now()
		for i := range childBlocks {
			copy(into.mem[i*childSize:(i+1)*childSize], from.mem[i*childSize:])
		}
		return time.Since(start)
	})
	if s, _ := n.Known(src.endpoint); s.Route != wire.RouteShm {
		b.Errorf("route %v", s.Route)
	}
}

// BenchmarkFetchLatency is one block of 64 KiB at a time, 10 ms apart, beside the
// time of the transfer itself (asked for by a byte on a plain connection) and two
// round trips: of a byte on that connection, or of a question on the control
// connection.
func BenchmarkFetchLatency(b *testing.B) {
	const size = 64 << 10
	src := startChild(b, "copy", "KVCR_PEER_TEST_STREAM=1")
	dst := newTable(b, childBlocks, childSize, true)
	n := openNode(b, dst)
	plain := dialPlain(b, src)
	buf := make([]byte, size)
	command := func(cmd byte, answer []byte) func() {
		return func() {
			if _, err := plain.Write([]byte{cmd}); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(plain, answer); err != nil {
				b.Fatal(err)
			}
		}
	}
	steps := []struct {
		name string
		run  func()
		took []time.Duration
	}{
		{name: "fetch", run: func() {
			got := make(chan Settle, 1)
			n.Submit(src.endpoint, Submit{Namespace: "ns", Items: []wire.Wanted{{Key: []byte("small")}}, Deadline: n.Now() + 10*time.Second}, func(s Settle) { got <- s })
			if s := <-got; s.Status != wire.StatusOK || s.Existing {
				b.Fatalf("%+v", s)
			}
		}},
		{name: "control", run: func() {
			if _, err := n.Query(context.Background(), src.endpoint, "ns", [][]byte{[]byte("small")}); err != nil {
				b.Fatal(err)
			}
		}},
		{name: "ping", run: command(2, buf[:1])},
		{name: "transfer", run: command(3, buf)},
	}
	for b.Loop() {
		for i := range steps {
			s := &steps[i]
			time.Sleep(10 * time.Millisecond)
			start := time.Now()
			s.run()
			s.took = append(s.took, time.Since(start))
			dst.drop()
		}
	}
	p50 := map[string]float64{}
	for i := range steps {
		s := &steps[i]
		slices.Sort(s.took)
		p50[s.name] = float64(s.took[len(s.took)/2].Nanoseconds()) / 1000
		b.ReportMetric(p50[s.name], s.name+"-us")
	}
	b.ReportMetric(p50["fetch"]/(p50["transfer"]+2*p50["control"]), "of-control")
	b.ReportMetric(p50["fetch"]/(p50["transfer"]+2*p50["ping"]), "of-plain")
	b.ReportMetric(0, "ns/op")
}

// servePlain is the other end of the baselines: 1 all blocks, 2 a byte, 3 one
// block of 64 KiB.
func servePlain(tb *table) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println("fatal:", err)
		os.Exit(1)
	}
	go func() {
		nc, err := ln.Accept()
		if err != nil {
			return
		}
		defer nc.Close()
		cmd := make([]byte, 1)
		for {
			if _, err := io.ReadFull(nc, cmd); err != nil {
				return
			}
			switch cmd[0] {
			case 1:
				for i := range childBlocks {
					if _, err := nc.Write(tb.mem[i*childSize : (i+1)*childSize]); err != nil {
						return
					}
				}
			case 2:
				nc.Write(cmd)
			case 3:
				nc.Write(tb.mem[:64<<10])
			}
		}
	}()
	return ln.Addr().String()
}

// idleCPU is the processor time that the process has used.
func idleCPU() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A node with 100 connected peers that are silent uses no processor to speak of,
// and no goroutine for each.
func TestIdle(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 2 s")
	}
	src := newTable(t, 4, 4096, false)
	src.put(t, keyOf(0), 4096)
	a := openNode(t, src)
	before := runtimeGoroutines()
	for i := range 100 {
		d := newRawDest(t, a, uint64(1000+i), streamOnly, [16]byte{})
		d.start(7, wanted(0, 1))
		d.send(7, &wire.Finish{Source: d.who, Dest: d.self})
		d.readOne(wire.TypeFinished)
	}
	if n := a.Stats().Connections; n != 100 {
		t.Fatalf("%d are connected", n)
	}
	within(t, 2*time.Second, func() bool { return runtimeGoroutines() <= before+2 }, func() string {
		return fmt.Sprintf("%d goroutines more for 100 idle peers", runtimeGoroutines()-before)
	})
	cpu, start := idleCPU(), time.Now()
	time.Sleep(2 * time.Second)
	used, took := idleCPU()-cpu, time.Since(start)
	t.Logf("%v of processor time in %v", used, took)
	if used > took/100 {
		t.Errorf("an idle node used %v of processor time in %v", used, took)
	}
}
