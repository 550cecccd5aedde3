package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/kvcr-go/kvcr/wire"
	"github.com/kvcr-go/kvcr/wire/client"
)

// hinting serves a node that acts on hints.
func hinting(t *testing.T, args ...string) func(what string) string {
	t.Helper()
	return servingAll(t, append([]string{"--block", "4KiB", "--hash-recipe", "dynamo/xxh3-1337/bs16", "--peer-listen", "tcp://127.0.0.1:0", "--peer-routes", "stream"}, args...)...)
}

// depositHashes stores blocks whose keys are hashes, which are no text.
func depositHashes(t *testing.T, addr string, hashes ...uint64) {
	t.Helper()
	cl, err := client.Dial(t.Context(), client.Options{Addr: addr})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for _, h := range hashes {
		if _, err := cl.Deposit(t.Context(), binary.BigEndian.AppendUint64(nil, h), make([]byte, 4096)); err != nil {
			t.Fatal(err)
		}
	}
}

// stdin has commands read text.
func stdin(t *testing.T, text string) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	before := os.Stdin
	os.Stdin = r
	written := make(chan struct{})
	go func() {
		defer close(written)
		io.WriteString(w, text)
		w.Close()
	}()
	t.Cleanup(func() {
		os.Stdin = before
		r.Close()
		<-written
	})
}

func envelopeFile(t *testing.T, body []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "envelope")
	if err := os.WriteFile(path, body, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const evictOne = `{"message_id":"m","actions":[{"action_id":"a9","action_type":"kv.evict","payload":{"block_hashes":[%d]}}]}`

// Envelopes come from a file, standard input or flags; what the node answers and what
// becomes of it is printed, and the exit code tells whether all went well.
func TestHint(t *testing.T) {
	a, b := hinting(t), hinting(t)
	source, at := a("peers"), "--addr="+b("binary")
	depositHashes(t, a("binary"), 1, 2, 3)
	depositHashes(t, b("binary"), 11, 12, 13, 14)
	packed, err := msgpack.Marshal(map[string]any{"message_id": "m", "actions": []any{
		map[string]any{"action_id": "p1", "action_type": "kv.evict", "payload": map[string]any{"block_hashes": []uint64{12, 1<<64 - 1}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	file, pack := envelopeFile(t, fmt.Appendf(nil, evictOne, 11)), envelopeFile(t, packed)
	mixed := envelopeFile(t, []byte(`{"actions":[{"action_id":"x","action_type":"kv.zap"},{"action_id":"y","action_type":"kv.move","payload":{"block_hashes":[1]}},
		{"action_id":"z","action_type":"kv.evict","payload":{"block_hashes":[14]}}]}`))
	for _, tt := range []struct {
		name  string
		args  []string
		stdin string
		out   string // a pattern, of all of standard output
		err   string // part of standard error
		code  int
	}{
		{"file", []string{file}, "", `action +type +answer +reason\na9 +kv\.evict +ACCEPTED +\na9  accepted 1 block\na9  removed  1 block\na9  end      1 removed\n`, "", 0},
		{"standard input", []string{"-"}, fmt.Sprintf(evictOne, 13), `(?s).*a9  end      1 removed\n`, "", 0},
		{"msgpack", []string{pack}, "", `(?s).*p1  removed  1 block\np1  failed   1 block not_found\np1  end      1 removed, 1 failed\n`, "1 block failed", 1},
		{"flags", []string{"--do", "kv.move", "--hashes", "0x1,2", "--from", source}, "", `(?s).*a1  moved    . blocks?\na1  end      2 moved, 8 KiB\n`, "", 0},
		{"short type", []string{"--do", "prefetch", "--hashes", "3", "--from", source}, "", `(?s).*a1  end      1 copied, 4 KiB\n`, "", 0},
		{"does not wait", []string{"--do", "evict", "--hashes", "3", "--no-wait"}, "", `action .*\na1 +kv\.evict +ACCEPTED +\n`, "", 0},
		{"advice", []string{"--do", "fetch", "--hashes", "3", "--from", source, "--request", "r1"}, "", `action .*\na1 +kv\.fetch +ACCEPTED +\n`, "", 0},
		{"discarded", []string{"--discard", "--request", "r1"}, "", ``, "", 0},
		{"no actions", []string{"-"}, `{"actions":[]}`, `the envelope has no actions\n`, "", 0},
		{"shown", []string{"--do", "evict", "--hashes", "7", "--show"}, "", `\{"protocol_version":"0.1","message_id":"kvcr-hint","actions":\[\{"action_id":"a1","action_type":"kv.evict","action_version":"1.0","payload":\{"block_hashes":\[7\]\}\}\]\}\n`, "", 0},
		{"msgpack shown", []string{pack, "--show"}, "", `\{"actions":\[\{.*"payload":\{"block_hashes":\[12,18446744073709551615\]\}\}\],"message_id":"m"\}\n`, "", 0},

		{"one of three", []string{mixed}, "", `(?s)action.*x +kv\.zap +REJECTED +unsupported_action_type: .*y +kv\.move +REJECTED +missing_source: .*z +kv\.evict +ACCEPTED.*z  end      1 removed\n`, "", 0},
		{"rejected", []string{"--do", "fetch", "--hashes", "1", "--from", source}, "", `(?s).*REJECTED +no_request_id: .*`, "accepted none of the actions", 1},
		{"failed", []string{"--do", "evict", "--hashes", "11,12"}, "", `(?s).*a1  end      2 failed, not_found\n`, "2 blocks failed", 1},
		{"self", []string{"--do", "move", "--hashes", "14", "--from", b("peers")}, "", `(?s).*a1  end      1 failed, self_source\n`, "1 block failed", 1},
		{"not in time", []string{"--do", "move", "--hashes", "1", "--from", "tcp://127.0.0.1:1", "--timeout", "200ms"}, "", `(?s).*ACCEPTED.*`, "1 action has not ended yet; the node goes on", 1},
		{"no JSON", []string{"-"}, `{"actions":`, ``, "the node has done nothing: malformed hint envelope (json): no value here, at byte 11", 1},
		{"nothing", []string{"-"}, ``, ``, "the node has done nothing", 1},
		{"too large", []string{"-"}, strings.Repeat(" ", wire.MaxPayload), ``, fmt.Sprintf("at most %d bytes", wire.MaxPayload-3), 1},
		{"no file", []string{filepath.Join(t.TempDir(), "none")}, "", ``, "no such file", 1},
		{"half a msgpack shown", []string{envelopeFile(t, packed[:20]), "--show"}, "", ``, "EOF", 1},
		{"unreachable", []string{"--do", "evict", "--hashes", "1", "--addr=127.0.0.1:1"}, "", ``, "no node listens at 127.0.0.1:1", 1},
		{"no such namespace", []string{"--do", "evict", "--hashes", "1", "--namespace", "other"}, "", ``, "no such namespace", 1},

		{"says nothing", nil, "", ``, "Give a file, - for standard input, or --do", 2},
		{"says it twice", []string{file, "--do", "evict"}, "", ``, "not both", 2},
		{"no type", []string{"--hashes", "1"}, "", ``, "go with --do", 2},
		{"unknown type", []string{"--do", "burn", "--hashes", "1"}, "", ``, "kv.invalidate", 2},
		{"no hashes", []string{"--do", "evict"}, "", ``, "Give --hashes", 2},
		{"no hash", []string{"--do", "evict", "--hashes", "1,two"}, "", ``, `"two": must be 0 to 2^64-1`, 2},
		{"too large a hash", []string{"--do", "evict", "--hashes", "18446744073709551616"}, "", ``, "must be 0 to 2^64-1", 2},
		{"no source", []string{"--do", "move", "--hashes", "1"}, "", ``, "Give --from tcp://HOST:PORT", 2},
		{"a source too many", []string{"--do", "evict", "--hashes", "1", "--from", source}, "", ``, "leave --from out", 2},
		{"discards nothing", []string{"--discard"}, "", ``, "--request ID", 2},
		{"discards and sends", []string{"--discard", "--request", "r", "--do", "evict"}, "", ``, "nothing to send", 2},
		{"a long request id", []string{"--do", "fetch", "--hashes", "1", "--from", source, "--request", strings.Repeat("r", 2000)}, "", ``, "at most 1024", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stdin(t, tt.stdin)
			out, errs, code := kvcrCmd(t, append([]string{"hint", at}, tt.args...)...)
			if code != tt.code || !regexp.MustCompile("^"+tt.out+"$").MatchString(out) || !strings.Contains(errs, tt.err) || code == 0 && errs != "" {
				t.Errorf("%.200q: exit code %d\n%.500s%s, want code %d\n%s\n%s", tt.args, code, out, errs, tt.code, tt.out, tt.err)
			}
			if strings.Contains(errs, "may have been executed") {
				t.Errorf("leaves open what was done: %s", errs)
			}
		})
	}
	if out, errs, _ := kvcrCmd(t, "hint", at, "--do", "fetch", "--hashes", "3", "--from", source, "--request", "r2"); errs != "" {
		t.Fatal(out, errs)
	}
	if out, _, code := kvcrCmd(t, "stat", at); code != 0 || !regexp.MustCompile(`(?s)"Hints": \{.*"kv.fetch": 2.*"no_request_id": 1.*"Requests": 1,.*"Router": \{`).MatchString(out) {
		t.Errorf("stat: %d %s", code, out)
	}
}

// A node without hints says what it would need.
func TestHintToPlainNode(t *testing.T) {
	_, addr, status := serving(t)
	for _, args := range [][]string{{"--do", "evict", "--hashes", "1"}, {"--do", "evict", "--hashes", "1", "--no-wait"}, {"--discard", "--request", "r"}} {
		if _, errs, code := kvcrCmd(t, append([]string{"hint", "--addr=" + addr}, args...)...); code != 1 || !strings.Contains(errs, "acts on no hints") || !strings.Contains(errs, "--hash-recipe") {
			t.Errorf("%q: exit code %d, %s", args, code, errs)
		}
	}
	if b := httpGet(t, status+"metrics"); strings.Contains(b, "kvcr_hint_") || strings.Contains(b, "kvcr_router_") {
		t.Error("a node that routers do not know has metrics of them")
	}
}

func httpGet(t *testing.T, url string) string {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Two nodes whose recipes differ exchange nothing, and say in what they differ.
func TestRecipesDiffer(t *testing.T) {
	a := hinting(t)
	b := hinting(t, "--hash-recipe", "dynamo/xxh3-1337/bs64")
	depositHashes(t, a("binary"), 1)
	out, _, code := kvcrCmd(t, "hint", "--addr="+b("binary"), "--do", "prefetch", "--hashes", "1", "--from", a("peers"))
	if code != 1 || !strings.Contains(out, "1 failed, bad_layout") {
		t.Errorf("exit code %d: %s", code, out)
	}
	const want = "hash recipe: yours dynamo/xxh3-1337/bs64, node's dynamo/xxh3-1337/bs16"
	var told struct {
		Peers struct{ Peers []struct{ Error string } }
	}
	out, _, _ = kvcrCmd(t, "stat", "--addr="+b("binary"))
	if err := json.Unmarshal([]byte(out), &told); err != nil || len(told.Peers.Peers) != 1 || !strings.Contains(told.Peers.Peers[0].Error, want) {
		t.Errorf("stat says %+v, %v", told, err)
	}
	if page := httpGet(t, b("status")+"api/status"); !strings.Contains(page, want) {
		t.Errorf("the page does not say in what: %s", page)
	}
	if m := httpGet(t, b("status")+"metrics"); !strings.Contains(m, "kvcr_peer_refusals_total 1") {
		t.Error("the refusal is not counted")
	}
	// A client that expects another recipe is refused as well.
	_, err := client.Dial(t.Context(), client.Options{Addr: b("binary"), Layout: wire.Layout{
		Kind: "flat", Pools: []wire.LayoutPool{{Name: "kv", SlotBytes: 4096}}, Recipe: "vllm/sha256/low64/bs16",
	}.Describe(), DialTimeout: 10 * time.Second})
	if err == nil || !strings.Contains(err.Error(), "hash recipe: yours vllm/sha256/low64/bs16, node's dynamo/xxh3-1337/bs64") {
		t.Errorf("a client with another recipe: %v", err)
	}
}
