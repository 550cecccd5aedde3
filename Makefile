# KVCR: `make serve` runs a node, `make run` shows the main job, `make test` runs
# every test.
#
# Needed first: Go, make and git. Everything else comes with the Go modules.

GO      ?= go
SHORT   ?=
OUT     ?= build
TRACE   ?= $(firstword $(wildcard ../shared/traces/conversation_trace.jsonl) generated)
VERSION := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -X main.version=$(VERSION)

.PHONY: all build serve run test unit tools race check ucx fuzz bench lint clean

all: build

build:
	@mkdir -p $(OUT)
	$(GO) build -ldflags '$(LDFLAGS)' -o $(OUT)/kvcr ./cmd/kvcr

# A node in this terminal, until Ctrl-C. It says what to type in another one.
# SERVE has its flags: make serve SERVE='--capacity 8GiB'.
SERVE ?=
serve: build
	@exec $(OUT)/kvcr serve $(SERVE)

# The main job: a trace through the engine, every byte checked; then a node, loaded
# through real clients; then two processes that exchange blocks; then three nodes and
# a router that hints.
run: build
	$(OUT)/kvcr replay --trace $(TRACE) --svg $(OUT)/hit-ratio.svg
	@echo
	@scripts/run-node.sh $(OUT)/kvcr
	@echo
	@echo '== two processes exchange blocks'
	@$(OUT)/kvcr peerdemo --quiet --trace $(TRACE)
	@echo
	@echo '== a router over three nodes, without hints and with them'
	@$(OUT)/kvcr routerdemo --quiet --trace $(TRACE)

test: lint unit race check ucx fuzz

lint:
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo 'run gofmt -w on these files'; exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags kvcr_check ./...

# Other people's clients have a module of their own, so that the library does not
# depend on them.
unit: tools
	$(GO) test $(SHORT) ./...
	cd internal/clients && $(GO) test $(SHORT) ./...

# What some tests drive a node with; they skip by name where it is missing and
# cannot be installed.
tools:
	@for t in redis-cli:redis-tools chromium:chromium; do \
	  command -v $${t%%:*} >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	    { [ -n "$$updated" ] || apt-get update -qq; } && updated=1 && apt-get install -y -qq --no-install-recommends $${t##*:} >/dev/null 2>&1; } || true; \
	done
	@/usr/bin/python3 -c 'import zmq, msgpack' 2>/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-zmq python3-msgpack >/dev/null 2>&1; } || true

# Race builds keep memory in Go's heap, where the race detector sees it. The
# detector needs a C compiler: installed when missing and allowed, else skipped. The
# benchmarks are left out: they take minutes, and what they measure is raced anyway.
RACED := $$($(GO) list ./... | grep -v /bench)
race:
	@command -v gcc >/dev/null || command -v clang >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  apt-get update -qq && apt-get install -y -qq gcc libc6-dev >/dev/null; } || true
	@if command -v gcc >/dev/null || command -v clang >/dev/null; then \
	  echo '$(GO) test -race -short, all but bench'; $(GO) test -race -short $(RACED); \
	else echo 'race build SKIPPED: no C compiler (apt-get install gcc libc6-dev)'; fi

# Checking builds keep books on claims, slots and handles: tests of what has or uses
# them.
check:
	$(GO) test -tags kvcr_check -short . ./arena/... ./shard/... ./internal/... ./wire/server ./node

# Tests that a build with UCX changes.
UCXTESTS := UCX|Cuts|Peer|Fetch|Device|Doctor|Layout

# The build with UCX: installed when missing and allowed, else skipped by name. A
# second pass has the runtime check every pointer that goes to C.
ucx:
	@{ pkg-config --exists ucx && command -v gcc >/dev/null; } 2>/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends libucx-dev ucx-utils pkg-config gcc libc6-dev >/dev/null 2>&1; } || true
	@if ! command -v pkg-config >/dev/null || ! pkg-config --exists ucx; then echo 'build with UCX SKIPPED: no libucx (apt-get install libucx-dev pkg-config)'; \
	elif ! command -v gcc >/dev/null && ! command -v clang >/dev/null; then echo 'build with UCX SKIPPED: no C compiler (apt-get install gcc libc6-dev)'; \
	else set -ex; $(GO) vet -tags ucx ./ucx/... ./peer . ./cmd/kvcr; \
	  $(GO) test -tags ucx -timeout 60s ./ucx/...; \
	  $(GO) test -tags ucx -timeout 120s -run '$(UCXTESTS)' ./peer . ./cmd/kvcr; \
	  GOEXPERIMENT=cgocheck2 $(GO) test -tags ucx -short -timeout 30s ./ucx/...; \
	  GOEXPERIMENT=cgocheck2 $(GO) test -tags ucx -short -timeout 120s -run '$(UCXTESTS)' ./peer .; fi

# A few seconds of each fuzz target on top of its seeds. Go's fuzzer may report its
# own end of time as a failure of the target, in these words.
FUZZTIME ?= 2s
fuzz:
	@set -e; for d in $$($(GO) list -f '{{.Dir}}' ./...); do \
	  for f in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' $$d/*_test.go 2>/dev/null | sed 's/func //'); do \
	    echo "fuzz $$f ($(FUZZTIME))"; \
	    if out=$$(cd $$d && $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x . 2>&1); then echo "$$out" | tail -1; \
	    elif echo "$$out" | grep -q '^    context deadline exceeded$$'; then echo 'ok, stopped by the clock'; \
	    else echo "$$out"; exit 1; fi; \
	  done; done

# Every suite, at most 10 minutes: figures, what became of every bar, and a page whose
# place is the last line.
bench: build
	$(OUT)/kvcr bench all --quick --report $(OUT)/bench

clean:
	rm -rf $(OUT)
