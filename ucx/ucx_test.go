package ucx

import (
	"errors"
	"strings"
	"testing"
)

// The contract that both builds keep. With UCX it is all of it; without, every
// constructor says why it cannot.
func TestContract(t *testing.T) {
	c, err := Open(Options{})
	if !Built {
		if c != nil || !errors.Is(err, ErrNotBuilt) {
			t.Fatalf("Open = %v, %v", c, err)
		}
		if _, err := c.NewWorker(WorkerOptions{}); !errors.Is(err, ErrNotBuilt) {
			t.Errorf("NewWorker: %v", err)
		}
		if _, err := c.Register(make([]byte, 1), nil); !errors.Is(err, ErrNotBuilt) {
			t.Errorf("Register: %v", err)
		}
		if Version() != "" || c.Supports(Host) {
			t.Error("a build without UCX claims to have some of it")
		}
		t.Skip("the rest of the contract needs -tags ucx, cgo and libucx")
	}
	if err != nil {
		t.Fatal(err)
	}
	if Version() == "" || !c.Supports(Host) || c.Supports(memoryTypes) {
		t.Errorf("version %q, host memory %t", Version(), c.Supports(Host))
	}
	t.Logf("UCX %s, CUDA memory: %t", Version(), c.Supports(CUDA))
	w, err := c.NewWorker(WorkerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var busy *BusyError
	if err := c.Close(); !errors.Is(err, ErrBusy) || !errors.As(err, &busy) || busy.N != 1 {
		t.Errorf("Close with a worker: %v", err)
	}
	for range 2 {
		if err := w.Close(testPatience); err != nil {
			t.Errorf("Worker.Close: %v", err)
		}
	}
	for range 2 {
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if _, err := c.NewWorker(WorkerOptions{}); !errors.Is(err, ErrClosed) {
		t.Errorf("NewWorker of a closed context: %v", err)
	}
	if _, err := w.Start(Op{Kind: OpFlush}); !errors.Is(err, ErrClosed) {
		t.Errorf("Start on a closed worker: %v", err)
	}
	if _, err := w.Connect(w.Address(), nil); !errors.Is(err, ErrClosed) {
		t.Errorf("Connect on a closed worker: %v", err)
	}
}

func TestBadOptions(t *testing.T) {
	if !Built {
		t.Skip("needs -tags ucx")
	}
	for _, o := range []Options{{MaxRegions: -1}, {MaxRegisteredBytes: -1}, {Settings: map[string]string{"UCX_TLS": "tcp"}}} {
		if _, err := Open(o); !errors.Is(err, ErrInvalid) {
			t.Errorf("Open(%+v): %v", o, err)
		}
	}
	if _, err := Open(Options{Transports: []string{"nosuch"}}); err == nil || !strings.Contains(err.Error(), "nosuch") {
		t.Errorf("a transport that does not exist: %v", err)
	}
	var op *OpError
	if _, err := Open(Options{Settings: map[string]string{"KEEPALIVE_INTERVAL": "soon"}}); !errors.As(err, &op) || !strings.Contains(err.Error(), "KEEPALIVE_INTERVAL") {
		t.Errorf("a value UCX refuses: %v", err)
	}
}

func TestChooseSettings(t *testing.T) {
	env := map[string]string{"UCX_KEEPALIVE_INTERVAL": "7s", "UCX_TLS": "all", "UCX_OTHER": "x"}
	got, err := chooseSettings(Options{
		Transports: []string{"tcp", "self"},
		Settings:   map[string]string{"TCP_CONN_NB": "n", "RNDV_THRESH": "8K"},
	}, func(k string) (string, bool) { v, ok := env[k]; return v, ok })
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][2]string{
		"KEEPALIVE_INTERVAL": {"7s", "environment"},
		"TLS":                {"all", "environment"},
		"TCP_CONN_NB":        {"n", "option"},
		"RNDV_THRESH":        {"8K", "option"},
	}
	for _, s := range got {
		if w, ok := want[s.Name]; ok {
			if w != [2]string{s.Value, s.Source} {
				t.Errorf("%s = %s from %s, want %v", s.Name, s.Value, s.Source, w)
			}
			delete(want, s.Name)
		} else if s.Source != "default" || s.Why == "" {
			t.Errorf("%+v: a setting nobody asked for needs a reason", s)
		}
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}

func TestStatusText(t *testing.T) {
	for s := Status(-100); s < 0; s++ {
		if s.Error() == "" {
			t.Errorf("status %d has no text", int8(s))
		}
	}
	if !Canceled(&OpError{Op: "x", Err: StatusCanceled}) || Canceled(StatusTruncated) || Canceled(nil) {
		t.Error("Canceled does not know what was cancelled")
	}
	if n := testing.AllocsPerRun(100, func() { statusSink = StatusConnectionReset }); n != 0 {
		t.Errorf("a status as an error costs %v allocations", n)
	}
}

var statusSink error
