package hints

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/puzpuzpuz/xsync/v3"
)

// answers counts the answers to actions of one type.
type answers struct {
	accepted *xsync.Counter // striped: every hint of every core counts here
	rejected [numReasons]atomic.Uint64
	warned   [numReasons]atomic.Bool
	panicked atomic.Bool
}

func (a *answers) init() { a.accepted = xsync.NewCounter() }

// TypeCounts counts the answers to actions of one type.
type TypeCounts struct {
	Type     string // registered, or "other" for all that are not
	Accepted uint64
	Rejected [numReasons]uint64 // by Reason
}

// Counts are a Dispatcher's counters since it was made.
type Counts struct {
	Malformed uint64 // envelopes
	Types     []TypeCounts
}

// Counts returns the counters; types in order of registration, "other" last.
func (d *Dispatcher) Counts() Counts {
	c := Counts{Malformed: d.malformed.Load()}
	for _, r := range d.types.Load().order {
		t := r.answers.counts(r.name)
		t.Accepted = uint64(r.answers.accepted.Value())
		c.Types = append(c.Types, t)
	}
	c.Types = append(c.Types, d.other.counts("other"))
	return c
}

func (a *answers) counts(name string) TypeCounts {
	t := TypeCounts{Type: name}
	for i := range t.Rejected {
		t.Rejected[i] = a.rejected[i].Load()
	}
	return t
}

// warnings logs what is worth a line, once.
type warnings struct {
	log      *slog.Logger
	envelope atomic.Bool
	action   atomic.Bool

	mu      sync.Mutex
	strange map[string]struct{} // types that nobody registered and that were warned of
}

// version warns of an unknown version, once for each kind.
func (w *warnings) version(kind, actionType, value string) {
	flag := &w.envelope
	if kind == "action_version" {
		flag = &w.action
	}
	if flag.Swap(true) {
		return
	}
	w.log.LogAttrs(context.Background(), slog.LevelWarn, "hint of an unknown version is read as the known one",
		slog.String("kind", kind), slog.String("value", value), slog.String("type", actionType))
}

// maxStrange is how many unregistered types are warned of by name: routers make up new
// ones, strangers any number.
const maxStrange = 64

// rejected warns of a rejection, once for each type and reason.
func (w *warnings) rejected(a *answers, r *Result) {
	if a.accepted == nil { // not registered
		w.mu.Lock()
		defer w.mu.Unlock()
		name := cut(r.Type)
		if _, ok := w.strange[name]; ok || len(w.strange) == maxStrange {
			return
		}
		if w.strange == nil {
			w.strange = map[string]struct{}{}
		}
		w.strange[name] = struct{}{}
	} else if a.warned[r.Reason].Swap(true) {
		return
	}
	w.log.LogAttrs(context.Background(), slog.LevelWarn, "hint rejected; further ones of this type for this reason are not logged",
		slog.String("type", cut(r.Type)), slog.String("reason", r.Reason.String()), slog.String("detail", r.Detail),
		slog.String("message_id", cut(r.MessageID)), slog.String("action_id", cut(r.ActionID)))
}
