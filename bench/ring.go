package bench

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/puzpuzpuz/xsync/v3"

	"github.com/kvcr-go/kvcr/ring"
)

// Ring measures the command ring beside a channel and the queues of xsync,
// all with the same messages of 56 bytes.
func Ring(ctx context.Context, o Options) (*Report, error) {
	return runParts(ctx, o, []part{
		{[]string{"one-way"}, 1, func(ctx context.Context, o Options, rep *Report) error {
			return measureRing(ctx, o, rep, "one-way", Bar{Times: 2}, oneWay)
		}},
		{[]string{"round-trip"}, 1, func(ctx context.Context, o Options, rep *Report) error {
			return measureRing(ctx, o, rep, "round-trip", Bar{Times: 1.7}, roundTrip)
		}},
	})
}

// queue moves messages from one goroutine to another. A side that finds no
// room, or nothing, may return 0 or wait.
type queue interface {
	push(ms []ring.Msg) int
	pop(ms []ring.Msg) int
}

type spscRing struct{ *ring.SPSC }

func (q spscRing) push(ms []ring.Msg) int { return q.PushBatch(ms) }
func (q spscRing) pop(ms []ring.Msg) int  { return q.PopBatch(ms) }

type xsyncSPSC struct{ *xsync.SPSCQueueOf[ring.Msg] }

func (q xsyncSPSC) push(ms []ring.Msg) int {
	for i := range ms {
		if !q.TryEnqueue(ms[i]) {
			return i
		}
	}
	return len(ms)
}

func (q xsyncSPSC) pop(ms []ring.Msg) int {
	for i := range ms {
		m, ok := q.TryDequeue()
		if !ok {
			return i
		}
		ms[i] = m
	}
	return len(ms)
}

type xsyncMPMC struct{ *xsync.MPMCQueueOf[ring.Msg] }

func (q xsyncMPMC) push(ms []ring.Msg) int {
	for i := range ms {
		if !q.TryEnqueue(ms[i]) {
			return i
		}
	}
	return len(ms)
}

func (q xsyncMPMC) pop(ms []ring.Msg) int {
	for i := range ms {
		m, ok := q.TryDequeue()
		if !ok {
			return i
		}
		ms[i] = m
	}
	return len(ms)
}

// channel waits in both directions, since that is how a channel is used.
type channel chan ring.Msg

func (q channel) push(ms []ring.Msg) int {
	for i := range ms {
		q <- ms[i]
	}
	return len(ms)
}

func (q channel) pop(ms []ring.Msg) int {
	ms[0] = <-q
	for i := 1; i < len(ms); i++ {
		select {
		case ms[i] = <-q:
		default:
			return i
		}
	}
	return len(ms)
}

var queues = []struct {
	name string
	open func(capacity int) queue
}{
	{ours, func(n int) queue { return spscRing{ring.New(n)} }},
	{"xsync-spsc", func(n int) queue { return xsyncSPSC{xsync.NewSPSCQueueOf[ring.Msg](n)} }},
	{"xsync-mpmc", func(n int) queue { return xsyncMPMC{xsync.NewMPMCQueueOf[ring.Msg](n)} }},
	{"channel", func(n int) queue { return make(channel, n) }},
}

const (
	ringCapacity = 1024
	// ringLot messages go between two looks at the clock: enough that the start
	// of the other goroutine does not show.
	ringLot = 4 << 10
)

// pollsPerYield is how often a side tries again before it lets the scheduler
// in: rarely enough not to show, often enough that a machine with other work
// still ends.
const pollsPerYield = 1024

func pushAll(q queue, ms []ring.Msg) {
	for tries := 1; len(ms) > 0; tries++ {
		ms = ms[q.push(ms):]
		if tries%pollsPerYield == 0 {
			runtime.Gosched()
		}
	}
}

func popSome(q queue, ms []ring.Msg) int {
	for tries := 1; ; tries++ {
		if n := q.pop(ms); n > 0 {
			return n
		}
		if tries%pollsPerYield == 0 {
			runtime.Gosched()
		}
	}
}

func measureRing(ctx context.Context, o Options, rep *Report, name string, bar Bar, move func(open func(int) queue, batch, messages int) error) error {
	batches := []int{1, 8, 64, 1024}
	for i, batch := range batches {
		r := rep.result(Result{Suite: "ring", Name: name, Params: []Param{{"batch", batch}}, Unit: "ns/op", Better: Lower, Bar: bar})
		err := o.slice(i, len(batches)).rounds(ctx, func(round int) error {
			o.Progress(fmt.Sprintf("%s, batch %d, round %d of %d", name, batch, round+1, o.Runs))
			defer asClient(ctx)()
			for _, q := range queues {
				ns, err := moveFor(o.span(), q.open, batch, move)
				if err != nil {
					return fmt.Errorf("%s: %w", q.name, err)
				}
				s := r.series(q.name)
				s.Rival = q.name != ours
				s.Runs = append(s.Runs, ns)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// moveFor moves lots of messages for d and returns ns a message.
func moveFor(d time.Duration, open func(int) queue, batch int, move func(open func(int) queue, batch, messages int) error) (float64, error) {
	moved := 0
	start := time.Now()
	for time.Since(start) < d {
		if err := move(open, batch, ringLot); err != nil {
			return 0, err
		}
		moved += ringLot
	}
	return float64(time.Since(start).Nanoseconds()) / float64(moved), nil
}

// oneWay moves messages in batches, both sides as fast as they can.
func oneWay(open func(int) queue, batch, messages int) error {
	q := open(ringCapacity)
	sum := make(chan uint64)
	go func() {
		ms := make([]ring.Msg, batch)
		total := uint64(0)
		for got := 0; got < messages; {
			n := popSome(q, ms[:min(batch, messages-got)])
			for i := range ms[:n] {
				total += ms[i][0]
			}
			got += n
		}
		sum <- total
	}()
	ms := make([]ring.Msg, batch)
	for sent := 0; sent < messages; {
		n := min(batch, messages-sent)
		for i := range n {
			ms[i][0] = uint64(sent + i)
		}
		pushAll(q, ms[:n])
		sent += n
	}
	if got, want := <-sum, uint64(messages)*uint64(messages-1)/2; got != want {
		return fmt.Errorf("sum of messages %d, want %d", got, want)
	}
	return nil
}

// roundTrip sends a batch, waits for its answers, and sends the next.
func roundTrip(open func(int) queue, batch, messages int) error {
	there, back := open(ringCapacity), open(ringCapacity)
	go func() {
		ms := make([]ring.Msg, batch)
		for done := 0; done < messages; {
			n := popSome(there, ms[:min(batch, messages-done)])
			for i := range ms[:n] {
				ms[i][1] = ms[i][0] + 1
			}
			pushAll(back, ms[:n])
			done += n
		}
	}()
	ms := make([]ring.Msg, batch)
	for sent := 0; sent < messages; {
		n := min(batch, messages-sent)
		for i := range n {
			ms[i][0] = uint64(sent + i)
		}
		pushAll(there, ms[:n])
		for got := 0; got < n; {
			k := popSome(back, ms[:n-got])
			for i := range ms[:k] {
				if want := uint64(sent + got + i + 1); ms[i][1] != want {
					return fmt.Errorf("answer %d, want %d", ms[i][1], want)
				}
			}
			got += k
		}
		sent += n
	}
	return nil
}
