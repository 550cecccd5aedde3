#include "textflag.h"

// func Line(b *byte)
TEXT ·Line(SB), NOSPLIT, $0-8
	MOVQ b+0(FP), AX
	PREFETCHT0 (AX)
	RET
