package scene

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/kvcr-go/kvcr/hints/plan"
)

// WriteTable writes answers as tables, one for each prompt. Blocks are counted from 0.
func (s *Scene) WriteTable(w io.Writer, answers []Answer) error {
	var b strings.Builder
	for i := range answers {
		a := &answers[i]
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s: %s\n", a.Prompt.Name, s.sizeOf(a.Prompt))
		if len(a.Targets) == 0 {
			b.WriteString("no member is capable: nobody takes hints\n")
			continue
		}
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "target\tfrontier\tkind\tsource\tblocks to fetch\tendpoint")
		for _, target := range a.Targets {
			head := fmt.Sprintf("%s\t%d", s.Name(target.Owner), target.Frontier)
			for j, f := range target.Fetches {
				if j > 0 {
					head = "\t"
				}
				kind := f.Kind
				if kind == KindPart {
					kind = fmt.Sprintf("part %d of %d", j+1, len(target.Fetches))
				}
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", head, kind, s.Name(f.Source), blocks(f.From, f.To), f.Endpoint)
			}
			if len(target.Fetches) == 0 {
				fmt.Fprintf(t, "%s\t%s\t\t\t\n", head, without(target, a.Prompt))
			}
		}
		t.Flush() // a strings.Builder takes everything
	}
	_, err := io.WriteString(w, trimLines(b.String()))
	return err
}

// trimLines takes the spaces off the ends of lines, where cells were empty.
func trimLines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimRight(line, " \n"))
		b.WriteByte('\n')
	}
	return b.String()
}

func (s *Scene) sizeOf(p *Prompt) string {
	text := countOf(len(p.Locals), "block")
	if s.BlockSize > 0 {
		text += fmt.Sprintf(" of %s", countOf(s.BlockSize, "token"))
	}
	return text
}

func countOf(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// blocks names the blocks [from, to) as people count them.
func blocks(from, to int) string {
	if to == from+1 {
		return fmt.Sprintf("1: %d", from)
	}
	return fmt.Sprintf("%d: %d to %d", to-from, from, to-1)
}

// without says why nothing is fetched.
func without(t Target, p *Prompt) string {
	if t.Frontier == len(p.Locals) {
		return "has all"
	}
	return "no source"
}

type (
	jsonAnswer struct {
		Prompt  string       `json:"prompt"`
		Blocks  int          `json:"blocks"`
		Targets []jsonTarget `json:"targets"`
	}
	jsonTarget struct {
		Target   jsonOwner   `json:"target"`
		Frontier int         `json:"frontier"`
		Fetches  []jsonFetch `json:"fetches"`
	}
	jsonFetch struct {
		Source   jsonOwner `json:"source"`
		Kind     string    `json:"kind"`
		From     int       `json:"from"`
		To       int       `json:"to"`
		Endpoint string    `json:"endpoint"`
	}
	jsonOwner struct {
		Name       string  `json:"name"`
		Worker     *uint64 `json:"worker,omitempty"`
		Rank       *uint32 `json:"rank,omitempty"`
		CacheOwner string  `json:"cache_owner,omitempty"`
	}
)

func (s *Scene) jsonOwner(o plan.Owner) jsonOwner {
	if o.Cache {
		return jsonOwner{Name: s.Name(o), CacheOwner: hex.EncodeToString(o.Key[:])}
	}
	return jsonOwner{Name: s.Name(o), Worker: &o.Worker.ID, Rank: &o.Worker.Rank}
}

// WriteJSON writes answers as one list. Ranges are half open. Hashes are in the
// envelopes.
func (s *Scene) WriteJSON(w io.Writer, answers []Answer) error {
	out := []jsonAnswer{}
	for _, a := range answers {
		ja := jsonAnswer{a.Prompt.Name, len(a.Prompt.Locals), []jsonTarget{}}
		for _, t := range a.Targets {
			jt := jsonTarget{s.jsonOwner(t.Owner), t.Frontier, []jsonFetch{}}
			for _, f := range t.Fetches {
				jt.Fetches = append(jt.Fetches, jsonFetch{s.jsonOwner(f.Source), strings.ReplaceAll(f.Kind, " ", "_"), f.From, f.To, f.Endpoint})
			}
			ja.Targets = append(ja.Targets, jt)
		}
		out = append(out, ja)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(out)
}
