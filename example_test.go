package kvcr_test

import (
	"fmt"
	"log"

	"github.com/kvcr-go/kvcr"
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
