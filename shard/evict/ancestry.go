package evict

// Ancestry is what a policy that knows chains can tell of them. Only density
// does; with another one blocks have no parents that anybody could name.
type Ancestry interface {
	// Parent returns the resident block that a resident one names as its parent,
	// 0 if there is none. It changes nothing.
	Parent(id ID) ID
}

// Parent implements Ancestry. Children of a replaced block name its heir from
// the next sweep on; until then the forward tells.
func (d *density) Parent(id ID) ID {
	d.mustResident("parent", id)
	n := &d.nodes[id]
	p := n.ref()
	if p.slot() == 0 {
		return 0
	}
	if !d.orphan(n) {
		return p.slot()
	}
	if heir, ok := d.heir(p); ok && heir != id {
		return heir
	}
	return 0
}
