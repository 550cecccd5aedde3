package wire

import (
	"crypto/hmac"
	"crypto/sha256"
)

// CheckSecret refuses secrets of fewer than MinSecret bytes with a *SecretError.
func CheckSecret(secret []byte) error {
	if len(secret) < MinSecret {
		return &SecretError{len(secret), MinSecret}
	}
	return nil
}

// ClientMAC is what a client with the secret sends in Auth.
func ClientMAC(secret []byte, h *Hello, c *Challenge) [32]byte {
	return sign("kvcr client\x00", secret, h, c)
}

// ServerMAC is what a server with the secret sends in Welcome.
func ServerMAC(secret []byte, h *Hello, c *Challenge) [32]byte {
	return sign("kvcr server\x00", secret, h, c)
}

// sign covers what each side chose, so that no proof serves twice, and the role,
// so that none can be sent back to who made it. All fields but the last have a
// fixed length: two handshakes cannot run together to the same bytes.
func sign(role string, secret []byte, h *Hello, c *Challenge) (sum [32]byte) {
	b := append(make([]byte, 0, 64+MaxName), role...)
	b = append(b, h.Nonce[:]...)
	b = append(b, c.Nonce[:]...)
	b = append(b, c.Version)
	b = le.AppendUint64(b, h.Incarnation)
	b = le.AppendUint64(b, c.Incarnation)
	b = append(b, h.Namespace...)
	m := hmac.New(sha256.New, secret)
	m.Write(b)
	m.Sum(sum[:0])
	return sum
}

// SameMAC compares in constant time.
func SameMAC(a, b [32]byte) bool { return hmac.Equal(a[:], b[:]) }
