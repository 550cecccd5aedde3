package wire

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

// handshake is that of the examples in PROTOCOL.md.
func handshake() (*Hello, *Challenge) {
	h := &Hello{MinVersion: 1, MaxVersion: 1, Incarnation: 0x1122334455667788, Namespace: "chat", Client: "demo/1.0", Layout: Layout{Kind: "flat", Pools: []LayoutPool{{"kv", 65536}}}.Describe()}
	c := &Challenge{Version: 1, AuthRequired: true, Incarnation: 0x99aabbccddeeff00, MaxValue: 64 << 20, MaxKey: 1024, MaxInFlight: 128, MaxChunk: MaxChunk}
	for i := range 16 {
		h.Nonce[i], c.Nonce[i] = byte(0x10+i), byte(0x20+i)
	}
	h.Fingerprint = Fingerprint(h.Layout)
	return h, c
}

const exampleSecret = "0123456789abcdef"

// The vectors come from another implementation of HMAC and of the rule.
func TestMACVectors(t *testing.T) {
	h, c := handshake()
	for _, tc := range []struct {
		name string
		got  [32]byte
		want string
	}{
		{"client", ClientMAC([]byte(exampleSecret), h, c), "6a6331561d2cdc1fdf092712783a9ff883b271fe3e587d8dd5f3d5717bdcf241"},
		{"server", ServerMAC([]byte(exampleSecret), h, c), "c024f67f7e25c7104cd53472a66e02e5a381b04305f72a72d93ea76fc5bf5ec0"},
	} {
		if got := hex.EncodeToString(tc.got[:]); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}

// Whatever a side chose is in the proof: with any of it changed it is another.
func TestMACCovers(t *testing.T) {
	h, c := handshake()
	secret := []byte(exampleSecret)
	proof := ClientMAC(secret, h, c)
	if SameMAC(proof, ServerMAC(secret, h, c)) {
		t.Error("a client's proof can be sent back to it")
	}
	for name, change := range map[string]func(h *Hello, c *Challenge, secret []byte){
		"secret":             func(_ *Hello, _ *Challenge, s []byte) { s[0]++ },
		"client nonce":       func(h *Hello, _ *Challenge, _ []byte) { h.Nonce[15]++ },
		"server nonce":       func(_ *Hello, c *Challenge, _ []byte) { c.Nonce[0]++ },
		"version":            func(_ *Hello, c *Challenge, _ []byte) { c.Version++ },
		"client incarnation": func(h *Hello, _ *Challenge, _ []byte) { h.Incarnation++ },
		"server incarnation": func(_ *Hello, c *Challenge, _ []byte) { c.Incarnation++ },
		"namespace":          func(h *Hello, _ *Challenge, _ []byte) { h.Namespace += "s" },
	} {
		h, c := handshake()
		s := []byte(exampleSecret)
		change(h, c, s)
		if SameMAC(proof, ClientMAC(s, h, c)) {
			t.Errorf("the proof does not cover the %s", name)
		}
	}
	if !SameMAC(proof, ClientMAC(secret, h, c)) {
		t.Error("two proofs of the same differ")
	}
}

func TestCheckSecret(t *testing.T) {
	if err := CheckSecret([]byte(exampleSecret)); err != nil {
		t.Error(err)
	}
	for _, n := range []int{0, 1, MinSecret - 1} {
		err := CheckSecret(make([]byte, n))
		var se *SecretError
		if !errors.Is(err, ErrSecret) || !errors.As(err, &se) || se.Got != n || se.Min != 16 || !strings.Contains(err.Error(), "at least 16") {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}
