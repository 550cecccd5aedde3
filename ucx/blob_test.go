package ucx

import (
	"bytes"
	"errors"
	"testing"
)

// A blob is refused after any one byte of it changed, and at any shorter length.
func TestBlobDamage(t *testing.T) {
	key := sealKey(Host, []keyPart{{1 << 40, 1 << 30, []byte("first")}, {1<<40 + 1<<30, 4096, []byte("second")}})
	for i := range key {
		b := bytes.Clone(key)
		b[i] ^= 0x40
		if _, _, err := openKey(b); !errors.Is(err, ErrBlob) {
			t.Errorf("byte %d changed: %v", i, err)
		}
		if _, _, err := openKey(key[:i]); !errors.Is(err, ErrBlob) {
			t.Errorf("cut to %d bytes: %v", i, err)
		}
	}
	if _, err := openBlob(blobAddress, key); !errors.Is(err, ErrBlob) {
		t.Errorf("a key taken for an address: %v", err)
	}
	if _, err := openBlob(blobAddress, sealBlob(blobAddress, make([]byte, maxBlob))); !errors.Is(err, ErrBlob) {
		t.Errorf("beyond the cap: %v", err)
	}
}

// FuzzKey: no body panics, every failure is ErrBlob, and an accepted key is one
// unbroken range that seals to the bytes it came from.
func FuzzKey(f *testing.F) {
	f.Add(sealKey(CUDA, []keyPart{{4096, 8192, []byte("k")}})[blobHeader:])
	f.Add(sealKey(Host, []keyPart{{4096, 8192, []byte("k")}, {12288, 1, []byte("l")}})[blobHeader:])
	f.Add([]byte{0, 0, 0, 0, 255, 255, 255, 255, 1, 2, 3})
	f.Fuzz(func(t *testing.T, body []byte) {
		in := sealBlob(blobKey, body)
		typ, parts, err := openKey(in)
		if err != nil {
			if !errors.Is(err, ErrBlob) {
				t.Fatalf("unclassified error %v", err)
			}
			return
		}
		for i := 1; i < len(parts); i++ {
			if parts[i].addr != parts[i-1].addr+parts[i-1].length {
				t.Fatalf("gap before part %d", i)
			}
		}
		if out := sealKey(typ, parts); !bytes.Equal(out, in) {
			t.Fatalf("%x sealed to %x", in, out)
		}
	})
}
