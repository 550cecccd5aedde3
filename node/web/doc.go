// Package web is the HTTP listener of a node: what a person, a scraper or an
// orchestrator asks. It only reads, through a Source, and serves no payload.
//
//	/               the status page; it needs nothing from any other place
//	/static/        what the page is made of
//	/api/status     one snapshot as JSON: see Status
//	/healthz        200 while the process answers
//	/readyz         200, or 503 with the reason
//	/metrics        Prometheus text
//	/config         every setting, its value and its source, as JSON
//	/debug/pprof/   profiles, only with Options.Debug
//	/debug/claims   how many claims are held on blocks, and blocks being written, likewise
//
// Rules:
//
//   - Everything is GET or HEAD. No request changes anything.
//   - An address that others can reach is refused unless Options.Public says so.
//     A loopback listener also refuses requests for other host names: a page from
//     elsewhere whose name was made to mean 127.0.0.1 gets no answer.
//   - The number of series in /metrics follows from the namespaces alone, never
//     from keys, clients, peers or routers. Labels: namespace, proto, command, reason,
//     route, side, outcome, type, stage, form, and the bounds of a histogram;
//     kvcr_build_info has the version.
//   - Connections, header sizes and times are bounded. However many pages are
//     open, /api/status asks the engine at most once in statusAge.
//   - Values of secrets never leave: they are "set" or "unset".
package web
