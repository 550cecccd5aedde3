package resp

import "bytes"

// keptUnquoted is the most memory in bytes kept for resolved quotes.
const keptUnquoted = 4 << 10

// inline parses the line at p.pos as a command; cmd has no arguments if it is
// blank.
func (p *Parser) inline(b []byte, cmd *Command) error {
	end, err := p.find(b, '\n', errInlineLine)
	if err != nil {
		return err
	}
	line := bytes.TrimSuffix(b[p.pos:end], []byte{'\r'})
	p.pos, p.seen = end+1, end+1
	return p.words(line, cmd)
}

// words splits a line as redis does: words end at blanks; a quote begins a
// quoted part, which ends the word with it. Unlike there a zero byte is a byte
// like others.
func (p *Parser) words(line []byte, cmd *Command) error {
	p.unquoted = p.unquoted[:0]
	if cap(p.unquoted) > keptUnquoted {
		p.unquoted = nil
	}
	for i := 0; ; {
		for i < len(line) && blank(line[i]) {
			i++
		}
		if i == len(line) {
			return nil
		}
		if len(cmd.Args) == p.limits.MaxArgs {
			return errInlineLine
		}
		lo := i
		for i < len(line) && !endsWord(line[i]) {
			i++
		}
		if i == len(line) || line[i] != '"' && line[i] != '\'' {
			cmd.Args = append(cmd.Args, line[lo:i:i])
			continue
		}
		// If append moves the buffer, earlier words keep the old one.
		from := len(p.unquoted)
		p.unquoted = append(p.unquoted, line[lo:i]...)
		n, ok := 0, false
		if line[i] == '"' {
			p.unquoted, n, ok = double(p.unquoted, line[i+1:])
		} else {
			p.unquoted, n, ok = single(p.unquoted, line[i+1:])
		}
		i += 1 + n
		if !ok || i < len(line) && !blank(line[i]) {
			return errQuotes
		}
		to := len(p.unquoted)
		cmd.Args = append(cmd.Args, p.unquoted[from:to:to])
	}
}

// blank is C's isspace.
func blank(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' }

// endsWord leaves out two blanks, vertical tab and form feed: redis keeps them
// in words, and skips them between words.
func endsWord(c byte) bool {
	switch c {
	case ' ', '\t', '\n', '\r', '"', '\'':
		return true
	}
	return false
}

// double appends the text of s up to a double quote, and returns the bytes used
// with the quote. \xHH is a byte, \n \r \t \b \a are what they are in C, and
// before anything else a backslash is dropped.
func double(dst, s []byte) ([]byte, int, bool) {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '"' {
			return dst, i + 1, true
		}
		if c == '\\' && i+1 < len(s) {
			i++
			c = s[i]
			if c == 'x' && i+2 < len(s) {
				hi, lo := hex(s[i+1]), hex(s[i+2])
				if hi >= 0 && lo >= 0 {
					dst = append(dst, byte(hi<<4|lo))
					i += 2
					continue
				}
			}
			switch c {
			case 'n':
				c = '\n'
			case 'r':
				c = '\r'
			case 't':
				c = '\t'
			case 'b':
				c = '\b'
			case 'a':
				c = '\a'
			}
		}
		dst = append(dst, c)
	}
	return dst, 0, false
}

// single is double for single quotes, where \' is all there is.
func single(dst, s []byte) ([]byte, int, bool) {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '\'' {
			return dst, i + 1, true
		}
		if c == '\\' && i+1 < len(s) && s[i+1] == '\'' {
			i++
			c = '\''
		}
		dst = append(dst, c)
	}
	return dst, 0, false
}

// hex is the value of a hexadecimal digit, or -1.
func hex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// Fold copies a command's name to dst with ASCII letters in upper case and
// returns the filled part of dst. A name longer than dst gives an empty result,
// which names no command. Neither Fold nor a switch on string(Fold(dst, name))
// allocates.
func Fold(dst []byte, name []byte) []byte {
	if len(name) > len(dst) {
		return dst[:0]
	}
	for i, c := range name {
		if c >= 'a' && c <= 'z' {
			c -= 'a' - 'A'
		}
		dst[i] = c
	}
	return dst[:len(name)]
}
