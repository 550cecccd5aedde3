package evict

import "fmt"

// Check verifies D1 to D3, the lists, the records, and that slots never name
// each other in a circle.
func (d *density) Check() error {
	children := make([]uint32, len(d.nodes))
	for _, f := range d.forward {
		children[f.to.slot()]++
	}
	perClass := [classes]int{}
	for i := 1; i < len(d.nodes); i++ {
		n := &d.nodes[i]
		if !n.resident() {
			if n.Word != 0 || n.Parent != 0 {
				return fmt.Errorf("block %d is not resident but keeps %+v", i, *n)
			}
			continue
		}
		if !n.inner() {
			perClass[n.class()]++
		}
		if c := n.class(); (c == classHub) != (n.ever() == hubAt) && c != classDead {
			return fmt.Errorf("block %d of class %d had %d children", i, c, n.ever())
		}
		if c := n.class(); c.chained() && c.turn() != n.turn() {
			return fmt.Errorf("block %d of class %d has turn %d", i, c, n.turn())
		}
		if p := n.ref().slot(); p != 0 {
			if int(p) >= len(d.nodes) || int(p) == i {
				return fmt.Errorf("block %d has parent %d", i, p)
			}
			children[p]++
			if d.orphan(n) && !d.dirty && !d.sweeping {
				return fmt.Errorf("block %d is an orphan of slot %d and no sweep is due", i, p)
			}
		}
	}
	for i := 1; i < len(d.nodes); i++ {
		if n := &d.nodes[i]; n.children() != children[i] || n.inner() != (children[i] > 0) {
			return fmt.Errorf("block %d counts %d children, has %d", i, n.children(), children[i])
		}
		steps := 0
		for at := d.nodes[i].ref().slot(); at != 0; at = d.nodes[at].ref().slot() {
			if steps++; steps > len(d.nodes) {
				return fmt.Errorf("block %d is over itself", i)
			}
		}
	}
	for c := range d.lists {
		l := &d.lists[c]
		err := d.walk(l, func(id ID) error {
			if n := &d.nodes[id]; n.class() != class(c) || n.inner() {
				return fmt.Errorf("block %d on list %d has class %d, inner %t", id, c, n.class(), n.inner())
			}
			return nil
		})
		if err != nil {
			return err
		}
		if c != 0 && l.n != perClass[c] || c == 0 && l.n != 0 {
			return fmt.Errorf("list %d holds %d blocks, %d leaves have the class", c, l.n, perClass[c])
		}
	}
	return d.recs.check()
}
