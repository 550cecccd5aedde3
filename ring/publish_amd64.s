//go:build !race

#include "textflag.h"

// func publish(ownp *atomic.Uint64, own uint64, seqp *atomic.Uint64, seq uint64)
TEXT ·publish(SB), NOSPLIT, $0-32
	MOVQ ownp+0(FP), AX
	MOVQ own+8(FP), BX
	MOVQ seqp+16(FP), CX
	MOVQ seq+24(FP), DX
	MOVQ BX, (AX)
	MOVQ DX, (CX)
	RET

// func release(p *atomic.Uint64, v uint64)
TEXT ·release(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ v+8(FP), BX
	MOVQ BX, (AX)
	RET

// A locked operation on the own stack orders like MFENCE and costs less.
//
// func fence()
TEXT ·fence(SB), NOSPLIT, $0-0
	LOCK
	ADDL $0, (SP)
	RET
