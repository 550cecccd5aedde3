//go:build kvcr_check && !race

package ring

import "sync/atomic"

// checking is off in race builds although they check elsewhere: the words
// below would be edges between two producers, and hide from the detector the
// very race it is there to find.
const checking = true

// roles catches two goroutines in one role at the same time. A role that is
// handed over is not seen as an error.
type roles struct {
	producer atomic.Bool
	consumer atomic.Bool
}

func (r *roles) enterProducer() {
	if r.producer.Swap(true) {
		panic("ring: two producers at once: the role was not handed over")
	}
}

func (r *roles) leaveProducer() { r.producer.Store(false) }

func (r *roles) enterConsumer() {
	if r.consumer.Swap(true) {
		panic("ring: two consumers at once: the role was not handed over")
	}
}

func (r *roles) leaveConsumer() { r.consumer.Store(false) }
