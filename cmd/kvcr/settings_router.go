package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/keys"
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
		return atLeast(&c.router.Rank, v, 0)
	}},
	{"events", "", "where KV events are published as vLLM does, such as tcp://127.0.0.1:5557, port 0 for any; empty for nowhere", func(c *engineConfig, v string) error {
		c.events.Endpoint = v
		return nil
	}},
	{"events-replay", "", "where routers ask for KV events that they missed, such as tcp://127.0.0.1:5558; empty for nowhere", func(c *engineConfig, v string) error {
		c.events.Replay = v
		return nil
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
		return nil
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
	r := c.router
	if c.events.Endpoint != "" {
		r.Events = &c.events
	}
	if c.plane.Endpoint != "" {
		r.Plane = &c.plane
	}
	for name, endpoint := range map[string]string{"events": c.events.Endpoint, "events-replay": c.events.Replay, "event-plane": c.plane.Endpoint} {
		if err := c.checkEndpoint(endpoint); err != nil {
			return fmt.Errorf("%s: %s: %w", vs.get(name).Source, name, err)
		}
	}
	c.node.Router = &r
	return nil
}

// checkEndpoint refuses addresses that others can reach, as for all listeners:
// subscribers of ZMQ prove nothing.
func (c *engineConfig) checkEndpoint(endpoint string) error {
	if endpoint == "" || c.node.Public || strings.HasPrefix(endpoint, "ipc://") || strings.HasPrefix(endpoint, "inproc://") {
		return nil
	}
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return fmt.Errorf("%q: must be tcp://host:port, ipc://path or inproc://name", endpoint)
	}
	if events.Binds(endpoint) && !strings.HasPrefix(rest, "127.") && !strings.HasPrefix(rest, "[::1]") && !strings.HasPrefix(rest, "localhost:") {
		return fmt.Errorf("%q: anybody who reaches it could listen; use 127.0.0.1, or allow it with --public true", endpoint)
	}
	return nil
}
