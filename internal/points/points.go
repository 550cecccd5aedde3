package points

// Hook hears of each point that a node of this process reaches, and of the
// incarnation at the other end. It may block, and may end the process. It must be
// set before a node is opened, and not be changed while one is open; nil, as it is
// outside of tests, costs a comparison.
var Hook func(point string, peer uint64)

// At reports a point.
func At(point string, peer uint64) {
	if Hook != nil {
		Hook(point, peer)
	}
}

// Of reports the point of a message: what happens to it, and its name. The name is
// not made when nobody hears.
func Of(what string, m interface{ String() string }, peer uint64) {
	if Hook != nil {
		Hook(what+" "+m.String(), peer)
	}
}
