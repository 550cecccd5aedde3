package faults

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// covered is one case, or one concern, and what answers for it.
type covered struct {
	what  string
	tests string // file:Test, from the root of the module
	// why there is no test, or what the tests leave open
	open string
}

// knownCases are what users of such systems have run into, as far as it concerns
// peers.
var knownCases = map[string]covered{
	"A3": {what: "a transfer is given up and its memory goes to somebody else while the rest still lands; or is never given back",
		tests: "internal/faults/abort_test.go:TestAbortWhileRefilled internal/faults/abort_test.go:TestAbortedDelivery internal/faults/stop_test.go:TestStopped " +
			"peer/dest_test.go:TestDestQuarantine peer/reconnect_test.go:TestAbortAndDeadline remote_test.go:TestLateSourceKeepsItsMemory"},
	"A4": {what: "failed receives pass for data; references out of range, unknown or used up give garbage",
		tests: "internal/faults/abort_test.go:TestUnknownReferences peer/source_test.go:TestSourceUnknown peer/shm_test.go:TestShmOffsets peer/hostile_test.go:TestHostileSource"},
	"A5": {what: "a partial failure has no way to be told",
		tests: "internal/faults/abort_test.go:TestPartialBatch remote_test.go:TestFetchPartialFailure"},
	"B4": {what: "peers that do not fit to each other fail unclearly, or take others along",
		tests: "internal/faults/refuse_test.go:TestRefusalsComeAtOnce peer/reconnect_test.go:TestRefused"},
	"D1": {what: "who writes dies half way: the key can never be written again",
		tests: "internal/faults/kill_test.go:TestKills peer/shm_test.go:TestShmSourceKilled wire/server/shm_test.go:TestSharedDeath"},
	"D3": {what: "a move that is broken off loses the block",
		tests: "internal/faults/kill_test.go:TestKills internal/faults/cut_test.go:TestCut internal/sim/sim_test.go:TestSchedules internal/sim/explore_test.go:TestExplore"},
	"E2": {what: "memory grows with registrations",
		tests: "ucx/host_test.go:TestRegisterCycles ucx/ucx_test.go:TestChooseSettings"},
	"F2": {what: "closing never ends when the other side is gone, or closes as well",
		tests: "ucx/host_test.go:TestCloseAmongDeadAndLiving ucx/worker_test.go:TestEndpointClose peer/reconnect_test.go:TestClose"},
	"G1": {what: "a peer is lost in the midst: a crash, or transfers that fail for ever",
		tests: "internal/faults/kill_test.go:TestKills ucx/dead_test.go:TestPeerDeath"},
	"G2": {what: "a peer comes back at the same address and meets what was known of its earlier life",
		tests: "internal/faults/stop_test.go:TestReturn internal/faults/kill_test.go:TestKills peer/dest_test.go:TestDestSourceRestarts peer/reconnect_test.go:TestRestart"},
	"G3": {what: "a source that cannot serve says nothing, and the destination waits for all of its time",
		tests: "internal/faults/refuse_test.go:TestRefusalsComeAtOnce peer/source_test.go:TestSourceRefuses peer/dest_test.go:TestDestRefused"},
	"K3": {what: "little locked memory gives errors deep inside of a transport",
		tests: "ucx/host_test.go:TestLockedMemoryLimit",
		open:  "transports that lock memory need a device: tcp and shm lock none"},
	"K4": {what: "the bridge of a container engine is taken for the way to a peer",
		tests: "ucx/host_test.go:TestMisleadingBridge ucx/devices_test.go:TestLeaveOutBridges"},
	"L2": {what: "caller's memory inside of Go objects with pointers",
		tests: "internal/faults/abort_test.go:TestDeliverIntoObjects",
		open:  "routes shm and stream; UCX takes only memory off the Go heap, and the Makefile runs its tests with strict pointer checks"},
	"L3": {what: "an address is mapped anew and old bytes are sent; callbacks race",
		tests: "ucx/host_test.go:TestRemappedAddress ucx/worker_test.go:TestManyGoroutines"},
	"L4": {what: "more is kept than may be, in a burst",
		tests: "limits_test.go:TestCapacityIsNeverExceeded internal/faults/kill_test.go:TestKills"},
}

// concerns are what reviewers of an earlier design of moves were concerned about,
// by number.
var concerns = map[string]covered{
	"1": {what: "the source removes what the destination gives up: both lose",
		tests: "peer/dest_test.go:TestDestDeadlineBeforeLanding peer/source_test.go:TestSourceMove internal/faults/kill_test.go:TestKills internal/sim/sim_test.go:TestSchedules"},
	"2": {what: "between the write and its confirmation the block is let go and deposited anew",
		tests: "peer/source_test.go:TestSourceMarkTaken records_test.go:TestRecordsMarkOutlivesClaim internal/faults/pending_test.go:TestPendingBlocks"},
	"3": {what: "the destination's clock steps beyond its deadline between the source's end and its own look",
		tests: "peer/dest_test.go:TestDestDeadlineBeforeLanding peer/source_test.go:TestSourceSilence internal/faults/stop_test.go:TestStopped"},
	"4": {what: "bad advice makes a whole fetch fail, local hits as well",
		tests: "internal/faults/refuse_test.go:TestBadAdvicePoisonsNothing"},
	"5": {what: "whether a call moves depends on advice: it is said in the call, and a delivery never moves",
		tests: "peers_test.go:TestMoveFromPeer peer/reconnect_test.go:TestDeliver"},
	"6": {what: "a removal that comes late takes a block that was deposited anew",
		tests: "internal/faults/refuse_test.go:TestGenerationMismatch peer/source_test.go:TestSourceMarkTaken engine_test.go:TestDeleteGeneration"},
	"7": {what: "a node moves a block from itself to itself",
		tests: "internal/faults/refuse_test.go:TestSelfByAnotherAddress peer/reconnect_test.go:TestSelf"},
	"8": {what: "keys that are to be removed count as failed beforehand",
		tests: "internal/faults/pending_test.go:TestPendingBlocks"},
	"9": {what: "several ways of removal beside each other",
		tests: "shard/move_test.go:TestMovesModel shard/move_test.go:TestBoundUnderPressure"},
	"10": {what: "readers of a block that is to be removed are refused",
		tests: "internal/faults/pending_test.go:TestPendingBlocks"},
	"11": {what: "parts of one page move apart",
		tests: "internal/faults/page_test.go:TestPagesMoveWhole peer/dest_test.go:TestDestGroups shard/move_test.go:TestRemoveGroup records_test.go:TestRecordsReserveGroup"},
	"12": {what: "nobody can tell when all ranks have moved",
		tests: "internal/faults/page_test.go:TestPagesMoveWhole",
		open:  "each process publishes its outcomes; a barrier over ranks is the embedder's"},
	"13": {what: "how a move ended is not told",
		tests: "peers_test.go:TestMoveFromPeer internal/faults/stop_test.go:TestStopped internal/faults/pending_test.go:TestPendingBlocks"},
	"14": {what: "a move of what is fetched now, and one by itself: one mechanism",
		tests: "peers_test.go:TestMoveFromPeer peer/dest_test.go:TestDestPresentMove"},
	"15": {what: "orders: late invalidation, crossing moves, reads beside moves",
		tests: "internal/sim/explore_test.go:TestExplore peer/reconnect_test.go:TestMoveUnderCuts peers_test.go:TestMoveFromPeer records_test.go:TestRecordsCrossing"},
	"16": {what: "nothing moves on unless somebody polls",
		tests: "peers_test.go:TestFetchFromPeer"},
	"17": {what: "copies of lower tiers stay", open: "there is no lower tier yet: its change brings the test"},
	"18": {what: "removal is best effort and its outcome unknown",
		tests: "peer/source_test.go:TestSourceSilence peer/dest_test.go:TestDestUnanswered internal/faults/stop_test.go:TestStopped internal/faults/cut_test.go:TestCut"},
	"19": {what: "what a query finds is gone when it is fetched",
		tests: "internal/faults/abort_test.go:TestUnknownReferences",
		open:  "a query reserves nothing; the fetch that follows answers miss at once"},
	"20": {what: "cached and missing keys mixed in one move",
		tests: "peers_test.go:TestMoveFromPeer internal/faults/refuse_test.go:TestBadAdvicePoisonsNothing"},
	"21": {what: "outcomes of actions lose what they belong to",
		tests: "hints_work_test.go:TestPrefetchAndMove hints_trouble_test.go:TestSourceDies wire/server/hints_test.go:TestHintsOverWire"},
}

// Every test that is named exists, every case names one or says why not, and all
// concerns are there.
func TestCases(t *testing.T) {
	for i := range 21 {
		if _, ok := concerns[fmt.Sprint(i+1)]; !ok {
			t.Errorf("concern %d is not in the table", i+1)
		}
	}
	known := map[string]map[string]bool{}
	for _, table := range []map[string]covered{knownCases, concerns} {
		for id, c := range table {
			if c.what == "" || c.tests == "" && c.open == "" {
				t.Errorf("%s: nothing answers for it", id)
			}
			for _, ref := range strings.Fields(c.tests) {
				file, name, _ := strings.Cut(ref, ":")
				if known[file] == nil {
					known[file] = testsIn(t, file)
				}
				if !known[file][name] {
					t.Errorf("%s: there is no %s in %s", id, name, file)
				}
			}
		}
	}
}

func testsIn(t *testing.T, file string) map[string]bool {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", "..", file), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Error(err)
		return map[string]bool{}
	}
	names := map[string]bool{}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok {
			names[fn.Name.Name] = true
		}
	}
	return names
}
