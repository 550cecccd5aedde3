package scene

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

// dump is router events, one JSON object a line, on their way into a Scene.
type dump struct {
	*Scene
	events int
	owners []plan.Owner
	// Of a dump without a scene: what is before each block, and where chains may end.
	chains map[uint64]link
}

// link is a block's place in its chain.
type link struct {
	local, parent uint64
	hasParent     bool
	depth         int // blocks from the root to here; 0: not counted yet
}

func newDump(s *Scene) *dump { return &dump{Scene: s, chains: map[uint64]link{}} }

// AddEvents adds a dump of router events, one JSON object a line, which errors call
// name. What is wrong with it is an *Error.
func (s *Scene) AddEvents(r io.Reader, name string) error {
	d := &dump{Scene: s} // chains are those of the prompts
	return d.read(bufio.NewReaderSize(r, 1<<20), name)
}

func (d *dump) read(in *bufio.Reader, name string) error {
	for line := 1; ; line++ {
		text, err := readLine(in)
		if errors.Is(err, io.EOF) {
			break
		}
		at := place{&jsonFile{name: name}, line, "event"}
		if errors.Is(err, bufio.ErrTooLong) {
			return &Error{name, line, "event", "", fmt.Sprintf("the line has more than %d MiB", MaxLine>>20), "write one event a line"}
		}
		if err != nil {
			return err
		}
		if len(bytes.TrimSpace(text)) == 0 {
			continue
		}
		var ev events.RouterEvent
		if err := json.Unmarshal(text, &ev); err != nil {
			return badEvent(at, err)
		}
		if err := d.apply(&ev); err != nil {
			return badEvent(at, err)
		}
		d.note(&ev)
	}
	if d.events == 0 {
		return &Error{File: name, Limit: "there are no events in it", Fix: "write one JSON object a line"}
	}
	return nil
}

// readLine returns the next line without its end.
func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		if len(line)+len(part) > MaxLine {
			return nil, bufio.ErrTooLong
		}
		line = append(line, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(line) > 0, err == nil:
			return bytes.TrimRight(line, "\r\n"), nil
		}
		return nil, err
	}
}

func (d *dump) note(ev *events.RouterEvent) {
	d.events++
	if d.chains == nil {
		return
	}
	o := plan.Owner{Worker: ev.Worker}
	if ev.Domain == events.DomainCacheOwner {
		o = plan.Owner{Cache: true, Key: ev.Owner}
	}
	if i, had := slices.BinarySearchFunc(d.owners, o, plan.Owner.Compare); !had {
		d.owners = slices.Insert(d.owners, i, o)
	}
	l := link{parent: ev.Parent, hasParent: ev.HasParent}
	for _, b := range ev.Blocks {
		l.local = b.Local
		if _, had := d.chains[b.Hash]; !had {
			d.chains[b.Hash] = l
		}
		l = link{parent: b.Hash, hasParent: true}
	}
}

// unknownEndpoint stands for where members of a dump are, which it does not say.
const unknownEndpoint = "(not in the dump)"

// assume makes members and a prompt of what a dump has.
func (d *dump) assume(name string) error {
	for _, o := range d.owners {
		d.names[o] = defaultName(o)
		d.named[d.names[o]] = o
		d.members = append(d.members, plan.Member{Owner: o, Type: "aggregated", Endpoint: unknownEndpoint, Capable: !o.Cache})
	}
	d.index.SetTopology(d.members)
	p := Prompt{Name: "longest chain"}
	for hash, at := d.longest(); at.depth > 0; {
		p.Locals, p.Hashes = append(p.Locals, at.local), append(p.Hashes, hash)
		if !at.hasParent {
			break
		}
		hash, at = at.parent, d.chains[at.parent]
	}
	if len(p.Locals) == 0 {
		return &Error{File: name, Limit: "no chain of it begins at the root, so there is no prompt to ask for", Fix: "give members and prompts in a file, and this with --events"}
	}
	slices.Reverse(p.Locals)
	slices.Reverse(p.Hashes)
	d.Prompts = []Prompt{p}
	d.Assumed = []string{
		fmt.Sprintf("members are all %d owners of the dump's %d events: of one type, each a source, and workers targets", len(d.owners), d.events),
		fmt.Sprintf("the prompt is the longest chain that anybody had, of %d blocks", len(p.Locals)),
	}
	return nil
}

// longest returns the end of the longest chain from the root; of several that with the
// smallest hash.
func (d *dump) longest() (hash uint64, at link) {
	for h, l := range d.chains {
		if l.depth == 0 {
			d.measure(h)
		}
	}
	for h, l := range d.chains {
		if l.depth <= MaxBlocks && (l.depth > at.depth || l.depth == at.depth && h < hash) {
			hash, at = h, l
		}
	}
	return hash, at
}

// notRooted is the depth of blocks that do not lead to the root.
const notRooted = -1

// measure finds the depth of a block and of all before it.
func (d *dump) measure(hash uint64) {
	var path []uint64
	depth := 0
	for on := map[uint64]bool{}; ; {
		l, known := d.chains[hash]
		if !known || on[hash] { // a circle, which no engine has
			depth = notRooted
			break
		}
		if l.depth != 0 {
			depth = l.depth
			break
		}
		path, on[hash] = append(path, hash), true
		if !l.hasParent {
			break
		}
		hash = l.parent
	}
	for _, h := range slices.Backward(path) {
		if depth != notRooted {
			depth++
		}
		l := d.chains[h]
		l.depth = depth
		d.chains[h] = l
	}
}

// Summary says in a line what the inventory holds.
func (s *Scene) Summary() string {
	st := s.index.Stats()
	var held []string
	for tier, n := range st.Pairs {
		if n > 0 {
			held = append(held, fmt.Sprintf("%d on %s", n, tierTitles[tier]))
		}
	}
	if len(held) == 0 {
		held = []string{"none"}
	}
	text := fmt.Sprintf("%d members, %d of them targets; blocks held: %s", len(s.members), st.Targets, strings.Join(held, ", "))
	if st.Conflicts > 0 {
		text += fmt.Sprintf("; %d stores ended at a block that another hash has", st.Conflicts)
	}
	return text
}

// tierTitles are the tiers' names for people.
var tierTitles = [4]string{"device", "host", "disk", "external"}
