package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/wire"
	"github.com/kvcr-go/kvcr/wire/client"
)

// hintCmd sends an envelope of hints to a node, as a router does.
type hintCmd struct {
	nodeAddr
	File    string   `arg:"" optional:"" help:"The envelope, JSON or msgpack; - for standard input."`
	Do      string   `placeholder:"TYPE" help:"Make the envelope here, of one action: kv.fetch, kv.prefetch, kv.move, kv.invalidate, kv.evict; kv. may be left out."`
	From    string   `placeholder:"tcp://HOST:PORT" help:"With --do: where the blocks are, the peer address of another node."`
	Hashes  []string `placeholder:"N,..." help:"With --do: the routers' hashes of the blocks, decimal or 0x hexadecimal."`
	Request string   `placeholder:"ID" help:"The inference engine's request that carries the envelope; kv.fetch needs one."`
	Discard bool     `help:"Forget what is kept for --request, instead of sending an envelope."`
	NoWait  bool     `help:"Do not wait for what becomes of accepted actions."`
	Show    bool     `help:"Print the envelope instead of sending it."`
}

// wireEnvelope is how hints.Envelope is written.
type wireEnvelope struct {
	ProtocolVersion string       `json:"protocol_version"`
	MessageID       string       `json:"message_id"`
	Actions         []wireAction `json:"actions"`
}

type wireAction struct {
	ID      string      `json:"action_id"`
	Type    string      `json:"action_type"`
	Version string      `json:"action_version"`
	Payload wirePayload `json:"payload"`
}

type wirePayload struct {
	Source string   `json:"source_control_endpoint,omitempty"`
	Hashes []uint64 `json:"block_hashes"`
}

// hintTypes are those that --do knows.
var hintTypes = []string{hints.TypeFetch, hints.TypePrefetch, hints.TypeMove, hints.TypeInvalidate, hints.TypeEvict}

// envelope returns what to send.
func (c *hintCmd) envelope() (body []byte, format wire.Format, err error) {
	switch {
	case c.File != "" && c.Do != "":
		return nil, 0, usageError{errors.New("give a file or --do, not both")}
	case c.Do != "":
		body, err = c.made()
		return body, wire.FormatJSON, err
	case c.From != "" || len(c.Hashes) > 0:
		return nil, 0, usageError{errors.New("--from and --hashes go with --do TYPE")}
	case c.File == "":
		return nil, 0, usageError{errors.New("what shall it say? Give a file, - for standard input, or --do TYPE --hashes N,... [--from tcp://HOST:PORT]")}
	}
	if body, err = c.read(); err != nil {
		return nil, 0, err
	}
	// The first byte of a msgpack map is none that JSON begins with.
	if len(body) > 0 && (body[0]&0xf0 == 0x80 || body[0] == 0xde || body[0] == 0xdf) {
		format = wire.FormatMsgpack
	}
	return body, format, nil
}

// read returns what the file has, or more of it than an envelope may have.
func (c *hintCmd) read() ([]byte, error) {
	from := os.Stdin
	if c.File != "-" {
		f, err := os.Open(c.File)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		from = f
	}
	return io.ReadAll(io.LimitReader(from, wire.MaxPayload+1))
}

func (c *hintCmd) made() ([]byte, error) {
	a := wireAction{ID: "a1", Type: c.Do, Version: "1.0"}
	if !strings.Contains(a.Type, ".") {
		a.Type = "kv." + a.Type
	}
	if err := oneOf(a.Type, hintTypes...); err != nil {
		return nil, usageError{fmt.Errorf("--do: %w", err)}
	}
	local := a.Type == hints.TypeInvalidate || a.Type == hints.TypeEvict
	switch {
	case len(c.Hashes) == 0:
		return nil, usageError{fmt.Errorf("--do %s: which blocks? Give --hashes", c.Do)}
	case local && c.From != "":
		return nil, usageError{fmt.Errorf("--do %s: is about the node's own blocks; leave --from out", c.Do)}
	case !local && c.From == "":
		return nil, usageError{fmt.Errorf("--do %s: from where? Give --from tcp://HOST:PORT", c.Do)}
	}
	a.Payload.Source = c.From
	for _, text := range c.Hashes {
		h, err := strconv.ParseUint(text, 0, 64)
		if err != nil {
			return nil, usageError{fmt.Errorf("--hashes: %q: must be 0 to 2^64-1", text)}
		}
		a.Payload.Hashes = append(a.Payload.Hashes, h)
	}
	return json.Marshal(wireEnvelope{ProtocolVersion: "0.1", MessageID: "kvcr-hint", Actions: []wireAction{a}})
}

func (c *hintCmd) Run(e *env) error {
	if c.Discard {
		if c.Request == "" || c.File != "" || c.Do != "" {
			return usageError{errors.New("--discard goes with --request ID, and with nothing to send")}
		}
		return c.with(e, func(ctx context.Context, cl *client.Client) error { return hintError(cl.DiscardHint(ctx, c.Request)) })
	}
	body, format, err := c.envelope()
	if err != nil {
		return err
	}
	if most := wire.MaxPayload - 3 - len(c.Request); len(body) > most {
		return fmt.Errorf("an envelope may have at most %d bytes: send its blocks in several", most)
	}
	if c.Show {
		return c.show(e, format, body)
	}
	return c.with(e, func(ctx context.Context, cl *client.Client) error { return c.send(ctx, e, cl, format, body) })
}

// show prints an envelope: one of msgpack as JSON, for people.
func (c *hintCmd) show(e *env, format wire.Format, body []byte) error {
	if format == wire.FormatMsgpack {
		var v map[string]any
		err := msgpack.Unmarshal(body, &v)
		if err == nil {
			body, err = json.Marshal(v)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.File, err)
		}
	}
	e.printf("%s\n", bytes.TrimSpace(body))
	return nil
}

// hintError says what the node's refusal means here.
func hintError(err error) error {
	var refused *client.Error
	switch {
	case errors.Is(err, client.ErrUnsupported):
		return fmt.Errorf("the node acts on no hints, or not on those of this namespace (see kvcr serve --hash-recipe): %w", err)
	case errors.As(err, &refused) && refused.Code == wire.CodeBadPayload:
		return fmt.Errorf("the node has done nothing: %s", refused.Text)
	}
	return err
}

// errRejected is an envelope of which nothing was accepted: exit code 1.
var errRejected = errors.New("the node has accepted none of the actions")

func (c *hintCmd) send(ctx context.Context, e *env, cl *client.Client, format wire.Format, body []byte) error {
	var outcomes *client.OutcomeStream
	var err error
	if !c.NoWait {
		if outcomes, err = cl.SubscribeOutcomes(ctx, 0, 0); err != nil {
			return hintError(err)
		}
		defer outcomes.Close()
	}
	answer, err := cl.Hint(ctx, c.Request, format, body)
	if err != nil {
		return hintError(err)
	}
	var results []hints.Result
	if err := json.Unmarshal(answer, &results); err != nil {
		return fmt.Errorf("the node's answer: %w", err)
	}
	if len(results) == 0 {
		e.printf("the envelope has no actions\n")
		return nil
	}
	t := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "action\ttype\tanswer\treason")
	waits := map[int]hints.Result{}
	accepted := 0
	for _, r := range results {
		reason := r.Reason.String()
		if r.Detail != "" {
			reason = strings.TrimPrefix(reason+": "+r.Detail, ": ")
		}
		fmt.Fprintf(t, "%s\t%s\t%v\t%s\n", r.ActionID, r.Type, r.Status, reason)
		if r.Status == hints.Accepted {
			accepted++
			if r.Type != hints.TypeFetch { // advice: nothing becomes of it by itself
				waits[r.Index] = r
			}
		}
	}
	t.Flush()
	if accepted == 0 {
		return errRejected
	}
	if outcomes == nil {
		return nil
	}
	return follow(ctx, e, outcomes, waits)
}

// follow prints outcomes until each action has ended.
func follow(ctx context.Context, e *env, outcomes *client.OutcomeStream, waits map[int]hints.Result) error {
	failed := 0
	for len(waits) > 0 {
		f, err := outcomes.Next(ctx)
		if errors.Is(err, client.ErrTimeout) {
			return fmt.Errorf("%s not ended yet; the node goes on, and --timeout waits longer", have(len(waits), "action"))
		} else if err != nil {
			return fmt.Errorf("%s not ended: %w", have(len(waits), "action"), err)
		}
		if f.Gap {
			e.printf("outcomes were lost\n")
		}
		for _, o := range f.Items {
			r, ours := waits[int(o.Index)]
			if !ours || r.MessageID != o.MessageID || r.ActionID != o.ActionID {
				continue
			}
			if o.Stage != wire.OutcomeEnd {
				e.printf("%s  %-8v %s\n", o.ActionID, o.Stage, strings.TrimSpace(countOf(len(o.Hashes), "block")+" "+o.Reason))
				continue
			}
			delete(waits, int(o.Index))
			failed += int(o.Failed)
			e.printf("%s  end      %s\n", o.ActionID, endOf(&o))
		}
	}
	if failed > 0 {
		return fmt.Errorf("%s failed", countOf(failed, "block"))
	}
	return nil
}

func countOf(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// have is countOf with its verb.
func have(n int, what string) string {
	if n == 1 {
		return "1 " + what + " has"
	}
	return countOf(n, what) + " have"
}

// endOf says how the blocks of an action ended.
func endOf(o *wire.OutcomeItem) string {
	var parts []string
	for _, p := range []struct {
		n    uint32
		what string
	}{{o.Copied, "copied"}, {o.Moved, "moved"}, {o.Kept, "kept"}, {o.Removed, "removed"}, {o.Present, "present"}, {o.Failed, "failed"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	if len(parts) == 0 {
		parts = []string{"nothing to do"}
	}
	if o.Bytes > 0 {
		parts = append(parts, formatSize(int64(o.Bytes)))
	}
	if o.Reason != "" {
		parts = append(parts, o.Reason)
	}
	return strings.Join(parts, ", ")
}
