package work

import "github.com/kvcr-go/kvcr/hints"

// Reasons of outcomes, besides those that a source or an engine gives.
const (
	ReasonClosed   = "closed"        // the engine is closing
	ReasonSource   = "source_failed" // the source makes no sense
	ReasonNoAnswer = "no_answer"     // the source has not said that its copy is gone
)

// action is an order that has not ended.
type action struct {
	report Report
	left   int // blocks without an end
	// Of those with an end: whether one has not failed, and why the others have.
	survived bool
	why      string
	mixed    bool // for several reasons
}

// news is what there is to tell of one block. The action that has no blocks has one
// without a hash, of stage Accepted.
type news struct {
	act    *action
	hash   uint64
	stage  hints.Stage
	reason string
	bytes  int64
}

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
	}
	type group struct {
		kind
		hashes []uint64
		bytes  int64
	}
	var groups []*group
	byKind := map[kind]*group{}
	for _, n := range batch {
		k := kind{n.act, n.stage, n.reason}
		g := byKind[k]
		if g == nil {
			g = &group{kind: k}
			byKind[k] = g
			groups = append(groups, g)
		}
		g.hashes = append(g.hashes, n.hash)
		g.bytes += n.bytes
	}
	for _, g := range groups {
		a := g.act
		switch g.stage {
		case hints.StageAccepted:
		case hints.StageResolved:
			a.report.Blocks(g.stage, g.hashes, "", 0)
			continue
		case stagePresent:
			a.report.Present(len(g.hashes))
		default:
			a.report.Blocks(g.stage, g.hashes, g.reason, g.bytes)
		}
		if g.stage == hints.StageFailed {
			a.mixed = a.mixed || a.why != "" && a.why != g.reason
			a.why = g.reason
		} else {
			a.survived = true
		}
		if g.stage != hints.StageAccepted {
			blocks += len(g.hashes)
			a.left -= len(g.hashes)
		}
		if a.left == 0 {
			why := a.why
			if a.survived || a.mixed {
				why = ""
			}
			a.report.End(why)
			actions++
		}
	}
	return actions, blocks
}
