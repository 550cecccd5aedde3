package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// nodeSettings are those of kvcr serve.
var nodeSettings = []setting{
	{"resp", "127.0.0.1:6380", "addresses for RESP clients, host:port or unix:path, with commas between; empty for none", func(c *engineConfig, v string) error {
		c.node.RESP = list(v)
		return nil
	}},
	{"listen", defaultNode, "addresses for clients of the binary protocol; empty for none", func(c *engineConfig, v string) error {
		c.node.Binary = list(v)
		return nil
	}},
	{"http", "127.0.0.1:7380", "address of the status page, health, metrics and debugging; empty for none", func(c *engineConfig, v string) error {
		c.node.HTTP = v
		return nil
	}},
	{"public", "false", "allow addresses that are not loopback without a password or secret", func(c *engineConfig, v string) error {
		return boolean(&c.node.Public, v)
	}},
	{"http-public", "false", "allow an HTTP address that is not loopback", func(c *engineConfig, v string) error {
		return boolean(&c.node.HTTPPublic, v)
	}},
	{"password-file", "", "file with the password asked of RESP clients; empty for none", func(c *engineConfig, v string) (err error) {
		var b []byte
		b, err = secret(v)
		c.node.Password = string(b)
		return err
	}},
	{"secret-file", "", "file with the secret of binary clients, at least 16 bytes; empty for none", func(c *engineConfig, v string) (err error) {
		if c.node.Secret, err = secret(v); err != nil || v == "" {
			return err
		}
		if err = wire.CheckSecret(c.node.Secret); err != nil {
			err = fmt.Errorf("%s: %w", v, err)
		}
		return err
	}},
	{"allow-flush", "false", "let RESP clients empty the cache (FLUSHALL)", func(c *engineConfig, v string) error {
		return boolean(&c.node.AllowFlush, v)
	}},
	{"pair-suffixes", "", "two suffixes, such as metadata,kv_bytes for LMCache: RESP keys of one stem with them are one unit; needs kind chained", func(c *engineConfig, v string) error {
		parts := list(v)
		if v != "" && len(parts) != 2 {
			return fmt.Errorf("%q: must be two suffixes with a comma between", v)
		}
		copy(c.node.PairSuffixes[:], parts)
		return nil
	}},
	{"debug", "true", "serve /debug/pprof on the HTTP address", func(c *engineConfig, v string) error {
		return boolean(&c.node.Debug, v)
	}},
	{"loops", "0", "event loops; 0 for one for each processor", func(c *engineConfig, v string) error {
		return atLeast(&c.node.Loops, v, 0)
	}},
	{"max-conns", "10000", "connections at once", func(c *engineConfig, v string) error {
		return atLeast(&c.node.MaxConns, v, 1)
	}},
	{"outbound-cap", "4MiB", "answers that may wait for one connection before it is not read from", func(c *engineConfig, v string) error {
		var n int64
		err := size(&n, v)
		if err == nil && n < 64<<10 {
			err = fmt.Errorf("%q: must be at least 64KiB", v)
		}
		c.node.OutboundCap = int(n)
		return err
	}},
	{"staging-cap", "16MiB", "memory that one client on this host may write values to; needs backing memfd", func(c *engineConfig, v string) error {
		var n int64
		err := size(&n, v)
		if c.node.StagingCap = int(n); n == 0 {
			c.node.StagingCap = -1 // none, and not the default
		}
		return err
	}},
	{"staging-total", "256MiB", "the same for all clients together", func(c *engineConfig, v string) error {
		var n int64
		err := size(&n, v)
		if c.node.StagingTotal = int(n); n == 0 {
			c.node.StagingTotal = -1 // none, and not the default
		}
		return err
	}},
	{"handshake-timeout", "10s", "time to authenticate", func(c *engineConfig, v string) error {
		return positive(&c.node.HandshakeTimeout, v)
	}},
	{"idle-timeout", "5m", "time without a command after which a connection is closed", func(c *engineConfig, v string) error {
		return positive(&c.node.IdleTimeout, v)
	}},
	{"write-timeout", "1m", "time without taking answers after which a connection is closed", func(c *engineConfig, v string) error {
		return positive(&c.node.WriteTimeout, v)
	}},
	{"drain-timeout", "10s", "time for answers under way when the node is told to stop", func(c *engineConfig, v string) error {
		return positive(&c.node.DrainTimeout, v)
	}},
	{"log-level", "info", "what is logged: debug, info, warn, error", func(c *engineConfig, v string) error {
		if err := c.node.LogLevel.UnmarshalText([]byte(v)); err != nil {
			return fmt.Errorf("%q: must be debug, info, warn or error", v)
		}
		return nil
	}},
}

// list cuts a list at its commas.
func list(v string) (out []string) {
	for _, part := range strings.Split(v, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

func atLeast(dst *int, v string, least int) error {
	if err := integer(dst, v); err != nil {
		return err
	}
	if *dst < least {
		return fmt.Errorf("%q: must be at least %d", v, least)
	}
	return nil
}

func positive(dst *time.Duration, v string) error {
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		return fmt.Errorf("%q: must be a time above 0, such as 10s", v)
	}
	*dst = d
	return nil
}

// secret reads a file that holds one secret: line ends around it do not count.
func secret(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if b = bytes.TrimRight(b, "\r\n"); len(b) == 0 {
		return nil, errors.New(path + " is empty")
	}
	return b, nil
}
