package peer

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/kvcr-go/kvcr/internal/listen"
	"github.com/kvcr-go/kvcr/wire"
)

type listener struct {
	net.Listener
	local bool // for payload of this host only
}

// listen opens the addresses of the configuration, and one for payload of this
// host.
func (n *Node) listen() error {
	for _, e := range n.cfg.Listen {
		network, addr, _ := splitEndpoint(e) // validate has looked
		if network == "unix" {
			if err := listen.RemoveStale(addr); err != nil {
				return &ConfigError{"Listen", e, err.Error() + ": choose another path, or stop who uses it"}
			}
		}
		ln, err := net.Listen(network, addr)
		if err != nil {
			return &ConfigError{"Listen", e, err.Error() + ": free the address or choose another"}
		}
		n.listeners = append(n.listeners, listener{ln, false})
		if network == "unix" {
			if err := os.Chmod(addr, 0o600); err != nil {
				return &ConfigError{"Listen", e, err.Error() + ": choose a path whose rights can be set"}
			}
		}
		n.endpoints = append(n.endpoints, network+"://"+ln.Addr().String())
	}
	if n.cfg.Advertise == "" && len(n.endpoints) > 0 {
		n.cfg.Advertise = n.endpoints[0]
	}
	if len(n.endpoints) == 0 || n.routeOf(wire.RouteShm) == nil {
		return nil
	}
	// In the abstract namespace: no file to leave behind. Credentials are asked of
	// the kernel, so that file rights are not missed.
	token, err := newToken()
	if err != nil {
		return err
	}
	name := fmt.Sprintf("@kvcr-peer-%016x", token)
	ln, err := net.Listen("unix", name)
	if err != nil {
		n.log.Warn("route shm is not offered: no unix socket", "err", err)
		return nil
	}
	n.local = name
	n.listeners = append(n.listeners, listener{ln, true})
	return nil
}

// accept takes connections of one listener; each has a goroutine until its
// handshake is over.
func (n *Node) accept(l listener) {
	defer n.accepting.Done()
	for {
		nc, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			n.log.Warn("accept", "addr", l.Addr().String(), "err", err)
			select { // out of descriptors, most likely: they come back
			case <-n.ctx.Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		nc.SetDeadline(time.Now().Add(n.cfg.HandshakeTimeout)) // before Close may set another
		select {
		case n.shaking <- struct{}{}:
		default:
			n.count.refused.Add(1)
			nc.Close()
			continue
		}
		ok := n.watchRaw(nc) && n.spawn(func() {
			n.accepted(nc, l.local)
			n.unwatchRaw(nc)
			<-n.shaking
		})
		if !ok {
			nc.Close()
			<-n.shaking
		}
	}
}

// watchRaw remembers a connection in its handshake, so that Close can end it.
func (n *Node) watchRaw(nc net.Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended || n.closing.Load() {
		return false
	}
	n.raw[nc] = struct{}{}
	return true
}

func (n *Node) unwatchRaw(nc net.Conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.raw, nc)
}
