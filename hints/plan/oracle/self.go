package oracle

import (
	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

// Self is the oracle as a Subject.
func Self() Subject { return &self{NewInventory(), nil} }

type self struct {
	*Inventory
	members []plan.Member
}

func (s *self) SetMembers(m []plan.Member) { s.members = m }

func (s *self) Ask(local []uint64) []Hint { return s.Inventory.Ask(s.members, local).Hints() }

var _ interface {
	Apply(events.RouterEvent)
	Subject
} = (*self)(nil)
