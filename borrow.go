package kvcr

// Calls on the engine itself, for callers without a handle of their own: each
// borrows one. They serve the first namespace and cost a channel operation.

// borrow takes an idle handle or makes one.
func (e *Engine) borrow() (*Handle, error) {
	select {
	case h := <-e.idle:
		return h, nil
	default:
		return e.Handle()
	}
}

func (e *Engine) giveBack(h *Handle) {
	select {
	case e.idle <- h:
	default:
		h.Close()
	}
}

// closeIdle closes the handles that nobody borrows now.
func (e *Engine) closeIdle() {
	for {
		select {
		case h := <-e.idle:
			h.Close()
		default:
			return
		}
	}
}

// Get is Handle.Get through a borrowed handle.
func (e *Engine) Get(key []byte) (View, bool) {
	h, err := e.borrow()
	if err != nil {
		return View{}, false
	}
	defer e.giveBack(h)
	return h.Get(key)
}

// Set is Handle.Set through a borrowed handle.
func (e *Engine) Set(key, value []byte) error {
	h, err := e.borrow()
	if err != nil {
		return err
	}
	defer e.giveBack(h)
	return h.Set(key, value)
}

// Delete is Handle.Delete through a borrowed handle.
func (e *Engine) Delete(key []byte) (bool, error) {
	h, err := e.borrow()
	if err != nil {
		return false, err
	}
	defer e.giveBack(h)
	return h.Delete(key)
}
