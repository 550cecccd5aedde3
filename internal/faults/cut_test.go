package faults

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// cable is a pair of processes, each in a network namespace of its own, with one
// cable between them.
type cable struct{ *pair }

const addrA, addrB = "10.77.0.1", "10.77.0.2"

// newCable starts the two. It skips the test where there cannot be namespaces.
func newCable(t *testing.T) *cable {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs the command ip (iproute2)")
	}
	try := exec.Command("ip", "link", "show", "lo")
	try.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := try.Run(); err != nil {
		t.Skipf("needs network namespaces: %v", err)
	}
	routes := []string{"stream"}
	c := &cable{&pair{t: t}}
	c.a = spawn(t, settings{Name: "source", Listen: "tcp://" + addrA + ":7070", Routes: routes, OwnSpace: true})
	c.b = spawn(t, settings{Name: "destination", Listen: "tcp://" + addrB + ":7070", Routes: routes, OwnSpace: true})
	add := request{Verb: "run", Args: []string{"ip", "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", strconv.Itoa(c.b.cmd.Process.Pid)}}
	if _, err := c.a.call(add); err != nil {
		t.Skipf("needs veth devices: %v", err)
	}
	for p, addr := range map[*proc]string{c.a: addrA, c.b: addrB} {
		for _, cmd := range []string{"ip addr add " + addr + "/24 dev cable", "ip link set cable up", "ip link set lo up"} {
			p.must(request{Verb: "run", Args: strings.Fields(cmd)})
		}
		p.open()
	}
	c.fetchWithin("first", 2*time.Second)
	return c
}

// down takes the devices down: what is sent finds no way.
func (c *cable) down() {
	c.a.must(request{Verb: "run", Args: strings.Fields("ip link set cable down")})
}

func (c *cable) up() {
	c.a.must(request{Verb: "run", Args: strings.Fields("ip link set cable up")})
}

// misdirect has both send to a machine that is not there: all is lost on the way,
// and nobody is told.
func (c *cable) misdirect() {
	for p, other := range map[*proc]string{c.a: addrB, c.b: addrA} {
		p.must(request{Verb: "run", Args: strings.Fields("ip neigh replace " + other + " lladdr 02:00:00:00:00:99 dev cable nud permanent")})
	}
}

func (c *cable) redirect() {
	for p, other := range map[*proc]string{c.a: addrB, c.b: addrA} {
		p.must(request{Verb: "run", Args: strings.Fields("ip neigh del " + other + " dev cable")})
	}
}

// The link between two peers is cut, both ways, in the midst of copies and moves,
// and comes back. While it is cut every fetch has its answer in time; afterwards
// the peers find each other by themselves, and nothing is lost or left over.
func TestCut(t *testing.T) {
	for _, kind := range []string{"no way", "silence"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			c := newCable(t)
			cut, heal := c.down, c.up
			if kind == "silence" {
				cut, heal = c.misdirect, c.redirect
			}
			at := []string{"send CONFIRM", "read OFFER", "part", "read REMOVED"}
			if testing.Short() {
				at = at[:1]
			}
			for i, point := range at {
				keys := names(fmt.Sprintf("b%d", i), 2)
				c.a.must(request{Verb: "deposit", Keys: keys})
				c.b.must(request{Verb: "arm", Point: point, Peer: c.a.self})
				const limit = 900 * time.Millisecond // enough for a block, after a cut
				fetched := c.b.begin(request{Verb: "fetch", Keys: keys, Endpoint: c.a.endpoint, Move: true, Timeout: limit})
				c.b.reached()
				cut()
				c.b.must(request{Verb: "go"})
				got, err := fetched()
				if err != nil || got.Took > limit+time.Second {
					t.Fatalf("%s: %v after %v, %v", point, got.Reasons, got.Took, err)
				}
				// Another one begins and ends while there is no link.
				if a := c.b.must(request{Verb: "fetch", Keys: []string{"s-cut"}, Endpoint: c.a.endpoint, Timeout: limit / 3}); !all(a.Reasons, "timeout") || a.Took > limit+time.Second {
					t.Errorf("%s: %v after %v, while the link is cut", point, a.Reasons, a.Took)
				}
				if b := c.b.must(request{Verb: "base"}).Base; b.Claims != 0 || b.Posted != 0 || b.Quarantined != 0 {
					t.Errorf("%s: while the link is cut: %+v", point, b)
				}
				// The source keeps nothing claimed for long, and no mark.
				for end := time.Now().Add(15 * time.Second); ; time.Sleep(10 * time.Millisecond) {
					if b := c.a.must(request{Verb: "base"}).Base; b.Marks == 0 {
						break
					}
					if time.Now().After(end) {
						t.Errorf("%s: marks that are never lifted", point)
						break
					}
				}
				heal()
				c.fetchWithin(fmt.Sprintf("%s %d", kind, i), 5*time.Second)
				c.nowhereLost(t, keys)
				c.a.restWithin(t, 12*time.Second)
				c.b.restWithin(t, 12*time.Second)
			}
		})
	}
}

// A cut that outlasts the kernel's patience ends the connections of both sides,
// though neither was told; the peers find each other again when it heals.
func TestLongCut(t *testing.T) {
	if *killsFlag < 200 {
		t.Skip("takes half a minute: with -faults 200 or more")
	}
	c := newCable(t)
	keys := names("b-long", 2)
	c.a.must(request{Verb: "deposit", Keys: keys})
	c.b.must(request{Verb: "arm", Point: "send CONFIRM", Peer: c.a.self})
	fetched := c.b.begin(request{Verb: "fetch", Keys: keys, Endpoint: c.a.endpoint, Move: true, Timeout: 2 * time.Second})
	c.b.reached()
	c.misdirect()
	c.b.must(request{Verb: "go"})
	if _, err := fetched(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(40 * time.Second); c.b.must(request{Verb: "base"}).Base.Connections > 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a link that is cut is never noticed")
		}
	}
	if b := c.b.must(request{Verb: "base"}).Base; b.Holds == 0 || b.Claims != 0 || b.Posted != 0 {
		t.Errorf("no timer ends a hold, and nothing else stays: %+v", b)
	}
	c.redirect()
	c.fetchWithin("after", 3*time.Second)
	c.nowhereLost(t, keys)
	c.b.rest(t)
	c.a.restWithin(t, 40*time.Second)
}
