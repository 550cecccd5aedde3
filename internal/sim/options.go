package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// Mode says how badly the network behaves.
type Mode uint8

// The modes.
const (
	Any   Mode = iota // chosen by the seed
	Calm              // nothing fails, but everything takes its time
	TCP               // connections break, processes stall, die and restart
	Harsh             // and messages of one connection are lost, repeated and reordered
	modeEnd
)

var modeNames = [modeEnd]string{"any", "calm", "tcp", "harsh"}

func (m Mode) String() string { return modeNames[m] }

// ParseMode finds a mode by its name.
func ParseMode(name string) (Mode, error) {
	for m, n := range modeNames {
		if n == name {
			return Mode(m), nil
		}
	}
	return 0, fmt.Errorf("mode %q: none of %s", name, strings.Join(modeNames[:], ", "))
}

// Options name a schedule.
type Options struct {
	Seed  uint64
	Nodes int        // 2 to MaxNodes; 0: chosen by the seed
	Mode  Mode       // Any: chosen by the seed
	Route wire.Route // of all payload; RouteNone: chosen by the seed, mixed too
	Skip  []int      // events of the plan that are left out; see Shrink
	// Trace is told what happens, a line each. nil: nobody.
	Trace func(line string)

	broken broken
}

// MaxNodes is the most nodes of a schedule.
const MaxNodes = 8

func (o Options) String() string {
	s := fmt.Sprintf("seed=%d nodes=%d mode=%s route=%s", o.Seed, o.Nodes, o.Mode, o.Route)
	if len(o.Skip) > 0 {
		s += fmt.Sprintf(" skip=%s", strings.Trim(strings.ReplaceAll(fmt.Sprint(o.Skip), " ", ","), "[]"))
	}
	return s
}

// broken rules of the block table, for tests that the checks find them.
type broken struct {
	takeover    bool // Remove removes what the move has not marked any more (M1)
	hold        bool // no hold is taken (M2)
	evictHeld   bool // a hold does not keep from eviction (M2)
	crossing    bool // a marked copy may be held (M3)
	freeClaimed bool // removal frees memory that is claimed
	tear        bool // nothing verifies what has landed
	generation  bool // a claim does not look at the generation
	shuffle     bool // hashes are answered in another order
}

// Report is what schedules had in them.
type Report struct {
	Schedules, Steps        int
	Operations, Moves       int // items asked for, to copy and to move
	Named                   int // of those, by the second name of a source
	Copies                  int
	Delivered               int
	Removed                 int // moves after which the source's copy was gone
	Kept                    [64]int
	Failed                  [64]int
	Window                  int // lost in the stated window
	Cuts, Crashes, Restarts int
	Stalls, ClockSteps      int
	Lost, Repeated          int // messages
	Ghosts                  int // messages of earlier lives
	Corrupted, Broken       int // payloads
	Quarantined             int
	Hashes, Resolved        int // hashes asked for, and those that have a key
	Unanswered              int // hashes without an answer in their time
}

// Add adds another report.
func (r *Report) Add(b *Report) {
	for _, p := range [][2]*int{{&r.Schedules, &b.Schedules}, {&r.Steps, &b.Steps}, {&r.Operations, &b.Operations}, {&r.Moves, &b.Moves}, {&r.Named, &b.Named},
		{&r.Copies, &b.Copies}, {&r.Delivered, &b.Delivered}, {&r.Removed, &b.Removed}, {&r.Window, &b.Window}, {&r.Cuts, &b.Cuts},
		{&r.Crashes, &b.Crashes}, {&r.Restarts, &b.Restarts}, {&r.Stalls, &b.Stalls}, {&r.ClockSteps, &b.ClockSteps}, {&r.Lost, &b.Lost},
		{&r.Repeated, &b.Repeated}, {&r.Ghosts, &b.Ghosts}, {&r.Corrupted, &b.Corrupted}, {&r.Broken, &b.Broken}, {&r.Quarantined, &b.Quarantined},
		{&r.Hashes, &b.Hashes}, {&r.Resolved, &b.Resolved}, {&r.Unanswered, &b.Unanswered}} {
		*p[0] += *p[1]
	}
	for i := range r.Kept {
		r.Kept[i] += b.Kept[i]
		r.Failed[i] += b.Failed[i]
	}
}

// Violation is a promise that a schedule broke.
type Violation struct {
	Options Options
	What    string
	Plan    []string // the events of the plan that were not skipped
	Last    []string // what happened last
}

func (v *Violation) Error() string {
	return fmt.Sprintf("sim: %s: %s", v.Options, v.What)
}

// Details is the violation with its plan and the last events.
func (v *Violation) Details() string {
	return fmt.Sprintf("%s\n\nplan:\n  %s\n\nlast events:\n  %s\n\n%s\n", v.Error(), strings.Join(v.Plan, "\n  "), strings.Join(v.Last, "\n  "), v.What)
}

// keptEvents is how many of the last events a violation shows.
const keptEvents = 200

// Run runs one schedule. The error is a *Violation, or says what is wrong with
// the options.
func Run(o Options) (Report, error) {
	if o.Nodes != 0 && (o.Nodes < 2 || o.Nodes > MaxNodes) {
		return Report{}, fmt.Errorf("sim: %d nodes; 2 to %d are possible", o.Nodes, MaxNodes)
	}
	w := newWorld(o)
	w.run()
	if w.broke == "" {
		return w.report, nil
	}
	// Once more, with a record of what happens.
	v := &Violation{Options: o, What: w.broke}
	again := o
	again.Trace = func(s string) {
		if v.Last = append(v.Last, s); len(v.Last) > 2*keptEvents {
			v.Last = append(v.Last[:0], v.Last[keptEvents:]...)
		}
	}
	w = newWorld(again)
	w.run()
	if w.broke != v.What {
		v.What += fmt.Sprintf(" (NOT the same when run again: %q)", w.broke)
	}
	v.Last = v.Last[max(0, len(v.Last)-keptEvents):]
	v.Plan = w.describePlan()
	return w.report, v
}

// Shrink leaves out of a violation's plan what it does not need, in at most tries
// runs, and returns the smaller violation.
func Shrink(v *Violation, tries int) *Violation {
	for size := 16; size > 0; size /= 2 {
		for at := 0; at < planSize && tries > 0; at += size {
			o := v.Options
			o.Skip = append([]int(nil), o.Skip...)
			for i := at; i < at+size; i++ {
				o.Skip = append(o.Skip, i)
			}
			tries--
			w := newWorld(o)
			if w.run(); w.broke == "" {
				continue
			}
			if _, err := Run(o); err != nil {
				v = err.(*Violation)
			}
		}
	}
	return v
}

// timing of all machines: short, so that a schedule has all of it.
var timing = peer.Timing{Repeat: 50 * time.Millisecond, RepeatMax: 200 * time.Millisecond, Operation: 5 * time.Second, Allowance: time.Second}

func newRand(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }
