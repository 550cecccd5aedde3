package trace

import "sort"

// span is one more than the greatest id.
func (t *Trace) span() uint64 {
	var top uint64
	for i := range t.Requests {
		for _, id := range t.Requests[i].IDs {
			top = max(top, id+1)
		}
	}
	return top
}

// shifted returns the requests with base added to every id.
func (t *Trace) shifted(base uint64) []Request {
	out := make([]Request, len(t.Requests))
	for i, r := range t.Requests {
		ids := make([]uint64, len(r.IDs))
		for j, id := range r.IDs {
			ids[j] = id + base
		}
		r.IDs = ids
		out[i] = r
	}
	return out
}

// Concat plays traces one after the other, each with ids of its own even where
// the same trace comes again. Times go on where the one before ended.
func Concat(name string, parts ...*Trace) *Trace {
	out := &Trace{Name: name}
	var base uint64
	var start int64
	for _, p := range parts {
		reqs := p.shifted(base)
		end := start
		for i := range reqs {
			reqs[i].Timestamp += start
			end = max(end, reqs[i].Timestamp)
		}
		out.Requests = append(out.Requests, reqs...)
		base += p.span()
		start = end
	}
	return out
}

// Steady is three copies of t with fresh ids, of which only the third counts:
// what a cache does once it is full of what will never return.
func Steady(t *Trace) *Trace {
	out := Concat(t.Name+"3", t, t, t)
	for i := range out.Requests[:2*len(t.Requests)] {
		out.Requests[i].Uncounted = true
	}
	return out
}

// Alternate plays a, b, a, b with fresh ids: the workload changes.
func Alternate(a, b *Trace) *Trace { return Concat("alt", a, b, a, b) }

// Mix merges two traces by time, with ids of their own.
func Mix(a, b *Trace) *Trace {
	out := &Trace{Name: "mix"}
	out.Requests = append(out.Requests, a.shifted(0)...)
	out.Requests = append(out.Requests, b.shifted(a.span())...)
	sort.SliceStable(out.Requests, func(i, j int) bool {
		return out.Requests[i].Timestamp < out.Requests[j].Timestamp
	})
	return out
}

// Scan puts a document of length blocks that never returns after every
// every-th request. Documents do not count.
func Scan(t *Trace, every, length int) *Trace {
	out := &Trace{Name: "scan"}
	next := t.span()
	for i, r := range t.Requests {
		out.Requests = append(out.Requests, r)
		if (i+1)%every != 0 {
			continue
		}
		doc := Request{Timestamp: r.Timestamp, IDs: make([]uint64, length), Uncounted: true}
		for j := range doc.IDs {
			doc.IDs[j] = next
			next++
		}
		out.Requests = append(out.Requests, doc)
	}
	return out
}

// Halves are the first and the second half of t in time.
func Halves(t *Trace) (first, second *Trace) {
	first, second = &Trace{Name: t.Name + "1"}, &Trace{Name: t.Name + "2"}
	if len(t.Requests) == 0 {
		return first, second
	}
	lo, hi := t.Requests[0].Timestamp, t.Requests[0].Timestamp
	for _, r := range t.Requests {
		lo, hi = min(lo, r.Timestamp), max(hi, r.Timestamp)
	}
	for _, r := range t.Requests {
		if r.Timestamp < lo+(hi-lo)/2 {
			first.Requests = append(first.Requests, r)
		} else {
			second.Requests = append(second.Requests, r)
		}
	}
	return first, second
}
