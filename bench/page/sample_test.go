package page

import (
	"fmt"
	"math"
	"time"

	"github.com/kvcr-go/kvcr/bench"
)

// sample has rows of all suites with figures of the size that they have, and what is
// hard to draw: long names, ten implementations, values that differ a thousandfold.
func sample() []bench.Row {
	var rows []bench.Row
	add := func(suite, name, unit string, better bench.Better, impl string, value float64, params ...any) {
		r := bench.Row{Suite: suite, Name: name, Unit: unit, Better: better, Impl: impl, Value: value, Params: map[string]any{}}
		for i := 0; i < len(params); i += 2 {
			r.Params[params[i].(string)] = params[i+1]
		}
		for i := range 5 { // two below, two above
			r.Runs = append(r.Runs, value*(1+0.06*float64(i-2)))
		}
		rows = append(rows, r)
	}
	caches := []string{"kvcr", "kvcr-pool", "otter", "theine", "ristretto", "ristretto-v0", "freecache", "bigcache", "fastcache", "xsync"}
	for i, size := range []float64{64, 4096, 65536} {
		for j, impl := range caches {
			ns := float64(400+120*j) * float64(1+4*i*i)
			add("engine", "get-view", "ns/op", bench.Lower, impl, ns/3, "size", size)
			add("engine", "get-copy", "ns/op", bench.Lower, impl, ns, "size", size)
			for _, read := range []float64{90, 50} {
				add("engine", "mix", "ns/op", bench.Lower, impl, ns*150/read, "size", size, "read", read)
			}
		}
	}
	for _, size := range []float64{64 << 10, 256 << 10, 1 << 20, 2 << 20} {
		for i, checksum := range []string{"off", "on"} {
			add("engine", "put", "ns/op", bench.Lower, "kvcr", size/12*(1+0.1*float64(i)), "size", size, "checksum", checksum)
			add("engine", "put", "ns/op", bench.Lower, "go-copy", size/8.7, "size", size, "checksum", checksum)
			add("engine", "deliver", "ns/op", bench.Lower, "kvcr", size/13*(1+float64(i)), "size", size, "checksum", checksum)
			add("engine", "deliver", "ns/op", bench.Lower, "go-copy", size/14, "size", size, "checksum", checksum)
		}
	}
	percentiles := []float64{50, 75, 90, 95, 99, 99.5, 99.9, 99.95, 99.99, 100}
	for i, beside := range []string{"none", "puts"} {
		for j, impl := range []string{"kvcr", "otter", "theine", "ristretto", "fastcache"} {
			for k, p := range percentiles {
				add("engine", "get-latency-curve", "ns", bench.Lower, impl, 350*float64(1+40*i)*float64(1+j)*float64(int(1)<<k), "beside", beside, "percentile", p)
			}
		}
	}
	for _, name := range []string{"one-way", "round-trip"} {
		for i, impl := range []string{"kvcr", "xsync-spsc", "xsync-mpmc", "channel"} {
			for j, batch := range []float64{1, 8, 64, 1024} {
				add("ring", name, "ns/op", bench.Lower, impl, float64(20+30*i)/float64(1+j), "batch", batch)
			}
		}
	}
	for _, trace := range []string{"conversation", "synthetic"} {
		for i, impl := range []string{"kvcr", "lru", "tail-lru", "s3fifo", "belady"} {
			for j, capacity := range []float64{1, 2, 5, 10, 20, 50} {
				add("replay", "usable-prefix-hit", "%", bench.Higher, impl, float64(9+5*j-i)+float64(i/4*9), "trace", trace, "capacity", capacity)
			}
		}
	}
	for _, impl := range []string{"kvcr", "lru", "s3fifo", "belady"} {
		add("replay", "key-hit", "%", bench.Higher, impl, 78, "keys", "zipf", "capacity", 10.0)
		add("replay", "key-hit", "%", bench.Higher, impl, map[string]float64{"kvcr": 9.5, "belady": 10}[impl], "keys", "loop", "capacity", 10.0)
	}
	for _, pin := range []string{"one-core", "none"} {
		for _, q := range []struct {
			op, proto, net string
			size, pipeline float64
			impls          []string
		}{
			{"get", "resp", "tcp", 64, 1, []string{"kvcr", "redis"}}, {"set", "resp", "tcp", 64, 16, []string{"kvcr", "redis"}},
			{"get", "resp", "unix", 64, 1, []string{"kvcr", "kvcr-tcp"}}, {"get", "resp", "tcp", 64 << 10, 16, []string{"kvcr", "redis"}},
			{"get", "binary", "tcp", 64 << 10, 16, []string{"kvcr", "memcached"}}, {"get", "binary", "tcp", 1 << 20, 16, []string{"kvcr", "memcached", "net"}},
		} {
			for i, impl := range q.impls {
				add("node", q.op, "ops/s", bench.Higher, impl, 800_000/(1+q.size/256)*float64(3-i), "proto", q.proto, "net", q.net, "size", q.size, "pipeline", q.pipeline, "pin", pin)
			}
		}
		for i, impl := range []string{"kvcr", "redis"} {
			for k, p := range percentiles {
				add("node", "get-latency-curve", "us", bench.Lower, impl, 40*float64(1+i)*float64(int(1)<<k), "size", 64.0, "pin", pin, "percentile", p)
			}
		}
	}
	for _, trace := range []string{"conversation", "synthetic"} {
		add("trace", "took", "of the window", bench.Lower, "kvcr", 1.01, "trace", trace, "speed", 120.0)
		for i, stage := range []string{"issue-lag", "queue-wait", "service", "lookup", "store", "scheduled-to-finished"} {
			for k, p := range percentiles {
				add("trace", "request", "us", bench.Lower, "kvcr", 200*float64(1+i)*float64(int(1)<<k), "trace", trace, "speed", 120.0, "stage", stage, "percentile", p)
			}
		}
	}
	for _, size := range []float64{256 << 10, 1 << 20, 2 << 20} {
		for i, impl := range []string{"kvcr", "kvcr-again", "copy", "copy-streaming", "copy-parallel"} {
			add("peer", "fetch-bandwidth", "GB/s", bench.Higher, impl, 9+float64(i), "size", size, "route", "shm")
		}
	}
	for i, impl := range []string{"kvcr", "kvcr-again", "socket-copy", "socket-copy-again"} {
		add("peer", "fetch-bandwidth", "GB/s", bench.Higher, impl, 3.5+float64(i)/10, "size", float64(1<<20), "route", "stream")
		add("peer", "fetch-bandwidth", "GB/s", bench.Higher, impl, 4+float64(i)/10, "size", float64(1<<20), "route", "stream", "net", "unix")
	}
	for _, route := range []string{"stream", "ucx-tcp", "shm"} {
		for i, impl := range []string{"kvcr", "socket-copy+2-control", "socket-copy", "control"} {
			add("peer", "fetch-latency", "us", bench.Lower, impl, 433/float64(1+i), "size", float64(64<<10), "route", route)
		}
		for _, impl := range []string{"kvcr", "socket-copy"} {
			add("peer", "fetch-rate", "ops/s", bench.Higher, impl, 56_000, "size", 4096.0, "route", route, "in-flight", 64.0)
		}
		for k, p := range percentiles[:5] {
			add("peer", "fetch-latency-curve", "us", bench.Lower, "kvcr", 260+float64(k*k*40), "size", float64(64<<10), "route", route, "percentile", p)
		}
	}
	for _, hashes := range []float64{1, 64, 1024} {
		for _, form := range []string{"value", "json"} {
			add("hints", "submit-discard", "ns/op", bench.Lower, "kvcr", 300+60*hashes, "hashes", hashes, "form", form)
		}
	}
	for i, sources := range []float64{8, 8, 256, 64, 64, 64, 64, 256, 64, 1, 2} {
		for j, stat := range []string{"p50", "p99"} {
			add("plan", "plan", "us", bench.Lower, "kvcr", (2+sources/3+float64(i*i*4))*(1+0.1*float64(j)), "fixture", fmt.Sprintf("f%02d", i+1), "sources", sources, "stat", stat)
		}
	}
	for i, sweep := range []string{"nodes", "blocks", "requests"} {
		for j, part := range []string{"planner", "events", "hints", "peers", "messages", "simulation", "collector", "total"} {
			for k, size := range [][]float64{{10, 32, 100, 316, 1000}, {24, 48, 96, 192, 384}, {1000, 3160, 10_000, 31_600, 100_000}}[i] {
				add("scale", "scale", "us", bench.Lower, "kvcr", float64(1+j)*math.Pow(1.9, float64(k)), "sweep", sweep, "part", part, "size", size)
				if j == 0 {
					add("scale", "scale-count", "times the mean", bench.Lower, "kvcr", 2+float64(k), "sweep", sweep, "what", "busiest source", "size", size)
					add("scale", "scale-count", "a request", bench.Lower, "kvcr", 14, "sweep", sweep, "what", "steps", "size", size)
					add("scale", "scale-latency", "us, virtual", bench.Lower, "kvcr", 24_000, "sweep", sweep, "stat", "p50", "size", size)
				}
			}
			if part != "simulation" && part != "collector" {
				add("scale", "scale-exponent", "of the size", bench.Lower, "kvcr", 0.12*float64(j), "sweep", sweep, "part", part)
			}
		}
	}
	for _, name := range []string{"violations", "faults", "operations", "actions"} {
		for i, kind := range []string{"a kind", "another kind", "kind <3>"} {
			add("soak", name, "things", bench.Higher, "kvcr", float64(i*i*1000), "kind", kind)
		}
	}
	add("soak", "base", "bytes", bench.Lower, "kvcr", 5<<20, "kind", "flat", "process", "node 0", "what", "heap bytes")
	add("new-suite", "speed & <size>", "things/s", bench.Higher, "kvcr", 3, "case", "a < b")
	for _, suite := range []string{"engine", "ring", "replay", "node", "trace", "peer", "scale", "soak", "hints", "plan"} {
		c := bench.Conditions{
			Command: "kvcr bench " + suite, Date: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Revision: "v1.2.3-4-gabcdef0", Go: "go1.24.0 amd64",
			CPU: "A Processor 9000", CPUs: 2, MemoryBytes: 24 << 30, Kernel: "6.18.0", HugePages: "transparent: madvise", Load: "0.10 0.20 0.30", Workers: 2,
			LeftOut: []string{"fetch-bandwidth, route ucx-tcp: <not> built"}, Took: 42 * time.Second,
		}
		rep := bench.Report{Suite: suite, Conditions: &c}
		if suite == "node" {
			c.LeftOut = []string{"redis-server is not installed", "memcached is not installed", "a thing: why"}
			rep.Absent = []bench.Unmeasured{{What: "node get proto=shm net=unix", Bar: "5.00x the best of the others", Why: "redis-server is not installed"}}
		}
		rows = append(rows, rep.Rows()...)
	}
	for i := range rows {
		r := &rows[i]
		if r.Name != "get-copy" {
			continue
		}
		if r.Rival = r.Impl == "otter"; r.Impl == "kvcr" { // otter takes 1.6 times as long
			r.Bars = []bench.Bar{{Times: 1.4}, {Times: 2, Of: "otter"}}
		}
	}
	return rows
}
