package server

// Stats is a snapshot of the server's counters since its start.
type Stats struct {
	Conns               int64 // open now
	MaxConns            int
	Accepted, Refused   uint64
	SlowConns           uint64 // connections that have left their event loop since they did not read, ever
	BytesIn, BytesOut   uint64
	Commands            []CommandCount
	Latency, Recent     Latency // of all commands: ever, and in the last 10 seconds
	Claims              int64   // blocks lent to answers that the kernel has not taken
	ExpiriesOutstanding int     // keys with a time to live
	Shared              SharedStats
}

// SharedStats count what clients with shared memory do.
type SharedStats struct {
	Clients, Conns int    // processes and their connections, now
	Gets, Hits     uint64 // keys that they asked for by FETCH, and those found
	LentBytes      uint64 // of the hits, read in place
	Claims         int64  // that they hold now
	// HeldForDead are those of Claims whose connection has ended: kept until the
	// process has.
	HeldForDead    int64
	StagingBytes   int64  // memory that they may write values to
	Commits        uint64 // values stored from it
	CommittedBytes uint64
	// Dropped are processes that ended, as their pidfds said, without having
	// released all claims.
	Dropped uint64
}

// CommandCount counts one kind of commands of one protocol. Both are closed sets,
// and every pair of them is there.
type CommandCount struct {
	Proto, Name     string
	Count           uint64
	Errors          uint64  // answered with an error; a miss is none
	Latency, Recent Latency // ever, and in the last 10 seconds
}

// The kinds of commands that are counted.
const (
	commandGet = iota
	commandMget
	commandSet
	commandMset
	commandDelete
	commandExists
	commandFetch // this and the next three: binary alone
	commandDeliver
	commandRelease
	commandCommit
	commandOther
	commandKinds
)

var commandNames = [commandKinds]string{"get", "mget", "set", "mset", "del", "exists", "fetch", "deliver", "release", "commit", "other"}

// A tally is a kind of commands of a protocol: the first one of the protocol plus
// the kind.
const (
	respFirst   = 0
	binaryFirst = commandKinds
	tallies     = 2 * commandKinds
)

var protoNames = [...]string{"resp", "binary"}

// Stats returns a snapshot.
func (s *Server) Stats() Stats {
	st := s.counters()
	s.timesOf(&st)
	return st
}

// statsForClient is Stats for whoever asks over the wire, as often as they like:
// its times are up to a tick old, since summing them up takes as long as a hundred
// short requests.
func (s *Server) statsForClient() Stats {
	st := s.counters()
	s.toldMu.Lock()
	defer s.toldMu.Unlock()
	if now := s.coarse(); s.told == nil || now != s.toldAt {
		s.timesOf(&st)
		s.told, s.toldAt = &st, now
		return st
	}
	st.Latency, st.Recent = s.told.Latency, s.told.Recent
	for i := range st.Commands {
		st.Commands[i].Latency, st.Commands[i].Recent = s.told.Commands[i].Latency, s.told.Commands[i].Recent
	}
	return st
}

// counters is a snapshot without times.
func (s *Server) counters() Stats {
	st := Stats{
		Conns: s.conns.Load(), MaxConns: s.opt.MaxConns, Accepted: uint64(s.accepted.Load()), Refused: uint64(s.refused.Load()),
		SlowConns: uint64(s.slowConns.Load()), BytesIn: uint64(s.bytesIn.Load()), BytesOut: uint64(s.bytesOut.Load()),
		ExpiriesOutstanding: s.ttl.len(),
	}
	st.Shared = s.sharing.counts()
	s.mu.Lock()
	for i := range s.commands {
		n, failed := s.commands[i].Load(), s.errors[i].Load()
		for _, l := range s.byLoop {
			n += l.commands[i].Load()
			failed += l.errors[i].Load()
		}
		st.Commands = append(st.Commands, CommandCount{Proto: protoNames[i/commandKinds], Name: commandNames[i%commandKinds], Count: n, Errors: failed})
	}
	for ss := range s.sessions {
		st.Claims += ss.claims()
	}
	s.mu.Unlock()
	return st
}

// timesOf fills in the durations.
func (s *Server) timesOf(st *Stats) {
	s.collect(false)
	s.times.mu.Lock()
	defer s.times.mu.Unlock()
	var all, recent times
	for i := range st.Commands {
		// A copy: the histogram goes on.
		var life times
		life.merge(s.times.life[i])
		last := s.times.recent(i)
		all.merge(life)
		recent.merge(last)
		st.Commands[i].Latency, st.Commands[i].Recent = life.latency(), last.latency()
	}
	st.Latency, st.Recent = all.latency(), recent.latency()
}

// Draining reports that Shutdown has begun.
func (s *Server) Draining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

// claims counts the blocks that wait in the queue.
func (s *session) claims() (n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.queue {
		if s.queue[i].view.Len() > 0 {
			n++
		}
	}
	return n + int64(len(s.streams))
}

func (e *expiries) len() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.heap)
}
