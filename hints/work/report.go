package work

import (
	"slices"

	"github.com/kvcr-go/kvcr/hints"
)

// Reasons of outcomes, besides those that a source or an engine gives.
const (
	ReasonClosed   = "closed"        // the engine is closing
	ReasonSource   = "source_failed" // the source makes no sense
	ReasonNoAnswer = "no_answer"     // the source has not said that its copy is gone
)

// action is an order that has not ended. It belongs to who reports.
type action struct {
	report Report
	blocks int // -1 until all are queued
	ended  int // of those
	// Of those with an end: whether one has not failed, and why the others have.
	survived bool
	why      string
	mixed    bool // for several reasons
}

// news is what there is to tell of one block; or, with stageSubmitted, that all blocks
// of an action have been queued, and in place of the hash how many.
type news struct {
	act    *action
	hash   uint64
	stage  hints.Stage
	reason string
	bytes  int64
	final  bool
}

const stageSubmitted = hints.StageAccepted

// tellLocked has news reported, in order, by a goroutine of its own: reports may take
// the time they need, and may call back.
func (x *Executor) tellLocked(n news) {
	x.news = append(x.news, n)
	if !x.telling {
		x.telling = true
		go x.tell()
	}
}

// tell reports until there is no more news. What has gathered is reported together.
func (x *Executor) tell() {
	roleReport.Take()
	x.mu.Lock()
	for len(x.news) > 0 {
		batch := x.news
		x.news = nil
		x.mu.Unlock()
		actions, blocks := tellAll(batch)
		x.mu.Lock()
		x.actions -= actions
		x.blocks -= blocks
	}
	x.telling = false
	x.quietLocked()
	x.mu.Unlock()
}

// tellAll reports a batch, and returns how many actions and blocks have ended.
func tellAll(batch []news) (actions, blocks int) {
	type kind struct {
		act    *action
		stage  hints.Stage
		reason string
		final  bool
	}
	var order []kind
	hashes := map[kind][]uint64{}
	bytes := map[*action]int64{}
	for _, n := range batch {
		k := kind{n.act, n.stage, n.reason, n.final}
		if hashes[k] == nil {
			order = append(order, k)
		}
		hashes[k] = append(hashes[k], n.hash)
		bytes[n.act] += n.bytes
	}
	// Stages are numbered in their order: what is said of a block comes before its end,
	// and all of it before the action's.
	slices.SortStableFunc(order, func(a, b kind) int { return int(a.stage) - int(b.stage) })
	for _, k := range order {
		a, of := k.act, hashes[k]
		if n := bytes[a]; n > 0 {
			a.report.AddBytes(n)
			delete(bytes, a)
		}
		if k.stage == stageSubmitted {
			a.blocks = int(of[0])
		} else {
			a.report.Report(k.stage, k.reason, of...)
		}
		if k.final {
			blocks += len(of)
			a.ended += len(of)
			a.note(k.stage, k.reason)
		}
		if a.ended == a.blocks {
			a.report.End(a.reason())
			actions++
			a.blocks = -1
		}
	}
	return actions, blocks
}

// note takes note of how blocks have ended.
func (a *action) note(stage hints.Stage, reason string) {
	if stage != hints.StageFailed {
		a.survived = true
		return
	}
	a.mixed = a.mixed || a.why != "" && a.why != reason
	a.why = reason
}

// reason is why the action as a whole has failed, if it has.
func (a *action) reason() string {
	if a.survived || a.mixed {
		return ""
	}
	return a.why
}
