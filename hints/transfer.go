package hints

// The action types of package hints.
const (
	TypeFetch      = "kv.fetch"
	TypePrefetch   = "kv.prefetch"
	TypeMove       = "kv.move"
	TypeInvalidate = "kv.invalidate"
	TypeEvict      = "kv.evict"
)

// version is the action_version of all of them.
const version = "1.0"

// Transfer is the payload of kv.fetch, kv.prefetch and kv.move. Fields that it does not
// have are ignored.
type Transfer struct {
	Source string // source_control_endpoint: tcp://host:port
	// Hashes are block_hashes; they may repeat (see Distinct).
	Hashes   []uint64
	NoRetain bool // no_retain: advice to keep no copy afterwards
	// NoFramework is allow_framework: false; the source lends only blocks of its own.
	// A value that is no truth value counts as absent, as it does for routers to
	// which the field is unknown.
	NoFramework bool
	// Move is mode: "move". Only kv.fetch has a mode; it is followed only where
	// AdviceConfig.RequestMoves allows. Any other mode means copy.
	Move bool
}

// Reset empties t but for the memory of its hashes.
func (t *Transfer) Reset() { *t = Transfer{Hashes: t.Hashes[:0]} }

// parseTransfer reads a payload, in the contract's order of checks.
func parseTransfer(t *Transfer, p Value, lim *Limits) (err error) {
	if t.Source, err = p.Field("source_control_endpoint").endpoint(); err != nil {
		return err
	}
	if t.Hashes, err = p.Field("block_hashes").AppendHashes(t.Hashes, lim.Hashes); err != nil {
		return err
	}
	if t.NoRetain, err = p.Field("no_retain").flag("no_retain"); err != nil {
		return err
	}
	if allow, ok := p.Field("allow_framework").Bool(); ok {
		t.NoFramework = !allow
	}
	t.Move = p.Field("mode").is("move")
	return nil
}

// checkTransfer checks what parseTransfer does, for a t that came as one.
func checkTransfer(t *Transfer, lim *Limits) error {
	if _, err := endpoints.good(t.Source); err != nil {
		return err
	}
	return checkHashes(t.Hashes, lim)
}

// endpoint returns a good address as a string to keep.
func (v Value) endpoint() (string, error) {
	switch v.kind {
	case Absent, Null:
		return "", &Rejection{MissingSource, "source_control_endpoint is " + v.kind.String()}
	case Text:
	default:
		return "", &Rejection{InvalidSource, "source_control_endpoint is " + v.kind.String() + ", not text"}
	}
	if v.doc == nil {
		return endpoints.good(v.tree.(string))
	}
	var scratch [64]byte
	return endpoints.goodBytes(v.doc.text(v.item, scratch[:]))
}

// flag returns an optional truth value.
func (v Value) flag(name string) (bool, error) {
	if v.kind == Absent {
		return false, nil
	}
	b, ok := v.Bool()
	if !ok {
		return false, &Rejection{InvalidPayload, name + " is " + v.kind.String() + ", not a truth value"}
	}
	return b, nil
}

// FetchType is kv.fetch: advice for the request, kept in a.
func FetchType(a *Advice) Type[Transfer] {
	return Type[Transfer]{
		Name: TypeFetch, Version: version, NeedsRequest: true,
		Parse: parseTransfer, Check: checkTransfer,
		Handle: func(c *Call, t *Transfer) error { return a.Submit(c.RequestID, t) },
	}
}

// PrefetchType is kv.prefetch, independent of its carrier: copy the blocks into memory
// of this engine.
func PrefetchType(handle func(*Call, *Transfer) error) Type[Transfer] {
	return Type[Transfer]{Name: TypePrefetch, Version: version, Parse: parseTransfer, Check: checkTransfer, Handle: handle}
}

// MoveType is kv.move, independent of its carrier: as kv.prefetch, and the source frees
// its copies.
func MoveType(handle func(*Call, *Transfer) error) Type[Transfer] {
	return Type[Transfer]{Name: TypeMove, Version: version, Parse: parseTransfer, Check: checkTransfer, Handle: handle}
}
