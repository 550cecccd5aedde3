//go:build kvcr_check && !race

package ring

import (
	"strings"
	"testing"
)

// TestRoleChecks: a checking build panics when a role has two holders, or a
// slot is about to be filled that the consumer has not emptied.
func TestRoleChecks(t *testing.T) {
	var m Msg
	for _, tt := range []struct {
		name, want string
		bad        func(q *SPSC)
	}{
		{"two producers, Push", "two producers", func(q *SPSC) { q.check.enterProducer(); q.Push(&m) }},
		{"two producers, PushBatch", "two producers", func(q *SPSC) { q.check.enterProducer(); q.PushBatch([]Msg{m}) }},
		{"two consumers, Pop", "two consumers", func(q *SPSC) { q.check.enterConsumer(); q.Pop(&m) }},
		{"two consumers, PopBatch", "two consumers", func(q *SPSC) { q.check.enterConsumer(); q.PopBatch([]Msg{m}) }},
		{"slot not empty, Push", "fill of position 0x4", func(q *SPSC) { fill(q); q.headSeen = 1; q.Push(&m) }},
		{"slot not empty, PushBatch", "fill of position 0x4", func(q *SPSC) { fill(q); q.headSeen = 1; q.PushBatch([]Msg{m}) }},
		{"slot from another lap", "fill of position 0x0", func(q *SPSC) { q.slots[0].seq.Store(9); q.Push(&m) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			defer func() {
				if s, _ := recover().(string); !strings.Contains(s, tt.want) {
					t.Errorf("panic %q, want one with %q", s, tt.want)
				}
			}()
			tt.bad(New(4))
		})
	}
}

func fill(q *SPSC) {
	var m Msg
	for q.Push(&m) {
	}
}
