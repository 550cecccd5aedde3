package work

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/internal/role"
)

// Block is what a source says of one hash.
type Block struct {
	Hash uint64
	// Reason, when not empty, is why it has no such block; Here then says that the
	// block is here all the same, so that nothing is left to do.
	Reason     string
	Here       bool
	Namespace  string
	Key        []byte
	Generation uint32
	Bytes      int64  // of payload
	Pools      []byte // of its pieces
	Follows    bool   // it is to arrive together with the one before: they are of one group
	// Description is what the source says that the block means, for the engine alone.
	Description []byte
}

// Standing is how a block stands here.
type Standing uint8

// The standings.
const (
	Absent  Standing = iota
	Present          // resident
	Coming           // somebody fetches it now
	Refused          // it cannot be here: the reason says why
)

// Arrival is how the transfer of one block ended. Without a Reason the block is here.
type Arrival struct {
	Reason   string
	Lost     bool // the source did not answer in time, or not at all
	Existing bool // it was here before
}

// Engine is what work is done for. Its methods may be called from any goroutine. Of
// each callback exactly one call is made for each block, from any goroutine, perhaps
// before the method returns.
type Engine interface {
	// Resolve asks a source which blocks have the hashes: one Block for each, in
	// order; or, when it is of no use at all, why. It returns when ctx ends.
	Resolve(ctx context.Context, source string, hashes []uint64) (blocks []Block, reason string)
	// Look says how a block stands here, and of a refused one why. It may change b,
	// which is the one that Fetch gets.
	Look(b *Block) (s Standing, reason string)
	// Await calls ended once nobody fetches the block any more.
	Await(b *Block, ended func())
	// Fetch brings blocks of one namespace from the source's own copies, those of the
	// generations named; in a move it also asks the source to let go of its copy,
	// whether or not the block was here. arrived tells how each transfer ended, moved
	// afterwards how each move did, of blocks that have arrived: no reason, the
	// source's copy is gone; else why it is kept. Fetch ends in bounded time, moved
	// need not come.
	Fetch(ctx context.Context, source string, blocks []Block, move bool, arrived func(i int, a Arrival), moved func(i int, reason string))
}

// Report takes what becomes of one action; *hints.Tracked is one. Its methods are
// called one at a time, End last.
type Report interface {
	// Report says that blocks have come to a stage.
	Report(stage hints.Stage, reason string, hashes ...uint64) int
	// AddBytes says how many bytes were brought.
	AddBytes(n int64)
	// End says that all blocks have ended. The reason is that of all its blocks, if
	// all failed for the same.
	End(reason string) bool
}

// Action is one order.
type Action struct {
	Source string
	Hashes []uint64 // not kept
	Move   bool
	Report Report
}

// Conditions of Submit.
var (
	// ErrLimit: Config.MaxActions or MaxBlocks are queued.
	ErrLimit = errors.New("too much independent work is queued")
	// ErrClosed: the executor was closed.
	ErrClosed = errors.New("closed")
)

// Config describes an Executor. Engine and Pacer are required; every other zero field
// means the default its comment names.
type Config struct {
	Engine Engine
	Pacer  *Pacer
	// MaxActions bounds the actions without an end, MaxBlocks their blocks; one takes
	// about 150 bytes. Default 256 and 524,288.
	MaxActions, MaxBlocks int
	// Sources is how many sources are worked with at a time. Default 4.
	Sources int
	// ResolveTimeout is for one question to a source. Default 1 s.
	ResolveTimeout time.Duration
	// JoinTimeout is how long a block that somebody else fetches is waited for,
	// before it is fetched all the same. Default 5 s.
	JoinTimeout time.Duration
	// MoveTimeout is how long the end of a move is waited for once its blocks are
	// here. Then they are said to be kept: the source has not said that its copies
	// are gone. Default 15 s.
	MoveTimeout time.Duration
	// BatchBlocks is how many hashes are resolved, ChunkBlocks how many blocks fetched,
	// at once. Default 1024 and 128.
	BatchBlocks, ChunkBlocks int
}

func (c Config) withDefaults() Config {
	def := func(n *int, d int) {
		if *n == 0 {
			*n = d
		}
	}
	def(&c.MaxActions, 256)
	def(&c.MaxBlocks, 1<<19)
	def(&c.Sources, 4)
	def(&c.BatchBlocks, 1024)
	def(&c.ChunkBlocks, 128)
	for d, n := range map[*time.Duration]time.Duration{&c.ResolveTimeout: time.Second, &c.JoinTimeout: 5 * time.Second, &c.MoveTimeout: 15 * time.Second} {
		if *d == 0 {
			*d = n
		}
	}
	return c
}

// Executor works through actions. Its methods may be called from any goroutine; none
// blocks but Close.
type Executor struct {
	cfg  Config
	ctx  context.Context
	stop context.CancelFunc

	mu      sync.Mutex // guards what follows, and lanes, items and actions
	closed  bool
	actions int // accepted and without an end
	blocks  int // of those
	lanes   map[string]*lane
	ready   []*lane // with work that nobody does
	workers int
	news    []news // not reported yet
	telling bool   // a goroutine reports
	idle    chan struct{}
}

// New returns an executor, which the caller must Close.
func New(cfg Config) *Executor {
	x := &Executor{cfg: cfg.withDefaults(), lanes: map[string]*lane{}, idle: make(chan struct{})}
	x.ctx, x.stop = context.WithCancel(context.Background())
	return x
}

// submitHashes is how many hashes are queued before others have their turn: those who
// report arrivals must not wait long. 4096 take about a millisecond.
const submitHashes = 4096

// Submit queues an action. Failures: ErrLimit, ErrClosed; then its Report hears
// nothing.
func (x *Executor) Submit(a Action) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.closed:
		return ErrClosed
	case x.actions >= x.cfg.MaxActions, x.blocks+len(a.Hashes) > x.cfg.MaxBlocks:
		return ErrLimit
	}
	act := &action{report: a.Report, blocks: -1}
	x.actions++
	x.blocks += len(a.Hashes)
	n := 0
	for rest := a.Hashes; len(rest) > 0; {
		some := rest[:min(len(rest), submitHashes)]
		rest = rest[len(some):]
		l := x.laneLocked(a.Source)
		for _, h := range some {
			if l.add(x, h, waiter{act: act, move: a.Move}) {
				n++
			}
		}
		if len(rest) > 0 {
			x.wakeLocked(l)
			x.mu.Unlock()
			x.mu.Lock()
		} else if x.wakeLocked(l); x.closed {
			x.failQueuedLocked(l)
		}
	}
	x.blocks -= len(a.Hashes) - n // which are there twice
	x.tellLocked(news{act: act, stage: stageSubmitted, hash: uint64(n)})
	return nil
}

func (x *Executor) laneLocked(source string) *lane {
	l := x.lanes[source]
	if l == nil {
		l = &lane{source: source, open: map[uint64]*item{}}
		x.lanes[source] = l
	}
	return l
}

// failQueuedLocked ends what a closed executor does not begin.
func (x *Executor) failQueuedLocked(l *lane) {
	for _, it := range l.take(len(l.queue)) {
		x.endLocked(it, hints.StageFailed, ReasonClosed, 0)
	}
}

// wakeLocked sees to it that a lane with work has a worker, now or later.
func (x *Executor) wakeLocked(l *lane) {
	switch {
	case l.served || len(l.queue) == 0:
		x.tidyLocked(l)
		return
	case !l.ready:
		l.ready = true
		x.ready = append(x.ready, l)
	}
	if x.workers < x.cfg.Sources {
		x.workers++
		go x.serve()
	}
}

func (x *Executor) tidyLocked(l *lane) {
	if !l.served && len(l.queue) == 0 && len(l.open) == 0 && x.lanes[l.source] == l {
		delete(x.lanes, l.source)
	}
}

// What goroutines of an executor are for, in profiles.
var (
	roleWork   = role.New("hint-work")
	roleReport = role.New("hint-report")
)

// serve works for the lanes that are ready, until none is.
func (x *Executor) serve() {
	roleWork.Take()
	x.mu.Lock()
	for len(x.ready) > 0 {
		l := x.ready[0]
		x.ready = x.ready[1:]
		l.ready, l.served = false, true
		items := l.take(x.cfg.BatchBlocks)
		x.mu.Unlock()
		if len(items) > 0 {
			x.batch(l, items)
		}
		x.mu.Lock()
		l.served = false
		x.wakeLocked(l) // behind the others
	}
	x.workers--
	x.quietLocked()
	x.mu.Unlock()
}

// quietLocked ends Close's wait when there is nothing left to do.
func (x *Executor) quietLocked() {
	if x.closed && x.workers == 0 && !x.telling && x.actions == 0 {
		select {
		case <-x.idle:
		default:
			close(x.idle)
		}
	}
}

// Queued is the number of actions without an end, and of their blocks.
func (x *Executor) Queued() (actions, blocks int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.actions, x.blocks
}

// Stop accepts nothing more and ends what has not begun. What is under way ends by
// itself, as the engine's transfers do.
func (x *Executor) Stop() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return
	}
	x.closed = true
	x.stop()
	for _, l := range x.lanes {
		x.failQueuedLocked(l)
	}
	x.quietLocked()
}

// Close stops the executor and waits until every action has ended. Of a move whose
// end the engine has not told by now, the block is said to be kept: call it once the
// engine has ended all transfers. What is not over within that time ends as failed;
// then the answer is false, and workers go on until the engine lets go of them.
func (x *Executor) Close(within time.Duration) bool {
	x.Stop()
	x.mu.Lock()
	x.eachOpenLocked(func(it *item) {
		if it.state == arrived {
			x.endLocked(it, hints.StageKept, ReasonNoAnswer, 0)
		}
	})
	x.mu.Unlock()
	t := time.NewTimer(within)
	defer t.Stop()
	select {
	case <-x.idle:
		return true
	case <-t.C:
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.eachOpenLocked(func(it *item) { x.endLocked(it, hints.StageFailed, ReasonClosed, 0) })
	return x.workers == 0
}

func (x *Executor) eachOpenLocked(f func(*item)) {
	for _, l := range x.lanes {
		for _, it := range l.open {
			if it.older != nil {
				f(it.older)
			}
			f(it)
		}
	}
}
