package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/kvcr-go/kvcr/wire"
)

// Get returns the value of a key in dst's memory, from its start, or in new memory
// if that is too short; dst may be nil. Without a value ok is false and the result
// is dst[:0], so that a loop can keep its buffer. After an error dst's bytes are
// undefined. With memory that is long enough it does not allocate.
func (cl *Client) Get(ctx context.Context, key, dst []byte) (value []byte, ok bool, err error) {
	k := cl.call(opGet)
	defer cl.end(k)
	k.key, k.dst = key, dst[:0]
	if err := cl.do(ctx, k, nil); err != nil || k.status == wire.StatusMiss {
		return dst[:0], false, err
	}
	return k.dst[:k.have], true, nil
}

// GetInto reads the value of a key into dst and returns its length. For a value
// longer than dst it fails with ErrShortBuffer and leaves dst as it was.
func (cl *Client) GetInto(ctx context.Context, key, dst []byte) (n int, ok bool, err error) {
	k := cl.call(opGet)
	defer cl.end(k)
	k.key, k.dst, k.fixed = key, dst[:0:len(dst)], true
	if err := cl.do(ctx, k, nil); err != nil || k.status == wire.StatusMiss {
		return 0, false, err
	}
	return int(k.have), true, nil
}

// Set writes a value, whatever was there before.
func (cl *Client) Set(ctx context.Context, key, value []byte) error {
	_, err := cl.set(ctx, key, value, wire.VerbSet, 0)
	return err
}

// SetTTL writes a value that lives for ttl, rounded up to milliseconds; 0: until
// it is evicted.
func (cl *Client) SetTTL(ctx context.Context, key, value []byte, ttl time.Duration) error {
	if ttl < 0 {
		return &Error{Op: opSet.name(), Addr: cl.opt.Addr, Err: ErrInvalid, Cause: errors.New("negative time to live")}
	}
	ms := uint64((ttl-1)/time.Millisecond) + 1
	if ttl == 0 {
		ms = 0
	}
	_, err := cl.set(ctx, key, value, wire.VerbSet, ms)
	return err
}

// Deposit writes a value that follows from its key. What is resident stays, and
// that is no error; existing says so where the node does.
func (cl *Client) Deposit(ctx context.Context, key, value []byte) (existing bool, err error) {
	return cl.set(ctx, key, value, wire.VerbDeposit, 0)
}

// SetAbsent writes a value unless the key has one; existing reports that it has.
func (cl *Client) SetAbsent(ctx context.Context, key, value []byte) (existing bool, err error) {
	return cl.set(ctx, key, value, wire.VerbSetIfAbsent, 0)
}

func (cl *Client) set(ctx context.Context, key, value []byte, verb wire.Verb, ttl uint64) (existing bool, err error) {
	k := cl.call(opSet)
	defer cl.end(k)
	k.key, k.src, k.verb, k.ttl = key, value, verb, ttl
	err = cl.do(ctx, k, nil)
	return err == nil && k.status == wire.StatusExists, err
}

// batch runs a call about keys, which must fit one request: at most wire.MaxList,
// and wire.MaxPayload bytes with two for each. Else it is ErrTooLarge.
func (cl *Client) batch(ctx context.Context, op op, keys [][]byte) (*call, error) {
	return cl.batchFor(ctx, op, "", keys)
}

func (cl *Client) batchFor(ctx context.Context, op op, requestID string, keys [][]byte) (*call, error) {
	k := cl.call(op)
	k.keys, k.text = keys, requestID
	if err := cl.checkRequest(k, requestID); err != nil {
		return k, err
	}
	if len(keys) == 0 {
		return k, nil
	}
	return k, cl.do(ctx, k, nil)
}

// Delete removes keys. The statuses are ok, or miss for a key that was not there,
// in the order of the keys. As in all calls with several, the keys must be at most
// wire.MaxList, and with two bytes for each at most wire.MaxPayload; ErrTooLarge
// otherwise.
func (cl *Client) Delete(ctx context.Context, keys ...[]byte) ([]wire.Status, error) {
	k, err := cl.batch(ctx, opDelete, keys)
	defer cl.end(k)
	if err != nil {
		return nil, err
	}
	return k.statuses.Statuses, nil
}

// Exists reports which keys are resident, in the order of the keys.
func (cl *Client) Exists(ctx context.Context, keys ...[]byte) ([]bool, error) {
	k, err := cl.batch(ctx, opExists, keys)
	defer cl.end(k)
	if err != nil {
		return nil, err
	}
	there := make([]bool, len(keys))
	for i, s := range k.statuses.Statuses {
		there[i] = s == wire.StatusOK
	}
	return there, nil
}

// Prefix returns how many keys are resident before the first that is not.
func (cl *Client) Prefix(ctx context.Context, keys [][]byte) (int, error) {
	k, err := cl.batch(ctx, opPrefix, keys)
	defer cl.end(k)
	if err != nil {
		return 0, err
	}
	return k.count, nil
}

// Query returns what the node knows of keys, in the order of the keys.
func (cl *Client) Query(ctx context.Context, keys [][]byte) ([]wire.Result, error) {
	return cl.QueryFor(ctx, "", keys)
}

// QueryFor is Query on behalf of a request of the inference engine: what hints say of
// that counts. Of a block that another node is said to have, Tier is 2.
func (cl *Client) QueryFor(ctx context.Context, requestID string, keys [][]byte) ([]wire.Result, error) {
	k, err := cl.batchFor(ctx, opQuery, requestID, keys)
	defer cl.end(k)
	if err != nil {
		return nil, err
	}
	return k.results.Results, nil
}

// Fetch claims the values of keys, in the order of the keys: those whose Status is
// ok stay as they are until Release, whatever happens to the keys, or until their
// connection is lost. Claim.Claim is this client's number, not the node's.
func (cl *Client) Fetch(ctx context.Context, keys [][]byte) ([]wire.Claim, error) {
	return cl.FetchFor(ctx, "", keys)
}

// FetchFor is Fetch on behalf of a request of the inference engine: the node fetches
// what it has not from where hints of that request say that it is, and answers when
// that has ended.
func (cl *Client) FetchFor(ctx context.Context, requestID string, keys [][]byte) ([]wire.Claim, error) {
	k, err := cl.batchFor(ctx, opFetch, requestID, keys)
	defer cl.end(k)
	if err != nil {
		return nil, err
	}
	return k.granted.Claims, nil
}

// Deliver returns the value of a claim, which stays, in dst's memory as Get does.
// ErrReleased: the claim was released, or its connection has ended.
func (cl *Client) Deliver(ctx context.Context, claim wire.Claim, dst []byte) ([]byte, error) {
	k := cl.call(opDeliver)
	defer cl.end(k)
	k.dst = dst[:0]
	c, theirs := cl.granted(claim, false)
	if c == nil {
		return dst[:0], cl.where(&Error{Err: ErrReleased}, k)
	}
	k.claims = []uint64{theirs}
	if err := cl.do(ctx, k, c); err != nil {
		return dst[:0], err
	}
	return k.dst[:k.have], nil
}

// Release ends claims. Those whose Status is not ok are passed over. ErrReleased:
// some were released before, or ended with their connection; the others are
// released all the same. A claim is not released when the context ends before the
// request is on its way: pass one that lives.
func (cl *Client) Release(ctx context.Context, claims ...wire.Claim) error {
	type lot struct {
		c    *conn
		k    *call
		ours []uint64
	}
	var errs []error
	var lots []lot
	gone := false
	for _, claim := range claims {
		if claim.Status != wire.StatusOK {
			continue
		}
		c, theirs := cl.granted(claim, true)
		if c == nil {
			gone = true
			continue
		}
		i := slices.IndexFunc(lots, func(l lot) bool { return l.c == c && len(l.ours) < wire.MaxList })
		if i < 0 {
			i = len(lots)
			lots = append(lots, lot{c: c, k: cl.call(opRelease)})
		}
		l := &lots[i]
		l.k.claims, l.ours = append(l.k.claims, theirs), append(l.ours, claim.Claim)
	}
	for _, l := range lots {
		err := cl.do(ctx, l.k, l.c)
		if l.k.id == 0 {
			l.c.regrant(l.ours, l.k.claims)
		}
		if errors.Is(err, ErrLost) {
			err = nil // the claims ended with their connection
		}
		gone = gone || slices.Contains(l.k.statuses.Statuses, wire.StatusReleased)
		errs = append(errs, err)
		cl.end(l.k)
	}
	if gone {
		errs = append(errs, &Error{Op: opRelease.name(), Addr: cl.opt.Addr, Err: ErrReleased})
	}
	return errors.Join(errs...)
}

// granted returns the connection of a claim and the node's number for it, nil if
// there is none any more. take: nobody else may have it from now on.
func (cl *Client) granted(claim wire.Claim, take bool) (*conn, uint64) {
	for i := range cl.slots {
		if c := cl.slots[i].conn.Load(); c != nil {
			c.mu.Lock()
			theirs, ok := c.claims[claim.Claim]
			if take {
				delete(c.claims, claim.Claim)
			}
			c.mu.Unlock()
			if ok {
				return c, theirs
			}
		}
	}
	return nil, 0
}

// regrant gives claims back that were taken for a RELEASE that was not sent.
func (c *conn) regrant(ours, theirs []uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead != nil {
		return
	}
	for i := range ours {
		c.claims[ours[i]] = theirs[i]
	}
}

// Stats returns the node's counters as JSON.
func (cl *Client) Stats(ctx context.Context) ([]byte, error) {
	k := cl.call(opStats)
	defer cl.end(k)
	if err := cl.do(ctx, k, nil); err != nil {
		return nil, err
	}
	return k.body, nil
}

// Ping returns how long the node took to answer, a new connection included if
// there was none.
func (cl *Client) Ping(ctx context.Context) (time.Duration, error) {
	k := cl.call(opPing)
	defer cl.end(k)
	start := time.Now()
	if err := cl.do(ctx, k, nil); err != nil {
		return 0, err
	}
	return time.Since(start), nil
}

// checkRequest says what is wrong with the name of a request, which may be empty.
func (cl *Client) checkRequest(k *call, requestID string) error {
	if len(requestID) > wire.MaxText || !utf8.ValidString(requestID) {
		return cl.where(&Error{Err: ErrInvalid, Cause: fmt.Errorf("a request id of %d bytes: at most %d, of UTF-8", len(requestID), wire.MaxText)}, k)
	}
	return nil
}

// Hint passes an envelope of hints to the node and returns its results as JSON: a
// list with an object for each action. requestID names the inference engine's request
// that carries it, if one does.
func (cl *Client) Hint(ctx context.Context, requestID string, format wire.Format, envelope []byte) ([]byte, error) {
	k := cl.call(opHint)
	defer cl.end(k)
	if format > wire.FormatMsgpack {
		return nil, cl.where(&Error{Err: ErrInvalid, Cause: errors.New("unknown format")}, k)
	}
	if err := cl.checkRequest(k, requestID); err != nil {
		return nil, err
	}
	if most := wire.MaxPayload - 3 - len(requestID); len(envelope) > most {
		return nil, cl.where(&Error{Err: ErrTooLarge, Size: uint64(most)}, k)
	}
	k.format, k.text, k.src = format, requestID, envelope
	if err := cl.do(ctx, k, nil); err != nil {
		return nil, err
	}
	return k.body, nil
}

// DiscardHint makes the node forget what it was told about a request of the
// inference engine, by that one's name: 1 to wire.MaxText bytes of UTF-8.
func (cl *Client) DiscardHint(ctx context.Context, requestID string) error {
	k := cl.call(opDiscardHint)
	defer cl.end(k)
	if requestID == "" {
		return cl.where(&Error{Err: ErrInvalid, Cause: errors.New("no request id")}, k)
	}
	if err := cl.checkRequest(k, requestID); err != nil {
		return err
	}
	k.text = requestID
	return cl.do(ctx, k, nil)
}

// Describe tells the node what blocks mean to the inference engine, so that the events
// that it publishes to routers describe themselves. The statuses are those of
// d.Blocks in order.
func (cl *Client) Describe(ctx context.Context, d *wire.Describe) ([]wire.Status, error) {
	k := cl.call(opDescribe)
	defer cl.end(k)
	if len(d.Blocks) == 0 {
		return nil, nil
	}
	k.describe = d
	if err := cl.do(ctx, k, nil); err != nil {
		return nil, err
	}
	return k.statuses.Statuses, nil
}
