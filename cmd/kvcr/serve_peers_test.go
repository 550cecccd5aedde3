package main

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/arena"
)

// A node that listens for peers gives blocks to an engine, and shows that it did.
func TestServePeers(t *testing.T) {
	secretFile := filepath.Join(t.TempDir(), "secret")
	key := []byte("a secret of enough bytes")
	if err := os.WriteFile(secretFile, key, 0o600); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "peers.sock")
	n := servingAll(t, "--peer-listen", "tcp://127.0.0.1:0, unix://"+socket, "--peer-secret-file", secretFile, "--peer-routes", "stream")
	peers := strings.TrimSuffix(n("peers"), ",")
	binary, status := n("binary"), n("status")
	if _, errs, code := kvcrCmd(t, "set", "k", "value", "--addr", binary); code != 0 {
		t.Fatal(errs)
	}
	for _, at := range []string{peers, "unix://" + socket} {
		e, err := kvcr.Open(kvcr.Config{Capacity: 16 << 20, Peers: &kvcr.Peers{Secret: key, Routes: []string{"stream"}}})
		if err != nil {
			t.Fatal(err)
		}
		h, err := e.Handle()
		if err != nil {
			t.Fatal(err)
		}
		rs, err := h.FetchFrom([][]byte{[]byte("k")}, kvcr.FetchOptions{Sources: []string{at}, Timeout: 10 * time.Second}).Wait(t.Context())
		if err != nil || !rs[0].OK() || !bytes.Equal(rs[0].View.Bytes(), []byte("value")) {
			t.Fatalf("%s: %v, %v", at, err, rs[0].Reason)
		}
		rs[0].View.Release()
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
	if out, _, code := kvcrCmd(t, "stat", "--addr", binary); code != 0 || !regexp.MustCompile(`"Served": \{\s+"stream": \{\s+"Blocks": 2,\s+"Bytes": 10`).MatchString(out) {
		t.Errorf("stat: %d %s", code, out)
	}
	for path, want := range map[string]string{
		"metrics":    `kvcr_peer_served_blocks_total{route="stream"} 2`,
		"api/status": `"served":{"blocks_total":2,"bytes_total":10}`,
	} {
		r, err := http.Get(status + path)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if !strings.Contains(string(b), want) {
			t.Errorf("/%s lacks %s: %s", path, want, b)
		}
	}
}

// Route shm needs memory that can be shared: with peers that is the default, and
// config says why.
func TestPeersChooseTheBacking(t *testing.T) {
	listen := []string{"--peer-listen", "tcp://127.0.0.1:0"}
	for _, tt := range []struct {
		name    string
		args    []string
		environ []string
		want    string // of the line of backing
	}{
		{"no peers", nil, nil, "anonymous default"},
		{"peers", listen, nil, "memfd default with peers, for route shm"},
		{"by the environment", nil, []string{"KVCR_PEER_LISTEN=tcp://127.0.0.1:0"}, "memfd default with peers, for route shm"},
		{"without shm", append(listen, "--peer-routes", "stream"), nil, "anonymous default"},
		{"as told", append(listen, "--backing", "anonymous"), nil, "anonymous flag"},
		{"shm as told", append(listen, "--backing", "memfd", "--peer-routes", "shm"), nil, "memfd flag"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, out, msg := call(t, tt.environ, append([]string{"config"}, tt.args...)...)
			line := regexp.MustCompile(`(?m)^backing .*$`).FindString(out)
			if code != 0 || !strings.HasPrefix(strings.Join(strings.Fields(line)[1:], " "), tt.want) {
				t.Errorf("exit code %d %s: %q, want %q", code, msg, line, tt.want)
			}
		})
	}
	f := engineFlags{}
	_, cfg, err := f.resolve(&env{}, &peerFlags{PeerListen: &listen[1]})
	if err != nil || cfg.Memory.Backing != arena.Memfd || cfg.engine().Peers == nil || cfg.engine().Peers.Streams != 2 {
		t.Errorf("the configuration has backing %v, peers %+v, %v", cfg.Memory.Backing, cfg.engine().Peers, err)
	}
}
