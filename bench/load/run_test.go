package load

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/wire/server"
)

func serve(t *testing.T) (resp, binary string) {
	t.Helper()
	e, err := kvcr.Open(kvcr.Config{Capacity: 64 << 20, Namespaces: []kvcr.Namespace{{Name: "default", MaxValue: 4 << 20}}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.Start(server.Options{Engine: e, RESP: []string{"127.0.0.1:0"}, Binary: []string{"127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	r, b := s.Addrs()
	return r[0].String(), b[0].String()
}

// All operations, sizes below and above a frame, closed and open loop, against a
// real server: every answer that is kept is right.
func TestRun(t *testing.T) {
	resp, binary := serve(t)
	for _, tt := range []struct {
		proto, addr    string
		size, pipeline int
		rate           float64
	}{
		{"resp", resp, 64, 1, 0}, {"resp", resp, 64, 16, 0}, {"resp", resp, 20000, 4, 0}, {"resp", resp, 1 << 20, 2, 0},
		{"binary", binary, 64, 16, 0}, {"binary", binary, 20000, 1, 0}, {"binary", binary, 1 << 20, 2, 0}, {"resp", resp, 64, 1, 2000},
	} {
		spec := Spec{Network: "tcp", Addr: tt.addr, Proto: tt.proto, Size: tt.size, Keys: 8, Conns: 3, Pipeline: tt.pipeline, Duration: 100 * time.Millisecond, CPU: -1}
		for _, op := range []string{"fill", "get", "set", "get"} {
			spec.Op, spec.Rate = op, tt.rate
			if op == "fill" {
				spec.Rate = 0
			}
			res, err := Run(spec)
			if err != nil {
				t.Fatalf("%+v: %v", spec, err)
			}
			if res.Ops == 0 || op == "fill" && res.Ops != 8 || res.P50 <= 0 {
				t.Errorf("%+v: %+v", spec, res)
			}
			if small := tt.size*tt.pipeline < checkedBytes/2; small && res.Checked != res.Ops {
				t.Errorf("%+v: %d of %d answers checked", spec, res.Checked, res.Ops)
			}
			if h, err := res.Histogram(); tt.rate > 0 && op == "get" && (err != nil || h.TotalCount() != int64(res.Ops) || h.ValueAtQuantile(99) != int64(res.P99)) {
				t.Errorf("%+v: the histogram that was sent is another one, %v", res, err)
			}
			if tt.rate > 0 && op == "get" && (res.Ops > 220 || res.Ops < 150) {
				t.Errorf("%d operations in 0.1 s at %v a second", res.Ops, tt.rate)
			}
		}
	}
}

// A server that answers with another key's value, or with an error, is found out.
func TestRunFindsLies(t *testing.T) {
	for answer, want := range map[string]string{
		"$8\r\nabcdefgh\r\n": "WRONG BYTES",
		"-ERR no such....\r": "expected it to begin",
	} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			buf := make([]byte, 1000)
			for {
				if _, err := c.Read(buf); err != nil {
					return
				}
				c.Write([]byte(answer)[:14])
			}
		}()
		_, err = Run(Spec{Network: "tcp", Addr: ln.Addr().String(), Proto: "resp", Op: "get", Size: 8, Keys: 1, Conns: 1, Pipeline: 1, Duration: time.Second, CPU: -1})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", answer, err, want)
		}
		ln.Close()
	}
}

func TestRunRefuses(t *testing.T) {
	for _, spec := range []Spec{{Size: 7, Keys: 1, Conns: 1, Pipeline: 1}, {Size: 8, Conns: 1, Pipeline: 1}, {Size: 8, Keys: 1, Conns: 1, Pipeline: 2, Rate: 1}, {Size: 8, Keys: 1, Conns: 1, Pipeline: 1, Proto: "smtp"}} {
		spec.CPU = -1
		if _, err := Run(spec); err == nil {
			t.Errorf("%+v is accepted", spec)
		}
	}
}
