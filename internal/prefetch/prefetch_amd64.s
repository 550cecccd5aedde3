#include "textflag.h"

// func Line(b *byte)
TEXT ·Line(SB), NOSPLIT, $0-8
	MOVQ b+0(FP), AX
	PREFETCHT0 (AX)
	RET

// func LineToWrite(b *byte)
TEXT ·LineToWrite(SB), NOSPLIT, $0-8
	MOVQ b+0(FP), AX
	BYTE $0x0F; BYTE $0x0D; BYTE $0x08 // PREFETCHW (AX), which the assembler lacks
	RET

// func Word(w *atomic.Uint64)
TEXT ·Word(SB), NOSPLIT, $0-8
	MOVQ w+0(FP), AX
	PREFETCHT0 (AX)
	RET
