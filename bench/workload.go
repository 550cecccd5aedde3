package bench

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
)

// KeyBytes is the length of every key of the engine suite.
const KeyBytes = 16

// Key is one key in the two forms that caches ask for. Both are views into
// the Keys they come from.
type Key struct {
	Bytes []byte
	Text  string
}

// Array is the key as a comparable value.
func (k Key) Array() [KeyBytes]byte { return [KeyBytes]byte(k.Bytes) }

// stamp is what a value of k begins and ends with: only the right key can
// have it, since the keys are a bijection of their numbers.
func (k Key) stamp() uint64 {
	return binary.LittleEndian.Uint64(k.Bytes)*0x9e3779b97f4a7c15 ^ binary.LittleEndian.Uint64(k.Bytes[8:])
}

// number is what NewKeys made k from.
func (k Key) number() uint64 { return binary.LittleEndian.Uint64(k.Bytes[8:]) }

// Keys is a list of keys laid out one after the other, so that a loop over it
// reads memory in order and costs next to nothing.
type Keys struct {
	raw  []byte
	text string
}

// NewKeys renders key numbers. A key is the number mixed to look like a hash,
// then the number itself.
func NewKeys[N uint32 | uint64](numbers []N) *Keys {
	raw := make([]byte, 0, KeyBytes*len(numbers))
	for _, n := range numbers {
		raw = binary.LittleEndian.AppendUint64(raw, mix64(uint64(n)+1))
		raw = binary.LittleEndian.AppendUint64(raw, uint64(n))
	}
	return &Keys{raw: raw, text: string(raw)}
}

// Len is the number of keys.
func (ks *Keys) Len() int { return len(ks.raw) / KeyBytes }

// At is key i.
func (ks *Keys) At(i int) Key {
	lo, hi := i*KeyBytes, (i+1)*KeyBytes
	return Key{ks.raw[lo:hi:hi], ks.text[lo:hi]}
}

// mix64 is the finalizer of splitmix64, a bijection.
func mix64(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Zipf draws ranks 0..n-1 with probability proportional to 1/(rank+1)^theta,
// by the method of Gray et al., "Quickly generating billion-record synthetic
// databases" (SIGMOD 1994), which YCSB uses too. math/rand's Zipf needs an
// exponent over 1; caches are compared at 0.99.
type Zipf struct {
	rng               *rand.Rand
	n                 float64
	theta, alpha      float64
	zetan, eta, half  float64
	scatter, elements uint64
}

// NewZipf makes a generator over n keys. The caller must give n >= 2 and
// 0 < theta < 1.
func NewZipf(n int, theta float64, seed uint64) *Zipf {
	zetan := 0.0
	for i := 1; i <= n; i++ {
		zetan += 1 / math.Pow(float64(i), theta)
	}
	half := math.Pow(0.5, theta)
	z := &Zipf{
		rng: rand.New(rand.NewPCG(seed, mix64(seed))),
		n:   float64(n), theta: theta, alpha: 1 / (1 - theta),
		zetan: zetan, half: half,
		eta:      (1 - math.Pow(2/float64(n), 1-theta)) / (1 - (1+half)/zetan),
		elements: uint64(n),
		scatter:  coprime(uint64(n)),
	}
	return z
}

// Rank draws a rank; 0 is the most popular.
func (z *Zipf) Rank() int {
	u := z.rng.Float64()
	uz := u * z.zetan
	switch {
	case uz < 1:
		return 0
	case uz < 1+z.half:
		return 1
	}
	return min(int(z.n*math.Pow(z.eta*u-z.eta+1, z.alpha)), int(z.elements)-1)
}

// Next draws a key number: ranks are scattered over the numbers by a
// bijection, so that popular keys do not lie side by side in load order.
func (z *Zipf) Next() uint32 { return uint32(uint64(z.Rank()) * z.scatter % z.elements) }

// coprime is a large multiplier without a common factor with n, so that
// multiplying by it permutes 0..n-1.
func coprime(n uint64) uint64 {
	for c := uint64(2654435761) % n; ; c++ {
		if gcd(c, n) == 1 {
			return c
		}
	}
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// walk is a worker's precomputed sequence of accesses.
type walk struct {
	keys *Keys
	// put[i] says that step i of a mix writes; sized like keys.
	put []bool
}

// newWalk draws steps key numbers with z; readPercent of them are reads.
func newWalk(z *Zipf, steps, readPercent int) *walk {
	numbers := make([]uint32, steps)
	put := make([]bool, steps)
	for i := range numbers {
		numbers[i] = z.Next()
		put[i] = z.rng.IntN(100) >= readPercent
	}
	return &walk{NewKeys(numbers), put}
}

// values makes the bytes to be written: a few differing buffers of one size,
// stamped for each key, so that no cache can store equal bytes once and no
// source stays in the nearest cache level.
type values struct {
	bufs [][]byte
	next int
}

func newValues(size int, seed uint64) *values {
	const buffers = 16 // arbitrary; more than the ways a large value stays in L2
	rng := rand.New(rand.NewPCG(seed, 7))
	v := &values{bufs: make([][]byte, buffers)}
	for i := range v.bufs {
		b := make([]byte, size)
		for j := 0; j+8 <= size; j += 8 {
			binary.LittleEndian.PutUint64(b[j:], rng.Uint64())
		}
		v.bufs[i] = b
	}
	return v
}

// of is a value for k, good until the next but 15 calls. Sizes under 8 bytes
// are not used.
func (v *values) of(k Key) []byte {
	b := v.bufs[v.next]
	v.next = (v.next + 1) % len(v.bufs)
	s := k.stamp()
	binary.LittleEndian.PutUint64(b, s)
	binary.LittleEndian.PutUint64(b[len(b)-8:], s)
	return b
}

// stamped reports whether b is a whole value of k, by its two ends.
func stamped(b []byte, k Key) bool {
	s := k.stamp()
	return binary.LittleEndian.Uint64(b) == s && binary.LittleEndian.Uint64(b[len(b)-8:]) == s
}
