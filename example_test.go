package kvcr_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/arena"
	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/hints/keys"
)

// The first program of the README.
func Example() {
	e, err := kvcr.Open(kvcr.Config{Capacity: 1 << 30})
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close()
	h, err := e.Handle() // one for each long-lived goroutine
	if err != nil {
		log.Fatal(err)
	}
	defer h.Close()
	if err := h.Set([]byte("greeting"), []byte("hello")); err != nil {
		log.Fatal(err)
	}
	if v, ok := h.Get([]byte("greeting")); ok {
		fmt.Printf("%s\n", v.Bytes()) // in place: nothing was copied
		v.Release()
	}
	// Output: hello
}

// The program of docs/PEERS.md, both machines in one process.
func ExampleHandle_FetchFrom() {
	namespaces := []kvcr.Namespace{{
		Name:  "llama-70b/rank0",
		Kind:  kvcr.Chained,
		Pools: []kvcr.Pool{{Name: "kv", SlotBytes: 64 << 10}},
	}}
	secret := []byte("at least sixteen bytes")

	// On the machine that has the blocks.
	a, err := kvcr.Open(kvcr.Config{
		Capacity:   64 << 20,
		Namespaces: namespaces, // the same on both
		Memory:     kvcr.Memory{Backing: arena.Memfd},
		Peers:      &kvcr.Peers{Listen: []string{"tcp://127.0.0.1:0"}, Secret: secret},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer a.Close()
	ha, err := a.Handle()
	if err != nil {
		log.Fatal(err)
	}
	defer ha.Close()
	prompt := [][]byte{[]byte("system"), []byte("system/question")}
	for _, r := range ha.DepositBatch([]kvcr.Item{
		{Key: prompt[0], Value: make([]byte, 64<<10)},
		{Key: prompt[1], Value: make([]byte, 64<<10)},
	}, kvcr.DepositOptions{}) {
		if !r.OK() {
			log.Fatal(r.Err())
		}
	}

	// On the machine that wants them.
	b, err := kvcr.Open(kvcr.Config{
		Capacity:   64 << 20,
		Namespaces: namespaces,
		Memory:     kvcr.Memory{Backing: arena.Memfd},
		Peers:      &kvcr.Peers{Secret: secret}, // it listens nowhere: it only fetches
	})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()
	hb, err := b.Handle()
	if err != nil {
		log.Fatal(err)
	}
	defer hb.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	op := hb.FetchFrom(append(prompt, []byte("elsewhere")), kvcr.FetchOptions{
		Sources: a.Peers().Endpoints(), // or tcp://10.0.0.1:7390, several in order
		Move:    true,                  // the source lets go of what has arrived here
		Timeout: 10 * time.Second,
	})
	results, err := op.Wait(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range results { // each key has its own answer
		if !r.OK() {
			fmt.Println(r.Reason)
			continue
		}
		fmt.Println(len(r.View.Bytes()), "bytes")
		r.View.Release()
	}
	// Output:
	// 65536 bytes
	// 65536 bytes
	// miss
}

// The program of docs/HINTS.md: a router has told where blocks of a request are,
// and orders others to be moved.
func ExampleEngine_SubmitHint() {
	recipe := keys.Recipe{Style: "dynamo", Hash: "xxh3", Seed: "1337", BlockSize: 64}
	style, err := recipe.Keys()
	if err != nil {
		log.Fatal(err)
	}
	open := func(peers kvcr.Peers) (*kvcr.Engine, *kvcr.Handle) {
		e, err := kvcr.Open(kvcr.Config{
			Capacity:   64 << 20,
			Namespaces: []kvcr.Namespace{{Name: "kv", HashRecipe: recipe.String(), Pools: []kvcr.Pool{{Name: "kv", SlotBytes: 64 << 10}}}},
			Peers:      &peers,
			Hints:      &kvcr.Hints{Adapter: keys.Direct{Namespace: "kv", Style: style}},
		})
		if err != nil {
			log.Fatal(err)
		}
		h, err := e.Handle()
		if err != nil {
			log.Fatal(err)
		}
		return e, h
	}
	key := func(hash uint64) []byte {
		k, _ := style.AppendKey(nil, hash)
		return k
	}
	a, ha := open(kvcr.Peers{Listen: []string{"tcp://127.0.0.1:0"}})
	defer a.Close()
	for hash := range uint64(4) {
		if err := ha.Deposit(key(hash), make([]byte, 64<<10)); err != nil {
			log.Fatal(err)
		}
	}

	e, h := open(kvcr.Peers{})
	defer e.Close()
	outcomes, err := e.SubscribeOutcomes() // first: to hear all of what is submitted
	if err != nil {
		log.Fatal(err)
	}
	defer outcomes.Close()
	envelope := fmt.Sprintf(`{"message_id": "m1", "actions": [
		{"action_id": "a1", "action_type": "kv.fetch", "payload": {"source_control_endpoint": %[1]q, "block_hashes": [0, 1]}},
		{"action_id": "a2", "action_type": "kv.move", "payload": {"source_control_endpoint": %[1]q, "block_hashes": [2, 3]}},
		{"action_id": "a3", "action_type": "kv.someday", "payload": {}}]}`, a.Peers().Endpoints()[0])
	results, err := e.SubmitHint("request-1", []byte(envelope), kvcr.HintJSON)
	if err != nil {
		log.Fatal(err) // no envelope
	}
	for _, r := range results { // each action has its own answer
		if r.Status == hints.Rejected {
			fmt.Println(r.ActionID, r.Reason)
		}
	}

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// The request's own blocks: fetched from where the router said, with the rest a miss.
	op := h.FetchFrom([][]byte{key(0), key(1), key(9)}, kvcr.FetchOptions{RequestID: "request-1"})
	blocks, err := op.Wait(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, b := range blocks {
		fmt.Println(b.Reason)
		b.View.Release()
	}
	e.DiscardHint("request-1") // the request has ended

	for { // the move goes on by itself
		o, err := outcomes.Next(ctx)
		if err != nil {
			log.Fatal(err)
		}
		if o.Stage == hints.StageEnd {
			fmt.Println(o.ActionID, o.Moved, "moved")
			break
		}
	}
	// Output:
	// a3 unsupported_action_type
	// ok
	// ok
	// miss
	// a2 2 moved
}

// The program of docs/ENGINE.md, blocks of a chain: what is there of a prompt's prefix is claimed, the rest is
// computed and deposited under it.
func ExampleHandle_Prefix() {
	e, err := kvcr.Open(kvcr.Config{
		Capacity: 8 << 20,
		Namespaces: []kvcr.Namespace{{
			Name:  "llama-70b/rank0",
			Kind:  kvcr.Chained,
			Pools: []kvcr.Pool{{Name: "kv", SlotBytes: 64 << 10}},
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close()
	h, err := e.Handle()
	if err != nil {
		log.Fatal(err)
	}
	defer h.Close()

	serve := func(keys [][]byte) (reused, computed int) {
		views := make([]kvcr.View, len(keys))
		n := h.Prefix(keys, views)
		var opt kvcr.DepositOptions
		if n > 0 {
			opt.Parent, opt.Position = keys[n-1], n
		}
		var items []kvcr.Item
		for _, k := range keys[n:] {
			items = append(items, kvcr.Item{Key: k, Value: make([]byte, 64<<10)})
		}
		for _, r := range h.DepositBatch(items, opt) {
			if !r.OK() {
				log.Fatal(r.Err())
			}
		}
		h.Release(views[:n])
		return n, len(items)
	}
	prompt := [][]byte{[]byte("system"), []byte("system/question"), []byte("system/question/answer")}
	fmt.Println(serve(prompt[:2]))
	fmt.Println(serve(prompt))
	// Output:
	// 0 2
	// 2 1
}
