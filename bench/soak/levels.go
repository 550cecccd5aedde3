package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvcr-go/kvcr/node/web"
	"github.com/kvcr-go/kvcr/wire/client"
)

// levels are what a process holds, by what it is.
type levels map[string]int64

// What is looked at.
const (
	levelClaims      = "claims"
	levelWriting     = "reserved blocks"
	levelConns       = "connections"
	levelShared      = "shared-memory connections"
	levelDead        = "claims of dead clients"
	levelQuarantine  = "quarantined bytes"
	levelPosted      = "posted bytes"
	levelMoves       = "marks and holds"
	levelActions     = "actions"
	levelGoroutines  = "goroutines"
	levelDescriptors = "descriptors"
	levelTaken       = "payload bytes of no block"
	levelHeap        = "heap bytes"
	levelRSS         = "resident bytes"
)

// allowance is how much higher the end may be than the base. What is not listed has
// to be back exactly, or lower.
//
// Payload of no block: each event loop keeps up to 4 reserved blocks of at most 64 KiB
// for each shard (reserved blocks does not count them).
//
// Memory: Go gives it back late and keeps a tenth more than it needs, its heap holds
// what tables have grown to (the hashes and descriptions of blocks, advice, the last
// outcomes and events), and the stacks and buffers of the busiest moment. A leak of a
// buffer a second is above that in a run of ten minutes.
//
// Descriptors of a node: of the two payload connections that a peer may have in either
// direction one may not have been needed yet.
func allowance(nodes int) levels {
	return levels{levelTaken: 8 << 20, levelHeap: 24 << 20, levelRSS: 96 << 20, levelDescriptors: 2 * int64(nodes-1)}
}

// ownAllowance is that of this process.
var ownAllowance = levels{levelHeap: 24 << 20}

// settleBound is how long a process may take to come back to its base.
const settleBound = 40 * time.Second

// above lists what is higher than it may be, in order.
func (l levels) above(base, allowed levels) (what []string) {
	for _, k := range slices.Sorted(maps.Keys(l)) {
		if l[k] > base[k]+allowed[k] {
			what = append(what, fmt.Sprintf("%s: %d, at the base %d", k, l[k], base[k]))
		}
	}
	return what
}

// idle lists what a node without clients must not hold at all: when nothing is above
// this, it is at rest.
func idle(l levels) (what []string) {
	return levels{
		levelClaims: l[levelClaims], levelWriting: l[levelWriting], levelConns: l[levelConns], levelShared: l[levelShared], levelDead: l[levelDead],
		levelQuarantine: l[levelQuarantine], levelPosted: l[levelPosted], levelMoves: l[levelMoves], levelActions: l[levelActions],
	}.above(nil, nil)
}

// levels looks at a node.
func (n *node) levels(ctx context.Context) (levels, error) {
	l := levels{}
	st, err := n.stats(ctx)
	if err != nil {
		return nil, err
	}
	l[levelMoves] = int64(st.Engine.Marks + st.Engine.Holds)
	l[levelActions] = int64(st.Engine.Hints.Actions)
	claims, err := n.ask(ctx, "/debug/claims")
	if err != nil {
		return nil, err
	}
	if l[levelClaims], err = field(claims, `claims (\d+)`); err != nil {
		return nil, err
	}
	if l[levelWriting], err = field(claims, `writing (\d+)`); err != nil {
		return nil, err
	}
	heap, err := n.ask(ctx, "/debug/pprof/heap?gc=1&debug=1")
	if err != nil {
		return nil, err
	}
	if l[levelHeap], err = field(heap, `# HeapAlloc = (\d+)`); err != nil {
		return nil, err
	}
	goroutines, err := n.ask(ctx, "/debug/pprof/goroutine?debug=1")
	if err != nil {
		return nil, err
	}
	if l[levelGoroutines], err = field(goroutines, `total (\d+)`); err != nil {
		return nil, err
	}
	status, err := n.ask(ctx, "/api/status")
	if err != nil {
		return nil, err
	}
	var page web.Status
	if err := json.Unmarshal(status, &page); err != nil {
		return nil, err
	}
	l[levelConns] = page.Connections.Open
	if page.Cache.Blocks == 0 {
		l[levelTaken] = page.Memory.Used
	}
	l[levelShared], l[levelDead] = page.Shared.Conns, page.Shared.Left
	if p := page.Peers; p != nil {
		l[levelQuarantine], l[levelPosted] = p.Quarantined, p.Posted
	}
	return l, processLevels(l, n.pid())
}

// processLevels adds what the kernel knows of a process.
func processLevels(l levels, pid int) (err error) {
	dir := fmt.Sprintf("/proc/%d", pid)
	if l[levelDescriptors], err = descriptors(dir); err != nil {
		return err
	}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return err
	}
	kb, err := field(status, `VmRSS:\s+(\d+) kB`)
	l[levelRSS] = kb << 10
	return err
}

func descriptors(dir string) (int64, error) {
	files, err := os.ReadDir(filepath.Join(dir, "fd"))
	return int64(len(files)), err
}

func field(text []byte, pattern string) (int64, error) {
	m := regexp.MustCompile(pattern).FindSubmatch(text)
	if m == nil {
		return 0, fmt.Errorf("no %s in %.200s", pattern, text)
	}
	return strconv.ParseInt(string(m[1]), 10, 64)
}

// nodeStats is the part of STATS that counts here.
type nodeStats struct {
	Engine struct {
		Marks, Holds int
		Hints        struct{ Actions int }
	}
}

func (n *node) stats(ctx context.Context) (st nodeStats, err error) {
	ctx, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	cl, err := client.Dial(ctx, client.Options{Addr: "unix:" + n.socket, Name: "soak levels"})
	if err != nil {
		return st, err
	}
	defer cl.Close()
	b, err := cl.Stats(ctx)
	if err != nil {
		return st, err
	}
	return st, json.Unmarshal(b, &st)
}

// empty deletes all that the node has, so that memory which no block has is seen.
func (n *node) empty(ctx context.Context) error {
	have, err := n.residents(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*callBound)
	defer cancel()
	cl, err := client.Dial(ctx, client.Options{Addr: n.binary, Name: "soak empty"})
	if err != nil {
		return err
	}
	defer cl.Close()
	for k := range have {
		if _, err := cl.Delete(ctx, []byte(k)); err != nil {
			return err
		}
	}
	return nil
}

// settled looks at a node until nothing is above base, or time is up, and reports
// what is. Without a base it waits until the node is at rest and what it holds no
// longer falls.
func (n *node) settled(ctx context.Context, base levels) (l levels) {
	err := n.empty(ctx)
	if err != nil && ctx.Err() == nil {
		n.run.trouble.add(unexpected, n.name(), "its blocks are to be deleted: %v", err)
	}
	var above []string
	for end := time.Now().Add(n.run.o.settle); ; pause(ctx, 100*time.Millisecond) {
		before := l
		if l, err = n.levels(ctx); err == nil {
			falling := before == nil || l[levelGoroutines] < before[levelGoroutines] || l[levelDescriptors] < before[levelDescriptors]
			if above = idle(l); base != nil {
				above, falling = append(above, l.above(base, allowance(n.run.o.Nodes))...), false
			}
			if len(above) == 0 && !falling {
				if base == nil {
					n.atBase = append([]byte("of process "+strconv.Itoa(n.pid())+"\n"), descriptorList(n.pid())...)
				}
				return l
			}
		}
		if time.Now().After(end) || ctx.Err() != nil {
			break
		}
	}
	if ctx.Err() != nil {
		return l
	}
	if err != nil {
		n.run.trouble.add(unexpected, n.name(), "its levels: %v", err)
		return l
	}
	n.run.trouble.add(leak, n.name(), "%v after the last client has left: %s; its goroutines and descriptors are in %s", n.run.o.settle, strings.Join(above, "; "), n.dump(ctx))
	return l
}

// dump writes what the node's goroutines do, and what its descriptors are.
func (n *node) dump(ctx context.Context) string {
	b, err := n.ask(ctx, "/debug/pprof/goroutine?debug=1")
	if err != nil {
		return err.Error()
	}
	b = append(append(b, "\ndescriptors now, of process "+strconv.Itoa(n.pid())+"\n"...), descriptorList(n.pid())...)
	b = append(append(b, "\ndescriptors at the base, "...), n.atBase...)
	name := filepath.Join(n.run.dir, fmt.Sprintf("node-%d-%s-leak.txt", n.index, n.run.kind))
	if err := os.WriteFile(name, b, 0o644); err != nil {
		return err.Error()
	}
	return name
}

// descriptorList says what each descriptor of a process is, as far as the kernel
// tells: of sockets of TCP both addresses, and of unix ones the path.
func descriptorList(pid int) []byte {
	dir := fmt.Sprintf("/proc/%d", pid)
	sockets := map[string]string{}
	tcp, _ := os.ReadFile(filepath.Join(dir, "net/tcp")) // without it the numbers stand alone
	for _, line := range strings.Split(string(tcp), "\n") {
		if f := strings.Fields(line); len(f) > 9 {
			sockets[f[9]] = tcpAddress(f[1]) + " to " + tcpAddress(f[2]) + " state " + f[3]
		}
	}
	unix, _ := os.ReadFile(filepath.Join(dir, "net/unix"))
	for _, line := range strings.Split(string(unix), "\n") {
		if f := strings.Fields(line); len(f) > 6 {
			sockets[f[6]] = "unix " + strings.Join(f[7:], " ")
		}
	}
	var out []byte
	files, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return fmt.Append(nil, err)
	}
	for _, f := range files {
		to, _ := os.Readlink(filepath.Join(dir, "fd", f.Name())) // it may be closed by now
		inode := strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]")
		about := sockets[inode]
		if info, err := os.ReadFile(filepath.Join(dir, "fdinfo", f.Name())); err == nil {
			if at := strings.Index(string(info), "Pid:"); at >= 0 { // of a pidfd
				about = strings.Join(strings.Fields(string(info[at:])), " ")
			}
		}
		out = fmt.Appendf(out, "descriptor %s %s %s\n", f.Name(), to, about)
	}
	return out
}

// tcpAddress reads 0100007F:1F90.
func tcpAddress(hex string) string {
	var a, b, c, d, port int
	if _, err := fmt.Sscanf(hex, "%02X%02X%02X%02X:%04X", &d, &c, &b, &a, &port); err != nil {
		return hex
	}
	return fmt.Sprintf("%d.%d.%d.%d:%d", a, b, c, d, port)
}

// ownLevels looks at this process.
func (r *run) ownLevels() (levels, error) {
	r.web.CloseIdleConnections()
	runtime.GC()
	l := levels{levelGoroutines: int64(runtime.NumGoroutine())}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	l[levelHeap] = int64(m.HeapAlloc)
	n, err := descriptors("/proc/self")
	l[levelDescriptors] = n
	return l, err
}

// ownSettled is settled for this process.
func (r *run) ownSettled(base levels) (l levels, err error) {
	for end := time.Now().Add(r.o.settle / 4); ; time.Sleep(20 * time.Millisecond) {
		if l, err = r.ownLevels(); err != nil {
			return l, err
		}
		above := l.above(base, ownAllowance)
		if len(above) == 0 {
			return l, nil
		}
		if time.Now().After(end) {
			r.trouble.add(leak, "this process", "after everything was closed: %s; its goroutines are in %s", strings.Join(above, "; "), r.dump())
			return l, nil
		}
	}
}
