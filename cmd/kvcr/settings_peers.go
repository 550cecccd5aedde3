package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/arena"
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// peerSettings are those of kvcr serve about other nodes. They mean something once
// there is an address to listen on.
var peerSettings = []setting{
	{"peer-listen", "", "addresses at which other nodes and engines fetch blocks from here, tcp://host:port or unix:///path, with commas between; empty for none", func(c *engineConfig, v string) error {
		c.peers.Listen = list(v)
		for _, a := range c.peers.Listen {
			if err := peer.CheckEndpoint(a); err != nil {
				return fmt.Errorf("%q: %w", a, err)
			}
		}
		return nil
	}},
	{"peer-advertise", "", "the address that peers are told; empty for the first of peer-listen", func(c *engineConfig, v string) error {
		if c.peers.Advertise = v; v == "" {
			return nil
		}
		if err := peer.CheckEndpoint(v); err != nil {
			return fmt.Errorf("%q: %w", v, err)
		}
		return nil
	}},
	{"peer-secret-file", "", "file with the secret that peers must have too, at least 16 bytes; empty for none", func(c *engineConfig, v string) (err error) {
		if c.peers.Secret, err = secret(v); err != nil || v == "" {
			return err
		}
		if err = wire.CheckSecret(c.peers.Secret); err != nil {
			err = fmt.Errorf("%s: %w", v, err)
		}
		return err
	}},
	{"peer-routes", "", "ways for payload, in order of preference, of " + strings.Join(peerRoutes, ", ") + "; empty for all that this build and machine have", func(c *engineConfig, v string) error {
		c.peers.Routes = list(v)
		for _, r := range c.peers.Routes {
			if err := oneOf(r, peerRoutes...); err != nil {
				return err
			}
		}
		return nil
	}},
	{"peer-streams", "2", "payload connections for each peer fetched from over route stream, 1 to 16", func(c *engineConfig, v string) error {
		if err := atLeast(&c.peers.Streams, v, 1); err != nil {
			return err
		}
		if c.peers.Streams > 16 {
			return fmt.Errorf("%q: must be at most 16", v)
		}
		return nil
	}},
	{"peer-public", "false", "let peers in without a secret at addresses that are not loopback", func(c *engineConfig, v string) error {
		return boolean(&c.peers.Public, v)
	}},
}

var peerRoutes = []string{"shm", "ucx", "stream"}

// settlePeers decides what follows from peers for other settings: route shm needs
// memory that can be shared.
func settlePeers(vs values, c *engineConfig) error {
	if len(c.peers.Listen) == 0 {
		for _, s := range peerSettings {
			if v := vs.get(s.name); v.Source != "default" && v.Value != s.def {
				return fmt.Errorf("%s: %s: means nothing without peer-listen; give that, or leave it out", v.Source, s.name)
			}
		}
		return nil
	}
	backing, named := vs.get("backing"), slices.Contains(c.peers.Routes, "shm")
	switch {
	case len(c.peers.Routes) > 0 && !named:
	case backing.Source == "default":
		c.Memory.Backing = arena.Memfd
		backing.Value, backing.Source = arena.Memfd.String(), "default with peers, for route shm"
	case named && c.Memory.Backing != arena.Memfd:
		return fmt.Errorf("%s: backing: %q cannot be shared, which shm of peer-routes needs; use memfd, or leave shm out", backing.Source, backing.Value)
	}
	c.peers.Name = "kvcr"
	if host, err := os.Hostname(); err == nil {
		c.peers.Name += " on " + host
	}
	if c.peers.Name = c.peers.Name[:min(len(c.peers.Name), wire.MaxName)]; c.Peers == nil {
		c.Peers = &kvcr.Peers{}
	}
	*c.Peers = c.peers
	return nil
}

// peerError says in settings what a node found wrong with its peers' part of the
// configuration.
func peerError(err error) error {
	var bad *peer.ConfigError
	if !errors.As(err, &bad) {
		return err
	}
	name := "peer-" + strings.ToLower(bad.Field)
	fix := strings.NewReplacer("set a secret", "give --peer-secret-file", "allow it with Public", "allow it with --peer-public true").Replace(bad.Fix)
	return fmt.Errorf("%s: %v: %s", name, bad.Value, fix)
}
