package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// perftest is one test of UCX's own tool between two processes. It sends one
// buffer again and again.
type perftest struct {
	impl, note string
	rival      bool
	transport  string // UCX_TLS
	test       string
	size       int
	bytes      int // to send in all, at least
	args       []string
}

// perftests are those that a row is compared with. Over shared memory they are for
// orientation; a message as long as all blocks stands for a loop over distinct
// ones, since perftest has one buffer.
func perftests(row peerRow, blocks int) []perftest {
	all := blocks * row.size
	switch row.route {
	case routeShm:
		return []perftest{
			{implPerftest, "put_bw over posix, one block again and again", false, "posix", "ucp_put_bw", row.size, 16 * all, nil},
			{implPerftest + "-distinct", "put_bw over posix, one message as long as all blocks", false, "posix", "ucp_put_bw", all, 16 * all, nil},
		}
	case routeUCX:
		return []perftest{
			{implPerftest, "tag_bw over tcp, peer errors handled", true, "tcp", "tag_bw", row.size, 8 * all, []string{"-e"}},
			{implPerftestAM, "am_bw over tcp, peer errors handled", true, "tcp", "ucp_am_bw", row.size, 8 * all, []string{"-e"}},
		}
	}
	return nil
}

// run returns GB/s. Both ends spin, on a processor each where there are two, as
// the tool's authors mean it.
func (t *perftest) run(ctx context.Context, o Options) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	port, err := freePort()
	if err != nil {
		return 0, err
	}
	command := func(cpu int, args ...string) *exec.Cmd {
		args = append(append([]string{"-p", strconv.Itoa(port)}, args...), t.args...)
		if allowedCPUs() > 1 {
			args = append(args, "-c", strconv.Itoa(cpuAt(cpu)))
		}
		cmd := exec.CommandContext(ctx, implPerftest, args...)
		cmd.Env = append(os.Environ(), "UCX_TLS="+t.transport, "UCX_WARN_UNUSED_ENV_VARS=n")
		return cmd
	}
	server := command(0)
	if err := server.Start(); err != nil {
		return 0, err
	}
	// It ends after one client.
	defer func() { server.Process.Kill(); server.Wait() }()
	n := max(8, t.bytes/t.size)
	if o.Quick {
		n = max(4, n/4)
	}
	var out []byte
	for ctx.Err() == nil { // until the server listens
		out, err = command(1, "127.0.0.1", "-t", t.test, "-s", strconv.Itoa(t.size), "-n", strconv.Itoa(n), "-w", strconv.Itoa(max(2, n/8)), "-f", "-v").CombinedOutput()
		if err == nil {
			return perftestRate(string(out))
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	return 0, errors.Join(err, errors.New(strings.TrimSpace(string(out))))
}

// perftestRate reads GB/s from what the tool prints with -v: iterations, p50,
// average and overall latency, average and overall MB/s, and rates.
func perftestRate(out string) (float64, error) {
	for _, line := range strings.Split(out, "\n") {
		if f := strings.Split(line, ","); len(f) >= 8 {
			if v, err := strconv.ParseFloat(strings.TrimSpace(f[5]), 64); err == nil {
				return v * (1 << 20) / 1e9, nil // its megabytes are 2^20
			}
		}
	}
	return 0, fmt.Errorf("no figures of ucx_perftest in %q", out)
}
