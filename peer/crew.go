package peer

import (
	"runtime"
	"sync"
)

// crew runs jobs in their order of arrival on as many goroutines as there are
// processors at most, which end when there is nothing to do.
type crew struct {
	// spawn begins a goroutine, or does not and returns false: then jobs are left
	// to the workers that there are. nil: a plain one.
	spawn func(func()) bool

	mu      sync.Mutex
	jobs    []func()
	workers int
	idle    chan struct{} // not nil: closed when the last worker ends
}

func (c *crew) push(job func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.jobs = append(c.jobs, job)
	if c.workers < runtime.GOMAXPROCS(0) && c.begin() {
		c.workers++
	}
}

func (c *crew) begin() bool {
	if c.spawn != nil {
		return c.spawn(c.work)
	}
	go c.work()
	return true
}

func (c *crew) work() {
	for {
		c.mu.Lock()
		if len(c.jobs) == 0 {
			c.workers--
			c.jobs = nil
			if c.workers == 0 && c.idle != nil {
				close(c.idle)
				c.idle = nil
			}
			c.mu.Unlock()
			return
		}
		job := c.jobs[0]
		c.jobs[0] = nil
		c.jobs = c.jobs[1:]
		c.mu.Unlock()
		job()
	}
}

// wait returns when there are no jobs.
func (c *crew) wait() {
	c.mu.Lock()
	if c.workers == 0 {
		c.mu.Unlock()
		return
	}
	if c.idle == nil {
		c.idle = make(chan struct{})
	}
	idle := c.idle
	c.mu.Unlock()
	<-idle
}
