package node

import (
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/node/web"
	"github.com/kvcr-go/kvcr/wire/server"
)

func config() Config {
	return Config{
		Engine: kvcr.Config{Capacity: 16 << 20, Namespaces: []kvcr.Namespace{{Name: "default"}}},
		RESP:   []string{"127.0.0.1:0"}, Binary: []string{"127.0.0.1:0"}, HTTP: "127.0.0.1:0", DrainTimeout: 2 * time.Second,
		Settings: []web.Setting{{Name: "capacity", Value: "16MiB", Source: "flag"}},
	}
}

// A node answers on all its listeners, and Close leaves nothing behind, however
// often it is called.
func TestNode(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	existing := goleak.IgnoreCurrent()
	n, err := Start(config())
	if err != nil {
		t.Fatal(err)
	}
	if before == math.MaxInt64 && debug.SetMemoryLimit(-1) == math.MaxInt64 {
		t.Error("Go's soft memory limit is not set")
	}
	resp, _, page := n.Addrs()
	c, err := net.Dial("tcp", resp[0].String())
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(c, "SET k v\r\nGET k\r\n")
	answer := make([]byte, len("+OK\r\n$1\r\nv\r\n"))
	if _, err := io.ReadFull(c, answer); err != nil || string(answer) != "+OK\r\n$1\r\nv\r\n" {
		t.Errorf("%q, %v", answer, err)
	}
	c.Close()
	for path, want := range map[string]string{"/healthz": "ok", "/readyz": "ok", "/metrics": `kvcr_commands_total{command="get",proto="resp"} 1`, "/config": "16MiB"} {
		r, err := http.Get("http://" + page.String() + path)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if r.StatusCode != http.StatusOK || !strings.Contains(string(b), want) {
			t.Errorf("%s: %d, no %q", path, r.StatusCode, want)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	for range 2 {
		if err := n.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if _, err := n.Engine().Stats(); !errors.Is(err, kvcr.ErrClosed) {
		t.Errorf("the engine after Close: %v", err)
	}
	goleak.VerifyNone(t, existing)
}

// What cannot start leaves nothing behind and says why.
func TestNodeThatCannotStart(t *testing.T) {
	existing := goleak.IgnoreCurrent()
	for name, tt := range map[string]struct {
		edit func(*Config)
		want error
	}{
		"engine": {func(c *Config) { c.Engine.Capacity = 1 }, kvcr.ErrConfig},
		"server": {func(c *Config) { c.RESP = []string{"0.0.0.0:0"} }, server.ErrPublic},
		"http":   {func(c *Config) { c.HTTP = "0.0.0.0:0" }, web.ErrPublic},
		"pairs":  {func(c *Config) { c.PairSuffixes = [2]string{"a", "b"} }, server.ErrPairs},
	} {
		cfg := config()
		tt.edit(&cfg)
		if n, err := Start(cfg); !errors.Is(err, tt.want) || n != nil {
			t.Errorf("%s: %v, %v; want %v", name, n, err, tt.want)
		}
	}
	goleak.VerifyNone(t, existing)
}
