package resp

import "strconv"

// The Append functions append a reply, or a part of one, to dst and return it.
// They allocate only when dst has no room. proto is the version of the protocol
// that the client speaks, 2 or 3.

// AppendSimple appends a simple string: a status such as OK. Line ends in text
// become spaces.
func AppendSimple(dst []byte, text string) []byte { return appendLine(dst, '+', text) }

// AppendError appends an error. text begins with its code, such as ERR; line
// ends in it become spaces.
func AppendError(dst []byte, text string) []byte { return appendLine(dst, '-', text) }

func appendLine(dst []byte, kind byte, text string) []byte {
	dst = append(dst, kind)
	from := len(dst)
	dst = append(dst, text...)
	for i, c := range dst[from:] {
		if c == '\r' || c == '\n' {
			dst[from+i] = ' '
		}
	}
	return AppendCRLF(dst)
}

// AppendInt appends an integer.
func AppendInt(dst []byte, v int64) []byte { return appendNumber(dst, ':', v) }

func appendNumber(dst []byte, kind byte, v int64) []byte {
	return AppendCRLF(strconv.AppendInt(append(dst, kind), v, 10))
}

// AppendBulk appends a bulk string, which may hold any bytes.
func AppendBulk[T ~[]byte | ~string](dst []byte, v T) []byte {
	return AppendCRLF(append(AppendBulkHeader(dst, len(v)), v...))
}

// AppendBulkHeader appends what precedes the n bytes of a bulk string; an
// AppendCRLF must follow them.
func AppendBulkHeader(dst []byte, n int) []byte { return appendNumber(dst, '$', int64(n)) }

// AppendCRLF appends a line end.
func AppendCRLF(dst []byte) []byte { return append(dst, '\r', '\n') }

// AppendNull appends the answer for a key that is not there.
func AppendNull(dst []byte, proto int) []byte {
	if proto >= 3 {
		return append(dst, "_\r\n"...)
	}
	return append(dst, "$-1\r\n"...)
}

// AppendArray appends the header of an array; n replies must follow.
func AppendArray(dst []byte, n int) []byte { return appendNumber(dst, '*', int64(n)) }

// AppendMap appends the header of a map; pairs keys must follow, each with its
// value behind it. In RESP2 that is an array.
func AppendMap(dst []byte, proto int, pairs int) []byte {
	if proto >= 3 {
		return appendNumber(dst, '%', int64(pairs))
	}
	return AppendArray(dst, 2*pairs)
}
