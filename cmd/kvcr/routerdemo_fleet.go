package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/keys"
	"github.com/kvcr-go/kvcr/hints/plan"
	"github.com/kvcr-go/kvcr/wire"
	"github.com/kvcr-go/kvcr/wire/client"
)

const (
	fleetTokens = 512 // of a trace's block
	fleetRecipe = "dynamo/xxh3-1337/bs512"
	// loadWeight is how many blocks of a prompt that are there make up for one block
	// that the node was given more than the least busy one. With hints 1, 2 and 4 reuse
	// the same, all that one cache without end would; without hints 1 reuses most.
	loadWeight = 1
	// independentEvery is how many requests the router sends between two actions that
	// belong to none, prefetchBlocks how many blocks of a prompt are prefetched.
	independentEvery = 10
	prefetchBlocks   = 16
	// eventsPatience is how long the router waits after a request for the events that
	// tell of it. Those that come later count later.
	eventsPatience = 50 * time.Millisecond
)

// fleetNode is one node, a process of kvcr serve, as the router sees it.
type fleetNode struct {
	cmd      *exec.Cmd
	words    lastWords // what it says on its standard error
	cl       *client.Client
	consumer *events.Consumer
	outcomes *client.OutcomeStream
	endpoint string   // for peers
	assigned int      // blocks of prompts: its load
	last     []uint64 // the last prompt
}

// fleet is the nodes and the router before them.
type fleet struct {
	nodes   []*fleetNode
	index   *plan.Index
	scratch *plan.Scratch
	hasher  *keys.Hasher
	block   int
	content []byte

	choices []plan.Choice
	chains  map[uint64][]uint64 // the last prompt by its first block
	asked   map[uint64]int      // requests by first block
	users   map[uint64]int      // prompts by block
	lastUse map[uint64]int      // number of the last request that has it, by block
	ids     map[uint64]uint64   // of every block that was computed, by hash
	old     [][]uint64          // prompts, first to last

	mu   sync.Mutex
	ends []wire.OutcomeItem
}

// fleetRun is what was counted.
type fleetRun struct {
	hinted                bool
	blocks, local, remote int
	advised, wrong, open  int
	verified              int64
	actions               map[string]*fleetAction
}

type fleetAction struct{ sent, blocks, copied, moved, kept, removed, present, failed int }

func startFleet(ctx context.Context, nodes, block, slots int) (f *fleet, err error) {
	f = &fleet{
		index: plan.New(plan.Config{}), hasher: &keys.Hasher{BlockSize: fleetTokens, Seed: keys.Seed}, block: block,
		content: make([]byte, block), chains: map[uint64][]uint64{}, asked: map[uint64]int{}, users: map[uint64]int{}, lastUse: map[uint64]int{}, ids: map[uint64]uint64{},
	}
	f.scratch = f.index.NewScratch()
	defer func() {
		if err != nil {
			err = errors.Join(err, f.stop())
		}
	}()
	var members []plan.Member
	for i := range nodes {
		n, kvEvents, replay, err := startFleetNode(ctx, i, block, slots)
		if n != nil {
			f.nodes = append(f.nodes, n)
		}
		if err != nil {
			return f, fmt.Errorf("node %d: %w", i, err)
		}
		worker := events.Worker{ID: uint64(i)}
		n.consumer, err = events.NewConsumer(events.ConsumerConfig{
			Endpoint: kvEvents, Replay: replay, Worker: worker, Normalizer: events.NormalizerConfig{BlockSize: fleetTokens},
			OnEvents: func(evs []events.RouterEvent) {
				for i := range evs {
					f.index.Apply(&evs[i])
				}
			},
		})
		if err != nil {
			return f, err
		}
		if n.outcomes, err = n.cl.SubscribeOutcomes(ctx, 0, 0); err != nil {
			return f, err
		}
		go f.hear(ctx, n)
		members = append(members, plan.Member{Owner: plan.Owner{Worker: worker}, Endpoint: n.endpoint, Type: "aggregated", Capable: true})
	}
	f.index.SetTopology(members)
	return f, nil
}

// startFleetNode runs kvcr serve, and says where it publishes events.
func startFleetNode(ctx context.Context, i, block, slots int) (n *fleetNode, kvEvents, replay string, err error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, "", "", err
	}
	n = &fleetNode{cmd: exec.CommandContext(ctx, exe, "serve", "--capacity", fmt.Sprint((slots+1)*block), "--block", fmt.Sprint(block), "--kind", "chained", "--shards", "1",
		"--resp", "", "--http", "", "--listen", "127.0.0.1:0", "--peer-listen", "tcp://127.0.0.1:0", "--log-level", "error",
		"--hash-recipe", fleetRecipe, "--worker-id", fmt.Sprint(i), "--events", "tcp://127.0.0.1:0", "--events-replay", "tcp://127.0.0.1:0")}
	n.cmd.Stderr = &n.words
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		return nil, "", "", err
	}
	if err := n.cmd.Start(); err != nil {
		return nil, "", "", err
	}
	late := time.AfterFunc(demoPatience, func() { n.cmd.Process.Signal(syscall.SIGKILL) })
	defer late.Stop()
	said := map[string]string{}
	lines := bufio.NewScanner(out)
	for said["replay"] == "" {
		if !lines.Scan() {
			return n, "", "", errors.New("it ended before it listened")
		}
		if words := strings.Fields(lines.Text()); len(words) >= 2 {
			said[words[0]] = words[1]
		}
	}
	go io.Copy(io.Discard, out)
	n.endpoint = said["peers"]
	n.cl, err = client.Dial(ctx, client.Options{Addr: said["binary"]})
	return n, said["events"], said["replay"], err
}

// lastWords keeps the end of what is written to it.
type lastWords struct{ said []byte }

func (w *lastWords) Write(p []byte) (int, error) {
	const most = 4 << 10
	w.said = append(w.said, p...)
	w.said = w.said[max(0, len(w.said)-most):]
	return len(p), nil
}

// stop ends the nodes, and returns when they have.
func (f *fleet) stop() error {
	var errs []error
	for _, n := range f.nodes {
		if n.consumer != nil {
			n.consumer.Close()
		}
		if n.outcomes != nil {
			n.outcomes.Close()
		}
		if n.cl != nil {
			n.cl.Close()
		}
		n.cmd.Process.Signal(syscall.SIGTERM)
	}
	for i, n := range f.nodes {
		late := time.AfterFunc(demoPatience, func() { n.cmd.Process.Signal(syscall.SIGKILL) })
		if err := n.cmd.Wait(); err != nil {
			errs = append(errs, fmt.Errorf("node %d: %w\n%s", i, err, n.words.said))
		}
		late.Stop()
	}
	return errors.Join(errs...)
}

// hear collects the ends of actions.
func (f *fleet) hear(ctx context.Context, n *fleetNode) {
	for {
		fr, err := n.outcomes.Next(ctx)
		if err != nil {
			return
		}
		for _, o := range fr.Items {
			if o.Stage == wire.OutcomeEnd {
				f.mu.Lock()
				f.ends = append(f.ends, o)
				f.mu.Unlock()
			}
		}
	}
}

// chain hashes a prompt.
func (f *fleet) chain(ids []uint64) (locals []uint64, blocks []events.Block) {
	tokens := make([]uint32, fleetTokens)
	for _, id := range ids {
		for i := range tokens {
			tokens[i] = uint32(id)
		}
		b := events.Block{Local: f.hasher.Local(tokens, nil)}
		if b.Hash = b.Local; len(blocks) > 0 {
			b.Hash = keys.Extend(blocks[len(blocks)-1].Hash, b.Local)
		}
		locals, blocks = append(locals, b.Local), append(blocks, b)
	}
	return locals, blocks
}

func blockKey(hash uint64) []byte { return binary.BigEndian.AppendUint64(nil, hash) }

// contentOf is what the block of a hash holds.
func (f *fleet) contentOf(hash uint64) []byte {
	x := hash
	for i := 0; i < len(f.content); i += 8 { // splitmix64
		x += 0x9e3779b97f4a7c15
		z := (x ^ x>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		binary.LittleEndian.PutUint64(f.content[i:], z^z>>31)
	}
	return f.content
}

// compare counts the wrong bytes of a block.
func (f *fleet) compare(run *fleetRun, hash uint64, got []byte) {
	want := f.contentOf(hash)
	run.verified += int64(len(got))
	if bytes.Equal(got, want) {
		return
	}
	run.wrong += max(1, len(want)-len(got))
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			run.wrong++
		}
	}
}

// request routes one request, and does for it what an inference engine would: takes
// the prefix that is there, computes the rest and deposits that.
func (f *fleet) request(ctx context.Context, run *fleetRun, number int, ids []uint64) error {
	blocks := f.choose(ids)
	least := f.nodes[0].assigned
	for _, n := range f.nodes {
		least = min(least, n.assigned)
	}
	at, cost := 0, 1<<62
	for i, c := range f.choices {
		if here := len(ids) - c.Frontier + loadWeight*(f.nodes[i].assigned-least); here < cost {
			at, cost = i, here
		}
	}
	n, name := f.nodes[at], ""
	if run.hinted && len(f.choices) > 0 {
		if body := f.scratch.AppendEnvelope(nil, fmt.Sprint("request-", number), f.choices[at]); len(body) > 0 {
			name = fmt.Sprint("request-", number)
			if _, err := n.cl.Hint(ctx, name, wire.FormatJSON, body); err != nil {
				return err
			}
			run.advised++
		}
	}
	if err := f.describe(ctx, n, ids, blocks); err != nil {
		return err
	}
	wanted := make([][]byte, len(blocks))
	for i, b := range blocks {
		wanted[i] = blockKey(b.Hash)
	}
	local, err := n.cl.Prefix(ctx, wanted)
	if err != nil {
		return err
	}
	claims, err := n.cl.FetchFor(ctx, name, wanted)
	if err != nil {
		return err
	}
	prefix := 0
	for prefix < len(claims) && claims[prefix].Status == wire.StatusOK {
		got, err := n.cl.Deliver(ctx, claims[prefix], nil)
		if err != nil {
			return err
		}
		f.compare(run, blocks[prefix].Hash, got)
		prefix++
	}
	var held []wire.Claim
	for _, c := range claims {
		if c.Status == wire.StatusOK {
			held = append(held, c)
		}
	}
	if err := n.cl.Release(ctx, held...); err != nil {
		return err
	}
	local = min(local, prefix)
	run.blocks, run.local, run.remote = run.blocks+len(ids), run.local+local, run.remote+prefix-local
	for i := prefix; i < len(blocks); i++ { // what was not there is computed
		if _, err := n.cl.Deposit(ctx, wanted[i], f.contentOf(blocks[i].Hash)); err != nil {
			return err
		}
		f.ids[blocks[i].Hash] = ids[i]
	}
	n.assigned += len(ids)
	if name != "" {
		if err := n.cl.DiscardHint(ctx, name); err != nil {
			return err
		}
	}
	if len(ids) > 0 {
		f.chains[ids[0]], f.asked[ids[0]] = ids, f.asked[ids[0]]+1
		f.old, n.last = append(f.old, ids), ids
		for _, id := range ids {
			f.users[id]++
		}
	}
	f.await(at, ids)
	if run.hinted && number%independentEvery == independentEvery-1 {
		return f.independent(ctx, run, number)
	}
	return nil
}

// describe tells the node of a request what the blocks of its prompt are, before any of
// them is fetched or deposited: so the node's events about them say it as well.
func (f *fleet) describe(ctx context.Context, n *fleetNode, ids []uint64, blocks []events.Block) error {
	const lot = 64 // 132 KiB
	for from := 0; from < len(blocks); from += lot {
		d := wire.Describe{BlockSize: fleetTokens}
		for i := from; i < min(len(blocks), from+lot); i++ {
			b := wire.Description{Key: blockKey(blocks[i].Hash), Tokens: make([]uint32, fleetTokens)}
			for j := range b.Tokens {
				b.Tokens[j] = uint32(ids[i])
			}
			if i > 0 {
				b.Flags, b.Parent = wire.DescribeParent, blocks[i-1].Hash
			}
			d.Blocks = append(d.Blocks, b)
		}
		if _, err := n.cl.Describe(ctx, &d); err != nil {
			return err
		}
	}
	return nil
}

// await waits until the router has heard that a node has all of a prompt.
func (f *fleet) await(at int, ids []uint64) {
	for until := time.Now().Add(eventsPatience); time.Now().Before(until); time.Sleep(time.Millisecond) {
		if f.choose(ids); f.choices[at].Frontier == len(ids) {
			return
		}
	}
}

// independent sends actions that belong to no request: the most wanted prefix goes to
// the node that has least of it; what the busiest node has worked on last goes to the
// least busy one, copied as far as other prompts begin alike, and moved from there on;
// and what a conversation that is over has left behind leaves.
func (f *fleet) independent(ctx context.Context, run *fleetRun, number int) error {
	message := fmt.Sprint("router-", number)
	var hot uint64
	for first, n := range f.asked {
		if n > f.asked[hot] || n == f.asked[hot] && first < hot {
			hot = first
		}
	}
	ids := f.chains[hot]
	f.choose(ids[:min(len(ids), prefetchBlocks)])
	to := -1
	for i, c := range f.choices {
		if c.Kind != plan.None && (to < 0 || c.Frontier < f.choices[to].Frontier) {
			to = i
		}
	}
	if to >= 0 {
		source, hashes, _ := f.scratch.Hint(f.choices[to])
		if err := f.send(ctx, run, to, message, hints.TypePrefetch, source, hashes[f.choices[to].Frontier:]); err != nil {
			return err
		}
	}
	busy, idle := 0, 0
	for i, n := range f.nodes {
		if n.assigned > f.nodes[busy].assigned {
			busy = i
		}
		if n.assigned < f.nodes[idle].assigned {
			idle = i
		}
	}
	if ids := f.nodes[busy].last; busy != idle && len(ids) > 0 {
		blocks := f.choose(ids)
		held, own := f.choices[busy].Frontier, f.own(ids)
		from := min(f.choices[idle].Frontier, own)
		if err := f.send(ctx, run, idle, message, hints.TypePrefetch, f.nodes[busy].endpoint, hashesOf(blocks[min(from, held):min(own, held)])); err != nil {
			return err
		}
		if err := f.send(ctx, run, idle, message, hints.TypeMove, f.nodes[busy].endpoint, hashesOf(blocks[min(own, held):held])); err != nil {
			return err
		}
		f.nodes[busy].last = nil
	}
	return f.evict(ctx, run, number, message)
}

// evict has the end of a conversation leave that is over: what none of the requests to
// come begins with. A router hears of that from whoever holds the conversation.
func (f *fleet) evict(ctx context.Context, run *fleetRun, number int, message string) error {
	for i, ids := range f.old {
		keep := len(ids)
		for keep > 0 && f.lastUse[ids[keep-1]] <= number {
			keep--
		}
		if keep == len(ids) {
			continue
		}
		f.old = slices.Delete(f.old, i, i+1)
		blocks := f.choose(ids)
		for at, c := range f.choices {
			if err := f.send(ctx, run, at, message, hints.TypeEvict, "", hashesOf(blocks[min(keep, c.Frontier):c.Frontier])); err != nil {
				return err
			}
		}
		return nil
	}
	return nil
}

// own is where the part of a prompt begins that no other prompt has: what lies before
// it, others need.
func (f *fleet) own(ids []uint64) int {
	n := len(ids)
	for n > 0 && f.users[ids[n-1]] == 1 {
		n--
	}
	return n
}

// choose asks the index about a prompt.
func (f *fleet) choose(ids []uint64) []events.Block {
	locals, blocks := f.chain(ids)
	f.choices = f.index.Choose(f.scratch, locals, f.choices)
	return blocks
}

func hashesOf(blocks []events.Block) []uint64 {
	hashes := make([]uint64, len(blocks))
	for i, b := range blocks {
		hashes[i] = b.Hash
	}
	return hashes
}

// send sends one action.
func (f *fleet) send(ctx context.Context, run *fleetRun, node int, message, typ, source string, hashes []uint64) error {
	if len(hashes) == 0 {
		return nil
	}
	body, err := json.Marshal(wireEnvelope{ProtocolVersion: "0.1", MessageID: message, Actions: []wireAction{{
		ID: typ, Type: typ, Version: "1.0", Payload: wirePayload{source, hashes},
	}}})
	if err != nil {
		return err
	}
	answer, err := f.nodes[node].cl.Hint(ctx, "", wire.FormatJSON, body)
	if err != nil {
		return err
	}
	var results []hints.Result
	if err := json.Unmarshal(answer, &results); err != nil {
		return err
	}
	if len(results) != 1 || results[0].Status != hints.Accepted {
		return fmt.Errorf("%s: %s", typ, answer)
	}
	a := run.actions[typ]
	if a == nil {
		a = &fleetAction{}
		run.actions[typ] = a
	}
	a.sent++
	a.blocks += len(hashes)
	run.open++
	return nil
}

// settle waits until every action has ended, and counts how.
func (f *fleet) settle(ctx context.Context, run *fleetRun) error {
	for until := time.Now().Add(demoPatience); ; time.Sleep(5 * time.Millisecond) {
		f.mu.Lock()
		n := len(f.ends)
		f.mu.Unlock()
		if n >= run.open || time.Now().After(until) || ctx.Err() != nil {
			break
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	run.open -= len(f.ends)
	for i := range f.ends {
		o := &f.ends[i]
		if a := run.actions[o.Type]; a != nil {
			a.copied += int(o.Copied)
			a.moved += int(o.Moved)
			a.kept += int(o.Kept)
			a.removed += int(o.Removed)
			a.present += int(o.Present)
			a.failed += int(o.Failed)
		}
	}
	return ctx.Err()
}

// verify reads every block from every node that has it.
func (f *fleet) verify(ctx context.Context, run *fleetRun) error {
	var value []byte
	for hash := range f.ids {
		for _, n := range f.nodes {
			got, ok, err := n.cl.Get(ctx, blockKey(hash), value)
			if err != nil {
				return err
			}
			if ok {
				f.compare(run, hash, got)
			}
			value = got
		}
	}
	return nil
}
