package server

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/wire/resp"
)

// command is one entry of the table: how many arguments it takes, its name
// included (max < 0: any number), and what it does.
type command struct {
	min, max int
	kind     int
	run      func(c *respConn, s *session, args [][]byte) error
}

var respCommands map[string]command

func init() { // refers to functions that refer to it
	respCommands = map[string]command{
		"GET":      {2, 2, commandGet, func(c *respConn, s *session, args [][]byte) error { return c.get(s, args[1]) }},
		"MGET":     {2, -1, commandMget, (*respConn).mget},
		"GETRANGE": {4, 4, commandGet, (*respConn).getrange},
		"SUBSTR":   {4, 4, commandGet, (*respConn).getrange},
		"STRLEN":   {2, 2, commandGet, (*respConn).strlen},
		"SET":      {3, -1, commandSet, (*respConn).setCommand},
		"SETNX":    {3, 3, commandSet, (*respConn).setnx},
		"SETEX":    {4, 4, commandSet, (*respConn).setex},
		"PSETEX":   {4, 4, commandSet, (*respConn).setex},
		"MSET":     {3, -1, commandMset, (*respConn).mset},
		"DEL":      {2, -1, commandDelete, (*respConn).del},
		"UNLINK":   {2, -1, commandDelete, (*respConn).del},
		"EXISTS":   {2, -1, commandExists, (*respConn).exists},
		"PING":     {1, 2, commandOther, (*respConn).ping},
		"ECHO":     {2, 2, commandOther, (*respConn).echo},
		"QUIT":     {1, -1, commandOther, (*respConn).quit},
		"AUTH":     {2, 3, commandOther, (*respConn).auth},
		"HELLO":    {1, -1, commandOther, (*respConn).hello},
		"SELECT":   {2, 2, commandOther, (*respConn).selectDB},
		"CLIENT":   {2, -1, commandOther, (*respConn).client},
		"COMMAND":  {1, -1, commandOther, (*respConn).commandCommand},
		"CONFIG":   {2, -1, commandOther, (*respConn).config},
		"INFO":     {1, -1, commandOther, (*respConn).info},
		"DBSIZE":   {1, 1, commandOther, (*respConn).dbsize},
		"FLUSHALL": {1, 2, commandOther, (*respConn).flushall},
		"FLUSHDB":  {1, 2, commandOther, (*respConn).flushall},
	}
}

// run executes one whole command.
func (c *respConn) run(s *session) error {
	args := c.cmd.Args
	var buf [16]byte
	name := resp.Fold(buf[:], args[0])
	cmd, ok := respCommands[string(name)]
	s.command = commandOther
	if ok {
		s.count(cmd.kind)
	}
	switch {
	case string(name) == "POST" || string(name) == "HOST:":
		// A web page talks to us through its reader's browser.
		return errQuit
	case !c.authed && string(name) != "AUTH" && string(name) != "HELLO" && string(name) != "QUIT":
		c.reply(s, "NOAUTH Authentication required.")
	case !ok:
		c.reply(s, fmt.Sprintf("ERR unknown command '%s'", printable(args[0])))
	case len(args) < cmd.min || cmd.max >= 0 && len(args) > cmd.max:
		c.reply(s, fmt.Sprintf("ERR wrong number of arguments for '%s' command", strings.ToLower(string(name))))
	default:
		return cmd.run(c, s, args)
	}
	return nil
}

// reply answers with an error that leaves the connection as it is.
func (c *respConn) reply(s *session, text string) {
	s.failed()
	s.out.text = resp.AppendError(s.out.text, text)
}

// printable is the beginning of what a client sent, fit for an answer.
func printable(b []byte) string {
	const most = 64
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, string(b[:min(len(b), most)]))
}

func (c *respConn) ok(s *session) { s.out.text = resp.AppendSimple(s.out.text, "OK") }

func (c *respConn) get(s *session, key []byte) error {
	if !c.badKey(s, key) {
		c.value(s, key)
	}
	return nil
}

// badKeys answers a command with a key that no block can have.
func (c *respConn) badKeys(s *session, keys [][]byte) bool {
	for _, k := range keys {
		if c.badKey(s, k) {
			return true
		}
	}
	return false
}

func (c *respConn) badKey(s *session, k []byte) bool {
	if len(k) == 0 || len(k) > kvcr.MaxKeyBytes {
		c.reply(s, fmt.Sprintf("ERR key of %d bytes: must be 1 to %d", len(k), kvcr.MaxKeyBytes))
		return true
	}
	return c.reserved(s, k)
}

// value appends the block of a key, or null.
func (c *respConn) value(s *session, key []byte) {
	b, v, ok := s.out.get(s.h, key)
	switch {
	case !ok:
		s.out.text = resp.AppendNull(s.out.text, c.proto)
		return
	case v.Pieces() == 0:
		s.out.text = append(resp.AppendBulkHeader(s.out.text, len(b)), b...)
	default:
		s.out.text = resp.AppendBulkHeader(s.out.text, v.Len())
		s.out.add(v)
	}
	s.out.text = resp.AppendCRLF(s.out.text)
}

func (c *respConn) mget(s *session, args [][]byte) error {
	if c.badKeys(s, args[1:]) {
		return nil
	}
	s.out.text = resp.AppendArray(s.out.text, len(args)-1)
	// Its values are answered like those of GETs, which may have to wait for room.
	for _, k := range args[1:] {
		c.ahead = append(c.ahead, ahead{key: k, kind: commandMget})
	}
	return c.runAhead(s)
}

func (c *respConn) getrange(s *session, args [][]byte) error {
	from, err1 := strconv.ParseInt(string(args[2]), 10, 64)
	to, err2 := strconv.ParseInt(string(args[3]), 10, 64)
	if err1 != nil || err2 != nil {
		c.reply(s, "ERR value is not an integer or out of range")
		return nil
	}
	if c.badKey(s, args[1]) {
		return nil
	}
	v, ok := s.h.Get(args[1])
	if !ok || v.Pieces() != 1 {
		v.Release()
		s.out.text = resp.AppendBulk(s.out.text, "")
		return nil
	}
	b := part(v.Bytes(), from, to)
	s.out.text = resp.AppendBulkHeader(s.out.text, len(b))
	s.out.addPart(v, b)
	s.out.text = resp.AppendCRLF(s.out.text)
	return nil
}

// part cuts b from index from to index to, both included, as GETRANGE counts:
// negative indexes count from the end.
func part(b []byte, from, to int64) []byte {
	n := int64(len(b))
	if from < 0 {
		from = max(0, from+n)
	}
	if to < 0 {
		to += n
	}
	to = min(to, n-1)
	if from > to || n == 0 {
		return nil
	}
	return b[from : to+1]
}

func (c *respConn) strlen(s *session, args [][]byte) error {
	if c.badKey(s, args[1]) {
		return nil
	}
	v, _ := s.h.Get(args[1])
	s.out.text = resp.AppendInt(s.out.text, int64(v.Len()))
	v.Release()
	return nil
}

// setOptions are what may follow SET key value.
type setOptions struct {
	ttl             time.Duration // 0: none
	absent, present bool
}

var (
	errSyntax = errors.New("ERR syntax error")
	errTTL    = errors.New("ERR invalid expire time in 'set' command")
)

func parseSetOptions(args [][]byte) (o setOptions, err error) {
	for len(args) > 0 {
		var buf [16]byte
		name := string(resp.Fold(buf[:], args[0]))
		args = args[1:]
		switch name {
		case "NX":
			o.absent = true
		case "XX":
			o.present = true
		case "EX", "PX":
			if len(args) == 0 || o.ttl != 0 {
				return o, errSyntax
			}
			if o.ttl, err = ttlOf(args[0], name == "PX"); err != nil {
				return o, err
			}
			args = args[1:]
		default:
			return o, errSyntax
		}
	}
	if o.absent && o.present {
		return o, errSyntax
	}
	return o, nil
}

func ttlOf(arg []byte, millis bool) (time.Duration, error) {
	unit := time.Second
	if millis {
		unit = time.Millisecond
	}
	n, err := strconv.ParseInt(string(arg), 10, 64)
	if err != nil || n <= 0 || n > int64((1<<63-1)/unit) {
		return 0, errTTL
	}
	return time.Duration(n) * unit, nil
}

// store answers a SET whose value commit stores.
func (c *respConn) store(s *session, key []byte, o setOptions, commit func() (bool, error), drop func()) error {
	if o.ttl != 0 && !s.srv.ttl.room(s.namespace, key) {
		drop()
		return c.fail(s, errDeadlines)
	}
	if o.present && !s.h.Has(key) {
		drop()
		s.out.text = resp.AppendNull(s.out.text, c.proto)
		return nil
	}
	if o.absent && s.srv.pairs != nil && s.h.Has(key) { // a part that waits would hide it
		drop()
		s.out.text = resp.AppendNull(s.out.text, c.proto)
		return nil
	}
	stored, err := commit()
	if err == nil && stored {
		err = c.join(s, key)
	}
	if err != nil {
		return c.fail(s, err)
	}
	if !stored {
		s.out.text = resp.AppendNull(s.out.text, c.proto)
		return nil
	}
	if o.ttl != 0 {
		s.srv.ttl.add(s.h, s.namespace, key, o.ttl)
	}
	c.ok(s)
	return nil
}

// put stores a value that is whole in the command.
func (c *respConn) put(s *session, key, value []byte, o setOptions) error {
	if c.badKey(s, key) {
		return errQuit // see fail
	}
	to := c.target(s, key)
	if !o.absent {
		return c.store(s, key, o, func() (bool, error) { return true, s.h.Set(to, value) }, func() {})
	}
	res, err := s.h.Reserve(to, len(value))
	if err != nil {
		return c.fail(s, err)
	}
	copy(res.Bytes(), value)
	return c.store(s, key, o, res.CommitAbsent, func() { res.Abort() })
}

func (c *respConn) setCommand(s *session, args [][]byte) error {
	var o setOptions
	if len(args) > 3 {
		var err error
		if o, err = parseSetOptions(args[3:]); err != nil {
			c.reply(s, err.Error())
			return nil
		}
	}
	return c.put(s, args[1], args[2], o)
}

func (c *respConn) setex(s *session, args [][]byte) error {
	ttl, err := ttlOf(args[2], args[0][0] == 'P' || args[0][0] == 'p')
	if err != nil {
		c.reply(s, "ERR invalid expire time in 'setex' command")
		return nil
	}
	return c.put(s, args[1], args[3], setOptions{ttl: ttl})
}

func (c *respConn) setnx(s *session, args [][]byte) error {
	before := len(s.out.text)
	if err := c.put(s, args[1], args[2], setOptions{absent: true}); err != nil || s.out.text[before] == '-' {
		return err
	}
	n := int64(0)
	if s.out.text[before] == '+' {
		n = 1
	}
	s.out.text = resp.AppendInt(s.out.text[:before], n)
	return nil
}

// mset stores each pair as SET does; pairs are not one transaction.
func (c *respConn) mset(s *session, args [][]byte) error {
	if len(args)%2 == 0 {
		c.reply(s, "ERR wrong number of arguments for 'mset' command")
		return nil
	}
	for i := 1; i < len(args); i += 2 {
		if c.badKey(s, args[i]) {
			return errQuit
		}
	}
	for i := 1; i < len(args); i += 2 {
		err := s.h.Set(c.target(s, args[i]), args[i+1])
		if err == nil {
			err = c.join(s, args[i])
		}
		if err != nil {
			return c.fail(s, err)
		}
	}
	c.ok(s)
	return nil
}

func (c *respConn) del(s *session, args [][]byte) error {
	if c.badKeys(s, args[1:]) {
		return errQuit
	}
	n := int64(0)
	for _, k := range args[1:] {
		ok, err := s.h.Delete(k)
		if err != nil {
			return c.fail(s, err)
		}
		if ok {
			n++
		}
		if partner, pair := s.srv.pairs.partner(k); pair {
			if err := c.forgetWaiting(s, k, partner); err != nil {
				return c.fail(s, err)
			}
		}
	}
	s.out.text = resp.AppendInt(s.out.text, n)
	return nil
}

func (c *respConn) exists(s *session, args [][]byte) error {
	if c.badKeys(s, args[1:]) {
		return errQuit
	}
	n := int64(0)
	for _, k := range args[1:] {
		if s.h.Has(k) {
			n++
		}
	}
	s.out.text = resp.AppendInt(s.out.text, n)
	return nil
}

func (c *respConn) ping(s *session, args [][]byte) error {
	if len(args) == 2 {
		return c.echo(s, args)
	}
	s.out.text = resp.AppendSimple(s.out.text, "PONG")
	return nil
}

func (c *respConn) echo(s *session, args [][]byte) error {
	s.out.text = resp.AppendBulk(s.out.text, args[1])
	return nil
}

func (c *respConn) quit(s *session, _ [][]byte) error {
	c.ok(s)
	return errQuit
}

// maxWrongPasswords ends a connection that guesses.
const maxWrongPasswords = 3

// login checks a password.
func (c *respConn) login(s *session, user, password []byte) bool {
	want := s.srv.opt.Password
	known := len(user) == 0 || string(user) == "default"
	if want != "" && known && subtle.ConstantTimeCompare(password, []byte(want)) == 1 {
		c.authed = true
		s.ready.Store(true)
		c.limit()
		return true
	}
	return false
}

func (c *respConn) auth(s *session, args [][]byte) error {
	if s.srv.opt.Password == "" {
		c.reply(s, "ERR Client sent AUTH, but no password is set")
		return nil
	}
	var user []byte
	if len(args) == 3 {
		user = args[1]
	}
	if c.login(s, user, args[len(args)-1]) {
		c.ok(s)
		return nil
	}
	return c.wrongPassword(s)
}

func (c *respConn) wrongPassword(s *session) error {
	c.reply(s, "WRONGPASS invalid username-password pair or user is disabled.")
	if c.wrong++; c.wrong >= maxWrongPasswords {
		return errQuit
	}
	return nil
}

func (c *respConn) hello(s *session, args [][]byte) error {
	proto := c.proto
	args = args[1:]
	if len(args) > 0 {
		switch string(args[0]) {
		case "2":
			proto = 2
		case "3":
			proto = 3
		default:
			c.reply(s, "NOPROTO unsupported protocol version")
			return nil
		}
		args = args[1:]
	}
	name := c.name
	for len(args) > 0 {
		var buf [16]byte
		switch word := string(resp.Fold(buf[:], args[0])); {
		case word == "AUTH" && len(args) >= 3:
			if s.srv.opt.Password == "" {
				c.reply(s, "ERR Client sent AUTH, but no password is set")
				return nil
			}
			if !c.login(s, args[1], args[2]) {
				return c.wrongPassword(s)
			}
			args = args[3:]
		case word == "SETNAME" && len(args) >= 2:
			name = string(args[1])
			args = args[2:]
		default:
			c.reply(s, "ERR syntax error in HELLO")
			return nil
		}
	}
	if !c.authed {
		c.reply(s, "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time")
		return nil
	}
	c.proto, c.name = proto, name
	t := resp.AppendMap(s.out.text, proto, 7)
	for _, kv := range [][2]string{{"server", "kvcr"}, {"version", version()}} {
		t = resp.AppendBulk(resp.AppendBulk(t, []byte(kv[0])), []byte(kv[1]))
	}
	t = resp.AppendInt(resp.AppendBulk(t, []byte("proto")), int64(proto))
	t = resp.AppendInt(resp.AppendBulk(t, []byte("id")), c.id)
	for _, kv := range [][2]string{{"mode", "standalone"}, {"role", "master"}} {
		t = resp.AppendBulk(resp.AppendBulk(t, []byte(kv[0])), []byte(kv[1]))
	}
	s.out.text = resp.AppendArray(resp.AppendBulk(t, []byte("modules")), 0)
	return nil
}

// version is that of the module, as built.
func version() string {
	if bi, ok := debug.ReadBuildInfo(); ok && bi.Main.Version != "" && bi.Main.Version != "(devel)" {
		return bi.Main.Version
	}
	return "0.0.0"
}

func (c *respConn) selectDB(s *session, args [][]byte) error {
	if string(args[1]) != "0" {
		c.reply(s, "ERR DB index is out of range")
		return nil
	}
	c.ok(s)
	return nil
}

func (c *respConn) client(s *session, args [][]byte) error {
	var buf [16]byte
	switch sub := string(resp.Fold(buf[:], args[1])); {
	case sub == "SETINFO" && len(args) == 4:
		c.ok(s)
	case sub == "SETNAME" && len(args) == 3:
		c.name = string(args[2])
		c.ok(s)
	case sub == "GETNAME" && len(args) == 2:
		s.out.text = resp.AppendBulk(s.out.text, []byte(c.name))
	case sub == "ID" && len(args) == 2:
		s.out.text = resp.AppendInt(s.out.text, c.id)
	default:
		c.reply(s, fmt.Sprintf("ERR unknown subcommand or wrong number of arguments for 'client|%s'", printable(args[1])))
	}
	return nil
}

// commandCommand has no details to give; clients take that.
func (c *respConn) commandCommand(s *session, args [][]byte) error {
	var buf [16]byte
	if len(args) > 1 && string(resp.Fold(buf[:], args[1])) == "COUNT" {
		s.out.text = resp.AppendInt(s.out.text, int64(len(respCommands)))
		return nil
	}
	s.out.text = resp.AppendArray(s.out.text, 0)
	return nil
}

// config knows no parameters; benchmarks ask for some before they start.
func (c *respConn) config(s *session, args [][]byte) error {
	var buf [16]byte
	if string(resp.Fold(buf[:], args[1])) != "GET" || len(args) < 3 {
		c.reply(s, "ERR only CONFIG GET is served, and it knows no parameters; see kvcr config")
		return nil
	}
	s.out.text = resp.AppendMap(s.out.text, c.proto, 0)
	return nil
}

func (c *respConn) info(s *session, _ [][]byte) error {
	st, err := s.srv.opt.Engine.Stats()
	if err != nil {
		return c.fail(s, err)
	}
	t := fmt.Sprintf("# Server\r\nserver_name:kvcr\r\nkvcr_version:%s\r\nredis_version:7.0.0\r\nredis_mode:standalone\r\nuptime_in_seconds:%d\r\n"+
		"# Clients\r\nconnected_clients:%d\r\nmaxclients:%d\r\n"+
		"# Memory\r\nused_memory:%d\r\nmaxmemory:%d\r\nmaxmemory_policy:%s\r\n"+
		"# Stats\r\ntotal_connections_received:%d\r\nrejected_connections:%d\r\nkeyspace_hits:%d\r\nkeyspace_misses:%d\r\nevicted_keys:%d\r\n"+
		"# Replication\r\nrole:master\r\n# Keyspace\r\ndb0:keys=%d,expires=0,avg_ttl=0\r\n",
		version(), int(time.Since(s.srv.started).Seconds()),
		s.srv.conns.Load(), s.srv.opt.MaxConns,
		st.PayloadBytes, st.CapacityBytes, st.Namespaces[0].Policy,
		s.srv.accepted.Load(), s.srv.refused.Load(), st.Counts.Hits, st.Counts.Misses, st.Counts.Evicted,
		s.srv.blocks(st, s.namespace))
	s.out.text = resp.AppendBulk(s.out.text, []byte(t))
	return nil
}

// blocks is the number of blocks of a namespace.
func (s *Server) blocks(st kvcr.Stats, namespace string) uint64 {
	for _, n := range st.Namespaces {
		if n.Name == namespace {
			return n.Blocks
		}
	}
	return 0
}

func (c *respConn) dbsize(s *session, _ [][]byte) error {
	st, err := s.srv.opt.Engine.Stats()
	if err != nil {
		return c.fail(s, err)
	}
	s.out.text = resp.AppendInt(s.out.text, int64(s.srv.blocks(st, s.namespace)))
	return nil
}

// flushall deletes what is resident when it begins.
func (c *respConn) flushall(s *session, _ [][]byte) error {
	if !s.srv.opt.AllowFlush {
		c.reply(s, "ERR FLUSHALL is off; start the node with --allow-flush")
		return nil
	}
	snap, err := s.srv.snapshot(s.namespace)
	if err != nil {
		return c.fail(s, err)
	}
	for _, key := range snap {
		if _, err := s.h.Delete(key); err != nil {
			return c.fail(s, err)
		}
	}
	c.ok(s)
	return nil
}
