//go:build !kvcr_check || race

package ring

const checking = false

// roles is the empty twin of the one in check_on.go.
type roles struct{}

func (*roles) enterProducer() {}
func (*roles) leaveProducer() {}
func (*roles) enterConsumer() {}
func (*roles) leaveConsumer() {}
