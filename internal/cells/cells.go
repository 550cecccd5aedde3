// Package cells hands out runs of equal cells of one stretch of memory, which it
// does not know: the first run that fits, from where the last one ended.
//
// It locks nothing and waits for nothing; its users do.
package cells

// Cells is which cells are taken. It must be made by New.
type Cells struct {
	taken []bool
	next  int // where the search begins
	free  int
}

// New returns n free cells.
func New(n int) *Cells { return &Cells{taken: make([]bool, n), free: n} }

// Len is how many cells there are, Free how many are not taken.
func (c *Cells) Len() int  { return len(c.taken) }
func (c *Cells) Free() int { return c.free }

// Take takes n cells in a row and returns the first, or ok false when there are
// not so many in a row.
func (c *Cells) Take(n int) (at int, ok bool) {
	if n <= 0 || n > c.free {
		return 0, false
	}
	run := 0
	for k := range len(c.taken) + n {
		i := (c.next + k) % len(c.taken)
		if i == 0 {
			run = 0 // the end does not meet the beginning
		}
		if run++; c.taken[i] {
			run = 0
		}
		if run == n {
			at = i - n + 1
			c.set(at, n, true)
			c.next = i + 1
			return at, true
		}
	}
	return 0, false
}

// Give gives back what Take returned.
func (c *Cells) Give(at, n int) { c.set(at, n, false) }

func (c *Cells) set(at, n int, taken bool) {
	for i := at; i < at+n; i++ {
		if c.taken[i] == taken {
			panic("cells: a cell taken or given twice")
		}
		c.taken[i] = taken
	}
	if taken {
		n = -n
	}
	c.free += n
}
