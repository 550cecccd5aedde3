package kvcr_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/peer"
)

// Open names all that is wrong with peers beside the rest, before it reserves
// memory.
func TestPeersConfig(t *testing.T) {
	_, err := kvcr.Open(kvcr.Config{
		Capacity: 1, MaxMarks: -1, MaxHolds: 1<<20 + 1, MaxTransferBlocks: -5,
		Peers: &kvcr.Peers{
			Listen: []string{"tcp://0.0.0.0:0", "nonsense"}, Secret: []byte("short"), Routes: []string{"bogus"}, Streams: 99,
			MaxPeers: -1, MaxOps: -1, MaxQuarantine: -1, Name: strings.Repeat("n", 300), Framework: &lender{},
		},
	})
	if !errors.Is(err, kvcr.ErrConfig) {
		t.Fatal(err)
	}
	for _, want := range []string{"Capacity", "MaxMarks", "MaxHolds", "MaxTransferBlocks", "Listen", "nonsense", "Secret", "bogus", "Streams", "MaxPeers", "MaxOps", "MaxQuarantine", "Name", "Regions"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %s: %v", want, err)
		}
	}
}

// An Open that fails for its peers leaves nothing behind; the leaks that TestMain
// looks for would be of it.
func TestPeersOpenFails(t *testing.T) {
	a := openPeer(t, nil)
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]*kvcr.Peers{
		"an address in use":        {Listen: []string{"tcp://127.0.0.1:0", a.endpoint}},
		"a file that is no socket": {Listen: []string{"unix://" + file}},
		"memory of one process":    {Routes: []string{"stream", "shm"}},
		"ucx, where it is not":     {Routes: []string{"ucx"}},
	} {
		e, err := kvcr.Open(kvcr.Config{Capacity: 8 << 20, Peers: p})
		if name == "ucx, where it is not" && err == nil {
			e.Close() // it is here
			continue
		}
		if !errors.Is(err, kvcr.ErrConfig) || e != nil {
			t.Errorf("%s: %v", name, err)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
	// What the caller has given, or is given, stays his.
	secret := []byte("sixteen bytes or more")
	b := openPeer(t, func(c *kvcr.Config) { c.Peers.Secret = secret })
	c := b.Config()
	if c.Peers == nil || &c.Peers.Secret[0] == &secret[0] {
		t.Error("the configuration shares memory with the caller")
	}
	c.Peers.Listen[0] = "changed"
	if b.Config().Peers.Listen[0] == "changed" {
		t.Error("the configuration can be changed")
	}
}

// A framework that does not take a pin back is named by Close, which does not wait
// for it; its memory stays registered until it does.
func TestCloseWithPinsOut(t *testing.T) {
	fw := &lender{elements: 2}
	var regions peer.Regions
	mem := payload("lent", 2*64<<10)
	if err := regions.Register(peer.Region{Label: "kv:*", Mem: mem, Size: 64 << 10, Count: 2}); err != nil {
		t.Fatal(err)
	}
	a, err := kvcr.Open(kvcr.Config{
		Capacity:   8 << 20,
		Namespaces: []kvcr.Namespace{{Name: "kv", Pools: []kvcr.Pool{{Name: "kv", SlotBytes: 64 << 10}}}},
		Peers:      &kvcr.Peers{Listen: []string{"tcp://127.0.0.1:0"}, Framework: fw, Regions: &regions},
	})
	if err != nil {
		t.Fatal(err)
	}
	b := openPeer(t, nil)
	fw.refuse.Store(1 << 40)
	rs := wait(t, b.h.FetchFrom([][]byte{[]byte("lent-0"), []byte("lent-1"), []byte("lent-7")}, kvcr.FetchOptions{Sources: a.Peers().Endpoints(), Timeout: 5 * time.Second}))
	if !rs[0].OK() || !rs[1].OK() || rs[2].Reason != kvcr.ReasonMiss {
		t.Fatalf("%v %v %v", rs[0].Reason, rs[1].Reason, rs[2].Reason)
	}
	release(rs)
	begun := time.Now()
	for range 2 {
		if err := a.Close(); !errors.Is(err, kvcr.ErrBusy) {
			t.Errorf("Close: %v", err)
		}
	}
	if d := time.Since(begun); d > 5*time.Second {
		t.Errorf("Close took %v", d)
	}
	if err := regions.Deregister("kv:*"); !errors.Is(err, peer.ErrRegionBusy) {
		t.Errorf("the region of a pin: %v", err)
	}
	fw.refuse.Store(0)
	eventually(t, "the framework has its blocks back", func() bool { return fw.lent.Load() == 0 })
	eventually(t, "the region is free", func() bool { return regions.Deregister("kv:*") == nil })
}
