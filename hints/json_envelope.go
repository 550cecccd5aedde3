package hints

// scanJSON checks the envelope in doc.data and fills doc.
func scanJSON(doc *document, lim *Limits) error {
	s := jsonScanner{data: doc.data, depth: lim.Depth}
	s.space()
	ok := false
	if c := s.peek(); c == '{' {
		ok = s.envelope(doc, lim)
	} else if _, ok = s.value(0); ok {
		s.pos, ok = 0, s.fail("the envelope is no object")
	}
	if ok {
		s.space()
		if s.pos < len(s.data) {
			ok = s.fail("something follows the envelope")
		}
	}
	if !ok {
		return &MalformedError{Form: "json", What: s.what, Offset: s.pos}
	}
	if doc.list != List {
		return &MalformedError{Form: "json", What: noActions(doc.list), Offset: -1}
	}
	return nil
}

func noActions(kind Kind) string {
	if kind == Absent {
		return "no actions"
	}
	return "actions is " + kind.String() + ", not a list"
}

func (s *jsonScanner) envelope(doc *document, lim *Limits) bool {
	return s.object(1, func(name item) (ok bool) {
		if doc.is(name, "actions") {
			doc.actions, doc.members = doc.actions[:0], doc.members[:0]
			if s.peek() == '[' {
				doc.list = List
				return s.list(2, func() bool { return s.action(doc, lim) })
			}
			var it item
			it, ok = s.value(1)
			doc.list = it.kind
			return ok
		}
		it, ok := s.value(1)
		if at := doc.envelopeField(name); at != nil {
			*at = it
		}
		return ok
	})
}

func (s *jsonScanner) action(doc *document, lim *Limits) bool {
	if len(doc.actions) == MaxListedActions {
		return s.fail(tooMany)
	}
	var a listed
	ok := false
	if s.peek() == '{' {
		served := len(doc.actions) < lim.Actions // of the rest only the id is of interest
		ok = s.object(3, func(name item) (ok bool) {
			if doc.is(name, "payload") {
				if served && s.peek() == '{' {
					a.payload, ok = s.payload(doc, &a)
					return ok
				}
				a.payload, ok = s.value(3)
				return ok
			}
			it, ok := s.value(3)
			if at := doc.actionField(&a, name); at != nil {
				*at = it
			}
			return ok
		})
	} else {
		_, ok = s.value(2)
	}
	doc.actions = append(doc.actions, a)
	return ok
}

func (s *jsonScanner) payload(doc *document, a *listed) (item, bool) {
	it := item{lo: uint32(s.pos), kind: Object}
	doc.beginPayload(a)
	ok := s.object(4, func(name item) bool {
		v, ok := s.value(4)
		doc.note(a, name, v)
		return ok
	})
	it.hi = uint32(s.pos)
	return it, ok
}
