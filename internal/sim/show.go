package sim

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

func showEvent(ev peer.Event) string {
	switch e := ev.(type) {
	case peer.Frame:
		return fmt.Sprintf("gets %d %s", e.ID, showMessage(e.Msg))
	case peer.Submit:
		var names []string
		for _, it := range e.Items {
			names = append(names, fmt.Sprintf("%s@%d", it.Key, it.Generation))
		}
		return fmt.Sprintf("submit %d %s %s deliver=%t by %v", e.Op, e.Mode, strings.Join(names, " "), e.Deliver, e.Deadline)
	}
	return fmt.Sprintf("%s %v", reflect.TypeOf(ev).Name(), ev)
}

func showAction(a peer.Action) string {
	switch a := a.(type) {
	case peer.Send:
		return fmt.Sprintf("sends %d %s", a.ID, showMessage(a.Msg))
	case peer.Outcome:
		return fmt.Sprintf("outcome %d.%d %s: %s", a.Op, a.Index, a.Key, a.Status)
	case peer.Post:
		return fmt.Sprintf("post %d.%d in slot %d", a.Op, a.Index, a.Slot)
	case peer.Write:
		return fmt.Sprintf("write %d.%d claim %d", a.Op, a.Index, a.Claim)
	}
	return fmt.Sprintf("%s %v", reflect.TypeOf(a).Name(), a)
}

func showMessage(m wire.Message) string {
	if o, ok := m.(*wire.Offer); ok {
		s := fmt.Sprintf("OFFER %x>%x", o.Source, o.Dest)
		for _, it := range o.Items {
			s += fmt.Sprintf(" %s/%s", it.Status, it.Keep)
		}
		return s
	}
	return fmt.Sprintf("%s %+v", m.Type(), reflect.ValueOf(m).Elem())
}
