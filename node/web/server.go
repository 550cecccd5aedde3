package web

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Options say where to listen and what to show.
type Options struct {
	// Addr is host:port. Port 0 takes a free one: see Server.Addr.
	Addr string
	// Source is asked until Close has returned. Required.
	Source Source
	// Public allows an address that is not loopback.
	Public bool
	// Debug serves /debug/pprof/ and /debug/claims. Profiles show memory, and both cost
	// time.
	Debug bool
	// Log gets what goes wrong with connections; nil discards it.
	Log *slog.Logger
}

// ErrPublic: an address that others can reach needs Options.Public.
var ErrPublic = errors.New("the address is not loopback")

const (
	// maxConns is arbitrary: far more than pages and scrapers need, and few
	// enough to cost nothing.
	maxConns = 128
	// maxHeader is arbitrary too; browsers send 1 to 2 KiB.
	maxHeader = 16 << 10
	// answerTime bounds everything but profiles, which end by themselves after
	// profileTime.
	answerTime  = 15 * time.Second
	profileTime = 5 * time.Minute
	// statusAge is how old /api/status may be. A page asks once a second; many
	// pages together then cost what four do.
	statusAge = 250 * time.Millisecond
	// scrapes is how many scrapes run at once.
	scrapes = 4
)

// Server is a bound listener. All methods may be called from any goroutine.
type Server struct {
	src   Source
	debug bool
	ln    net.Listener
	http  *http.Server
	conns pageConns
	// end cancels the contexts of all requests, so that profiles under way do
	// not hold up Close.
	end context.CancelFunc
	// local: only requests for loopback names are served.
	local bool
	now   func() time.Time

	mu     sync.Mutex // guards what follows; held while the source is asked
	status []byte     // the last answer of /api/status
	taken  time.Time
}

// New binds the address; connections wait until Serve. It refuses an address
// that is not loopback with ErrPublic unless Options.Public is set.
func New(opt Options) (*Server, error) {
	addr, err := net.ResolveTCPAddr("tcp", opt.Addr)
	if err != nil {
		return nil, fmt.Errorf("web: listen on %q: %w", opt.Addr, err)
	}
	local := addr.IP.IsLoopback()
	if !local && !opt.Public {
		return nil, fmt.Errorf("web: listen on %q: %w; choose one such as 127.0.0.1:%d, or allow it with --http-public", opt.Addr, ErrPublic, addr.Port)
	}
	// The address that was judged, not the name again: it may mean another by now.
	ln, err := net.ListenTCP("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("web: %w", err)
	}
	log := opt.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	ctx, end := context.WithCancel(context.Background())
	s := &Server{src: opt.Source, debug: opt.Debug, ln: ln, end: end, local: local && !opt.Public, now: time.Now}
	s.http = &http.Server{
		Handler:           s.guard(s.routes(log)),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		// WriteTimeout stays 0, for profiles: guard sets a deadline for each answer.
		IdleTimeout:    time.Minute,
		MaxHeaderBytes: maxHeader,
		BaseContext:    func(net.Listener) context.Context { return ctx },
		ConnState:      s.conns.changed,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	return s, nil
}

// Addr is the address that was bound.
func (s *Server) Addr() net.Addr { return s.ln.Addr() }

// Serve answers requests until Close, and then returns nil.
func (s *Server) Serve() error {
	err := s.http.Serve(s.ln)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("web: %w", err)
}

// Close ends the listener, and waits for answers under way until ctx ends; then
// it cuts them off and returns ctx's error. It may be called without Serve, and
// again.
func (s *Server) Close(ctx context.Context) error {
	s.end()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.http.Close())
	}
	// Serve closes the listener too. Without Serve nobody has.
	if e := s.ln.Close(); !errors.Is(e, net.ErrClosed) {
		err = errors.Join(err, e)
	}
	if err != nil {
		return fmt.Errorf("web: close: %w", err)
	}
	return nil
}

// pageConns counts the connections of this listener and ends those over the cap.
type pageConns struct {
	open    atomic.Int64
	refused atomic.Uint64
}

func (p *pageConns) changed(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if p.open.Add(1) > maxConns {
			p.refused.Add(1)
			c.Close() // the server notices when it reads, and reports StateClosed
		}
	case http.StateClosed, http.StateHijacked:
		p.open.Add(-1)
	}
}

//go:embed page
var page embed.FS

// files are what the page is made of, with their types: the system's own table
// of types is not to be relied on.
var files = []struct{ route, name, kind string }{
	{"/{$}", "page/index.html", "text/html; charset=utf-8"},
	{"/static/style.css", "page/style.css", "text/css; charset=utf-8"},
	{"/static/app.js", "page/app.js", "text/javascript; charset=utf-8"},
	{"/static/icon.svg", "page/icon.svg", "image/svg+xml"},
}

func (s *Server) routes(log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	for _, f := range files {
		content, err := page.ReadFile(f.name)
		if err != nil {
			panic(err) // embedded: a name above is wrong
		}
		mux.HandleFunc(f.route, func(w http.ResponseWriter, r *http.Request) { answer(w, f.kind, content) })
	}
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) { text(w, http.StatusOK, "ok") })
	mux.HandleFunc("/readyz", s.ready)
	mux.HandleFunc("/config", func(w http.ResponseWriter, r *http.Request) {
		settings := s.src.Config()
		if settings == nil {
			settings = []Setting{} // [] and not null
		}
		serveJSON(w, settings)
	})
	mux.HandleFunc("/api/status", s.serveStatus)
	mux.Handle("/metrics", promhttp.HandlerFor(newRegistry(s.src, &s.conns), promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		MaxRequestsInFlight: scrapes,
		Timeout:             answerTime * 2 / 3,
	}))
	if s.debug {
		// The import has put these into http.DefaultServeMux too, which nothing
		// of ours serves.
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
		// Not among the counters: it takes as long as there are blocks.
		mux.HandleFunc("/debug/claims", func(w http.ResponseWriter, r *http.Request) {
			held, writing := s.src.Claims()
			text(w, http.StatusOK, fmt.Sprintf("claims %d\nwriting %d", held, writing))
		})
	}
	return mux
}

// guard does what is the same for all routes.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limit := answerTime
		if s.debug && strings.HasPrefix(r.URL.Path, "/debug/pprof/") {
			ctx, cancel := context.WithTimeout(r.Context(), profileTime)
			defer cancel()
			r, limit = r.WithContext(ctx), profileTime+answerTime
		}
		// Without a deadline the connection ends when its peer does: no worse
		// than answering nothing.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(limit))

		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		switch {
		case s.local && !loopbackName(r.Host):
			text(w, http.StatusForbidden, "this listener answers for localhost and loopback addresses only")
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			text(w, http.StatusMethodNotAllowed, "only GET and HEAD")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// loopbackName says whether the Host of a request means this machine. Probes
// without one are no browsers.
func loopbackName(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if host == "" || strings.ToLower(host) == "localhost" { // not EqualFold: to it ſ is an s
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Zone() == "" && ip.Unmap().IsLoopback()
}

func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	ok, reason := s.src.Ready()
	switch {
	case ok:
		text(w, http.StatusOK, "ok")
	case reason == "":
		text(w, http.StatusServiceUnavailable, "not ready")
	default:
		text(w, http.StatusServiceUnavailable, reason)
	}
}

func (s *Server) serveStatus(w http.ResponseWriter, r *http.Request) {
	answer(w, "application/json", s.snapshot())
}

// snapshot is the document of /api/status, at most statusAge old. It is not
// written again.
func (s *Server) snapshot() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status == nil || s.now().Sub(s.taken) >= statusAge {
		b, err := json.Marshal(readStatus(s.src, s.debug))
		if err != nil {
			panic(err) // plain fields and finite numbers: cannot fail
		}
		s.status, s.taken = b, s.now()
	}
	return s.status
}

func serveJSON(w http.ResponseWriter, v any) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic(err) // plain fields: cannot fail
	}
	answer(w, "application/json", append(b, '\n'))
}

func text(w http.ResponseWriter, code int, line string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	// A client that is gone needs no answer.
	_, _ = w.Write([]byte(line + "\n"))
}

func answer(w http.ResponseWriter, kind string, b []byte) {
	w.Header().Set("Content-Type", kind)
	_, _ = w.Write(b) // a client that is gone needs no answer
}
