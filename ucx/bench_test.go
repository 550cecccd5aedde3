//go:build linux && cgo && ucx

package ucx

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// The bandwidth benchmark sends distinct blocks round and round between two
// processes by tag rendezvous, with UCX's own ucx_perftest beside it in the same
// run. perftest sends one buffer that stays in the processor's cache; ours do not.
const (
	benchBlocks = 64
	benchBlock  = 1 << 20
)

// benchSetup travels to the child on its command line.
type benchSetup struct {
	Settings map[string]string
	Window   int // operations in flight
	Spin     time.Duration
	Rounds   int // times all blocks
	Addr     []byte
}

func init() { roles["bench"] = benchChild }

// benchChild receives what it is sent and says how many bytes there were.
func benchChild(in *bufio.Reader) {
	var s benchSetup
	if err := json.Unmarshal([]byte(hearLine(in)), &s); err != nil {
		panic(err)
	}
	c := mustChild(Open(Options{Settings: s.Settings}))
	m := mustChild(c.RegisterAt(childMemory(benchBlocks*benchBlock), benchBlocks*benchBlock, Host, nil))
	clear(childBytes(m.base, benchBlocks*benchBlock))
	w := mustChild(c.NewWorker(WorkerOptions{Spin: s.Spin}))
	total := benchBlocks * s.Rounds
	var posted, ended, bytes atomic.Int64
	finished := make(chan error, 1)
	var fn func(Completion)
	post := func() {
		i := posted.Add(1) - 1
		if i >= int64(total) {
			return
		}
		k := uint64(i) % benchBlocks
		mustChild(w.Start(Op{Kind: OpRecv, Mem: m, Off: k * benchBlock, Len: benchBlock, Tag: k, Done: fn}))
	}
	fn = func(c Completion) {
		if c.Err != nil {
			finished <- c.Err
			return
		}
		bytes.Add(int64(c.Bytes))
		post()
		if ended.Add(1) == int64(total) {
			finished <- nil
		}
	}
	for range s.Window {
		post()
	}
	fmt.Println(blobText(w.Address()))
	if err := <-finished; err != nil {
		panic(err)
	}
	fmt.Println(bytes.Load())
	hearLine(in)
	w.Close(time.Second)
}

// tagBandwidth is bytes a second from the first send to the child's last receive.
func tagBandwidth(b testing.TB, s benchSetup) float64 {
	b.Helper()
	r := newRig(b, Options{Settings: s.Settings})
	m, mem := r.memory(benchBlocks * benchBlock)
	for i := range benchBlocks {
		fill(mem[i*benchBlock:i*benchBlock+64], uint64(i))
	}
	for i := 0; i < len(mem); i += 4096 {
		mem[i]++
	}
	w := r.worker(WorkerOptions{Spin: s.Spin})
	peer := startChild(b, "bench")
	setup, err := json.Marshal(s)
	if err != nil {
		b.Fatal(err)
	}
	peer.say("%s", setup)
	ep, err := w.Connect(peer.hearBlob(), nil)
	if err != nil {
		b.Fatal(err)
	}
	_, c := start(b, w, Op{Kind: OpFlush, Endpoint: ep})
	await(b, "flush", c)
	total := int64(benchBlocks * s.Rounds)
	var sent atomic.Int64
	failed := make(chan error, s.Window)
	var fn func(Completion)
	send := func() {
		i := sent.Add(1) - 1
		if i >= total {
			return
		}
		k := uint64(i) % benchBlocks
		if _, err := w.Start(Op{Kind: OpSend, Endpoint: ep, Mem: m, Off: k * benchBlock, Len: benchBlock, Tag: k, Done: fn}); err != nil {
			failed <- err
		}
	}
	fn = func(c Completion) {
		if c.Err != nil {
			failed <- c.Err
			return
		}
		send()
	}
	begin := time.Now()
	for range s.Window {
		send()
	}
	got := peer.hear()
	d := time.Since(begin)
	if got != fmt.Sprint(total*benchBlock) || len(failed) > 0 {
		b.Fatalf("the peer received %s of %d bytes", got, total*benchBlock)
	}
	peer.say("done")
	if err := ep.Close(testPatience); err != nil {
		b.Error(err)
	}
	return float64(total*benchBlock) / d.Seconds()
}

// perftest is what UCX's own tool reaches in bytes a second.
func perftest(b testing.TB, test string, port int, args ...string) float64 {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	env := append(os.Environ(), "UCX_TLS=tcp", "UCX_WARN_UNUSED_ENV_VARS=n")
	// Both ends of perftest spin; on a processor each, as its authors mean it.
	pinned := func(cpu int, args ...string) *exec.Cmd {
		if _, err := exec.LookPath("taskset"); err != nil || runtime.NumCPU() < 2 {
			return exec.CommandContext(ctx, "ucx_perftest", args...)
		}
		return exec.CommandContext(ctx, "taskset", append([]string{"-c", strconv.Itoa(cpu), "ucx_perftest"}, args...)...)
	}
	server := pinned(0, append([]string{"-p", strconv.Itoa(port)}, args...)...)
	server.Env = env
	if err := server.Start(); err != nil {
		b.Fatal(err)
	}
	defer server.Wait()
	var out []byte
	var err error
	for range 20 { // until the server listens
		client := pinned(1, append([]string{"-p", strconv.Itoa(port), "127.0.0.1",
			"-t", test, "-s", strconv.Itoa(benchBlock), "-n", "1000", "-w", "50", "-f", "-v"}, args...)...)
		client.Env = env
		if out, err = client.Output(); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		server.Process.Kill()
		b.Fatalf("ucx_perftest: %v\n%s", err, out)
	}
	for _, line := range strings.Split(string(out), "\n") {
		f := strings.Split(line, ",") // iterations, p50, average, overall latency, average and overall MB/s, ...
		if len(f) < 8 {
			continue
		}
		if v, err := strconv.ParseFloat(strings.TrimSpace(f[5]), 64); err == nil {
			return v * (1 << 20) // perftest's megabytes are 2^20
		}
	}
	b.Fatalf("no result of ucx_perftest in:\n%s", out)
	return 0
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// BenchmarkTagBandwidth: go test -tags ucx -run '^$' -bench TagBandwidth -benchtime 1x ./ucx
func BenchmarkTagBandwidth(b *testing.B) {
	if _, err := exec.LookPath("ucx_perftest"); err != nil {
		b.Skip("needs ucx_perftest (apt-get install ucx-utils)")
	}
	for b.Loop() {
		var ours, tag, am, peer []float64
		for i := range 5 { // interleaved, so that a noisy machine is noisy for all
			ours = append(ours, tagBandwidth(b, benchSetup{Window: 16, Rounds: 16}))
			tag = append(tag, perftest(b, "tag_bw", 13950+i))
			am = append(am, perftest(b, "ucp_am_bw", 13960+i))
			peer = append(peer, perftest(b, "tag_bw", 13970+i, "-e"))
		}
		b.Logf("ours %.2g\ntag_bw %.2g\nam_bw %.2g\ntag_bw -e %.2g", ours, tag, am, peer)
		best := max(median(tag), median(am))
		b.ReportMetric(median(ours)/1e6, "MB/s")
		b.ReportMetric(best/1e6, "perftest-MB/s")
		b.ReportMetric(median(peer)/1e6, "perftest-e-MB/s")
		b.ReportMetric(median(ours)/best, "ratio")
		b.ReportMetric(0, "ns/op")
	}
}

// BenchmarkTagSettings shows what each setting gives, one run after another.
func BenchmarkTagSettings(b *testing.B) {
	for _, s := range []benchSetup{
		{Window: 16},
		{Window: 4},
		{Window: 64},
		{Window: 16, Spin: 50 * time.Microsecond},
		{Window: 16, Settings: map[string]string{"RNDV_SCHEME": "am"}},
		{Window: 16, Settings: map[string]string{"RNDV_SCHEME": "put_zcopy"}},
		{Window: 16, Settings: map[string]string{"RNDV_THRESH": "8K"}},
		{Window: 16, Settings: map[string]string{"TCP_SNDBUF": "4M", "TCP_RCVBUF": "4M"}},
		{Window: 16, Settings: map[string]string{"TCP_TX_SEG_SIZE": "64K", "TCP_RX_SEG_SIZE": "128K"}},
		{Window: 16, Settings: map[string]string{"TCP_RX_SEG_SIZE": "256K"}},
		{Window: 16, Settings: map[string]string{"TCP_MAX_POLL": "64"}},
		{Window: 16, Settings: map[string]string{"TCP_PUT_ENABLE": "n"}},
	} {
		s.Rounds = 16
		b.Run(fmt.Sprintf("window=%d/spin=%v/set=%v", s.Window, s.Spin, s.Settings), func(b *testing.B) {
			for b.Loop() {
				v := make([]float64, 3)
				for i := range v {
					v[i] = tagBandwidth(b, s)
				}
				b.ReportMetric(median(v)/1e6, "MB/s")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}
