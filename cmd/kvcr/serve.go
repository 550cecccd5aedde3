package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/kvcr-go/kvcr/node"
	"github.com/kvcr-go/kvcr/node/web"
)

// serveCmd runs a node until it is told to stop.
type serveCmd struct {
	engineFlags
	nodeFlags
	peerFlags
	routerFlags
}

func (c *serveCmd) Run(e *env) error {
	vs, cfg, err := c.resolve(e, &c.nodeFlags, &c.peerFlags, &c.routerFlags)
	if err != nil {
		return err
	}
	nc := cfg.node
	nc.Engine = cfg.engine()
	nc.Version = versionText()
	nc.Log = slog.New(slog.NewTextHandler(e.stderr, &slog.HandlerOptions{Level: nc.LogLevel}))
	for _, v := range vs {
		nc.Settings = append(nc.Settings, web.Setting{Name: v.Name, Value: v.Value, Source: v.Source})
	}
	n, err := node.Start(nc)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w: another node may run there (%s try asks it); other addresses are given with --resp, --listen, --http and --peer-listen", peerError(err), os.Args[0])
	}
	if err != nil {
		return peerError(err)
	}
	c.announce(e, n, &nc)
	<-e.ctx.Done()
	fmt.Fprintf(e.stderr, "kvcr: stopping, at most %v\n", nc.DrainTimeout)
	return n.Close()
}

// announce says where the node listens and what it has.
func (c *serveCmd) announce(e *env, n *node.Node, nc *node.Config) {
	resp, binary, http := n.Addrs()
	plan := n.Engine().MemoryPlan()
	e.printf("kvcr %s: %s for blocks, %s for their records\n", versionText(), formatSize(plan.PayloadBytes), formatSize(plan.MetadataBytes))
	line := func(what string, addrs []net.Addr) {
		if len(addrs) == 0 {
			return
		}
		var names []string
		for _, a := range addrs {
			names = append(names, a.String())
		}
		e.printf("  %-7s %s\n", what, strings.Join(names, ", "))
	}
	line("resp", resp)
	line("binary", binary)
	if http != nil {
		e.printf("  %-7s http://%s/\n", "status", http)
	}
	if p := n.Engine().Peers(); p != nil {
		var routes []string
		for _, r := range p.Routes() {
			routes = append(routes, r.String())
		}
		e.printf("  %-7s %s by %s\n", "peers", strings.Join(p.Endpoints(), ", "), strings.Join(routes, ", "))
	}
	if r := nc.Router; r != nil {
		e.printf("  %-7s %s\n", "hints", r.Recipe)
	}
	kvEvents, replay, plane := n.EventEndpoints()
	for _, l := range [][2]string{{"events", kvEvents}, {"replay", replay}, {"plane", plane}} {
		if l[1] != "" {
			e.printf("  %-7s %s\n", l[0], l[1])
		}
	}
	if len(binary) > 0 {
		e.printf("  %-7s %s\n", "next", nextCommand(binary[0], nc.Settings))
	}
}

// nextCommand is what to type in another terminal.
func nextCommand(a net.Addr, settings []web.Setting) string {
	words := []string{os.Args[0], "try"}
	if at := dialable(a); at != defaultNode {
		words = append(words, "--addr", at)
	}
	for _, s := range settings {
		if s.Name == "secret-file" && s.Value != "" {
			words = append(words, "--secret-file", s.Value)
		}
	}
	return strings.Join(words, " ")
}

// dialable writes a bound address as the client commands take it.
func dialable(a net.Addr) string {
	if a.Network() == "unix" {
		return "unix:" + a.String()
	}
	return a.String()
}
