package hints

import (
	"errors"
	"strings"
	"testing"
)

func TestCheckEndpoint(t *testing.T) {
	good := []string{
		"tcp://10.0.0.1:17771", "tcp://[fd00::1]:17771", "tcp://[::1]:1", "tcp://[::ffff:10.0.0.1]:65535", "tcp://node-7.cache.svc:17771",
		"tcp://localhost:1", "tcp://a_b.C:65535", "tcp://node.:80", "tcp://7up:80", "tcp://1.2.3.4.example:80",
		"tcp://" + strings.Repeat("a.", 126) + "a:1", "tcp://0xab.node:1",
	}
	for _, a := range good {
		if err := CheckEndpoint(a); err != nil {
			t.Errorf("%v", err)
		}
	}
	bad := []string{
		"tcp", "tcp:/", "tcp://", "TCP://h:1", "10.0.0.1:17771", "http://10.0.0.1:1", " tcp://h:1", "tcp://h:1 ", "tcp://h", "tcp://h:", "tcp://:1", "tcp://:",
		"tcp://h:0", "tcp://h:65536", "tcp://h:99999", "tcp://h:100000", "tcp://h:+1", "tcp://h:-1", "tcp://h:01", "tcp://h:1x", "tcp://h:1:2", "tcp://h:0x1",
		"tcp://0.0.0.0:1", "tcp://[::]:1", "tcp://[0:0::0]:1", "tcp://[::ffff:0.0.0.0]:1", "tcp://*:1", "tcp://0:1", "tcp://0.0:1", "tcp://00.0.0.0:1", "tcp://0x0:1", "tcp://1.2.3:1", "tcp://0x7f.1:1", "tcp://1.0x:1", "tcp://1.2.3.4.:1",
		"tcp://fd00::1:17771", "tcp://[fd00::1]", "tcp://[fd00::1:1", "tcp://fd00::1]:1", "tcp://[10.0.0.1]:1", "tcp://[fe80::1%eth0]:1", "tcp://[]:1", "tcp://[h]:1", "tcp://[::1]x:1",
		"tcp://h:1/x", "tcp://h/x:1", "tcp://u@h:1", "tcp://h:1?x", "tcp://h:1#x", "tcp://h\x00:1", "tcp://h\u00e9:1", "tcp://.:1", "tcp://a..b:1", "tcp://.a:1",
		"tcp://" + strings.Repeat("a", 64) + ":1", "tcp://" + strings.Repeat("a.", 127) + "a:1", "tcp://" + strings.Repeat("a", 1<<20),
	}
	for _, a := range bad {
		var r *Rejection
		if err := CheckEndpoint(a); !errors.As(err, &r) || r.Reason != InvalidSource {
			t.Errorf("%.80q: %v, want invalid_source", a, err)
		} else if len(r.Detail) > 400 {
			t.Errorf("%.80q: a detail of %d bytes", a, len(r.Detail))
		}
	}
	var r *Rejection
	if err := CheckEndpoint(""); !errors.As(err, &r) || r.Reason != MissingSource {
		t.Errorf("empty: %v, want missing_source", err)
	}
}

// The cache answers as the check does, also when addresses share a slot.
func TestEndpointCache(t *testing.T) {
	var c endpointCache
	for range 3 {
		for i := range 5000 {
			a := "tcp://node-" + strings.Repeat("x", i%7) + string(rune('a'+i%26)) + ":" + []string{"1", "0", "65535", "65536"}[i%4]
			got, err := c.goodBytes([]byte(a))
			if (err != nil) != (i%2 == 1) || err == nil && got != a {
				t.Fatalf("%s: %q, %v", a, got, err)
			}
		}
	}
	long := []byte("tcp://" + strings.Repeat("a.", 200) + ":1")
	if _, err := c.goodBytes(long); err == nil {
		t.Error("an address that is too long is good when it comes as bytes")
	}
	// What is kept is not a part of what came.
	b := []byte("tcp://host:1")
	kept, err := c.goodBytes(b)
	if err != nil {
		t.Fatal(err)
	}
	b[6] = 'X'
	if kept != "tcp://host:1" {
		t.Errorf("the kept address became %q", kept)
	}
}
