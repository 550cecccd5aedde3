package kvcr_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints"
)

// tellers are numbers that say something of each block, and remember what they are told.
type tellers struct {
	*numbers
	say  func(key string, limit int) string
	take func(key string) error

	mu    sync.Mutex
	taken map[string][]string
}

func (a *tellers) AppendDescription(dst []byte, limit int, k hints.Key) []byte {
	return append(dst, a.say(string(k.Key), limit)...)
}

func (a *tellers) TakeDescription(k hints.Key, description []byte) error {
	if err := a.take(string(k.Key)); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.taken[k.Namespace+"/"+string(k.Key)] = append(a.taken[k.Namespace+"/"+string(k.Key)], string(description))
	return nil
}

func openTelling(t *testing.T) (*hintedEngine, *tellers) {
	a := &tellers{
		say:  func(key string, _ int) string { return "about " + key },
		take: func(string) error { return nil }, taken: map[string][]string{},
	}
	e := openHinted(t, func(c *kvcr.Config) {
		a.numbers = c.Hints.Adapter.(*numbers)
		c.Hints.Adapter = a
	})
	return e, a
}

// What the source's adapter says of a block reaches the destination's before the block
// does, once for each hint, and also where the block was here all along.
func TestDescriptionsTravel(t *testing.T) {
	a, _ := openTelling(t)
	b, told := openTelling(t)
	a.deposit(t, keysOf(0, 200))
	b.deposit(t, keysOf(140, 160))
	sub, err := b.Subscribe(kvcr.SubscribeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			ev, err := sub.Next(ctx)
			if err != nil {
				return
			}
			told.mu.Lock()
			if ev.Stored && told.taken["kv/"+string(ev.Key)] == nil {
				t.Errorf("%s has come before its description", ev.Key)
			}
			told.mu.Unlock()
		}
	}()
	id, _ := b.submit("", action(hints.TypePrefetch, a.endpoint, append(hashesOf(0, 150), 900)...), action(hints.TypeMove, a.endpoint, hashesOf(150, 200)...))
	if copied, moved := b.end(id, 0), b.end(id, 1); copied.Copied != 140 || copied.Present != 10 || copied.Failed != 1 || moved.Moved != 50 {
		t.Fatalf("%+v\n%+v", copied, moved)
	}
	cancel()
	<-ended
	told.mu.Lock()
	defer told.mu.Unlock()
	for _, k := range keysOf(0, 200) {
		if got := told.taken["kv/"+string(k)]; !slices.Equal(got, []string{"about " + string(k)}) {
			t.Errorf("of %s it is told %q", k, got)
		}
	}
	if len(told.taken) != 200 {
		t.Errorf("told of %d blocks, want 200", len(told.taken))
	}
}

// A description that cannot be had, or is refused, costs nothing but itself.
func TestDescriptionsThatFail(t *testing.T) {
	a, says := openTelling(t)
	b, told := openTelling(t)
	says.say = func(key string, limit int) string {
		switch key {
		case "block-1":
			panic("broken")
		case "block-2":
			return fmt.Sprintf("%*d", limit+1, 2)
		case "block-3":
			return ""
		case "block-4":
			return fmt.Sprintf("%*d", limit, 4)
		}
		return "about " + key
	}
	told.take = func(key string) error {
		switch key {
		case "block-5":
			return errors.New("not a word I know")
		case "block-6":
			panic("broken")
		}
		return nil
	}
	a.deposit(t, keysOf(0, 8))
	id := b.order(hints.TypePrefetch, a.endpoint, hashesOf(0, 8)...)
	if o := b.end(id, 0); o.Copied != 8 {
		t.Errorf("%+v", o)
	}
	told.mu.Lock()
	got := slices.Sorted(maps.Keys(told.taken))
	long := told.taken["kv/block-4"]
	told.mu.Unlock()
	if want := []string{"kv/block-0", "kv/block-4", "kv/block-7"}; !slices.Equal(got, want) || len(long[0]) < 2048 {
		t.Errorf("described are %v, want %v; the longest has %d bytes", got, want, len(long[0]))
	}
	if s := b.stats(); s.RefusedDescriptions != 2 || s.AdapterFaults != 1 {
		t.Errorf("the destination: %+v", s)
	}
	if n, faults := a.Peers().Stats().AdapterFailures, a.stats().AdapterFaults; n != 1 || faults != 1 {
		t.Errorf("the source: %d descriptions too long, %d faults", n, faults)
	}
}

// Between adapters that do not describe blocks, or one of which does not, all goes as
// without.
func TestNobodyDescribes(t *testing.T) {
	a, _ := openTelling(t)
	b := openHinted(t, nil)
	c, told := openTelling(t)
	a.deposit(t, keysOf(0, 4))
	if o := b.end(b.order(hints.TypePrefetch, a.endpoint, hashesOf(0, 4)...), 0); o.Copied != 4 {
		t.Errorf("%+v", o)
	}
	if o := c.end(c.order(hints.TypePrefetch, b.endpoint, hashesOf(0, 4)...), 0); o.Copied != 4 {
		t.Errorf("%+v", o)
	}
	told.mu.Lock()
	defer told.mu.Unlock()
	if len(told.taken) != 0 || b.stats().RefusedDescriptions+c.stats().RefusedDescriptions+b.stats().AdapterFaults != 0 {
		t.Errorf("told %v", told.taken)
	}
}
