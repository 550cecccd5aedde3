package hints

import (
	"encoding/json"
	"strconv"
	"unicode/utf8"
)

// treeKind is the kind of a decoded value. Types that no decoder of JSON or msgpack
// makes are Other.
func treeKind(v any) Kind {
	switch v.(type) {
	case nil:
		return Null
	case bool:
		return Bool
	case string:
		return Text
	case json.Number, int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64, float32, float64:
		return Number
	case []any, []uint64, []int64, []int, []string, []map[string]any:
		return List
	case map[string]any, map[any]any:
		return Object
	}
	return Other
}

func treeValue(v any) Value { return Value{item: item{kind: treeKind(v)}, tree: v} }

func treeField(v any, name string) Value {
	var f any
	ok := false
	switch m := v.(type) {
	case map[string]any:
		f, ok = m[name]
	case map[any]any:
		f, ok = m[name]
	}
	if !ok {
		return Value{}
	}
	return treeValue(f)
}

func treeEach(v any, f func(Value) error) error {
	switch l := v.(type) {
	case []any:
		return eachOf(l, f)
	case []uint64:
		return eachOf(l, f)
	case []int64:
		return eachOf(l, f)
	case []int:
		return eachOf(l, f)
	case []string:
		return eachOf(l, f)
	case []map[string]any:
		return eachOf(l, f)
	}
	return nil
}

func eachOf[E any](l []E, f func(Value) error) error {
	for _, e := range l {
		if err := f(treeValue(e)); err != nil {
			return err
		}
	}
	return nil
}

// treeUint returns an integer that fits. A float is none, whatever its value: what was
// rounded on its way into one cannot be told from what was not.
func treeUint(v any) (uint64, bool) {
	switch n := v.(type) {
	case uint64:
		return n, true
	case int64:
		return uint64(n), n >= 0
	case json.Number:
		u, err := strconv.ParseUint(string(n), 10, 64)
		return u, err == nil
	case int:
		return uint64(n), n >= 0
	case int8:
		return uint64(n), n >= 0
	case int16:
		return uint64(n), n >= 0
	case int32:
		return uint64(n), n >= 0
	case uint:
		return uint64(n), true
	case uint8:
		return uint64(n), true
	case uint16:
		return uint64(n), true
	case uint32:
		return uint64(n), true
	}
	return 0, false
}

// treeMeasure walks decoded values and adds up what their text would take at least. A
// tree may refer to one part many times, or to itself; the limits end the walk.
type treeMeasure struct {
	size, sizeLimit, depthLimit int
	what                        string
}

func (m *treeMeasure) add(n int) bool {
	m.size += n
	if m.size > m.sizeLimit {
		return m.fail(tooLarge(m.sizeLimit))
	}
	return true
}

func (m *treeMeasure) fail(what string) bool {
	if m.what == "" {
		m.what = what
	}
	return false
}

func (m *treeMeasure) text(s string) bool {
	if !utf8.ValidString(s) {
		return m.fail("text that is not UTF-8")
	}
	return m.add(len(s) + 2)
}

// value measures v; depth is that of its container.
func (m *treeMeasure) value(v any, depth int) bool {
	depth++
	switch x := v.(type) {
	case string:
		return m.text(x)
	case json.Number:
		return m.add(len(x))
	case []uint64:
		return m.open(depth) && m.add(2*max(0, len(x)-1))
	case []int64:
		return m.open(depth) && m.add(2*max(0, len(x)-1))
	case []int:
		return m.open(depth) && m.add(2*max(0, len(x)-1))
	case []any:
		ok := m.open(depth)
		for i := 0; ok && i < len(x); i++ {
			ok = m.value(x[i], depth)
		}
		return ok
	case []string:
		ok := m.open(depth)
		for i := 0; ok && i < len(x); i++ {
			ok = m.text(x[i])
		}
		return ok
	case []map[string]any:
		ok := m.open(depth)
		for i := 0; ok && i < len(x); i++ {
			ok = m.value(x[i], depth)
		}
		return ok
	case map[string]any:
		if !m.open(depth) {
			return false
		}
		for k, e := range x {
			if !m.text(k) || !m.value(e, depth) {
				return false
			}
		}
		return true
	case map[any]any:
		if !m.open(depth) {
			return false
		}
		for k, e := range x {
			if !m.value(k, depth) || !m.value(e, depth) {
				return false
			}
		}
		return true
	}
	return m.add(1)
}

// open enters a list or map.
func (m *treeMeasure) open(depth int) bool {
	if depth > m.depthLimit {
		return m.fail(tooDeep(m.depthLimit))
	}
	return m.add(2)
}
