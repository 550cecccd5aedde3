package bench

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime/metrics"
	"syscall"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/arena"
)

// SourceSpec is what the source's process is told.
type SourceSpec struct {
	Routes  []string
	Network string // tcp or unix
	Dir     string // for unix sockets
	Size    int    // of each block
	Blocks  int
	// Plain is how many blocks the plain server has in memory of its own.
	Plain int
}

// sourceHello is what it says once it serves.
type sourceHello struct {
	Endpoint string
	Plain    string // of the plain server, on the same network
}

// use is what a process has taken since it began.
type use struct {
	CPU     time.Duration
	Mallocs uint64
}

func ownUse() use {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		return use{}
	}
	m := []metrics.Sample{{Name: "/gc/heap/allocs:objects"}}
	metrics.Read(m)
	return use{time.Duration(ru.Utime.Nano() + ru.Stime.Nano()), m[0].Value.Uint64()}
}

// peerNamespace is the name of the blocks' namespace.
const peerNamespace = "kv"

// openPeerEngine opens an engine with room for the blocks and no more: as much
// memory is walked over as by those that copy the same blocks.
func openPeerEngine(routes []string, listen string, size, blocks int) (*kvcr.Engine, error) {
	cfg := kvcr.Config{
		Capacity:         max(int64(size)*int64(blocks), 4<<20),
		Shards:           1,
		MaxHandles:       4,
		OperationTimeout: peerPatience,
		Namespaces:       []kvcr.Namespace{{Name: peerNamespace, Pools: []kvcr.Pool{{Name: "kv", SlotBytes: size}}}},
		Peers:            &kvcr.Peers{Routes: routes},
		Memory:           kvcr.Memory{Backing: backingOf(routes), Prefault: true},
	}
	if listen != "" {
		cfg.Peers.Listen = []string{listen}
	}
	return kvcr.Open(cfg)
}

// peerPatience bounds one fetch. What takes longer is an error of the suite.
const peerPatience = 20 * time.Second

func backingOf(routes []string) arena.Backing {
	if len(routes) > 0 && routes[0] == "shm" {
		return arena.Memfd
	}
	return arena.Anonymous
}

// PeerSource is the other process of the peer suite: an engine full of blocks, and
// a plain server with as many connections as it gets. It answers commands, one a
// line, until there are no more.
func PeerSource(ctx context.Context, spec SourceSpec, in io.Reader, out io.Writer) (err error) {
	listen := "tcp://127.0.0.1:0"
	if spec.Network == "unix" {
		listen = "unix://" + filepath.Join(spec.Dir, fmt.Sprintf("source-%d.sock", os.Getpid()))
	}
	e, err := openPeerEngine(spec.Routes, listen, spec.Size, spec.Blocks)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	if err := deposit(e, spec.Size, spec.Blocks); err != nil {
		return err
	}
	plain, err := newPlainBlocks(spec.Size, spec.Plain, backingOf(spec.Routes))
	if err != nil {
		return err
	}
	addr, stop, err := plain.serve(spec)
	if err != nil {
		return errors.Join(err, plain.mem.Close())
	}
	defer func() { err = errors.Join(err, stop()) }()
	enc := json.NewEncoder(out)
	if err := enc.Encode(sourceHello{e.Peers().Endpoints()[0], addr}); err != nil {
		return err
	}
	return obey(ctx, in, enc)
}

// obey answers commands, of which there is one: "use".
func obey(ctx context.Context, in io.Reader, enc *json.Encoder) error {
	for lines := bufio.NewScanner(in); ctx.Err() == nil && lines.Scan(); {
		if lines.Text() != "use" {
			return fmt.Errorf("unknown command %q", lines.Text())
		}
		if err := enc.Encode(ownUse()); err != nil {
			return err
		}
	}
	return nil
}

// deposit fills an engine with blocks 0 to n-1.
func deposit(e *kvcr.Engine, size, n int) error {
	h, err := e.Handle()
	if err != nil {
		return err
	}
	defer h.Close()
	keys := blockKeys(n)
	block := make([]byte, size)
	for i := range n {
		fillBlock(block, keys.At(i))
		if err := h.Deposit(keys.At(i).Bytes, block); err != nil {
			return err
		}
	}
	return nil
}

// blockKeys are the keys of blocks 0 to n-1.
func blockKeys(n int) *Keys {
	numbers := make([]uint32, n)
	for i := range numbers {
		numbers[i] = uint32(i)
	}
	return NewKeys(numbers)
}

// plainBlocks are blocks side by side in memory like an engine's, and no engine.
type plainBlocks struct {
	mem  *arena.Arena
	size int
}

func newPlainBlocks(size, n int, backing arena.Backing) (*plainBlocks, error) {
	mem, err := arena.Map(arena.Options{Name: "plain", Size: int64(max(size*n, 4096)), Backing: backing, Prefault: true})
	if err != nil {
		return nil, err
	}
	p := &plainBlocks{mem, size}
	keys := blockKeys(n)
	for i := range n {
		fillBlock(p.at(i), keys.At(i))
	}
	return p, nil
}

func (p *plainBlocks) at(i int) []byte { return p.mem.Bytes(arena.Off(i*p.size), p.size) }

// A plain connection is asked in requests of eight bytes: the first block and how
// many. Of none: a block comes first and goes back.
const plainRequest = 8

// serve answers requests until stop, which waits for the connections' ends.
func (p *plainBlocks) serve(spec SourceSpec) (addr string, stop func() error, err error) {
	network, at := "tcp", "127.0.0.1:0"
	if spec.Network == "unix" {
		network, at = "unix", filepath.Join(spec.Dir, fmt.Sprintf("plain-%d.sock", os.Getpid()))
	}
	ln, err := net.Listen(network, at)
	if err != nil {
		return "", nil, err
	}
	ended := make(chan struct{})
	conns := make(chan net.Conn, 64)
	go func() {
		defer close(conns)
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			conns <- nc
		}
	}()
	go func() {
		defer close(ended)
		var open []net.Conn
		gone := make(chan struct{})
		for nc := range conns {
			open = append(open, nc)
			go func() {
				p.answer(nc)
				gone <- struct{}{}
			}()
		}
		closeAll(open)
		for range open {
			<-gone
		}
	}()
	return ln.Addr().String(), func() error {
		err := ln.Close()
		<-ended
		return errors.Join(err, p.mem.Close())
	}, nil
}

// answer serves one connection until it ends.
func (p *plainBlocks) answer(nc net.Conn) {
	var req [plainRequest]byte
	echo := make([]byte, p.size)
	for {
		if _, err := io.ReadFull(nc, req[:]); err != nil {
			return
		}
		first, n := int(binary.LittleEndian.Uint32(req[:])), int(binary.LittleEndian.Uint32(req[4:]))
		if n == 0 {
			if _, err := io.ReadFull(nc, echo); err != nil {
				return
			}
			if _, err := nc.Write(echo); err != nil {
				return
			}
		}
		for i := range n {
			if _, err := nc.Write(p.at(first + i)); err != nil {
				return
			}
		}
	}
}

func plainAsk(nc net.Conn, first, n int) error {
	var req [plainRequest]byte
	binary.LittleEndian.PutUint32(req[:], uint32(first))
	binary.LittleEndian.PutUint32(req[4:], uint32(n))
	_, err := nc.Write(req[:])
	return err
}
