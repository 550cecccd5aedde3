package oracle

import (
	"fmt"
	"strings"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

// Kind is what a step does.
type Kind uint8

// The kinds of steps.
const (
	Event  Kind = iota // Event arrives
	Gone               // Owner is removed, with all that it holds
	Join               // Members are the members from now on
	Ask                // Prompt is asked, and the answers are compared
	Replay             // the subject is made anew from its own dump, in an order of Shuffle
)

// Step is one thing that happens to an inventory.
type Step struct {
	Kind    Kind
	Event   events.RouterEvent
	Owner   plan.Owner
	Members []plan.Member
	Prompt  []uint64 // local hashes
	Shuffle uint64
}

// Scenario is a story of some inventories, one after another. The same seed makes the
// same scenario.
type Scenario struct {
	Seed        uint64
	Inventories int
	Steps       []Step
}

// names gives hashes short names, for those who must read a scenario.
type names map[uint64]string

func (n names) of(prefix string, h uint64) string {
	if h < 1000 {
		return fmt.Sprintf("%s=%d", prefix, h)
	}
	if n[h] == "" {
		n[h] = fmt.Sprintf("%s%d", prefix, len(n)+1)
	}
	return n[h]
}

func (n names) list(prefix string, hashes []uint64) string {
	var b strings.Builder
	for i, h := range hashes {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(n.of(prefix, h))
	}
	return "[" + b.String() + "]"
}

func ownerName(o plan.Owner) string {
	if o.Cache {
		return fmt.Sprintf("cache %x", o.Key)
	}
	return fmt.Sprintf("worker %d/%d", o.Worker.ID, o.Worker.Rank)
}

// String lists the steps, one a line. Hashes that are large numbers have names: h
// for external ones, l for local ones.
func (s Scenario) String() string { return s.list(names{}) }

func (s Scenario) list(n names) string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d\n", s.Seed)
	for i, step := range s.Steps {
		fmt.Fprintf(&b, "%3d %s\n", i, n.step(step))
	}
	return b.String()
}

func (n names) step(s Step) string {
	switch s.Kind {
	case Event:
		return n.event(s.Event)
	case Gone:
		return "remove owner " + ownerName(s.Owner)
	case Ask:
		return "ask " + n.list("l", s.Prompt)
	case Replay:
		return fmt.Sprintf("replay, order %d", s.Shuffle)
	}
	var b strings.Builder
	b.WriteString("members")
	for _, m := range s.Members {
		fmt.Fprintf(&b, "\n      %s type %q", ownerName(m.Owner), m.Type)
		if m.Endpoint == "" {
			b.WriteString(" no endpoint")
		}
		if m.Capable {
			b.WriteString(" capable")
		}
		if m.HasAttached {
			fmt.Fprintf(&b, " attached to %d/%d", m.Attached.ID, m.Attached.Rank)
		}
	}
	return b.String()
}

func (n names) event(e events.RouterEvent) string {
	who := ownerName(workerOwner(e.Worker))
	switch e.Domain {
	case events.DomainCacheOwner:
		who += " for " + ownerName(cacheOwner(e.Owner))
	case events.DomainLegacy:
		who += " (no domain)"
	}
	switch e.Op {
	case events.Cleared:
		return who + " clears"
	case events.Removed:
		return fmt.Sprintf("%s removes, tier %d: %s", who, e.Tier, n.list("h", e.Hashes))
	}
	parent := "root"
	if e.HasParent {
		parent = n.of("h", e.Parent)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s stores, tier %d: %s", who, e.Tier, parent)
	for _, bl := range e.Blocks {
		fmt.Fprintf(&b, " -%s-> %s", n.of("l", bl.Local), n.of("h", bl.Hash))
	}
	return b.String()
}
