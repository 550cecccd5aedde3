package kvcr_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/arena"
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

// The program of the README's "Between machines", both machines in one process.
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

// Blocks of a chain: what is there of a prompt's prefix is claimed, the rest is
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
