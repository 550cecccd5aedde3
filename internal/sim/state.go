package sim

import (
	"hash/maphash"
	"reflect"
	"slices"

	"github.com/kvcr-go/kvcr/peer"
)

var stateSeed = maphash.MakeSeed()

// hasher folds values into a number.
type hasher struct{ maphash.Hash }

func (h *hasher) ints(vs ...int64) {
	for _, v := range vs {
		maphash.WriteComparable(&h.Hash, v)
	}
}

// ignored are fields of the machines that are not of their state: what never
// changes, is derived, or is scratch; and the ids of ended operations, since here a
// source has one at most and their number says it all.
var ignored = map[string]bool{"self": true, "rec": true, "timing": true, "limits": true, "out": true, "byID": true, "ids": true}

// moments are fields that hold a time, which only counts as a distance from now.
var moments = map[string]bool{"at": true, "late": true, "expire": true}

// machine folds in the fields of a state machine, private ones too.
func (h *hasher) machine(v reflect.Value, name string, now peer.Time) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			h.WriteByte(0)
			return
		}
		h.WriteByte(1)
		h.machine(v.Elem(), "", now)
	case reflect.Struct:
		t := v.Type()
		for i := range t.NumField() {
			if f := t.Field(i).Name; !ignored[f] {
				h.machine(v.Field(i), f, now)
			}
		}
	case reflect.Slice, reflect.Array:
		h.ints(int64(v.Len()))
		for i := range v.Len() {
			h.machine(v.Index(i), "", now)
		}
	case reflect.String:
		h.WriteString(v.String())
	case reflect.Bool:
		if v.Bool() {
			h.WriteByte(1)
		} else {
			h.WriteByte(0)
		}
	case reflect.Int64, reflect.Int, reflect.Int32:
		n := v.Int()
		if moments[name] && n != 0 {
			n -= int64(now)
		}
		h.ints(n)
	case reflect.Uint64, reflect.Uint32, reflect.Uint16, reflect.Uint8:
		h.ints(int64(v.Uint()))
	case reflect.Map, reflect.Func:
	default:
		panic("sim: a machine has a field of kind " + v.Kind().String())
	}
}

// state is a number for all that matters of what follows.
func (e *explorer) state() uint64 {
	h := &hasher{}
	h.SetSeed(stateSeed)
	h.ints(int64(e.Ghosts), int64(e.Timers), int64(e.Lost), int64(e.Repeated), int64(e.Crashes), int64(e.Evictions), int64(e.Deposits))
	for _, n := range e.nodes {
		h.ints(int64(n.inc))
		t := n.tab
		if b := t.blocks[exploredKey]; b != nil {
			h.ints(int64(b.mark.Dest), int64(b.mark.Op), int64(b.hold.Source), int64(b.hold.Op), int64(b.slot.id), int64(len(b.lifted)))
		}
		for _, s := range t.slots {
			h.ints(int64(s.state), int64(s.claims), int64(s.data[1]))
		}
		for _, d := range n.dests {
			if d == nil {
				continue
			}
			h.machine(reflect.ValueOf(d.m), "", n.clock())
			h.conn(d.conn)
			for _, p := range d.posts {
				h.ints(int64(p.op), int64(p.slot.id), int64(p.slot.epoch-p.epoch), boolInt(p.closing), boolInt(p.landing), boolInt(p.got[0]))
			}
		}
		for _, s := range n.sources {
			h.ints(int64(s.dest))
			h.machine(reflect.ValueOf(s.m), "", n.clock())
			h.conn(s.conn)
		}
	}
	for _, x := range e.writes {
		h.ints(int64(x.op), int64(x.s.dest), boolInt(x.begun), boolInt(x.cancel))
	}
	for _, m := range e.moves {
		h.ints(int64(m.id.Dest), int64(m.id.Op), int64(m.from.inc), boolInt(m.removed), boolInt(m.unit.gone))
	}
	var past []uint64
	if e.Ghosts > 0 {
		for _, m := range e.sent {
			past = append(past, hashTag(&event{n: m.dest, tag: tag{a: int(m.dir), frame: []byte(m.frame)}}))
		}
		slices.Sort(past)
		for _, p := range past {
			h.ints(int64(p))
		}
	}
	// Pending events count whatever their order.
	var pending []uint64
	for i := range e.queue {
		if ev := &e.queue[i]; !e.void(ev) {
			pending = append(pending, hashTag(ev))
		}
	}
	slices.Sort(pending)
	for _, p := range pending {
		h.ints(int64(p))
	}
	return h.Sum64()
}

func hashTag(ev *event) uint64 {
	h := &hasher{}
	h.SetSeed(stateSeed)
	h.WriteString(ev.tag.kind)
	if ev.n != nil {
		h.ints(int64(ev.n.id))
	}
	b := int64(ev.tag.b)
	if ev.timer {
		b -= int64(ev.n.clock())
	}
	h.ints(int64(ev.tag.a), b, int64(ev.tag.c))
	h.Write(ev.tag.frame)
	return h.Sum64()
}

func (h *hasher) conn(c *conn) {
	if c == nil {
		h.ints(-1)
		return
	}
	h.ints(int64(c.n), boolInt(c.open[0]), boolInt(c.open[1]), boolInt(c.snaped))
}

func boolInt(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
