package bench

import (
	"slices"
	"strings"

	"github.com/google/pprof/profile"
)

// labelFrom says where a sample's role comes from when its goroutine did not say it:
// "stack" is the only value.
const labelFrom = "role_from"

const (
	modulePath = "github.com/kvcr-go/kvcr"
	// What the runtime does for everybody, on goroutines and stacks of its own: no
	// program can label those.
	roleCollector = "collector"
	roleScheduler = "scheduler"
	roleRuntime   = "runtime"
)

// stackRole is the role of a goroutine that has the function on its stack. Go labels
// samples of time, and nothing else: of allocations and waits, and of time before a
// goroutine had its labels, the stack is all that is known. It says nothing of shards.
type stackRole struct{ function, role string }

// stackRoles are looked for from a stack's root on, the first one counts. Functions of
// this module are without its path; the role is the one that their goroutines take, and
// "" is that of the process.
var stackRoles = []stackRole{
	{"runtime.gcBgMarkWorker", roleCollector}, {"runtime.bgsweep", roleCollector}, {"runtime.bgscavenge", roleCollector},
	{"runtime.forcegchelper", roleCollector}, {"runtime.runFinalizers", roleCollector}, {"runtime.runCleanups", roleCollector}, {"runtime._GC", roleCollector},
	{"runtime.mcall", roleScheduler}, {"runtime.mstart", roleScheduler}, {"runtime.morestack", roleScheduler}, {"runtime.rt0_go", roleScheduler},
	{"shard.(*Shard).own", "owner"},
	{"wire/server.(*Server).accept", "accept"}, {"wire/server.(*Server).watch", "timeouts"}, {"wire/server.(*session).write", "writer"}, {"wire/server.(*subscription).run", "subscription"},
	{"wire/server.(*handler).OnTraffic", "event-loop"}, {"wire/server.(*handler).OnOpen", "event-loop"}, {"wire/server.(*handler).OnClose", "event-loop"},
	{"peer.(*Node).accept", "peer-accept"}, {"peer.(*crew).work", "peer-work"}, {"peer.(*destLink).dial", "peer-work"}, {"peer.(*Node).close", "peer-work"},
	{"peer.(*events).OnTraffic", "peer-loop"}, {"peer.(*events).OnOpen", "peer-loop"}, {"peer.(*events).OnClose", "peer-loop"},
	{"peer.(*inStream).run", "peer-stream"}, {"peer.(*outStream).run", "peer-stream"}, {"peer.(*outStream).rest", "peer-stream"},
	{"wire/client.(*conn).read", "client-reader"}, {"wire/client.(*conn).flush", "client-writer"},
	{"hints/work.(*Executor).serve", "hint-work"}, {"hints/work.(*Executor).tell", "hint-report"},
	{"hints/events.(*Consumer).run", "event-consumer"}, {"hints/events.(*Consumer).follow", "event-consumer"}, {"hints/publish.(*Publisher).Run", rolePublisher}, {"hints/events/zmtp.(*Listener).accept", "zmtp-accept"}, {"hints/events/zmtp.(*Listener).handle", "zmtp-socket"}, {"hints/events/zmtp.(*Pub).serve", "zmtp-socket"}, {"hints/events/zmtp.(*Pub).Connect", "zmtp-socket"},
	{"node.(*routing).run", "router"}, {"net/http.(*Server).Serve", "http"}, {"net/http.(*conn).serve", "http"},
	{"bench.closedLoop", roleClient}, {"bench.(*schedule).run", roleClient}, {"bench.(*traceLane).each", roleClient}, {"bench.(*plainBlocks).serve", ""},
	{"arena.(*kernel).populate", ""}, {"os/exec.(*Cmd)", ""}, {"runtime/pprof.profileWriter", "profiler"}, {"github.com/panjf2000/ants/v2.(*poolCommon)", "ticker"},
	{"main.main", ""}, {"runtime.doInit", ""}, {"runtime.schedinit", ""},
}

// stackRoleOf is the role that a stack tells of, "" when it tells of none. process is
// that of the process itself.
func stackRoleOf(s *profile.Sample, process string) string {
	outside := false // of the runtime
	for _, loc := range slices.Backward(s.Location) {
		for _, line := range slices.Backward(loc.Line) {
			if line.Function == nil {
				continue
			}
			name := strings.TrimPrefix(line.Function.Name, modulePath+"/")
			for _, r := range stackRoles {
				if name == r.function || strings.HasPrefix(name, r.function+".") {
					if r.role == "" {
						return process
					}
					return r.role
				}
			}
			outside = outside || !strings.HasPrefix(name, "runtime.")
		}
	}
	if !outside {
		return roleRuntime
	}
	return ""
}
