package hints

// The action types of package hints.
const (
	TypeFetch      = "kv.fetch"
	TypePrefetch   = "kv.prefetch"
	TypeMove       = "kv.move"
	TypeInvalidate = "kv.invalidate"
	TypeEvict      = "kv.evict"
)

// Transfer is the payload of kv.fetch, kv.prefetch and kv.move.
type Transfer struct {
	Source string // source_control_endpoint: tcp://host:port
	// Hashes are block_hashes; they may repeat (see Distinct).
	Hashes   []uint64
	NoRetain bool // no_retain: advice to keep no copy afterwards
	// NoFramework is allow_framework: false; the source lends only blocks of its own.
	// A value of another type counts as absent.
	NoFramework bool
	// Move is mode: "move". Only kv.fetch has a mode; it is followed only where
	// AdviceConfig.RequestMoves allows. Any other mode means copy.
	Move bool
}

// Removal is the payload of kv.invalidate and kv.evict, which name blocks of this
// engine:
//
//	block_hashes  list of hashes, as in Transfer
//	lower_tiers   bool, default false; of kv.evict: copies in files go as well.
//	              kv.invalidate always means all tiers.
//
// It names no generations, which routers do not know: what is meant is the block that
// has the hash when the action is served, so a block that is stored again while the
// removal is on its way stays. Other fields are ignored, a source too.
type Removal struct {
	Hashes     []uint64
	LowerTiers bool
}

// FetchType is kv.fetch: advice for the request, kept in a.
func FetchType(a *Advice) Type[Transfer] { panic("not yet") }

// PrefetchType is kv.prefetch, independent of its carrier.
func PrefetchType(handle func(*Call, *Transfer) error) Type[Transfer] { panic("not yet") }

// MoveType is kv.move, independent of its carrier.
func MoveType(handle func(*Call, *Transfer) error) Type[Transfer] { panic("not yet") }

// InvalidateType is kv.invalidate. Removal.LowerTiers is always true.
func InvalidateType(handle func(*Call, *Removal) error) Type[Removal] { panic("not yet") }

// EvictType is kv.evict.
func EvictType(handle func(*Call, *Removal) error) Type[Removal] { panic("not yet") }

// Distinct appends to dst each of hashes once, in the order of first sight.
func Distinct(dst, hashes []uint64) []uint64 { panic("not yet") }

// CheckEndpoint reports why an address is no tcp://host:port that can be dialled: the
// host a name, an IPv4 address or an IPv6 address in brackets, none of them the
// unspecified one or a wildcard; the port in 1..65535; nothing after it. The error is
// a *Rejection, MissingSource or InvalidSource.
func CheckEndpoint(address string) error { panic("not yet") }
