package clients

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/wire/server"
)

const password = "secret"

// node is an engine and its server.
type node struct {
	engine *kvcr.Engine
	server *server.Server
	addr   string
}

// serve starts a node of 64 MiB on addr. The cleanup checks that nothing is left
// in anybody's hands.
func serve(t *testing.T, addr, password string) *node {
	t.Helper()
	e, err := kvcr.Open(kvcr.Config{Capacity: 64 << 20, Namespaces: []kvcr.Namespace{{Name: "default", MaxValue: 8 << 20}}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.Start(server.Options{Engine: e, RESP: []string{addr}, Password: password, AllowFlush: true})
	if err != nil {
		e.Close()
		t.Fatal(err)
	}
	at, _ := s.Addrs()
	n := &node{e, s, at[0].String()}
	t.Cleanup(func() { n.stop(t) })
	return n
}

// stop ends the node; again it does nothing.
func (n *node) stop(t *testing.T) {
	t.Helper()
	if n.engine == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := n.server.Shutdown(ctx); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if c := n.engine.Claims(); c != 0 {
		t.Errorf("%d claims left", c)
	}
	if err := n.engine.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	n.engine = nil
}

// connect returns a client; edit may change its options.
func connect(t *testing.T, n *node, edit func(*redis.Options)) *redis.Client {
	t.Helper()
	opt := &redis.Options{Addr: n.addr, Password: password}
	if edit != nil {
		edit(opt)
	}
	c := redis.NewClient(opt)
	t.Cleanup(func() { c.Close() })
	return c
}

// value is different for each seed, and in each of its parts.
func value(seed uint64, size int) []byte {
	b := make([]byte, size)
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	rand.NewChaCha8(key).Read(b)
	return b
}

// is fails unless got is want and there is no error.
func is[T comparable](t *testing.T, what string, got T, err error, want T) {
	t.Helper()
	if err != nil || got != want {
		t.Errorf("%s: %v, %v; want %v", what, got, err, want)
	}
}

func TestCommands(t *testing.T) {
	for _, tt := range []struct {
		name     string
		protocol int
		password string
	}{
		{"resp2", 2, ""}, {"resp3", 3, ""}, {"resp2 with password", 2, password}, {"resp3 with password", 3, password},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := serve(t, "127.0.0.1:0", tt.password)
			c := connect(t, n, func(o *redis.Options) { o.Protocol, o.Password, o.ClientName = tt.protocol, tt.password, "tests" })
			ctx := context.Background()
			hello, err := c.Do(ctx, "HELLO", tt.protocol).Result()
			if err != nil || !contains(hello, "proto", int64(tt.protocol)) {
				t.Errorf("HELLO: %v, %v", hello, err)
			}
			pong, err := c.Ping(ctx).Result()
			is(t, "PING", pong, err, "PONG")
			me, err := c.ClientGetName(ctx).Result()
			is(t, "CLIENT GETNAME", me, err, "tests")
			for _, size := range []int{0, 1, 100, 8 << 10, 16 << 10, 100_000, 1 << 20, 8 << 20} {
				want := value(uint64(size), size)
				ok, err := c.Set(ctx, "k", want, 0).Result()
				is(t, "SET", ok, err, "OK")
				got, err := c.Get(ctx, "k").Bytes()
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("GET of %d bytes: %d bytes, %v", size, len(got), err)
				}
				length, err := c.StrLen(ctx, "k").Result()
				is(t, "STRLEN", length, err, int64(size))
			}
			if err := c.Get(ctx, "none").Err(); err != redis.Nil {
				t.Errorf("GET of a key that is not there: %v", err)
			}
			stored, err := c.SetNX(ctx, "nx", "1", 0).Result()
			is(t, "SET NX", stored, err, true)
			stored, err = c.SetNX(ctx, "nx", "2", time.Minute).Result()
			is(t, "SET NX again", stored, err, false)
			stored, err = c.SetXX(ctx, "xx", "1", 0).Result()
			is(t, "SET XX of none", stored, err, false)
			got, err := c.Get(ctx, "nx").Result()
			is(t, "GET", got, err, "1")
			ok, err := c.MSet(ctx, "a", "1", "b", "", "c", "3").Result()
			is(t, "MSET", ok, err, "OK")
			many, err := c.MGet(ctx, "a", "none", "b", "c").Result()
			if want := []any{"1", nil, "", "3"}; err != nil || fmt.Sprint(many) != fmt.Sprint(want) {
				t.Errorf("MGET: %v, %v; want %v", many, err, want)
			}
			part, err := c.GetRange(ctx, "nx", 0, -1).Result()
			is(t, "GETRANGE", part, err, "1")
			count, err := c.Exists(ctx, "a", "b", "none").Result()
			is(t, "EXISTS", count, err, 2)
			count, err = c.Del(ctx, "a", "none").Result()
			is(t, "DEL", count, err, 1)
			count, err = c.Unlink(ctx, "b").Result()
			is(t, "UNLINK", count, err, 1)
			if err := c.Do(ctx, "NONSENSE").Err(); err == nil {
				t.Error("NONSENSE was taken")
			}
			count, err = c.DBSize(ctx).Result()
			is(t, "DBSIZE", count, err, 3) // k, nx, c
			ok, err = c.FlushAll(ctx).Result()
			is(t, "FLUSHALL", ok, err, "OK")
			count, err = c.DBSize(ctx).Result()
			is(t, "DBSIZE", count, err, 0)
		})
	}
}

// contains looks into the answer to HELLO, a map or a flat list.
func contains(answer any, key string, want any) bool {
	switch a := answer.(type) {
	case map[any]any:
		return a[key] == want
	case []any:
		for i := 0; i+1 < len(a); i += 2 {
			if a[i] == key {
				return a[i+1] == want
			}
		}
	}
	return false
}

func TestWrongPassword(t *testing.T) {
	n := serve(t, "127.0.0.1:0", password)
	c := connect(t, n, func(o *redis.Options) { o.Password = "guess" })
	if err := c.Set(context.Background(), "k", "v", 0).Err(); err == nil {
		t.Error("SET with a wrong password was taken")
	}
	right := connect(t, n, nil)
	count, err := right.Exists(context.Background(), "k").Result()
	is(t, "EXISTS", count, err, 0)
}

func TestExpiry(t *testing.T) {
	n := serve(t, "127.0.0.1:0", password)
	c := connect(t, n, nil)
	ctx := context.Background()
	if err := errors.Join(c.Set(ctx, "short", "v", 300*time.Millisecond).Err(), c.Set(ctx, "long", "v", time.Hour).Err()); err != nil {
		t.Fatal(err)
	}
	got, err := c.Get(ctx, "short").Result()
	is(t, "GET in time", got, err, "v")
	for end := time.Now().Add(3 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if err := c.Get(ctx, "short").Err(); err == redis.Nil {
			break
		} else if err != nil || time.Now().After(end) {
			t.Fatalf("300 ms are over: %v", err)
		}
	}
	got, err = c.Get(ctx, "long").Result()
	is(t, "GET", got, err, "v")
}

func TestPipelines(t *testing.T) {
	n := serve(t, "127.0.0.1:0", password)
	for _, protocol := range []int{2, 3} {
		c := connect(t, n, func(o *redis.Options) { o.Protocol = protocol })
		ctx := context.Background()
		for _, size := range []int{10, 50_000} {
			const keys = 200
			var got [keys]*redis.StringCmd
			p := c.Pipeline()
			for i := range keys {
				p.Set(ctx, fmt.Sprint("k", i), value(uint64(i), size), time.Hour)
				p.Get(ctx, "none")
				got[i] = p.Get(ctx, fmt.Sprint("k", i))
			}
			if _, err := p.Exec(ctx); err != redis.Nil { // of the misses
				t.Fatal(err)
			}
			for i := range keys {
				if b, err := got[i].Bytes(); err != nil || !bytes.Equal(b, value(uint64(i), size)) {
					t.Fatalf("resp%d: value %d of %d bytes: %d bytes, %v", protocol, i, size, len(b), err)
				}
			}
		}
	}
}

// Twenty connections, a thousand goroutines, more values than there is room for:
// every answer is the key's own value or a miss, and nothing fails.
func TestPool(t *testing.T) {
	n := serve(t, "127.0.0.1:0", password)
	c := connect(t, n, func(o *redis.Options) {
		o.PoolSize, o.PoolTimeout, o.ReadTimeout, o.MaxRetries = 20, time.Minute, 20*time.Second, -1
	})
	ctx := context.Background()
	const keys, size = 400, 300_000 // 120 MB
	values := make([][]byte, keys)
	for i := range values {
		values[i] = value(uint64(i), size+i)
	}
	var all sync.WaitGroup
	var hits, misses atomic.Int64
	for g := range 1000 {
		all.Add(1)
		go func() {
			defer all.Done()
			k := g * 7 % keys
			name := fmt.Sprint("key-", k)
			if err := c.Set(ctx, name, values[k], 0).Err(); err != nil {
				t.Errorf("SET: %v", err)
				return
			}
			for range 2 {
				got, err := c.Get(ctx, name).Bytes()
				switch {
				case err == redis.Nil:
					misses.Add(1)
				case err != nil || !bytes.Equal(got, values[k]):
					t.Errorf("GET %s: %d bytes, %v", name, len(got), err)
				default:
					hits.Add(1)
				}
			}
		}()
	}
	all.Wait()
	st, err := n.engine.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if hits.Load() == 0 || st.Counts.Evicted == 0 {
		t.Errorf("%d hits, %d misses, %d evicted", hits.Load(), misses.Load(), st.Counts.Evicted)
	}
	if conns := n.server.Stats().Conns; conns > 20 {
		t.Errorf("%d connections of a pool of 20", conns)
	}
}

// Clients that give up in the middle of answers, again and again, leave nothing
// of those answers to others.
func TestTimeouts(t *testing.T) {
	n := serve(t, "127.0.0.1:0", password)
	hasty := connect(t, n, func(o *redis.Options) { o.MaxRetries = -1 })
	calm := connect(t, n, func(o *redis.Options) { o.MaxRetries = -1 })
	const keys, size = 6, 4 << 20
	var values [keys][]byte
	for i := range values {
		values[i] = value(uint64(i), size)
		if err := calm.Set(context.Background(), fmt.Sprint("key-", i), values[i], 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	var all sync.WaitGroup
	for g := range 4 {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := range 25 {
				k := (i + g) % keys
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+i%5)*time.Millisecond)
				got, err := hasty.Get(ctx, fmt.Sprint("key-", k)).Bytes()
				cancel()
				if err == nil && !bytes.Equal(got, values[k]) {
					t.Errorf("hasty: wrong bytes for key %d", k)
				}
				got, err = calm.Get(context.Background(), fmt.Sprint("key-", k)).Bytes()
				if err != nil || !bytes.Equal(got, values[k]) {
					t.Errorf("calm: key %d: %d bytes, %v", k, len(got), err)
				}
			}
		}()
	}
	all.Wait()
}

// The node goes and comes back on its address: calls in the gap fail, and calls
// afterwards work without anybody reconnecting by hand.
func TestRestart(t *testing.T) {
	n := serve(t, "127.0.0.1:0", password)
	c := connect(t, n, func(o *redis.Options) { o.PoolSize, o.DialTimeout = 4, time.Second })
	ctx := context.Background()
	if err := c.Set(ctx, "k", "old", 0).Err(); err != nil {
		t.Fatal(err)
	}
	n.stop(t)
	if err := c.Set(ctx, "k", "lost", 0).Err(); err == nil {
		t.Error("a SET was taken by nobody")
	}
	again := serve(t, n.addr, password)
	end := time.Now().Add(5 * time.Second)
	for {
		err := c.Set(ctx, "k", "new", 0).Err()
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the node is back and calls fail: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	got, err := c.Get(ctx, "k").Result()
	is(t, "GET", got, err, "new")
	count, err := again.engine.Stats()
	is(t, "blocks of the new node", count.Blocks, err, 1)
}
