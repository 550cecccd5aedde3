package kvcr

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The engine against a plain map. rapid prints the seed of a failure and the
// shortest list of steps that it finds.
//
// In a roomy engine nothing is ever evicted and the map is exact. In a tight
// one a block may have left at any time: then the map says what a block must be
// if it is there, and a call that finds it absent takes it out.

func TestModelRoomy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { runModel(t, false) })
}

func TestModelTight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { runModel(t, true) })
}

// modelBlock is one resident block. Blocks of one deposit of a group share a
// group number, 0 is none.
type modelBlock struct {
	pieces [][]byte
	pools  string
	group  int
}

func (b *modelBlock) whole() []byte { return bytes.Join(b.pieces, nil) }

func (b *modelBlock) shape() string {
	s := b.pools
	for _, p := range b.pieces {
		s += fmt.Sprint(",", len(p))
	}
	return s
}

type heldView struct {
	v    View
	want *modelBlock
	key  string
}

type openReservation struct {
	r     *Reservation
	key   string
	value []byte
	set   bool
}

type model struct {
	*rapid.T
	e     *Engine
	h     *Handle
	tight bool
	pools bool // several pools; Pieces may be used
	chain bool
	ring  bool

	keys   []string
	blocks map[string]*modelBlock
	held   []heldView
	open   []openReservation
	seeds  uint64
	groups int
}

func runModel(t *rapid.T, tight bool) {
	m := &model{T: t, tight: tight, blocks: map[string]*modelBlock{}}
	ns := Namespace{Name: "ns"}
	cfg := Config{Capacity: 4 << 20, OperationTimeout: 10 * time.Second}
	if m.chain = rapid.Bool().Draw(t, "chained"); m.chain {
		ns.Kind = Chained
	} else {
		cfg.Shards = rapid.SampledFrom([]int{1, 2}).Draw(t, "shards")
	}
	if m.pools = rapid.Bool().Draw(t, "pools"); m.pools {
		ns.Pools = []Pool{{Name: "a", SlotBytes: 8192, Share: 0.6}, {Name: "b", SlotBytes: 4096, Share: 0.2}, {Name: "c", SlotBytes: 64}}
	} else {
		ns.MaxValue = 64 << 10
	}
	ns.Policy = rapid.SampledFrom([]string{"density", "lru", "fifo", "s3fifo"}).Draw(t, "policy")
	if m.ring = rapid.Bool().Draw(t, "rings"); m.ring {
		ns.NewPolicy = wrapPolicy(ns.Policy, nil)
	}
	ns.Checksums = rapid.SampledFrom([]Checksums{ChecksumOn, ChecksumOff}).Draw(t, "checksums")
	if rapid.Bool().Draw(t, "collide") {
		cfg.Hash = func(key []byte) uint64 { return uint64(len(key)) << 32 }
	}
	if tight {
		ns.MaxBlocks = rapid.IntRange(4, 12).Draw(t, "blocks")
		ns.LongKeyBytes = 64 << 10
	} else {
		ns.LongKeyBytes = 512 << 10
	}
	cfg.Namespaces = []Namespace{ns}
	cfg.Remote = &fakeSource{fetch: func(_ context.Context, keys [][]byte, sink Sink) error {
		for i, k := range keys {
			if bytes.HasPrefix(k, []byte("far")) {
				_ = bring(sink, i, k)
			} else {
				sink.Fail(i, ReasonMiss)
			}
		}
		return nil
	}}
	var err error
	if m.e, err = Open(cfg); err != nil {
		t.Fatalf("Open: %v", err)
	}
	if m.h, err = m.e.Handle(); err != nil {
		t.Fatalf("Handle: %v", err)
	}
	for i := range 9 {
		m.keys = append(m.keys, fmt.Sprintf("key-%d", i))
	}
	for _, n := range []int{41, 1024} {
		m.keys = append(m.keys, fmt.Sprintf("%0*d", n, n))
	}
	m.keys = append(m.keys, "far-1", "far-2")
	defer func() {
		// Also when a check has failed: rapid tries again with fewer steps.
		for i := range m.held {
			m.held[i].v.Release()
		}
		for i := range m.open {
			m.open[i].r.Abort()
		}
		if err := m.e.Close(); err != nil && !t.Failed() {
			t.Fatalf("Close: %v", err)
		}
	}()
	t.Repeat(map[string]func(*rapid.T){
		"":           func(*rapid.T) { m.check() },
		"get":        m.get,
		"copy":       m.copy,
		"hold":       m.hold,
		"release":    m.release,
		"set":        m.set,
		"deposit":    m.deposit,
		"delete":     m.delete,
		"reserve":    m.reserve,
		"finish":     m.finish,
		"batch":      m.batch,
		"group":      m.group,
		"query":      m.query,
		"fetch":      m.fetch,
		"deliver":    m.deliver,
		"new handle": m.newHandle,
	})
}

func (m *model) key(t *rapid.T) string { return rapid.SampledFrom(m.keys).Draw(t, "key") }

func (m *model) value(t *rapid.T) []byte {
	m.seeds++
	return stamped(m.seeds, rapid.SampledFrom([]int{8, 64, 100, 1000, 4096, 5000, 8192}).Draw(t, "size"))
}

// item is a block for a deposit: one value, or pieces in pools.
func (m *model) item(t *rapid.T, key string) (Item, *modelBlock) {
	if m.pools && rapid.Bool().Draw(t, "pieces") {
		m.seeds += 3
		it := Item{Key: []byte(key), Pools: rapid.SampledFrom([][]string{{"a", "b"}, {"a"}, {"b", "c", "c"}, {"c"}}).Draw(t, "pools")}
		for i, p := range it.Pools {
			it.Pieces = append(it.Pieces, stamped(m.seeds-uint64(i), map[string]int{"a": 8192, "b": 4096, "c": 64}[p]))
		}
		return it, &modelBlock{pieces: it.Pieces, pools: fmt.Sprint(it.Pools)}
	}
	v := m.value(t)
	return Item{Key: []byte(key), Value: v}, m.single(v)
}

// single is a block of one value; in a namespace with pools that is a piece in
// the first of them.
func (m *model) single(v []byte) *modelBlock {
	b := &modelBlock{pieces: [][]byte{v}}
	if m.pools {
		b.pools = "[a]"
	}
	return b
}

// drop takes a block and its group out.
func (m *model) drop(key string) {
	b := m.blocks[key]
	if b == nil {
		return
	}
	delete(m.blocks, key)
	if b.group != 0 {
		for k, o := range m.blocks {
			if o.group == b.group {
				delete(m.blocks, k)
			}
		}
	}
}

// absent is told of a key that a call has found absent.
func (m *model) absent(what, key string) {
	if m.blocks[key] != nil && !m.tight {
		m.Fatalf("%s: %.20s is lost", what, key)
	}
	m.drop(key)
}

// present returns the block that a call has found.
func (m *model) present(what, key string) *modelBlock {
	b := m.blocks[key]
	if b == nil {
		m.Fatalf("%s: %.20s is there and must not be", what, key)
	}
	return b
}

func (m *model) same(what, key string, v *View, b *modelBlock) {
	if v.Pieces() != len(b.pieces) || v.Len() != len(b.whole()) {
		m.Fatalf("%s %.20s: %d pieces of %d bytes, want %d of %d", what, key, v.Pieces(), v.Len(), len(b.pieces), len(b.whole()))
	}
	for i := range b.pieces {
		if p, _ := v.Piece(i); !bytes.Equal(p, b.pieces[i]) {
			m.Fatalf("%s %.20s: piece %d has other bytes", what, key, i)
		}
	}
	if !bytes.Equal(v.Bytes(), b.pieces[0]) || !v.Verify() {
		m.Fatalf("%s %.20s: Bytes or checksum differ", what, key)
	}
}

// refused reports an answer that a tight engine may give.
func (m *model) refused(why Reason) bool { return m.tight && why == ReasonCapacity }

func (m *model) get(t *rapid.T) {
	key := m.key(t)
	v, ok := m.h.Get([]byte(key))
	if !ok {
		m.absent("Get", key)
		return
	}
	m.same("Get", key, &v, m.present("Get", key))
	if err := v.Release(); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

func (m *model) copy(t *rapid.T) {
	key := m.key(t)
	buf := make([]byte, rapid.SampledFrom([]int{0, 100, 20000}).Draw(t, "room"))
	n, ok := m.h.CopyTo(buf, []byte(key))
	if n == 0 && !ok {
		m.absent("CopyTo", key)
		return
	}
	want := m.present("CopyTo", key).whole()
	if n != len(want) || ok != (n <= len(buf)) || ok && !bytes.Equal(buf[:n], want) {
		t.Fatalf("CopyTo %.20s: %d, %v", key, n, ok)
	}
	if got, ok := m.h.AppendTo([]byte("x"), []byte(key)); !ok || !bytes.Equal(got[1:], want) {
		t.Fatalf("AppendTo %.20s: %d bytes, %v", key, len(got), ok)
	}
	if !m.h.Has([]byte(key)) {
		t.Fatalf("Has %.20s: false", key)
	}
}

func (m *model) hold(t *rapid.T) {
	if len(m.held) > 2 {
		t.Skip("enough are held")
	}
	key := m.key(t)
	if v, ok := m.h.Get([]byte(key)); ok {
		m.held = append(m.held, heldView{v, m.present("Get", key), key})
	} else {
		m.absent("Get", key)
	}
}

func (m *model) release(t *rapid.T) {
	if len(m.held) == 0 {
		t.Skip("nothing is held")
	}
	at := rapid.IntRange(0, len(m.held)-1).Draw(t, "which")
	if err := m.held[at].v.Release(); err != nil {
		t.Fatalf("Release: %v", err)
	}
	if err := m.held[at].v.Release(); !errors.Is(err, ErrReleased) {
		t.Fatalf("second Release: %v", err)
	}
	m.held = append(m.held[:at], m.held[at+1:]...)
}

// stored is told of a block that has taken its key's place.
func (m *model) stored(key string, b *modelBlock) {
	m.drop(key)
	m.blocks[key] = b
}

func (m *model) set(t *rapid.T) {
	key, v := m.key(t), m.value(t)
	err := m.h.Set([]byte(key), v)
	switch {
	case err == nil:
		m.stored(key, m.single(v))
	case !m.tight || !errors.Is(err, ErrFull):
		t.Fatalf("Set: %v", err)
	}
}

// deposited compares the answer for one block.
func (m *model) deposited(what, key string, b *modelBlock, why Reason, existing bool) {
	switch {
	case m.refused(why):
	case why == ReasonLayout:
		if old := m.present(what, key); old.shape() == b.shape() {
			m.Fatalf("%s %.20s: layout refused, and it is the same", what, key)
		}
	case why != ReasonOK:
		m.Fatalf("%s %.20s: %v", what, key, why)
	case existing:
		if old := m.present(what, key); old.shape() != b.shape() {
			m.Fatalf("%s %.20s: taken for resident in another layout", what, key)
		}
	default:
		m.absent(what, key)
		m.blocks[key] = b
	}
}

func (m *model) deposit(t *rapid.T) {
	key := m.key(t)
	v := m.value(t)
	existing := m.blocks[key] != nil
	err := m.h.Deposit([]byte(key), v)
	if m.tight && err == nil {
		// One call does not tell whether the block was there; look.
		got, ok := m.h.Get([]byte(key))
		if !ok {
			m.drop(key)
			return
		}
		existing = !bytes.Equal(got.Bytes(), v) || got.Pieces() != 1
		got.Release()
	}
	m.deposited("Deposit", key, m.single(v), reasonOf(err), existing)
}

func (m *model) delete(t *rapid.T) {
	if rapid.Bool().Draw(t, "many") {
		keys := rapid.SliceOfN(rapid.SampledFrom(m.keys), 0, 5).Draw(t, "keys")
		bs := make([][]byte, len(keys))
		for i := range keys {
			bs[i] = []byte(keys[i])
		}
		for i, r := range m.h.DeleteBatch(bs) {
			m.deleted(keys[i], r.OK())
		}
		return
	}
	key := m.key(t)
	ok, err := m.h.Delete([]byte(key))
	if err != nil {
		t.Fatalf("Delete: %v", err)
	}
	m.deleted(key, ok)
}

func (m *model) deleted(key string, ok bool) {
	if !ok {
		m.absent("Delete", key)
		return
	}
	m.present("Delete", key)
	m.drop(key)
}

func (m *model) reserve(t *rapid.T) {
	if len(m.open) > 1 {
		t.Skip("enough are open")
	}
	o := openReservation{key: m.key(t), value: m.value(t), set: rapid.Bool().Draw(t, "set")}
	var err error
	if o.set {
		o.r, err = m.h.Reserve([]byte(o.key), len(o.value))
	} else {
		o.r, err = m.h.ReserveDeposit([]byte(o.key), len(o.value))
	}
	switch {
	case err == nil:
		copy(o.r.Bytes(), o.value)
		m.open = append(m.open, o)
	case !m.tight || !errors.Is(err, ErrFull):
		t.Fatalf("Reserve: %v", err)
	}
}

func (m *model) finish(t *rapid.T) {
	if len(m.open) == 0 {
		t.Skip("nothing is open")
	}
	at := rapid.IntRange(0, len(m.open)-1).Draw(t, "which")
	o := m.open[at]
	m.open = append(m.open[:at], m.open[at+1:]...)
	if !bytes.Equal(o.r.Bytes(), o.value) {
		t.Fatalf("somebody wrote to reserved memory")
	}
	if rapid.Bool().Draw(t, "abort") {
		if err := o.r.Abort(); err != nil {
			t.Fatalf("Abort: %v", err)
		}
		return
	}
	existing := m.blocks[o.key] != nil
	err := o.r.Commit()
	switch b := m.single(o.value); {
	case o.set && err == nil:
		m.stored(o.key, b)
	case o.set:
		t.Fatalf("Commit: %v", err)
	default:
		if m.tight && err == nil {
			if got, ok := m.h.Get([]byte(o.key)); ok {
				existing = !bytes.Equal(got.Bytes(), o.value) || got.Pieces() != 1
				got.Release()
			} else {
				m.drop(o.key)
				return
			}
		}
		m.deposited("Commit", o.key, b, reasonOf(err), existing)
	}
	if err := o.r.Commit(); !errors.Is(err, ErrReleased) {
		t.Fatalf("second Commit: %v", err)
	}
}

// batch is SetBatch or DepositBatch; in a chained namespace a chain, under a
// parent that may or may not be there.
func (m *model) batch(t *rapid.T) {
	n := rapid.IntRange(0, 5).Draw(t, "items")
	if !m.chain && rapid.Bool().Draw(t, "set") {
		items := make([]Item, n)
		for i := range items {
			items[i] = Item{Key: []byte(m.key(t)), Value: m.value(t)}
		}
		for i, r := range m.h.SetBatch(items) {
			if r.OK() {
				m.stored(string(items[i].Key), m.single(items[i].Value))
			} else if !m.refused(r.Reason) {
				t.Fatalf("SetBatch: %v", r.Reason)
			}
		}
		return
	}
	items, blocks := make([]Item, n), make([]*modelBlock, n)
	for i := range items {
		items[i], blocks[i] = m.item(t, m.key(t))
	}
	var opt DepositOptions
	if m.chain && rapid.Bool().Draw(t, "parent") {
		opt.Parent, opt.Position = []byte(m.key(t)), rapid.IntRange(0, 9).Draw(t, "position")
	}
	opt.NoEvict = len(m.held) == 0 && rapid.Bool().Draw(t, "no_evict")
	for i, r := range m.h.DepositBatch(items, opt) {
		key := string(items[i].Key)
		m.deposited("DepositBatch", key, blocks[i], r.Reason, r.Existing)
		if !r.OK() || !opt.NoEvict {
			if r.View.p != nil {
				t.Fatalf("an answer %v carries a View", r.Reason)
			}
			continue
		}
		// In a tight engine a later item of the batch, another deposit of the
		// same key, cannot have replaced it: the first one wins.
		m.held = append(m.held, heldView{r.View, m.blocks[key], key})
	}
}

func (m *model) group(t *rapid.T) {
	if !m.chain {
		t.Skip("groups are for chained namespaces")
	}
	keys := rapid.SliceOfNDistinct(rapid.SampledFrom(m.keys), 1, 4, func(k string) string { return k }).Draw(t, "parts")
	// Half the time one that is there, as it was deposited.
	if b := m.blocks[keys[0]]; b != nil && b.group != 0 && rapid.Bool().Draw(t, "again") {
		keys = nil
		for _, k := range m.keys {
			if o := m.blocks[k]; o != nil && o.group == b.group {
				keys = append(keys, k)
			}
		}
	}
	items, blocks := make([]Item, len(keys)), make([]*modelBlock, len(keys))
	for i := range keys {
		items[i], blocks[i] = m.item(t, keys[i])
		if b := m.blocks[keys[i]]; b != nil && rapid.Bool().Draw(t, "same") {
			blocks[i] = &modelBlock{pieces: b.pieces, pools: b.pools}
			items[i].Value, items[i].Pieces, items[i].Pools = b.pieces[0], nil, nil
			if len(b.pieces) > 1 || m.pools && b.pools != "[a]" {
				items[i].Value, items[i].Pieces, items[i].Pools = nil, b.pieces, strings.Fields(strings.Trim(b.pools, "[]"))
			}
		}
	}
	var opt DepositOptions
	if rapid.Bool().Draw(t, "parent") {
		opt.Parent, opt.Position = []byte(m.key(t)), 1
	}
	lead := m.blocks[keys[len(keys)-1]]
	whole, same := lead != nil, true
	for i, k := range keys {
		if b := m.blocks[k]; b == nil || len(keys) > 1 && (lead == nil || b.group != lead.group || b.group == 0) {
			whole = false
		} else if b.shape() != blocks[i].shape() {
			same = false
		}
	}
	rs := m.h.DepositGroup(items, opt)
	for _, r := range rs {
		if r.Reason != rs[0].Reason || r.Existing != rs[0].Existing {
			t.Fatalf("parts of one group have the answers %+v and %+v", rs[0], r)
		}
	}
	switch r := rs[0]; {
	case m.refused(r.Reason):
	case r.Reason == ReasonLayout:
		if !whole || same {
			t.Fatalf("DepositGroup: layout refused; resident %v, same %v", whole, same)
		}
	case !r.OK():
		t.Fatalf("DepositGroup: %v", r.Reason)
	case r.Existing:
		if !whole || !same {
			t.Fatalf("DepositGroup: taken for resident; resident %v, same %v", whole, same)
		}
	default:
		if whole && !m.tight {
			t.Fatalf("DepositGroup: written anew, and it was resident")
		}
		m.groups++
		for i, k := range keys {
			if len(keys) > 1 {
				blocks[i].group = m.groups
			}
			m.drop(k)
		}
		for i, k := range keys {
			m.blocks[k] = blocks[i]
		}
	}
}

func (m *model) query(t *rapid.T) {
	keys := rapid.SliceOfN(rapid.SampledFrom(m.keys), 0, 6).Draw(t, "keys")
	bs := make([][]byte, len(keys))
	for i := range keys {
		bs[i] = []byte(keys[i])
	}
	q := m.h.Query(bs)
	views := make([]View, len(keys))
	n := m.h.Prefix(bs, views)
	lead := 0
	for i, k := range keys {
		if q[i].Status == StatusHit {
			m.present("Query", k)
			if lead == i {
				lead++
			}
		} else {
			m.absent("Query", k)
		}
	}
	if n != lead {
		t.Fatalf("Prefix = %d, Query says %d", n, lead)
	}
	for i := range n {
		m.same("Prefix", keys[i], &views[i], m.present("Prefix", keys[i]))
	}
	if got := m.h.Release(views); got != n {
		t.Fatalf("Release = %d of %d", got, n)
	}
	hits := m.h.GetBatch(bs, views)
	for i := range views {
		if views[i].p != nil {
			m.same("GetBatch", keys[i], &views[i], m.present("GetBatch", keys[i]))
			hits--
		} else {
			m.absent("GetBatch", keys[i])
		}
	}
	if hits != 0 {
		t.Fatalf("GetBatch counts %d more than it returned", hits)
	}
	m.h.Release(views)
}

func (m *model) wait(op *Op) []Result {
	ctx, cancel := context.WithTimeout(context.Background(), closeBound)
	defer cancel()
	rs, err := op.Wait(ctx)
	if err != nil {
		m.Fatalf("an operation does not end: %v", err)
	}
	return rs
}

func (m *model) fetch(t *rapid.T) {
	keys := rapid.SliceOfNDistinct(rapid.SampledFrom(m.keys), 0, 3, func(k string) string { return k }).Draw(t, "keys")
	bs := make([][]byte, len(keys))
	for i := range keys {
		bs[i] = []byte(keys[i])
	}
	rs := m.wait(m.h.Fetch(bs))
	for i := range rs {
		far := bytes.HasPrefix(bs[i], []byte("far"))
		switch {
		case rs[i].OK():
			b := m.blocks[keys[i]]
			if far && (b == nil || m.tight && bytes.Equal(rs[i].View.Bytes(), remoteValue(bs[i]))) {
				m.drop(keys[i])
				b = m.single(remoteValue(bs[i]))
				m.blocks[keys[i]] = b
			}
			if b == nil {
				t.Fatalf("Fetch: %.20s is there and must not be", keys[i])
			}
			m.same("Fetch", keys[i], &rs[i].View, b)
			rs[i].View.Release()
		case far && m.refused(rs[i].Reason):
		case !far && rs[i].Reason == ReasonMiss:
			m.absent("Fetch", keys[i])
		default:
			t.Fatalf("Fetch %.20s: %v", keys[i], rs[i].Reason)
		}
	}
}

func (m *model) deliver(t *rapid.T) {
	key := m.key(t)
	b := m.blocks[key]
	n := 4096
	if b != nil {
		n = len(b.whole())
	}
	if rapid.IntRange(0, 4).Draw(t, "wrong") == 0 {
		n++
	}
	dst := make([]byte, n)
	r := m.wait(m.h.Deliver([]Target{{[]byte(key), dst}}))[0]
	far := bytes.HasPrefix([]byte(key), []byte("far"))
	switch {
	case r.OK() && b != nil && bytes.Equal(dst, b.whole()):
	case r.OK() && far && bytes.Equal(dst, remoteValue([]byte(key))):
		m.absent("Deliver", key) // brought for the caller alone
	case r.OK():
		t.Fatalf("Deliver %.20s: other bytes", key)
	case r.Reason == ReasonMiss && !far:
		m.absent("Deliver", key)
	case r.Reason == ReasonLayout:
		if b != nil && n == len(b.whole()) && !m.tight {
			t.Fatalf("Deliver %.20s: layout refused, and it is right", key)
		}
		if !bytes.Equal(dst, make([]byte, n)) {
			t.Fatalf("Deliver %.20s: Dst was written in spite of the refusal", key)
		}
	default:
		t.Fatalf("Deliver %.20s: %v", key, r.Reason)
	}
}

func (m *model) newHandle(t *rapid.T) {
	if len(m.open) > 0 {
		t.Skip("reservations belong to their handle")
	}
	if err := m.h.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	var err error
	if m.h, err = m.e.Handle(); err != nil {
		t.Fatalf("Handle: %v", err)
	}
}

// check runs after each step.
func (m *model) check() {
	for i := range m.held {
		m.same("held", m.held[i].key, &m.held[i].v, m.held[i].want)
	}
	if n := m.e.Claims(); n != len(m.held) {
		m.Fatalf("Claims = %d, %d are out", n, len(m.held))
	}
	if n := reserved(m.e); n < len(m.open) || !m.ring && n != len(m.open) {
		m.Fatalf("%d records are reserved, %d reservations are open", n, len(m.open))
	}
	st, err := m.e.Stats()
	if err != nil {
		m.Fatalf("Stats: %v", err)
	}
	c := st.Counts
	if st.Blocks != c.Stored-c.Evicted-c.Deleted {
		m.Fatalf("%d blocks, but %+v", st.Blocks, c)
	}
	if m.tight {
		if max := st.Namespaces[0].MaxBlocks; int(st.Blocks) > max {
			m.Fatalf("%d blocks, at most %d", st.Blocks, max)
		}
		return
	}
	var size uint64
	for _, b := range m.blocks {
		size += uint64(len(b.whole()))
	}
	if int(st.Blocks) != len(m.blocks) || st.PayloadBytes != size || c.Evicted != 0 || c.Refused != 0 {
		m.Fatalf("%d blocks of %d bytes, want %d of %d; %+v", st.Blocks, st.PayloadBytes, len(m.blocks), size, c)
	}
}
