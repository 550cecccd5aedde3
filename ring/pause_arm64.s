#include "textflag.h"

// ISB and not YIELD, which most arm64 processors take for a NOP: ISB drains
// the pipeline, some tens of ns, like PAUSE on amd64.
//
// func pause()
TEXT ·pause(SB), NOSPLIT, $0-0
	ISB $15
	RET
