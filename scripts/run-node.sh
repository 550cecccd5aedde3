#!/usr/bin/env bash
# Starts a node, loads it through the clients at hand and through our own, shows
# what they see, and stops it. Called by `make run`.
set -euo pipefail
kvcr=${1:?usage: run-node.sh PATH-OF-KVCR}
dir=$(mktemp -d)
log=$dir/node.log
node=
stop() {
  if [ -n "$node" ]; then kill "$node" 2>/dev/null || true; wait "$node" 2>/dev/null || true; fi
  rm -rf "$dir"
}
trap stop EXIT

echo '== a node'
"$kvcr" serve --capacity 256MiB --resp 127.0.0.1:0 --listen "127.0.0.1:0,unix:$dir/kvcr.sock" --http 127.0.0.1:0 >"$log" 2>&1 &
node=$!
for _ in $(seq 100); do
  grep -q '^  status' "$log" && break
  kill -0 "$node" 2>/dev/null || { cat "$log"; exit 1; }
  sleep 0.1
done
cat "$log"
resp=$(sed -n 's/^  resp *127.0.0.1:\([0-9]*\).*/\1/p' "$log")
page=$(sed -n 's/^  status *//p' "$log")

echo
echo '== our own client'
head -c 3000000 /dev/urandom >"$dir/value"
"$kvcr" set big --in "$dir/value" --addr "unix:$dir/kvcr.sock"
"$kvcr" get big -o "$dir/back" --addr "unix:$dir/kvcr.sock"
cmp "$dir/value" "$dir/back" && echo 'a value of 3 MB went there and came back whole'
"$kvcr" exists big none --addr "unix:$dir/kvcr.sock" || true
"$kvcr" ping -n 2 --addr "unix:$dir/kvcr.sock"

echo
if command -v redis-cli >/dev/null; then
  echo '== redis-cli'
  redis-cli -p "$resp" set greeting 'hello from redis-cli'
  redis-cli -p "$resp" get greeting
else
  echo '== redis-cli is not installed: left out (apt-get install redis-tools)'
fi

echo
echo '== load: 64 B and 64 KiB values, 50 connections, 16 requests in flight on each'
load() {
  "$kvcr" bench load "{\"Network\":\"tcp\",\"Addr\":\"127.0.0.1:$resp\",\"Proto\":\"resp\",\"Op\":\"$1\",\"Size\":$2,\"Keys\":$3,\"Conns\":50,\"Pipeline\":16,\"Duration\":1000000000,\"CPU\":-1}" |
    sed -n 's/.*"Ops":\([0-9]*\).*"Checked":\([0-9]*\).*"OperationsPerSec":\([0-9]*\).*/\3 '"$1"'s of '"$2"' bytes a second; \2 of \1 answers compared, 0 wrong/p'
}
load fill 64 20000
load set 64 20000
load get 64 20000
load fill 65536 1000
load get 65536 1000
if command -v redis-benchmark >/dev/null; then
  echo
  echo '== redis-benchmark'
  redis-benchmark -p "$resp" -n 100000 -P 16 -q -t set,get 2>/dev/null | tr '\r' '\n' | grep 'requests per second'
fi

echo
echo '== what the node says'
fetch() { if command -v curl >/dev/null; then curl -fsS "$1"; else wget -qO- "$1"; fi; }
if command -v curl >/dev/null || command -v wget >/dev/null; then
  fetch "${page}metrics" | grep -E '^kvcr_(commands_total|cache_hits_total|cache_misses_total|hits_total|misses_total|sent_bytes_total|connections_accepted_total)' | grep -v ' 0$' || true
fi
echo "while a node runs, its page shows this live: $page"
