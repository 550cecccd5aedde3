package kvcr

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// demand is what hints have to stand, and the tests that show it: file:Test, or
// file:Test/sub-test, from the root of the module.
type demand struct {
	what  string
	tests []string
}

// hintDemands are, by name: the rows of the router's behaviour table, in its order; what
// goes wrong between a hint and its end; and cases that users of such systems have
// run into.
var hintDemands = map[string]demand{
	"row 01": {"GPU 1-10, B only 11-15: one hint to B, hashes 1..15", []string{"hints/plan/oracle/rows_test.go:TestBehaviour/GPU 1-10, B only 11-15"}},
	"row 02": {"the same with 1-10 on the host only", []string{"hints/plan/oracle/rows_test.go:TestBehaviour/host only 1-10, B only 11-15"}},
	"row 03": {"nothing local, a source holds a root prefix: fetched as before", []string{"hints/plan/oracle/rows_test.go:TestBehaviour/nothing local, source holds a root prefix"}},
	"row 04": {"a source vanishes and reappears deeper: usable from another destination's own frontier only", []string{"hints/plan/oracle/rows_test.go:TestBehaviour/source vanishes and reappears deeper"}},
	"row 05": {"a gap before what B holds: no continuation", []string{"hints/plan/oracle/rows_test.go:TestBehaviour/gap: B holds 12-15, F=10"}},
	"row 06": {"the frontier inside B's interval: allowed if the end is above it", []string{"hints/plan/oracle/rows_test.go:TestBehaviour/F inside B's interval, if the end is above F"}},
	"row 07": {"two intervals with a hole are never bridged", []string{"hints/plan/oracle/rows_test.go:TestBehaviour/two intervals of B with a hole are never bridged"}},
	"row 08": {"a fully local target: no hint", []string{"hints/plan/oracle/rows_test.go:TestBehaviour/fully local target"}},
	"row 09": {"the target itself, or a cache attached to it, is no source", []string{
		"hints/plan/oracle/rows_test.go:TestBehaviour/source is the target", "hints/plan/oracle/rows_test.go:TestBehaviour/source is a cache owner attached to the target",
	}},
	"row 10": {"another worker type, or no endpoint, is no source", []string{"hints/plan/oracle/rows_test.go:TestBehaviour/other worker type", "hints/plan/oracle/rows_test.go:TestBehaviour/empty endpoint"}},
	"row 11": {"a wrong parent or a conflicting hash: no hint for that range, prefixes still", []string{
		"hints/plan/oracle/rows_test.go:TestBehaviour/wrong parent", "hints/plan/oracle/rows_test.go:TestBehaviour/conflicting external hash",
	}},
	"row 12": {"local blocks beyond a hole are not resumed", []string{"hints/plan/oracle/rows_test.go:TestBehaviour/local detached L2 beyond a hole"}},
	"row 13": {"a local prefix that is stale at fetch time: partial success", []string{
		"hints/plan/oracle/rows_test.go:TestBehaviour/stale local prefix at fetch time", "hints_sources_test.go:TestSourceCopyGoes",
	}},
	"row 14": {"eviction, dump and replay, removal of owners, one owner to many: as a fresh oracle says", []string{
		"hints/plan/oracle/rows_test.go:TestBehaviour/eviction", "hints/plan/oracle/rows_test.go:TestBehaviour/dump and replay",
		"hints/plan/oracle/rows_test.go:TestBehaviour/owner removal", "hints/plan/oracle/rows_test.go:TestBehaviour/an edge's owners grow and shrink",
		"hints/plan/oracle/plan_test.go:TestIndex", "hints/plan/oracle/long_test.go:TestIndexLong",
	}},

	"source copies disappear": {"between the hint, its resolution and the transfer", []string{
		"hints_sources_test.go:TestSourceCopyGoes", "peer/resolve_node_test.go:TestReboundBetween", "hints_advice_test.go:TestAdviceFallsBack",
	}},
	"source copies are incomplete": {"half written, a chain with a hole, some parts of a block", []string{
		"hints_sources_test.go:TestSourceCopyIncomplete", "hints_sources_test.go:TestSourceCopyInParts", "hints/work/lost_test.go:TestGroupsStayWhole",
	}},
	"collision and recovery": {"two blocks have one hash; then one of them goes", []string{
		"node/router_test.go:TestCollisionRecovers", "hints/keys/table_test.go:TestCollisions", "peer/resolve_test.go:TestAnswerHashes",
	}},
	"self source by an alias": {"nothing is looked up, fetched or removed", []string{
		"hints_trouble_test.go:TestSelfSource", "peer/resolve_node_test.go:TestResolveSelf", "peer/resolve_test.go:TestAnswerHashesSelf",
	}},
	"mixed batches": {"valid, invalid and unknown actions have each their own answer, in order", []string{
		"hints_work_test.go:TestPrefetchAndMove", "hints/dispatcher_test.go:TestResults", "hints/vectors_test.go:TestVectors", "wire/server/hints_test.go:TestHintsOverWire",
		"cmd/kvcr/hint_test.go:TestHint/one of three",
	}},
	"resolution over a bad network": {"replies that are late, doubled, in another order, of another life", []string{
		"peer/resolve_test.go:TestResolvingAnyNetwork", "peer/resolve_test.go:TestResolvingParts", "peer/resolve_test.go:TestResolvingIncarnations",
		"peer/resolve_node_test.go:TestAnswersOfAnother", "internal/sim/sim_test.go:TestSchedules",
	}},
	"the carrier is discarded": {"while independent work of it is under way", []string{"hints_overlap_test.go:TestCarrierDiscarded"}},
	"a move overlaps a copy":   {"neither loses a block", []string{"hints_overlap_test.go:TestMoveOverlapsCopy", "hints/work/executor_test.go:TestShared"}},
	"a prefetch overlaps a fetch": {"each block is fetched once, whoever was first", []string{
		"hints_overlap_test.go:TestPrefetchOverlapsFetch", "hints_overlap_test.go:TestJoinedPrefetchFails", "hints/work/executor_test.go:TestJoins",
	}},
	"readers during a move":      {"keep their bytes; a no_evict claim keeps the block", []string{"hints_trouble_test.go:TestMoveUnderReaders", "hints_local_test.go:TestInvalidateAndEvict"}},
	"rebinding":                  {"of a hash between resolution and admission: noticed, neither copied nor removed", []string{"hints_trouble_test.go:TestRebound", "peer/resolve_node_test.go:TestReboundBetween", "hints/keys/table_test.go:TestRebind"}},
	"the outcomes are complete":  {"one end for each accepted action, one for each of its hashes", []string{"hints/work/property_test.go:TestEveryActionEnds", "hints/outcomes_test.go:TestTracker", "hints_trouble_test.go:TestTooMuchWork", "hints_trouble_test.go:TestCloseDuringWork"}},
	"outcomes when a peer dies":  {"the same", []string{"hints_trouble_test.go:TestSourceDies", "hints_trouble_test.go:TestSilentSource", "hints/work/executor_test.go:TestDeadSource", "hints/work/lost_test.go:TestSourceStopsAnswering"}},
	"hints of another namespace": {"are refused, and what they name stays", []string{"node/router_test.go:TestHintsOfAnotherNamespace"}},
	"hints without measure":      {"cost their client, and nobody else", []string{"wire/server/hints_hostile_test.go:TestHintFlood", "wire/server/hints_hostile_test.go:TestOutcomesNotRead", "wire/server/hints_hostile_test.go:TestFetchForFlood"}},

	"B2": {"processes make other keys of the same tokens: named where they meet, not a quiet 0 %", []string{
		"hints/keys/recipe_test.go:TestTwoProcesses", "hints/keys/recipe_test.go:TestRecipeInLayout", "peer/layouts_test.go:TestLayoutsThatDiffer", "cmd/kvcr/hint_test.go:TestRecipesDiffer",
	}},
	"H1": {"lost events are seen by their sequence and replayed byte for byte, with their topic", []string{
		"node/router_test.go:TestRouterHearsNode", "hints/events/publisher_test.go:TestPublisherLibzmq", "hints/events/consumer_test.go:TestConsumerLibzmq",
		"hints/events/consumer_test.go:TestReplayFailures", "hints/events/consumer_test.go:TestLossy", "node/router_test.go:TestRouterFollowsRestart",
	}},
	"H2": {"a late replay revives nothing", []string{"hints/events/consumer_test.go:TestConsumerLibzmq", "hints/events/consumer_test.go:TestLossy"}},
	"H3": {"stored five times and evicted once: one stored, one removed", []string{"node/router_test.go:TestRouterHearsOnce", "hints/publish/publisher_test.go:TestOneStoredOneRemoved"}},
	"H4": {"events name their tier; an unknown one is refused, not guessed", []string{
		"hints/publish/publisher_test.go:TestUnknownTier", "hints/events/normalize_test.go:TestTiers", "hints/keys/table_test.go:TestTiers",
	}},
}

// Each demand has tests, and each test that is named is there.
func TestHintDemands(t *testing.T) {
	files := map[string]map[string]map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(hintDemands)) {
		d := hintDemands[name]
		if d.what == "" || len(d.tests) == 0 {
			t.Errorf("%s: nothing answers for it", name)
		}
		for _, ref := range d.tests {
			file, test, _ := strings.Cut(ref, ":")
			test, sub, isSub := strings.Cut(test, "/")
			if files[file] == nil {
				files[file] = textsOf(t, file)
			}
			switch texts := files[file][test]; {
			case texts == nil || !strings.HasPrefix(test, "Test"):
				t.Errorf("%s: there is no test %s in %s", name, test, file)
			case isSub && !texts[sub]:
				t.Errorf("%s: %s in %s has no %q", name, test, file, sub)
			}
		}
	}
}

// textsOf returns the functions of a file, with the texts that are in them: names of
// sub-tests are among those.
func textsOf(t *testing.T, file string) map[string]map[string]bool {
	t.Helper()
	funcs := map[string]map[string]bool{}
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Error(err)
		return funcs
	}
	for _, decl := range f.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Recv != nil {
			continue
		}
		texts := map[string]bool{}
		ast.Inspect(fn, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if s, err := strconv.Unquote(lit.Value); err == nil {
					texts[s] = true
				}
			}
			return true
		})
		funcs[fn.Name.Name] = texts
	}
	return funcs
}
