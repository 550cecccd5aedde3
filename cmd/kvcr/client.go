package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/kvcr-go/kvcr/wire"
	"github.com/kvcr-go/kvcr/wire/client"
)

// defaultNode is where kvcr serve listens, and client commands ask, unless told
// otherwise.
const defaultNode = "127.0.0.1:7370"

// nodeAddr is how the client commands reach a node.
type nodeAddr struct {
	Addr       string        `default:"${node}" env:"KVCR_NODE" help:"The node: host:port or unix:path of its binary protocol."`
	Namespace  string        `help:"Namespace; the node's first if empty."`
	SecretFile string        `placeholder:"FILE" help:"File with the node's secret."`
	Timeout    time.Duration `default:"10s" help:"Time for the whole command."`
}

// with connects, runs f, and closes.
func (a *nodeAddr) with(e *env, f func(ctx context.Context, c *client.Client) error) error {
	key, err := secret(a.SecretFile)
	if err != nil {
		return usageError{err}
	}
	ctx, cancel := context.WithTimeout(e.ctx, a.Timeout)
	defer cancel()
	c, err := client.Dial(ctx, client.Options{Addr: a.Addr, Namespace: a.Namespace, Name: "kvcr " + versionText(), Secret: key})
	var nobody syscall.Errno
	if errors.As(err, &nobody) && (nobody == syscall.ECONNREFUSED || nobody == syscall.ENOENT) {
		return fmt.Errorf("no node listens at %s (%w): start one with %s serve, or name another with --addr or KVCR_NODE", a.Addr, nobody, os.Args[0])
	}
	if err != nil {
		return err
	}
	return errors.Join(f(ctx, c), c.Close())
}

type getCmd struct {
	nodeAddr
	Key string `arg:"" help:"The key."`
	Out string `short:"o" placeholder:"FILE" help:"Write the value there; default standard output."`
}

// errMiss is a key that is not there: exit code 1.
var errMiss = errors.New("not there")

func (c *getCmd) Run(e *env) error {
	return c.with(e, func(ctx context.Context, cl *client.Client) error {
		v, ok, err := cl.Get(ctx, []byte(c.Key), nil)
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("%q: %w", c.Key, errMiss)
		}
		if c.Out != "" {
			return os.WriteFile(c.Out, v, 0o644)
		}
		_, err = e.stdout.Write(v)
		return err
	})
}

type setCmd struct {
	nodeAddr
	Key   string        `arg:"" help:"The key."`
	Value string        `arg:"" optional:"" help:"The value; read from --in or standard input if absent."`
	In    string        `short:"i" placeholder:"FILE" help:"Read the value from there."`
	TTL   time.Duration `name:"ttl" help:"Time to live; 0 for until evicted."`
	NX    bool          `name:"nx" help:"Only if the key is not there."`
}

func (c *setCmd) Run(e *env) error {
	value, err := c.value()
	if err != nil {
		return err
	}
	return c.with(e, func(ctx context.Context, cl *client.Client) error {
		if !c.NX {
			return cl.SetTTL(ctx, []byte(c.Key), value, c.TTL)
		}
		if c.TTL != 0 {
			return usageError{errors.New("--nx and --ttl do not go together")}
		}
		existing, err := cl.SetAbsent(ctx, []byte(c.Key), value)
		if err == nil && existing {
			err = fmt.Errorf("%q is there already", c.Key)
		}
		return err
	})
}

func (c *setCmd) value() ([]byte, error) {
	switch {
	case c.Value != "" && c.In != "":
		return nil, usageError{errors.New("give a value or --in, not both")}
	case c.In != "":
		return os.ReadFile(c.In)
	case c.Value != "":
		return []byte(c.Value), nil
	}
	return io.ReadAll(os.Stdin)
}

type delCmd struct {
	nodeAddr
	Keys []string `arg:"" help:"The keys."`
}

func (c *delCmd) Run(e *env) error {
	return c.with(e, func(ctx context.Context, cl *client.Client) error {
		sts, err := cl.Delete(ctx, keysOf(c.Keys)...)
		for i, st := range sts {
			word := st.String()
			if st == wire.StatusOK {
				word = "deleted"
			}
			e.printf("%s\t%s\n", c.Keys[i], word)
		}
		return err
	})
}

type existsCmd struct {
	nodeAddr
	Keys []string `arg:"" help:"The keys."`
}

func (c *existsCmd) Run(e *env) error {
	return c.with(e, func(ctx context.Context, cl *client.Client) error {
		rs, err := cl.Query(ctx, keysOf(c.Keys))
		absent := 0
		for i, r := range rs {
			if r.Status == wire.StatusOK {
				e.printf("%s\t%d bytes\n", c.Keys[i], r.Size)
			} else {
				absent++
				e.printf("%s\t%v\n", c.Keys[i], r.Status)
			}
		}
		if err == nil && absent > 0 {
			err = fmt.Errorf("%d of %d keys: %w", absent, len(rs), errMiss)
		}
		return err
	})
}

func keysOf(names []string) [][]byte {
	keys := make([][]byte, len(names))
	for i, n := range names {
		keys[i] = []byte(n)
	}
	return keys
}

type statCmd struct{ nodeAddr }

func (c *statCmd) Run(e *env) error {
	return c.with(e, func(ctx context.Context, cl *client.Client) error {
		raw, err := cl.Stats(ctx)
		if err != nil {
			return err
		}
		var out bytes.Buffer
		if err := json.Indent(&out, raw, "", "  "); err != nil {
			return err
		}
		out.WriteByte('\n')
		_, err = out.WriteTo(e.stdout)
		return err
	})
}

type pingCmd struct {
	nodeAddr
	Count int `short:"n" default:"4" help:"How many."`
}

func (c *pingCmd) Run(e *env) error {
	return c.with(e, func(ctx context.Context, cl *client.Client) error {
		for range c.Count {
			d, err := cl.Ping(ctx)
			if err != nil {
				return err
			}
			e.printf("answer from %s after %v\n", c.Addr, d)
		}
		return nil
	})
}
