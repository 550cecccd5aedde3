package scene

import (
	"fmt"
	"strings"
)

// Error says what is wrong with a file, and where.
type Error struct {
	File  string
	Line  int // from 1; 0: not of one line
	Field string
	Value string
	Limit string // what is allowed
	Fix   string
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ": line %d", e.Line)
	}
	if e.Field != "" {
		b.WriteString(": " + e.Field)
		if e.Value != "" {
			b.WriteString(" = " + e.Value)
		}
	}
	b.WriteString(": " + e.Limit)
	if e.Fix != "" {
		b.WriteString("; " + e.Fix)
	}
	return b.String()
}
