package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/events/zmtp"
	"github.com/kvcr-go/kvcr/hints/keys"
	"github.com/kvcr-go/kvcr/internal/listen"
)

// routerSettings are those of kvcr serve about routers. They mean something once it
// is known how keys are made.
var routerSettings = []setting{
	{"hash-recipe", "", "how clients make the keys of blocks, so that routers' hints are understood: dynamo/xxh3-1337/bs64, vllm/sha256/low64/bs16; empty: no hints", func(c *engineConfig, v string) (err error) {
		if v != "" {
			c.router.Recipe, err = keys.ParseRecipe(v)
		}
		return err
	}},
	{"worker-id", "0", "by which routers know this node", func(c *engineConfig, v string) (err error) {
		if c.router.Worker, err = strconv.ParseUint(v, 0, 64); err != nil {
			err = fmt.Errorf("%q: must be 0 to 2^64-1", v)
		}
		return err
	}},
	{"rank", "0", "this node's among those of its worker", func(c *engineConfig, v string) error {
		n, err := strconv.ParseUint(v, 10, 16) // ranks are added to ports
		if err != nil {
			return fmt.Errorf("%q: must be 0 to 65535", v)
		}
		c.router.Rank = int(n)
		return nil
	}},
	{"events", "", "where KV events are published as vLLM does, such as tcp://127.0.0.1:5557, port 0 for any; empty for nowhere", func(c *engineConfig, v string) error {
		c.events.Endpoint = v
		return endpoint(v)
	}},
	{"events-connect", "false", "connect to a router that listens at events, instead of listening there", func(c *engineConfig, v string) error {
		var connects bool
		err := boolean(&connects, v)
		c.events.Bind = !connects
		return err
	}},
	{"events-replay", "", "where routers ask for KV events that they missed, such as tcp://127.0.0.1:5558; empty for nowhere", func(c *engineConfig, v string) error {
		c.events.Replay = v
		return endpoint(v)
	}},
	{"events-topic", "", "what goes before each message of KV events", func(c *engineConfig, v string) error {
		c.events.Topic = v
		return nil
	}},
	{"events-form", "map", "how KV events are written: map, or array as older releases of vLLM", func(c *engineConfig, v string) error {
		c.events.Form = map[string]events.Form{"map": events.Maps, "array": events.Arrays}[v]
		return oneOf(v, "map", "array")
	}},
	{"event-plane", "", "where events of Dynamo's plane are published, such as tcp://127.0.0.1:0; empty for nowhere", func(c *engineConfig, v string) error {
		c.plane.Endpoint = v
		return endpoint(v)
	}},
}

// settleRouter decides what follows from routers.
func settleRouter(vs values, c *engineConfig) error {
	if vs.get("hash-recipe").Value == "" {
		for _, s := range routerSettings {
			if v := vs.get(s.name); v.Source != "default" && v.Value != s.def {
				return fmt.Errorf("%s: %s: means nothing without hash-recipe; give that, or leave it out", v.Source, s.name)
			}
		}
		return nil
	}
	if v := vs.get("events-replay"); v.Value != "" && c.events.Endpoint == "" {
		return fmt.Errorf("%s: events-replay: means nothing without events; give that, or leave it out", v.Source)
	}
	if v := vs.get("events-connect"); !c.events.Bind && (c.events.Endpoint == "" || events.Binds(c.events.Endpoint)) {
		return fmt.Errorf("%s: events-connect: needs the address of a router in events, not %q", v.Source, c.events.Endpoint)
	}
	r := c.router
	if c.events.Endpoint != "" {
		r.Events = &c.events
	}
	if c.plane.Endpoint != "" {
		r.Plane = &c.plane
	}
	for _, name := range []string{"events", "events-replay", "event-plane"} {
		v := vs.get(name)
		if name == "events" && !c.events.Bind {
			continue // others do not reach it there
		}
		if !c.node.Public && !loopbackOnly(v.Value) {
			return fmt.Errorf("%s: %s: %q: anybody who reaches it could listen; use 127.0.0.1, or allow it with --public true", v.Source, name, v.Value)
		}
	}
	c.node.Router = &r
	return nil
}

// endpoint refuses what is none of ZMQ's, for a process that others are to reach.
func endpoint(v string) error {
	err := zmtp.CheckEndpoint(v)
	if v == "" || err == nil && !strings.HasPrefix(v, "inproc://") {
		return nil
	}
	return fmt.Errorf("%q: must be tcp://HOST:PORT or ipc://PATH", v)
}

// loopbackOnly reports whether an endpoint to listen at is out of others' reach, as
// is asked of all listeners: subscribers of ZMQ prove nothing.
func loopbackOnly(endpoint string) bool {
	addr, tcp := strings.CutPrefix(endpoint, "tcp://")
	return !tcp || listen.Loopback(addr)
}
