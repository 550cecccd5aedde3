package server

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kvcr-go/kvcr"
)

// startPairs serves LMCache's pairs from a cache of about 64 values of 64 KiB.
func startPairs(t *testing.T) *Server {
	t.Helper()
	return startWith(t, kvcr.Config{Capacity: 4 << 20, Namespaces: []kvcr.Namespace{{Name: "default", Kind: kvcr.Chained, MaxValue: 1 << 20}}},
		func(o *Options) { o.PairSuffixes = [2]string{"metadata", "kv_bytes"} })
}

// A pair is seen when both halves are there, whichever comes first, and goes as
// one (C4).
func TestPairs(t *testing.T) {
	s := startPairs(t)
	c := dial(t, s)
	for i, order := range [][2]string{{"kv_bytes", "metadata"}, {"metadata", "kv_bytes"}} {
		for _, size := range []int{100, 40000} {
			stem := fmt.Sprintf("model@%d@%d@", i, size)
			value := map[string]string{"metadata": "28 bytes of format and shape", "kv_bytes": strings.Repeat("k", size)}
			first, second := order[0], order[1]
			ask(t, c, cmd("SET", stem+first, value[first]), "+OK\r\n")
			ask(t, c, cmd("EXISTS", stem+first), ":0\r\n")
			ask(t, c, cmd("GET", stem+first), "$-1\r\n")
			ask(t, c, cmd("SET", stem+second, value[second]), "+OK\r\n")
			ask(t, c, cmd("EXISTS", stem+first, stem+second), ":2\r\n")
			ask(t, c, cmd("MGET", stem+"kv_bytes", stem+"metadata"), "*2\r\n"+bulk(value["kv_bytes"])+bulk(value["metadata"]))
			// Written again with other bytes: the old pair is seen until the new one
			// is whole.
			ask(t, c, cmd("SET", stem+first, "new "+value[first]), "+OK\r\n")
			ask(t, c, cmd("GET", stem+first), bulk(value[first]))
			ask(t, c, cmd("SET", stem+second, "new "+value[second]), "+OK\r\n")
			ask(t, c, cmd("GET", stem+first), bulk("new "+value[first]))
			ask(t, c, cmd("GET", stem+second), bulk("new "+value[second]))
			ask(t, c, cmd("SET", stem+first, "x", "NX"), "$-1\r\n")
			ask(t, c, cmd("DEL", stem+second), ":1\r\n")
			ask(t, c, cmd("EXISTS", stem+first, stem+second), ":0\r\n")
			// A deleted half does not come back with the other one.
			ask(t, c, cmd("SET", stem+first, "x"), "+OK\r\n")
			ask(t, c, cmd("DEL", stem+first), ":0\r\n")
			ask(t, c, cmd("SET", stem+second, "x"), "+OK\r\n")
			ask(t, c, cmd("EXISTS", stem+first, stem+second), ":0\r\n")
		}
	}
	ask(t, c, cmd("SET", "metadata", "a key like others"), "+OK\r\n")
	ask(t, c, cmd("GET", "metadata"), bulk("a key like others"))
	ask(t, c, cmd("GET", waitingPrefix+"x"), "-ERR keys that begin with \\x00pair\\x00 are the node's own\r\n")
}

// Under eviction nobody ever sees half a pair, and every SET is answered +OK.
func TestPairsEvictTogether(t *testing.T) {
	s := startPairs(t)
	c := dial(t, s)
	value := strings.Repeat("k", 60000)
	whole := 0
	for i := range 300 {
		stem := fmt.Sprintf("chunk%d@", i)
		ask(t, c, cmd("SET", stem+"kv_bytes", value), "+OK\r\n")
		ask(t, c, cmd("SET", stem+"metadata", "m"), "+OK\r\n")
	}
	for i := range 300 {
		stem := fmt.Sprintf("chunk%d@", i)
		if _, err := c.Write([]byte(cmd("EXISTS", stem+"kv_bytes", stem+"metadata"))); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, 4)
		if _, err := readFull(c, answer); err != nil {
			t.Fatal(err)
		}
		switch string(answer) {
		case ":0\r\n":
		case ":2\r\n":
			whole++
		default:
			t.Fatalf("half of pair %d is there: %q", i, answer)
		}
	}
	if whole < 10 || whole > 100 {
		t.Errorf("%d pairs left of 300 in a cache of about 60", whole)
	}
}

func TestPairsNeedAChainedNamespace(t *testing.T) {
	e, err := kvcr.Open(kvcr.Config{Capacity: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for _, suffixes := range [][2]string{{"a", "b"}, {"a", ""}, {"ba", "a"}} {
		if s, err := Start(Options{Engine: e, PairSuffixes: suffixes}); !errors.Is(err, ErrPairs) {
			t.Errorf("%q: %v, %v", suffixes, s, err)
		}
	}
}
