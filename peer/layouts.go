package peer

import (
	"errors"
	"strings"

	"github.com/kvcr-go/kvcr/wire"
)

// Layouts are compared by fingerprint, which tells that they differ and not in what. So
// a source that refuses says what its own is, and the destination, which has both,
// names the fields.

// compare holds a destination's layout against ours.
func (n *Node) compare(namespace string, theirs [32]byte) (wire.Status, string) {
	if n.cfg.Fingerprint == nil {
		return wire.StatusOK, ""
	}
	var none [32]byte
	ours := n.cfg.Fingerprint(namespace)
	if ours == none || theirs == none || ours == theirs {
		return wire.StatusOK, ""
	}
	n.count.refusals.Add(1)
	text := "the layouts of namespace " + namespace + " differ"
	if n.cfg.Layout != nil {
		// Cut short it would differ in what was cut.
		if whole := text + "\n" + n.cfg.Layout(namespace); len(whole) <= wire.MaxText {
			text = whole
		}
	}
	return wire.StatusBadLayout, text
}

// differs notes that the source has refused an operation since the layouts differ, and
// says in what: once, not for each operation.
func (l *destLink) differs(op OpID, m *wire.Refused) {
	w, n := l.ops[op], l.node
	if w == nil || m.Status != wire.StatusBadLayout || m.Source != uint64(l.peer) {
		return
	}
	n.count.refusals.Add(1)
	in := "in what the peer does not say"
	if _, theirs, ok := strings.Cut(m.Text, "\n"); ok && n.cfg.Layout != nil {
		in = wire.LayoutDifference(n.cfg.Layout(w.namespace), theirs)
	}
	err := &Error{Op: "fetch from", Endpoint: l.endpoint, Status: m.Status, Err: ErrRefused, Cause: errors.New("the layouts of namespace " + w.namespace + " differ: " + in)}
	n.mu.Lock()
	known := l.unlike != nil && l.unlike.Error() == err.Error()
	l.unlike = err
	n.mu.Unlock()
	if !known {
		n.log.Warn("a peer gives no blocks: the layouts differ", "endpoint", l.endpoint, "namespace", w.namespace, "difference", in)
	}
}
