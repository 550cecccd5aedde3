package kvcr_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
)

const (
	envDeviceLost  = "KVCR_TEST_DEVICE_LOST"
	deviceLostDone = "all is as it must be"
)

// A device that is lost while it writes to slots and staging: the keys are
// answered, that memory is used for nothing else, other devices go on, and Close
// says what it cannot give back. In a process of its own, since just that stays
// behind.
func TestDeviceLost(t *testing.T) {
	if os.Getenv(envDeviceLost) == "" {
		openGPU(t) // skips by name
		cmd := exec.Command(os.Args[0], "-test.run=^TestDeviceLost$", "-test.v")
		cmd.Env = append(os.Environ(), envDeviceLost+"=1")
		out, err := cmd.CombinedOutput()
		if !bytes.Contains(out, []byte(deviceLostDone)) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	g := openGPU(t)
	cfg := kvcr.Config{Capacity: 8 << 20, Shards: 1, Namespaces: []kvcr.Namespace{
		{Name: "flat", Share: 0.5, Pools: []kvcr.Pool{{Name: "kv", SlotBytes: gpuElement}}},
		{Name: "chain", Kind: kvcr.Chained, Share: 0.5, Pools: []kvcr.Pool{{Name: "kv", SlotBytes: gpuElement}}},
	}}
	g.config(&cfg)
	e, err := kvcr.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	flat, err := e.HandleIn("flat")
	if err != nil {
		t.Fatal(err)
	}
	chain, err := e.HandleIn("chain")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "memory is registered", func() bool { return g.control[doubleRegistrations].Load() == 4 })
	for _, k := range keysOf(0, 3) {
		if err := flat.Deposit(k, payload(string(k), gpuElement)); err != nil {
			t.Fatal(err)
		}
	}
	blocks := []kvcr.RegionBlock{{Key: []byte("a"), Ref: ref("gpu0", 0)}, {Key: []byte("b"), Ref: ref("gpu0", 1)}}
	g.control[doubleHold].Store(1)
	calls := g.control[doubleHostCalls].Load()
	ops := []*kvcr.Op{flat.DepositRefs(blocks, kvcr.DepositOptions{}), chain.DepositRefs(blocks, kvcr.DepositOptions{})}
	eventually(t, "two copies are under way", func() bool { return g.control[doubleHostCalls].Load() == calls+2 })
	g.control[doubleStickyDevice].Store(0)
	g.control[doubleSticky].Store(719)
	for _, op := range ops {
		for i, r := range wait(t, op) {
			if r.Reason != kvcr.ReasonSource {
				t.Errorf("block %d: %v", i, r.Reason)
			}
		}
	}
	g.control[doubleHold].Store(0)
	if n := g.d.Stats().UnsettledBatches; n != 2 {
		t.Errorf("%d batches are unsettled", n)
	}
	rs := wait(t, flat.DeliverRefs([]kvcr.RegionBlock{{Key: keysOf(0, 1)[0], Ref: ref("gpu1", 0)}, {Key: keysOf(0, 1)[0], Ref: ref("gpu0", 0)}}, kvcr.FetchOptions{}))
	if !rs[0].OK() || rs[1].OK() || !bytes.Equal(g.read(1, 0), payload("block-0", gpuElement)) {
		t.Errorf("the other device: %v; the lost one: %v", rs[0].Reason, rs[1].Reason)
	}
	start := time.Now()
	var busy *kvcr.BusyError
	if err := e.Close(); !errors.As(err, &busy) || busy.Reservations != 2 || !busy.Devices || time.Since(start) > 10*time.Second {
		t.Errorf("close after %v: %v", time.Since(start), err)
	}
	if !t.Failed() {
		fmt.Println(deviceLostDone)
		os.RemoveAll(gpuDouble())
		os.Exit(0) // a lost device lets nothing be tidied up
	}
}
