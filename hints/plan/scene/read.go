package scene

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

type jsonMember struct {
	Name       string  `json:"name"`
	Worker     *uint64 `json:"worker"`
	Rank       uint32  `json:"rank"`
	CacheOwner string  `json:"cache_owner"`
	Type       string  `json:"type"`
	Endpoint   string  `json:"endpoint"`
	Capable    bool    `json:"capable"`
	Attached   string  `json:"attached"`
}

type jsonHolding struct {
	Member string  `json:"member"`
	Tier   string  `json:"tier"`
	Prompt string  `json:"prompt"`
	Ranges [][]int `json:"ranges"`
}

// reading is a file on its way to a Scene: parts may come in any order, so they are put
// together at the end.
type reading struct {
	*Scene
	idTokens int
	blockAt  place
	idAt     place
	members  []at[jsonMember]
	prompts  []at[jsonPrompt]
	holdings []at[jsonHolding]
	events   []at[events.RouterEvent]
}

type at[T any] struct {
	place
	v T
}

// Read reads a file, which errors call name. What is wrong with it is an *Error.
func Read(r io.Reader, name string) (*Scene, error) {
	in := bufio.NewReaderSize(r, 1<<20)
	if isDump(in) {
		s := newScene()
		d := newDump(s)
		if err := d.read(in, name); err != nil {
			return nil, err
		}
		return s, d.assume(name)
	}
	data, err := io.ReadAll(io.LimitReader(in, MaxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > MaxFile {
		return nil, &Error{File: name, Limit: fmt.Sprintf("more than %d MiB", MaxFile>>20), Fix: "put events into a dump, one a line (--events)"}
	}
	f, err := openJSON(name, data)
	if err != nil {
		return nil, err
	}
	rd := &reading{Scene: newScene(), idTokens: 512}
	rd.BlockSize = 16
	if err := f.object(rd.field); err != nil {
		return nil, err
	}
	return rd.Scene, rd.finish(f)
}

// isDump tells a dump by its first line, which is an event.
func isDump(in *bufio.Reader) bool {
	head, _ := in.Peek(in.Size()) // what there is
	head = bytes.TrimLeft(head, " \t\r\n")
	line, _, _ := bytes.Cut(head, []byte("\n"))
	var fields map[string]json.RawMessage
	if json.Unmarshal(line, &fields) == nil {
		return fields["event"] != nil
	}
	// An event may be longer than what was looked at; its fields begin it all the same.
	return len(line) == len(head) && len(head) > 1<<19 && bytes.Contains(line[:min(len(line), 256)], []byte(`"event":`))
}

func (r *reading) field(p place) error {
	switch p.field {
	case "block_size":
		r.blockAt = p
		return p.f.value(p, &r.BlockSize)
	case "id_tokens":
		r.idAt = p
		return p.f.value(p, &r.idTokens)
	case "members":
		return listOf(p, &r.members, MaxMembers)
	case "prompts":
		return listOf(p, &r.prompts, MaxPrompts)
	case "holdings":
		return listOf(p, &r.holdings, MaxMembers*16)
	case "events":
		return p.f.list(p, func(p place, raw json.RawMessage) error {
			var ev events.RouterEvent
			if err := json.Unmarshal(raw, &ev); err != nil {
				return badEvent(p, err)
			}
			r.events = append(r.events, at[events.RouterEvent]{p, ev})
			return nil
		})
	}
	return &Error{p.f.name, p.line, p.field, "", "there is no such field", "there are block_size, id_tokens, members, prompts, holdings, events"}
}

func badEvent(p place, err error) error {
	return &Error{p.f.name, p.line, p.field, "", err.Error(), "write events as dumps of an index have them: worker_id, storage_tier, event"}
}

// listOf reads the list at p.
func listOf[T any](p place, into *[]at[T], most int) error {
	return p.f.list(p, func(p place, raw json.RawMessage) error {
		if len(*into) == most {
			return &Error{p.f.name, p.line, p.field, "", fmt.Sprintf("at most %d of them", most), "leave some out"}
		}
		a := at[T]{place: p}
		if err := p.decode(raw, &a.v); err != nil {
			return err
		}
		*into = append(*into, a)
		return nil
	})
}

// finish puts the parts together.
func (r *reading) finish(f *jsonFile) error {
	if r.BlockSize < 1 || r.BlockSize > 1<<14 {
		return r.blockAt.bad(r.BlockSize, "must be 1 to 16384 tokens", "give the engines' block size")
	}
	if r.idTokens < 1 || r.idTokens > 1<<20 {
		return r.idAt.bad(r.idTokens, "must be 1 to 1048576 tokens", "leave it out for 512")
	}
	if len(r.members) == 0 {
		return &Error{File: f.name, Field: "members", Limit: "there are none", Fix: "name the workers; kvcr plan --example shows how"}
	}
	if len(r.prompts) == 0 {
		return &Error{File: f.name, Field: "prompts", Limit: "there are none", Fix: "give one by its tokens, local_hashes or hash_ids"}
	}
	for i := range r.members {
		if err := r.addMember(&r.members[i]); err != nil {
			return err
		}
	}
	for i := range r.members {
		if err := r.attach(&r.members[i], &r.Scene.members[i]); err != nil {
			return err
		}
	}
	r.index.SetTopology(r.Scene.members)
	for i := range r.prompts {
		if err := r.addPrompt(&r.prompts[i]); err != nil {
			return err
		}
	}
	for i := range r.holdings {
		if err := r.addHolding(&r.holdings[i]); err != nil {
			return err
		}
	}
	for i := range r.events {
		if err := r.apply(&r.events[i].v); err != nil {
			return badEvent(r.events[i].place, err)
		}
	}
	return nil
}

var memberTypes = []string{"aggregated", "agg", "prefill", "decode"}

func (r *reading) addMember(a *at[jsonMember]) error {
	m := a.v
	var o plan.Owner
	switch {
	case (m.Worker == nil) == (m.CacheOwner == ""):
		return &Error{a.f.name, a.line, a.field, "", "must have worker or cache_owner, one of them", `write "worker": 1`}
	case m.Worker != nil:
		o.Worker = events.Worker{ID: *m.Worker, Rank: m.Rank}
	default:
		key, ok := ownerKey(m.CacheOwner)
		if !ok {
			return a.sub(".cache_owner").bad(quoted(m.CacheOwner), "must be 1 to 32 hexadecimal digits", "")
		}
		if m.Capable || m.Rank != 0 {
			return &Error{a.f.name, a.line, a.field, "", "a cache owner is neither capable nor has a rank", "leave those out"}
		}
		o = plan.Owner{Cache: true, Key: key}
	}
	if m.Type == "" {
		m.Type = "aggregated"
	}
	if !slices.Contains(memberTypes, m.Type) {
		return a.sub(".type").bad(quoted(m.Type), "must be aggregated, prefill or decode", "hints stay within one type; leave it out for aggregated")
	}
	if m.Name == "" {
		m.Name = defaultName(o)
	}
	if other, ok := r.named[m.Name]; ok {
		return a.sub(".name").bad(quoted(m.Name), "is taken by another member ("+defaultName(other)+")", "give each its own")
	}
	if other := r.names[o]; other != "" {
		return &Error{a.f.name, a.line, a.field, "", fmt.Sprintf("%s is a member already, as %q", defaultName(o), other), "leave one of them out"}
	}
	r.named[m.Name], r.names[o] = o, m.Name
	r.Scene.members = append(r.Scene.members, plan.Member{Owner: o, Endpoint: m.Endpoint, Type: m.Type, Capable: m.Capable})
	return nil
}

func ownerKey(digits string) (k events.OwnerKey, ok bool) {
	if len(digits) > 2*len(k) {
		return k, false
	}
	b, err := hex.DecodeString(strings.Repeat("0", 2*len(k)-len(digits)) + digits)
	if err != nil {
		return k, false
	}
	return events.OwnerKey(b), true
}

func (r *reading) attach(a *at[jsonMember], m *plan.Member) error {
	if a.v.Attached == "" {
		return nil
	}
	to, ok := r.named[a.v.Attached]
	switch {
	case !ok:
		return a.sub(".attached").bad(quoted(a.v.Attached), "there is no member of that name", r.memberNames())
	case to.Cache || !m.Owner.Cache:
		return a.sub(".attached").bad(quoted(a.v.Attached), "only cache owners are attached, and only to workers", "leave it out")
	}
	m.HasAttached, m.Attached = true, to.Worker
	return nil
}

func quoted(s string) string { return fmt.Sprintf("%q", s) }

// memberNames lists some of them, for a message.
func (r *reading) memberNames() string {
	var names []string
	for _, m := range r.Scene.members[:min(8, len(r.Scene.members))] {
		names = append(names, quoted(r.names[m.Owner]))
	}
	if len(r.Scene.members) > 8 {
		names = append(names, "...")
	}
	return "there are " + strings.Join(names, ", ")
}

var tierNames = []string{"device", "host_pinned", "disk", "external"} // by events.Tier

func (r *reading) addHolding(a *at[jsonHolding]) error {
	h := &a.v
	owner, ok := r.named[h.Member]
	if !ok {
		return a.sub(".member").bad(quoted(h.Member), "there is no member of that name", r.memberNames())
	}
	if h.Tier == "" {
		h.Tier = "host_pinned"
	}
	tier := slices.Index(tierNames, h.Tier)
	if tier < 0 {
		return a.sub(".tier").bad(quoted(h.Tier), "must be device, host_pinned, disk or external", "leave it out for host_pinned")
	}
	p, err := r.promptOf(a)
	if err != nil {
		return err
	}
	n := len(p.Locals)
	if len(h.Ranges) == 0 {
		h.Ranges = [][]int{{0, n}}
	}
	for i, rg := range h.Ranges {
		if len(rg) != 2 || rg[0] < 0 || rg[0] >= rg[1] || rg[1] > n {
			return a.sub(".ranges[%d]", i).bad(rg, fmt.Sprintf("must be [from, to) with 0 <= from < to <= %d, the blocks of prompt %q", n, p.Name), "")
		}
		ev := events.RouterEvent{Tier: events.Tier(tier), Op: events.Stored, Worker: owner.Worker}
		if owner.Cache {
			ev.Domain, ev.Owner = events.DomainCacheOwner, owner.Key
		}
		if rg[0] > 0 {
			ev.HasParent, ev.Parent = true, p.Hashes[rg[0]-1]
		}
		for b := rg[0]; b < rg[1]; b++ {
			ev.Blocks = append(ev.Blocks, events.Block{Hash: p.Hashes[b], Local: p.Locals[b]})
		}
		if err := r.apply(&ev); err != nil {
			return &Error{a.f.name, a.line, a.field, "", err.Error(), ""}
		}
	}
	return nil
}

func (r *reading) promptOf(a *at[jsonHolding]) (*Prompt, error) {
	name := a.v.Prompt
	if name == "" && len(r.Prompts) == 1 {
		return &r.Prompts[0], nil
	}
	for i := range r.Prompts {
		if r.Prompts[i].Name == name {
			return &r.Prompts[i], nil
		}
	}
	var names []string
	for _, p := range r.Prompts[:min(8, len(r.Prompts))] {
		names = append(names, quoted(p.Name))
	}
	return nil, a.sub(".prompt").bad(quoted(name), "there is no prompt of that name", "there are "+strings.Join(names, ", "))
}
