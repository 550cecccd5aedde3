package shard

import (
	"testing"
	"unsafe"

	"github.com/kvcr-go/kvcr/arena"
	"github.com/kvcr-go/kvcr/ring"
	"github.com/kvcr-go/kvcr/shard/evict"
)

// What readers touch is one line; the metadata of a block with a short key is
// what the design promises.
func TestSizes(t *testing.T) {
	for _, tt := range []struct {
		name      string
		got, want uintptr
	}{
		{"hot", unsafe.Sizeof(hot{}), 64},
		{"cold", unsafe.Sizeof(cold{}), 16},
		{"bucket", unsafe.Sizeof(bucket{}), 64},
		{"policy node", unsafe.Sizeof(evict.Node{}), 16},
		{"hot.word", unsafe.Offsetof(hot{}.word), 0},
		{"hot.last", unsafe.Offsetof(hot{}.last), 8},
		{"hot.size", unsafe.Offsetof(hot{}.size), 12},
		{"hot.desc", unsafe.Offsetof(hot{}.desc), 16},
		{"hot.key", unsafe.Offsetof(hot{}.key), 24},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %d bytes, want %d", tt.name, tt.got, tt.want)
		}
	}
	// Words of different writers do not share a line: the tick, the token, the
	// bells.
	var s Shard
	apart := func(what string, a, b uintptr) {
		if max(a, b)-min(a, b) < 64 {
			t.Errorf("%s are %d bytes apart", what, max(a, b)-min(a, b))
		}
	}
	apart("what hits read and the tick", unsafe.Offsetof(s.stride), unsafe.Offsetof(s.now))
	apart("tick and token", unsafe.Offsetof(s.now), unsafe.Offsetof(s.token)+unsafe.Offsetof(s.token.held))
	apart("token and bells", unsafe.Offsetof(s.token.held), unsafe.Offsetof(s.token.bells))
	if n := unsafe.Sizeof(s.token.bells); n != 64 {
		t.Errorf("the doorbell is %d bytes, want one line", n)
	}
}

func TestMetadataPerBlock(t *testing.T) {
	const n = 1 << 20
	c := rig{pools: []Pool{{4096, n}}}.config()
	p := PlanFor(&c)
	if per := float64(p.BlockBytes) / n; per > 112 {
		t.Errorf("%.2f bytes of metadata for a block, at most 112", per)
	} else {
		t.Logf("%.2f bytes", per)
	}
	// The parts do not overlap and lie in order.
	c.SideBytes = 1 << 20
	p = PlanFor(&c)
	ends := []struct {
		name string
		at   arena.Off
		n    int64
	}{
		{"hot", p.Hot, (n + 1) * 64}, {"cold", p.Cold, (n + 1) * 16}, {"nodes", p.Nodes, (n + 1) * 16},
		{"buckets", p.Buckets, int64(p.Dir+p.Overflow) * 64}, {"table", p.Table, arena.ClassesTableBytes(p.SideBytes)}, {"side", p.Side, p.SideBytes},
	}
	for i, e := range ends {
		end := int64(p.Bytes)
		if i+1 < len(ends) {
			end = int64(ends[i+1].at)
		}
		if int64(e.at)+e.n > end {
			t.Errorf("%s ends at %d, behind %d", e.name, int64(e.at)+e.n, end)
		}
	}
}

func TestDesc(t *testing.T) {
	for _, off := range []uint64{0, 16, 1<<46 - 16, 0x123456789ab0} {
		for _, keyLen := range []int{0, 1, MaxKey} {
			for _, pieces := range []int{1, MaxPieces} {
				for _, pool := range []int{0, MaxPools - 1} {
					d := makeDesc(off%(1<<46), keyLen, pieces, pool)
					if d.off() != off%(1<<46) || d.keyLen() != keyLen || d.pieces() != pieces || d.pool() != pool || d.hasSum() {
						t.Errorf("desc of %#x, %d, %d, %d is %#x, %d, %d, %d, sum %t", off, keyLen, pieces, pool, d.off(), d.keyLen(), d.pieces(), d.pool(), d.hasSum())
					}
					if e := withPieces(d|sumFlag, 3); e.pieces() != 3 || e.off() != d.off() || e.keyLen() != keyLen || e.pool() != pool || !e.hasSum() {
						t.Errorf("withPieces changes more than the pieces: %#x to %#x", uint64(d), uint64(e))
					}
				}
			}
		}
	}
}

// A command and its answer survive the ring with every field at its extremes.
func TestRequestPacking(t *testing.T) {
	var m ring.Msg
	for _, r := range []request{
		{},
		{op: opClaim, flags: 0xff, layout: 0xffff, chain: 1<<32 - 1, hash: 1<<64 - 1, id: 1<<32 - 1, parent: 1<<32 - 1, size: 1<<32 - 1, keyLen: 1<<32 - 1, reads: 1<<32 - 1, tag: 1<<32 - 1},
		{op: 1, flags: 2, layout: 3, chain: 4, hash: 5, id: 6, parent: 7, size: 8, keyLen: 9, reads: 10, tag: 11},
	} {
		r.pack(&m)
		if got := unpack(&m); got != r {
			t.Errorf("request %+v arrives as %+v", r, got)
		}
	}
	for _, r := range []reply{{}, {tag: 1<<32 - 1, reason: reasons, old: true, id: 1<<32 - 1, refill: 1<<32 - 1}, {tag: 1, reason: Capacity, id: 2, refill: 3}} {
		r.pack(&m)
		if got := unpackReply(&m); got != r {
			t.Errorf("reply %+v arrives as %+v", r, got)
		}
	}
}

func TestReasons(t *testing.T) {
	seen := map[string]bool{}
	for r := range reasons {
		if n := r.String(); n == "" || n == "unknown" || seen[n] {
			t.Errorf("reason %d has name %q", r, n)
		} else {
			seen[n] = true
		}
	}
	if reasons.String() != "unknown" {
		t.Error("a reason out of range has a name")
	}
}

// A hit, a miss and a set allocate nothing.
func TestAllocations(t *testing.T) {
	if arena.Checking {
		t.Skip("checking and race builds keep a ledger of claims")
	}
	pools, classes := rig{pools: []Pool{{4096, 64}}}, rig{classes: 4 << 20}
	for i, r := range []rig{pools, classes, pools, classes} {
		s := newTest(t, r)
		s.helped = i < 2 // then through the rings
		l := newLane(t, s)
		k, absent := key(1), key(2)
		small, large := pattern(k, 0, 256), pattern(k, 0, 4096)
		mustPut(t, l, k, small)
		hash, missing := s.hash(k), s.hash(absent)
		other := key(0)
		n := 0
		for _, tt := range []struct {
			name string
			f    func()
		}{
			{"hit", func() {
				c, ok, _ := s.Find(hash, k)
				if !ok || len(s.Bytes(c)) == 0 || s.Release(c) != nil {
					t.Error("no hit")
				}
			}},
			{"miss", func() {
				if _, ok, sure := s.Find(missing, absent); ok || !sure {
					t.Error("no miss")
				}
			}},
			{"copy", func() { s.TryCopy(hash, k, large) }},
			{"set in place", func() {
				p := Put{Hash: hash, Key: k, Value: small, Shape: Shape{Size: len(small)}, Set: true, Sum: true}
				if o := l.Put(&p, 1); o.Reason != OK {
					t.Error(o.Reason)
				}
			}},
			{"set that replaces", func() {
				c, _, _ := s.Find(hash, k) // so that it cannot be in place
				p := Put{Hash: hash, Key: k, Value: small, Shape: Shape{Size: len(small)}, Set: true}
				if o := l.Put(&p, 1); o.Reason != OK {
					t.Error(o.Reason)
				}
				s.Release(c)
			}},
			{"set that evicts", func() {
				n++
				for i, d := 0, n; i < 6; i++ {
					other[len(other)-1-i] = byte('0' + d%10)
					d /= 10
				}
				p := Put{Hash: s.hash(other), Key: other, Value: large, Shape: Shape{Size: len(large)}, Set: true}
				if o := l.Put(&p, 1); o.Reason != OK {
					t.Error(o.Reason)
				}
				l.Put(&Put{Hash: hash, Key: k, Value: small, Shape: Shape{Size: len(small)}, Set: true}, 0)
			}},
			{"delete", func() {
				l.Delete(hash, k, 0)
				l.Put(&Put{Hash: hash, Key: k, Value: small, Shape: Shape{Size: len(small)}, Set: true}, 0)
			}},
		} {
			for range 200 { // full, and every path warm
				tt.f()
			}
			if got := testing.AllocsPerRun(500, tt.f); got != 0 {
				t.Errorf("%s, helped %t: %v allocations", tt.name, s.helped, got)
			}
		}
		purge(t, s, l)
	}
}
