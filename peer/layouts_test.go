package peer

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// logged is a log that a test reads.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), what)
}

// Who is refused since layouts differ is told in what, once: in the log, in the peer's
// state and in the counters. Case B2, when it is the recipe of hashes.
func TestLayoutsThatDiffer(t *testing.T) {
	with := func(l wire.Layout, log *logged) nodeOption {
		return func(c *Config) {
			c.Layout = func(string) string { return l.Describe() }
			c.Fingerprint = func(string) [32]byte { return wire.Fingerprint(l.Describe()) }
			c.Logger = slog.New(slog.NewTextHandler(log, nil))
		}
	}
	var many wire.Layout
	for range 31 {
		many.Pools = append(many.Pools, wire.LayoutPool{Name: strings.Repeat("p", 255), SlotBytes: 4096})
	}
	for _, tt := range []struct {
		name          string
		source, asked wire.Layout
		want          string // in the log and the error
	}{
		{"recipe", wire.Layout{Kind: "flat", Recipe: "dynamo/xxh3-1337/bs16"}, wire.Layout{Kind: "flat", Recipe: "dynamo/xxh3-1337/bs64"},
			"hash recipe: yours dynamo/xxh3-1337/bs64, node's dynamo/xxh3-1337/bs16"},
		{"no recipe", wire.Layout{Kind: "flat"}, wire.Layout{Kind: "flat", Recipe: "dynamo/xxh3-1337/bs64"}, "hash recipe: yours dynamo/xxh3-1337/bs64, node's none"},
		{"kind", wire.Layout{Kind: "flat"}, wire.Layout{Kind: "chained"}, "kind: yours chained, node's flat"},
		{"too long to be told", many, wire.Layout{Kind: "flat"}, "in what the peer does not say"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var theirs, log logged
			a := openNode(t, newTable(t, 8, 4096, false), with(tt.source, &theirs))
			b := openNode(t, newTable(t, 8, 4096, false), with(tt.asked, &log))
			for range 3 {
				if r := fetch(t, b, a.Endpoints()[0], Submit{Namespace: "ns", Items: wanted(0, 2)}, 20*time.Second); r[1].Status != wire.StatusBadLayout {
					t.Fatalf("%v", r[1].Status)
				}
			}
			st, _ := b.Known(a.Endpoints()[0])
			if st.LastError == nil || !strings.Contains(st.LastError.Error(), tt.want) || !strings.Contains(st.LastError.Error(), "namespace ns") {
				t.Errorf("the peer's state says %v, want %q", st.LastError, tt.want)
			}
			if n := log.count(tt.want); n != 1 {
				t.Errorf("the log says %q %d times", tt.want, n)
			}
			if as, bs := a.Stats().Refusals, b.Stats().Refusals; as != 3 || bs != 3 {
				t.Errorf("%d refusals at the source, %d at the destination; want 3", as, bs)
			}

			// The peer comes back with the right one.
			at := a.Endpoints()[0]
			closeNode(t, a)
			openNode(t, newTable(t, 8, 4096, false), with(tt.asked, &theirs), func(c *Config) { c.Listen = []string{at} })
			if r := fetch(t, b, at, Submit{Namespace: "ns", Items: wanted(0, 1)}, 20*time.Second); r[0].Status != wire.StatusMiss {
				t.Errorf("then: %v", r[0].Status)
			}
			if st, _ := b.Known(at); st.LastError != nil {
				t.Errorf("then the peer's state says %v", st.LastError)
			}
		})
	}
}

// A text that no layout is does no harm.
func TestDiffersFromNonsense(t *testing.T) {
	var log logged
	n := openNode(t, newTable(t, 8, 4096, false), func(c *Config) {
		c.Layout = func(string) string { return "kind=flat" }
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	l := newDestLink(n, 1, "tcp://x", "tcp", "x")
	l.peer, l.ops[1] = 7, &destWork{namespace: "ns"}
	for _, text := range []string{"", "\n", "\n\n=\n", "\n" + strings.Repeat("a=b\n", 200), "\nkind=flat", "\nkind=\x1b[2J"} {
		l.differs(1, &wire.Refused{Source: 7, Status: wire.StatusBadLayout, Text: text})
		if l.unlike == nil || strings.Contains(l.unlike.Error(), "\x1b") {
			t.Errorf("%q: %v", text, l.unlike)
		}
	}
	l.unlike = nil
	l.differs(2, &wire.Refused{Source: 7, Status: wire.StatusBadLayout, Text: "\nkind=x"}) // no such operation
	l.differs(1, &wire.Refused{Source: 8, Status: wire.StatusBadLayout, Text: "\nkind=x"}) // of another life
	l.differs(1, &wire.Refused{Source: 7, Status: wire.StatusBusy, Text: "\nkind=x"})
	if l.unlike != nil {
		t.Errorf("%v", l.unlike)
	}
}
