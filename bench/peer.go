package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
)

// PeerOptions are those of the peer suite, Fetches.
type PeerOptions struct {
	Options
	// Exe is this program: it is run again as the source.
	Exe string
	// Routes wanted: shm, ucx-tcp, stream; empty: all there are.
	Routes []string
}

// The routes of the suite, and what an engine is told to get them.
const (
	routeShm    = "shm"
	routeUCX    = "ucx-tcp"
	routeStream = "stream"
)

var engineRoutes = map[string][]string{routeShm: {"shm"}, routeUCX: {"ucx"}, routeStream: {"stream"}}

// What kvcr is compared with.
const (
	implCopy       = "copy"           // Go's, one goroutine
	implStreaming  = "copy-streaming" // past the caches, one goroutine
	implAllCopies  = "copy-parallel"  // the same, a goroutine for each processor
	implPerftest   = "ucx_perftest"
	implPerftestAM = "ucx_perftest-am"
	implSocket     = "socket-copy"
	implRoundTrips = "socket-copy+2-control"
	implControl    = "control"
)

// peerBlocks is how many distinct blocks one fetch brings.
const peerBlocks = 64

// peerSuite is one run of the suite.
type peerSuite struct {
	PeerOptions
	dir    string // for unix sockets
	absent error  // of route ucx in this build or on this machine; nil: it is there
}

// Fetches measures fetches between two processes beside plain copies, plain sockets
// and ucx_perftest.
func Fetches(ctx context.Context, o PeerOptions) (*Report, error) {
	for _, r := range o.Routes {
		if engineRoutes[r] == nil {
			return &Report{}, &OptionError{"route", r, fmt.Sprintf("one of %s, %s, %s", routeShm, routeUCX, routeStream)}
		}
	}
	if len(o.Sizes) == 0 {
		o.Sizes = []int{256 << 10, 1 << 20, 2 << 20}
		if o.Smoke {
			o.Sizes = []int{64 << 10}
		}
	}
	if o.Workers == 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	o.Capacity = 1 << 30 // only bounds sizes
	s := &peerSuite{PeerOptions: o}
	var err error
	if s.dir, err = os.MkdirTemp("", "kvcr-bench"); err != nil {
		return &Report{}, err
	}
	defer os.RemoveAll(s.dir)
	if e, err := openPeerEngine(engineRoutes[routeUCX], "", 4096, 1); err != nil {
		s.absent = err
	} else if err := e.Close(); err != nil {
		return &Report{}, err
	}
	return runParts(ctx, s.Options, []part{
		{[]string{"fetch-bandwidth"}, 20, s.bandwidth},
		{[]string{"fetch-latency", "fetch-latency-curve"}, 6, s.latency},
		{[]string{"fetch-rate"}, 6, s.rate},
		{[]string{"idle"}, 4, s.idle},
		{[]string{"open-to-hit"}, 3, s.register},
	})
}

// has reports whether a route is wanted and there; what of it is left out is said
// in the report.
func (s *peerSuite) has(rep *Report, what, route string) bool {
	if len(s.Routes) > 0 && !slices.Contains(s.Routes, route) {
		return false
	}
	if route == routeUCX && s.absent != nil {
		rep.leftOut(fmt.Sprintf("%s, route %s: %v", what, route, s.absent))
		return false
	}
	return true
}

// noUCX is why bars of the UCX route are not measured, in short: the report has the
// whole reason.
const noUCX = "this build or machine has no UCX"

// lacks reports whether a route is wanted and is not there.
func (s *peerSuite) lacks(route string) bool {
	return route == routeUCX && s.absent != nil && (len(s.Routes) == 0 || slices.Contains(s.Routes, route))
}

// few is n, or less for a test.
func (s *peerSuite) few(o Options, n int) int {
	if o.Smoke {
		return max(4, n/64)
	}
	return n
}

// pair is a source and an engine that fetches from it.
type pair struct {
	src *source
	dst *fetcher
}

// open starts a source of blocks and a fetcher, and fetches them all once: the
// connection is there afterwards, and every byte of every block has been compared.
func (s *peerSuite) open(ctx context.Context, route, network string, size, blocks, plain int) (*pair, error) {
	src, err := startSource(ctx, s.PeerOptions, SourceSpec{Routes: engineRoutes[route], Network: network, Dir: s.dir, Size: size, Blocks: blocks, Plain: plain})
	if err != nil {
		return nil, err
	}
	dst, err := s.fetcher(ctx, src, route, size, blocks)
	if err != nil {
		return nil, errors.Join(err, src.stop())
	}
	return &pair{src, dst}, nil
}

func (s *peerSuite) fetcher(ctx context.Context, src *source, route string, size, blocks int) (*fetcher, error) {
	dst, err := newFetcher(engineRoutes[route], src.Endpoint, size, blocks)
	if err != nil {
		return nil, err
	}
	for from := 0; from < blocks && err == nil; from += peerBlocks {
		_, err = dst.fetch(ctx, from, min(from+peerBlocks, blocks), true)
	}
	if err == nil {
		err = dst.onRoute(engineRoutes[route][0])
	}
	if err != nil {
		return nil, errors.Join(err, dst.Close())
	}
	return dst, nil
}

func (p *pair) close() error { return errors.Join(p.dst.Close(), p.src.stop()) }
