//go:build !race

#include "textflag.h"

// Loads are unaligned, stores are non-temporal and need dst aligned to the
// vector. Every routine that stores ends with SFENCE: non-temporal stores are
// weakly ordered, and the release store that publishes a block must not pass
// them. Every routine ends with VZEROUPPER: Go code around it is SSE.

// AHEAD is how far ahead of the loads the source is fetched, into the second
// level cache. The hardware's own prefetcher stops at every 4 KiB page, and
// the fill buffers it shares with the streaming stores are few. 2 to 4 KiB
// measured best, with a source in the third level or in memory; a hint past
// the end of the source is harmless. Where nothing is stored, 1 KiB ahead into
// the first level was better (NONE512, NONE2).
#define AHEAD 2048
#define NEAR 1024

// func streamAVX2(dst, src *byte, n int)
// n > 0, n%128 == 0, dst%32 == 0.
TEXT ·streamAVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	ADDQ CX, DI
	ADDQ CX, SI
	NEGQ CX

avx2loop:
	PREFETCHT1 AHEAD(SI)(CX*1)
	PREFETCHT1 (AHEAD+64)(SI)(CX*1)
	VMOVDQU  0(SI)(CX*1), Y0
	VMOVDQU  32(SI)(CX*1), Y1
	VMOVDQU  64(SI)(CX*1), Y2
	VMOVDQU  96(SI)(CX*1), Y3
	VMOVNTDQ Y0, 0(DI)(CX*1)
	VMOVNTDQ Y1, 32(DI)(CX*1)
	VMOVNTDQ Y2, 64(DI)(CX*1)
	VMOVNTDQ Y3, 96(DI)(CX*1)
	ADDQ     $128, CX
	JNE      avx2loop
	SFENCE
	VZEROUPPER
	RET

// func streamAVX512(dst, src *byte, n int)
// n > 0, n%128 == 0, dst%64 == 0.
TEXT ·streamAVX512(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	ADDQ CX, DI
	ADDQ CX, SI
	NEGQ CX

avx512loop:
	PREFETCHT1 AHEAD(SI)(CX*1)
	PREFETCHT1 (AHEAD+64)(SI)(CX*1)
	VMOVDQU64 0(SI)(CX*1), Z0
	VMOVDQU64 64(SI)(CX*1), Z1
	VMOVNTDQ  Z0, 0(DI)(CX*1)
	VMOVNTDQ  Z1, 64(DI)(CX*1)
	ADDQ      $128, CX
	JNE       avx512loop
	SFENCE
	VZEROUPPER
	RET

// XXH3 long input, one 64-byte stripe with its key k:
//
//	v = load(src); x = v ^ k; acc[i] += lo32(x[i]) * hi32(x[i]); acc[i^1] += v[i]
//
// and after 16 stripes (a 1024-byte block)
//
//	acc = (acc ^ acc>>47 ^ key128) * prime32_1

#define PRIME32_1 $0x9E3779B1

// One stripe, AVX-512: acc in Z1.
#define STRIPE512(off, key) \
	VMOVDQU64 off(SI), Z22     \
	VPXORD    key, Z22, Z23    \
	VPSRLQ    $32, Z23, Z24    \
	VPMULUDQ  Z23, Z24, Z23    \
	VPSHUFD   $0x4e, Z22, Z25  \
	VPADDQ    Z23, Z25, Z25    \
	VPADDQ    Z25, Z1, Z1

#define NONE512(off) PREFETCHT0 (off+NEAR)(SI)
#define STORE512(off) PREFETCHT1 (off+AHEAD)(SI); VMOVNTDQ Z22, off(DI)

// The 64-bit product with a 32-bit prime, from two 32-bit products.
#define SCRAMBLE512 \
	VPSRLQ   $47, Z1, Z22    \
	VPXORD   Z22, Z1, Z1     \
	VPXORD   Z21, Z1, Z1     \
	VPSRLQ   $32, Z1, Z22    \
	VPMULUDQ Z0, Z1, Z1      \
	VPMULUDQ Z0, Z22, Z22    \
	VPSLLQ   $32, Z22, Z22   \
	VPADDQ   Z22, Z1, Z1

#define KEYS512 \
	MOVL         PRIME32_1, BX   \
	VPBROADCASTQ BX, Z0          \
	VMOVDQU64    (AX), Z1        \
	VMOVDQU64    0(R8), Z5       \
	VMOVDQU64    8(R8), Z6       \
	VMOVDQU64    16(R8), Z7      \
	VMOVDQU64    24(R8), Z8      \
	VMOVDQU64    32(R8), Z9      \
	VMOVDQU64    40(R8), Z10     \
	VMOVDQU64    48(R8), Z11     \
	VMOVDQU64    56(R8), Z12     \
	VMOVDQU64    64(R8), Z13     \
	VMOVDQU64    72(R8), Z14     \
	VMOVDQU64    80(R8), Z15     \
	VMOVDQU64    88(R8), Z16     \
	VMOVDQU64    96(R8), Z17     \
	VMOVDQU64    104(R8), Z18    \
	VMOVDQU64    112(R8), Z19    \
	VMOVDQU64    120(R8), Z20    \
	VMOVDQU64    128(R8), Z21

#define BLOCK512(ST) \
	STRIPE512(0, Z5); ST(0)       \
	STRIPE512(64, Z6); ST(64)     \
	STRIPE512(128, Z7); ST(128)   \
	STRIPE512(192, Z8); ST(192)   \
	STRIPE512(256, Z9); ST(256)   \
	STRIPE512(320, Z10); ST(320)  \
	STRIPE512(384, Z11); ST(384)  \
	STRIPE512(448, Z12); ST(448)  \
	STRIPE512(512, Z13); ST(512)  \
	STRIPE512(576, Z14); ST(576)  \
	STRIPE512(640, Z15); ST(640)  \
	STRIPE512(704, Z16); ST(704)  \
	STRIPE512(768, Z17); ST(768)  \
	STRIPE512(832, Z18); ST(832)  \
	STRIPE512(896, Z19); ST(896)  \
	STRIPE512(960, Z20); ST(960)  \
	SCRAMBLE512

// func sumAVX512(acc *[8]uint64, src *byte, stripes int, secret *[192]byte)
TEXT ·sumAVX512(SB), NOSPLIT, $0-32
	MOVQ acc+0(FP), AX
	MOVQ src+8(FP), SI
	MOVQ stripes+16(FP), CX
	MOVQ secret+24(FP), R8
	KEYS512

block:
	CMPQ CX, $16
	JLT  rest
	BLOCK512(NONE512)
	ADDQ $1024, SI
	SUBQ $16, CX
	JMP  block

rest:
	TESTQ CX, CX
	JEQ   done
	STRIPE512(0, (R8))
	ADDQ  $64, SI
	ADDQ  $8, R8
	DECQ  CX
	JMP   rest

done:
	VMOVDQU64 Z1, (AX)
	VZEROUPPER
	RET

// func copySumAVX512(acc *[8]uint64, dst, src *byte, stripes int, secret *[192]byte)
// dst%64 == 0.
TEXT ·copySumAVX512(SB), NOSPLIT, $0-40
	MOVQ acc+0(FP), AX
	MOVQ dst+8(FP), DI
	MOVQ src+16(FP), SI
	MOVQ stripes+24(FP), CX
	MOVQ secret+32(FP), R8
	KEYS512

block:
	CMPQ CX, $16
	JLT  rest
	BLOCK512(STORE512)
	ADDQ $1024, SI
	ADDQ $1024, DI
	SUBQ $16, CX
	JMP  block

rest:
	TESTQ CX, CX
	JEQ   done
	STRIPE512(0, (R8))
	STORE512(0)
	ADDQ  $64, SI
	ADDQ  $64, DI
	ADDQ  $8, R8
	DECQ  CX
	JMP   rest

done:
	VMOVDQU64 Z1, (AX)
	SFENCE
	VZEROUPPER
	RET

// One stripe, AVX2: acc in Y1 (lanes 0..3) and Y2 (lanes 4..7).
#define STRIPE2(off, key, key32) \
	VMOVDQU  off(SI), Y3         \
	VMOVDQU  (off+32)(SI), Y4    \
	VPXOR    key, Y3, Y5         \
	VPXOR    key32, Y4, Y6       \
	VPSRLQ   $32, Y5, Y7         \
	VPSRLQ   $32, Y6, Y8         \
	VPMULUDQ Y5, Y7, Y5          \
	VPMULUDQ Y6, Y8, Y6          \
	VPSHUFD  $0x4e, Y3, Y7       \
	VPSHUFD  $0x4e, Y4, Y8       \
	VPADDQ   Y5, Y7, Y7          \
	VPADDQ   Y6, Y8, Y8          \
	VPADDQ   Y7, Y1, Y1          \
	VPADDQ   Y8, Y2, Y2

#define NONE2(off) PREFETCHT0 (off+NEAR)(SI)
#define STORE2(off) PREFETCHT1 (off+AHEAD)(SI); VMOVNTDQ Y3, off(DI); VMOVNTDQ Y4, (off+32)(DI)

#define SCRAMBLE2(acc, key) \
	VPSRLQ   $47, acc, Y3    \
	VPXOR    Y3, acc, acc    \
	VPXOR    key, acc, acc   \
	VPSRLQ   $32, acc, Y3    \
	VPMULUDQ Y0, acc, acc    \
	VPMULUDQ Y0, Y3, Y3      \
	VPSLLQ   $32, Y3, Y3     \
	VPADDQ   Y3, acc, acc

#define SETUP2 \
	MOVL         PRIME32_1, BX  \
	VMOVQ        BX, X0         \
	VPBROADCASTQ X0, Y0         \
	VMOVDQU      0(AX), Y1      \
	VMOVDQU      32(AX), Y2

#define BLOCK2(ST) \
	STRIPE2(0, 0(R8), 32(R8)); ST(0)         \
	STRIPE2(64, 8(R8), 40(R8)); ST(64)       \
	STRIPE2(128, 16(R8), 48(R8)); ST(128)    \
	STRIPE2(192, 24(R8), 56(R8)); ST(192)    \
	STRIPE2(256, 32(R8), 64(R8)); ST(256)    \
	STRIPE2(320, 40(R8), 72(R8)); ST(320)    \
	STRIPE2(384, 48(R8), 80(R8)); ST(384)    \
	STRIPE2(448, 56(R8), 88(R8)); ST(448)    \
	STRIPE2(512, 64(R8), 96(R8)); ST(512)    \
	STRIPE2(576, 72(R8), 104(R8)); ST(576)   \
	STRIPE2(640, 80(R8), 112(R8)); ST(640)   \
	STRIPE2(704, 88(R8), 120(R8)); ST(704)   \
	STRIPE2(768, 96(R8), 128(R8)); ST(768)   \
	STRIPE2(832, 104(R8), 136(R8)); ST(832)  \
	STRIPE2(896, 112(R8), 144(R8)); ST(896)  \
	STRIPE2(960, 120(R8), 152(R8)); ST(960)  \
	SCRAMBLE2(Y1, 128(R8))                   \
	SCRAMBLE2(Y2, 160(R8))

// func sumAVX2(acc *[8]uint64, src *byte, stripes int, secret *[192]byte)
TEXT ·sumAVX2(SB), NOSPLIT, $0-32
	MOVQ acc+0(FP), AX
	MOVQ src+8(FP), SI
	MOVQ stripes+16(FP), CX
	MOVQ secret+24(FP), R8
	SETUP2

block:
	CMPQ CX, $16
	JLT  rest
	BLOCK2(NONE2)
	ADDQ $1024, SI
	SUBQ $16, CX
	JMP  block

rest:
	TESTQ CX, CX
	JEQ   done
	STRIPE2(0, 0(R8), 32(R8))
	ADDQ  $64, SI
	ADDQ  $8, R8
	DECQ  CX
	JMP   rest

done:
	VMOVDQU Y1, 0(AX)
	VMOVDQU Y2, 32(AX)
	VZEROUPPER
	RET

// func copySumAVX2(acc *[8]uint64, dst, src *byte, stripes int, secret *[192]byte)
// dst%32 == 0.
TEXT ·copySumAVX2(SB), NOSPLIT, $0-40
	MOVQ acc+0(FP), AX
	MOVQ dst+8(FP), DI
	MOVQ src+16(FP), SI
	MOVQ stripes+24(FP), CX
	MOVQ secret+32(FP), R8
	SETUP2

block:
	CMPQ CX, $16
	JLT  rest
	BLOCK2(STORE2)
	ADDQ $1024, SI
	ADDQ $1024, DI
	SUBQ $16, CX
	JMP  block

rest:
	TESTQ CX, CX
	JEQ   done
	STRIPE2(0, 0(R8), 32(R8))
	STORE2(0)
	ADDQ  $64, SI
	ADDQ  $64, DI
	ADDQ  $8, R8
	DECQ  CX
	JMP   rest

done:
	VMOVDQU Y1, 0(AX)
	VMOVDQU Y2, 32(AX)
	SFENCE
	VZEROUPPER
	RET

// Four pages side by side, a line of each at a time: four streams keep more
// misses in flight than the hardware's prefetcher does on one.
//
// func gatherAVX2(dst, src *byte, n int)
// n > 0, n%16384 == 0. Ordinary stores, no fence needed.
TEXT ·gatherAVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

pages:
	MOVQ $4096, BX

lines:
	PREFETCHT0 256(SI)
	PREFETCHT0 (4096+256)(SI)
	PREFETCHT0 (8192+256)(SI)
	PREFETCHT0 (12288+256)(SI)
	VMOVDQU    0(SI), Y0
	VMOVDQU    32(SI), Y1
	VMOVDQU    4096(SI), Y2
	VMOVDQU    4128(SI), Y3
	VMOVDQU    8192(SI), Y4
	VMOVDQU    8224(SI), Y5
	VMOVDQU    12288(SI), Y6
	VMOVDQU    12320(SI), Y7
	VMOVDQU    Y0, 0(DI)
	VMOVDQU    Y1, 32(DI)
	VMOVDQU    Y2, 4096(DI)
	VMOVDQU    Y3, 4128(DI)
	VMOVDQU    Y4, 8192(DI)
	VMOVDQU    Y5, 8224(DI)
	VMOVDQU    Y6, 12288(DI)
	VMOVDQU    Y7, 12320(DI)
	ADDQ       $64, SI
	ADDQ       $64, DI
	SUBQ       $64, BX
	JNE        lines
	ADDQ       $12288, SI
	ADDQ       $12288, DI
	SUBQ       $16384, CX
	JNE        pages
	VZEROUPPER
	RET
