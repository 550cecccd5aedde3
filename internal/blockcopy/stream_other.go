//go:build !amd64 || race

package blockcopy

// The portable twin of stream_amd64.go. No streaming stores: arm64's STNP is
// a hint that says less than its name, and race builds must let the detector
// see every access.

type isa int

const isaNone isa = 0

func (isa) String() string { return "none" }

const have = isaNone

func stream(dst, src []byte) { through(dst, src) }

func gather(dst, src []byte) { through(dst, src) }

func streamSum(dst, src []byte) uint64 {
	through(dst, src)
	return Sum(src)
}

func sumLong(b []byte) uint64 { return sumPortable(b) }

func (*Growing) extend([]byte) {}

func (*Growing) finish(b []byte) uint64 { return Sum(b) }

func fused([]byte) bool { return false }
