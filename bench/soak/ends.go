package soak

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcr-go/kvcr/wire"
	"github.com/kvcr-go/kvcr/wire/client"
)

// endBound is how long an action may take to its end: its source may have to be given
// up first, chunk by chunk, and then its word be waited for.
const endBound = 90 * time.Second

// ends follows the actions of hints that one node was sent.
type ends struct {
	run  *run
	node *node

	listening atomic.Bool // outcomes of what is sent now will come

	mu      sync.Mutex
	actions map[string]*action // by message and action
	changed chan struct{}      // signalled when an action has ended; of capacity 1
	told    []string           // actions that have ended, the last keptEnds of them: they are remembered
	count   int                // actions that were sent
}

// keptEnds is how many ended actions are remembered: as many as a node keeps outcomes.
const keptEnds = 4096

// action is one that was sent.
type action struct {
	life     uint64 // of the node when it was sent
	accepted bool   // the node said so; else its answer was lost, or has not come
	ended    int
	excused  bool // its end may have been missed
}

func (e *ends) init(r *run, n *node) {
	e.run, e.node, e.actions, e.changed = r, n, map[string]*action{}, make(chan struct{}, 1)
}

func nameOf(message, id string) string { return message + "/" + id }

// sent notes an action before it is sent. A process that is being ended may accept it
// still.
func (e *ends) sent(name string) {
	a := &action{life: e.node.life.Load()}
	a.excused = !e.node.up.Load() || !e.listening.Load()
	e.mu.Lock()
	e.actions[name] = a
	if e.count++; e.count%keptEnds == 0 { // of lives before the last one nothing comes any more
		for name, old := range e.actions {
			if old.life+1 < a.life {
				delete(e.actions, name)
			}
		}
	}
	e.mu.Unlock()
}

// answered notes what the node said of it. An action whose answer is lost may have an
// end or not.
func (e *ends) answered(name string, accepted bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a := e.actions[name]
	if a == nil {
		return // it ended long ago
	}
	if !accepted {
		if a.ended > 0 {
			e.run.trouble.add(noEnd, e.node.name(), "action %s was rejected, and has an end", name)
		}
		delete(e.actions, name)
		return
	}
	if a.accepted = accepted; accepted {
		e.run.actions.add("accepted", 1)
	}
}

// heard takes an outcome.
func (e *ends) heard(o *wire.OutcomeItem) {
	if o.Stage != wire.OutcomeEnd {
		return
	}
	name := nameOf(o.MessageID, o.ActionID)
	e.mu.Lock()
	defer e.mu.Unlock()
	a := e.actions[name]
	if a == nil {
		e.run.trouble.add(wrongAnswer, e.node.name(), "the end of action %s of %s, which was never accepted from here", name, o.Type)
		return
	}
	if a.ended++; a.ended > 1 {
		e.run.trouble.add(noEnd, e.node.name(), "action %s of %s has %d ends", name, o.Type, a.ended)
	}
	e.run.actions.add("ended", 1)
	if e.told = append(e.told, name); len(e.told) > keptEnds {
		delete(e.actions, e.told[0])
		e.told = e.told[1:]
	}
	select {
	case e.changed <- struct{}{}:
	default:
	}
}

// missed excuses what was sent so far: outcomes are lost.
func (e *ends) missed() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range e.actions {
		a.excused = true
	}
}

// open are the actions that owe an end.
func (e *ends) open() (names []string) {
	life := e.node.life.Load()
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, a := range e.actions {
		if a.accepted && a.ended == 0 && !a.excused && a.life == life {
			names = append(names, name)
		}
	}
	return names
}

// settle waits until no action owes an end.
func (e *ends) settle(ctx context.Context) {
	late := time.After(endBound)
	for {
		open := e.open()
		if len(open) == 0 {
			break
		}
		select {
		case <-e.changed:
			continue
		case <-ctx.Done():
		case <-late:
			e.run.trouble.add(noEnd, e.node.name(), "%d actions have no end %v after the last was sent, such as %s", len(open), endBound, open[0])
		}
		break
	}
}

// listen follows the node's outcomes until ctx ends, over all its lives.
func (e *ends) listen(ctx context.Context) {
	var epoch, last uint64
	e.run.follow(ctx, e.node, "outcomes", func(cl *client.Client) error {
		s, err := cl.SubscribeOutcomes(ctx, epoch, last)
		if err != nil {
			return err
		}
		defer s.Close()
		if last == 0 {
			e.missed() // what came before is not told again
		}
		e.listening.Store(true)
		defer e.listening.Store(false)
		gap := last == 0
		for {
			f, err := s.Next(ctx)
			if err != nil {
				return err
			}
			switch {
			case f.Epoch == epoch:
				gap = gap || f.Gap
			case last > 0: // another life: it is told from the beginning
				epoch, last, gap = f.Epoch, 0, false
			default:
				epoch = f.Epoch
			}
			for i := range f.Items {
				switch o := &f.Items[i]; {
				case o.Sequence <= last:
					return fmt.Errorf("outcome %d after %d: %w", o.Sequence, last, errOrder)
				case o.Sequence == last+1:
				case gap:
					e.missed()
				default:
					e.run.trouble.add(wrongList, e.node.name(), "outcome %d follows %d: those between are lost, and nothing says so", o.Sequence, last)
					e.missed()
				}
				last, gap = f.Items[i].Sequence, false
				e.heard(&f.Items[i])
			}
		}
	})
}

// errOrder is a stream that goes back.
var errOrder = errors.New("a stream has gone back")
