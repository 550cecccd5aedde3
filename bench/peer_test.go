package bench

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestMain makes this program the source as well, as kvcr is.
func TestMain(m *testing.M) {
	if len(os.Args) < 4 || os.Args[1] != "bench" {
		os.Exit(m.Run())
	}
	if err := asSource(os.Args[2:]); err != nil {
		os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
}

func asSource(args []string) error {
	if args[0] == ChildProfile {
		p, err := StartProfiles(args[1], ChildBase(args[2]), strings.Split(args[3], ","))
		if err != nil {
			return err
		}
		return errors.Join(asSource(args[5:]), p.Stop()) // after bench
	}
	var spec SourceSpec
	if err := json.Unmarshal([]byte(args[1]), &spec); err != nil {
		return err
	}
	return PeerSource(context.Background(), spec, os.Stdin, os.Stdout)
}

func briefly(o Options) PeerOptions {
	o.Smoke = true
	return PeerOptions{Options: o, Exe: os.Args[0]}
}

// TestPeerSuite runs every case between two processes, too briefly to measure
// anything.
func TestPeerSuite(t *testing.T) {
	o := briefly(Options{})
	dir := t.TempDir()
	var err error
	if o.Profiles, err = StartProfiles("peer", filepath.Join(dir, "peer"), []string{"cpu"}); err != nil {
		t.Fatal(err)
	}
	rep, err := Fetches(context.Background(), o)
	if err := errors.Join(err, o.Profiles.Stop()); err != nil {
		t.Fatal(err)
	}
	impls := map[string][]string{}
	for _, row := range rep.Rows() {
		if row.Suite != "peer" || row.Unit == "" || len(row.Runs) != 1 || row.Value < 0 || row.Value == 0 && row.Name != "idle" {
			t.Errorf("row %+v", row)
		}
		if want := map[string]Better{"fetch-bandwidth": Higher, "fetch-rate": Higher}[row.Name]; want != "" && row.Better != want {
			t.Errorf("%s: %s is better", row.Name, row.Better)
		}
		name := row.Name
		for _, p := range []string{"route", "net"} {
			if v, ok := row.Params[p]; ok {
				name += " " + v.(string)
			}
		}
		impls[name] = append(impls[name], row.Impl)
	}
	for name, want := range map[string][]string{
		"fetch-bandwidth shm":         {ours, implCopy, implStreaming, again, implAllCopies},
		"fetch-bandwidth stream":      {ours, implSocket, implSocket + "-again", again},
		"fetch-bandwidth stream unix": {ours, implSocket, implSocket + "-again", again},
		"fetch-latency stream":        {ours, implRoundTrips, implSocket, implControl},
		"fetch-latency shm":           {ours, implRoundTrips, implSocket, implControl},
		"fetch-rate shm":              {ours, implSocket},
		"fetch-rate stream":           {ours, implSocket},
		"idle":                        {ours},
	} {
		if got := impls[name]; !slices.Equal(got, want) {
			t.Errorf("%s has %v, want %v", name, got, want)
		}
	}
	// One file for each side, whatever the number of processes.
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if want := []string{filepath.Join(dir, "peer-source.cpu.pprof"), filepath.Join(dir, "peer.cpu.pprof")}; err != nil || !slices.Equal(files, want) {
		t.Errorf("profiles %v, want %v", files, want)
	}
	_, ucx := impls["fetch-bandwidth "+routeUCX]
	named := func(what string) bool {
		return slices.ContainsFunc(rep.LeftOut, func(s string) bool { return strings.HasPrefix(s, what+", route "+routeUCX+":") })
	}
	for _, what := range []string{"fetch-bandwidth", "fetch-latency", "fetch-rate", "open-to-hit"} {
		if named(what) == ucx {
			t.Errorf("%s over ucx: measured %t, left out %q", what, ucx, rep.LeftOut)
		}
	}
	var text strings.Builder
	if err := rep.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, why := range rep.LeftOut {
		if !strings.Contains(text.String(), "left out: "+why) {
			t.Errorf("the text does not say what was left out: %s", why)
		}
	}
}

func TestPeerSuiteOfOneRoute(t *testing.T) {
	o := briefly(Options{Only: []string{"fetch-rate"}})
	o.Routes = []string{routeStream}
	rep, err := Fetches(context.Background(), o)
	if err != nil || len(rep.Results) != 1 || len(rep.LeftOut) != 0 {
		t.Errorf("%d results, left out %q, %v; want one result", len(rep.Results), rep.LeftOut, err)
	}
	for _, bad := range []PeerOptions{{Routes: []string{"pigeon"}}, {Options: Options{Only: []string{"fetch-speed"}}}} {
		var e *OptionError
		if _, err := Fetches(context.Background(), bad); !errors.As(err, &e) {
			t.Errorf("%+v: error %v", bad, err)
		}
	}
}

// A wrong byte, or a source that is not there any more, is an error and no figure.
func TestFetcherChecks(t *testing.T) {
	s := &peerSuite{PeerOptions: briefly(Options{}), dir: t.TempDir()}
	p, err := s.open(context.Background(), routeStream, "tcp", 4096, 4, 4)
	if err != nil {
		t.Fatal(err)
	}
	p.dst.keys = blockKeys(8)
	if _, err := p.dst.fetch(context.Background(), 0, 4, true); err != nil {
		t.Error(err)
	}
	p.dst.list[2] = p.dst.keys.At(3).Bytes
	if _, err := p.dst.fetch(context.Background(), 2, 3, false); err == nil || !strings.Contains(err.Error(), "block 2 has") {
		t.Errorf("another block instead: %v", err)
	}
	p.dst.list[1] = p.dst.keys.At(7).Bytes
	if _, err := p.dst.fetch(context.Background(), 1, 2, false); err == nil || !strings.Contains(err.Error(), "miss") {
		t.Errorf("a block that the source does not have: %v", err)
	}
	if err := p.dst.onRoute("shm"); err == nil {
		t.Error("route stream passes for shm")
	}
	if err := p.close(); err != nil {
		t.Error(err)
	}
	if _, err := p.src.ask("use"); err == nil {
		t.Error("a source that has ended answers")
	}
}

func TestCheckBlock(t *testing.T) {
	k := blockKeys(1).At(0)
	b, scratch := make([]byte, 256), make([]byte, 256)
	fillBlock(b, k)
	for _, whole := range []bool{false, true} {
		if err := checkBlock(b, scratch, k, whole); err != nil {
			t.Errorf("whole %t: %v", whole, err)
		}
		for _, at := range []int{0, 100, 255} {
			b[at] ^= 1
			if err := checkBlock(b, scratch, k, whole); (err == nil) != (!whole && at == 100) {
				t.Errorf("whole %t, byte %d is wrong: %v", whole, at, err)
			}
			b[at] ^= 1
		}
	}
}

func TestPerftestRate(t *testing.T) {
	out := "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n2000,40.430,65.864,65.864,15182.70,10000.00,15183,15183\n"
	if v, err := perftestRate(out); err != nil || v < 10.4857 || v > 10.4858 {
		t.Errorf("%v GB/s, %v; want 10000 MiB/s", v, err)
	}
	if _, err := perftestRate("connection refused"); err == nil {
		t.Error("no figures, no error")
	}
}

func TestPerftestRuns(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a second")
	}
	if _, err := exec.LookPath(implPerftest); err != nil {
		t.Skip("needs ucx_perftest (Debian: ucx-utils)")
	}
	for _, row := range []peerRow{{route: routeShm, size: 4096}, {route: routeUCX, size: 4096}} {
		for _, p := range perftests(row, 8) {
			if v, err := p.run(context.Background(), Options{}); err != nil || v <= 0 {
				t.Errorf("%s (%s): %v GB/s, %v", p.impl, p.note, v, err)
			}
		}
	}
}
