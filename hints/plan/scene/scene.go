package scene

import (
	_ "embed"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

// Example is a file to start from.
//
//go:embed testdata/example.json
var Example []byte

// Limits of a file.
const (
	MaxFile    = 256 << 20 // bytes; dumps may be longer
	MaxLine    = 64 << 20  // bytes of a line of a dump
	MaxMembers = 1 << 16
	MaxPrompts = 1 << 10
	MaxBlocks  = 1 << 20 // of a prompt
)

// Scene is owners, what they hold, and prompts. It is for one goroutine.
type Scene struct {
	Prompts []Prompt
	// BlockSize is the tokens of a block; 0: not known.
	BlockSize int
	// Assumed is what the file did not say and was taken for granted, in sentences.
	Assumed []string

	members []plan.Member
	named   map[string]plan.Owner
	names   map[plan.Owner]string
	index   *plan.Index
	scratch *plan.Scratch
}

// Prompt is what is asked for.
type Prompt struct {
	Name string
	// Locals are the blocks' own hashes, Hashes those of the sequences that end with
	// them, as Dynamo's mocker makes them.
	Locals, Hashes []uint64
}

func newScene() *Scene {
	s := &Scene{named: map[string]plan.Owner{}, names: map[plan.Owner]string{}, index: plan.New(plan.Config{})}
	s.scratch = s.index.NewScratch()
	return s
}

// Name is what an owner is called.
func (s *Scene) Name(o plan.Owner) string {
	if name := s.names[o]; name != "" {
		return name
	}
	return defaultName(o)
}

func defaultName(o plan.Owner) string {
	switch {
	case o.Cache:
		return "cache " + strings.TrimLeft(hex.EncodeToString(o.Key[:len(o.Key)-1]), "0") + hex.EncodeToString(o.Key[len(o.Key)-1:])
	case o.Worker.Rank != 0:
		return fmt.Sprintf("worker %d/%d", o.Worker.ID, o.Worker.Rank)
	}
	return fmt.Sprintf("worker %d", o.Worker.ID)
}

// apply adds an event to the inventory.
func (s *Scene) apply(ev *events.RouterEvent) error { return s.index.Apply(ev) }
