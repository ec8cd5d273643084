package sigv4

const upperHex = "0123456789ABCDEF"

// unreserved bytes are never encoded ("Signature Calculations …: Task 1", UriEncode).
var unreserved = setOf("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")

func setOf(chars string) (set [256]bool) {
	for _, c := range []byte(chars) {
		set[c] = true
	}
	return set
}

func appendEncoded(b []byte, c byte) []byte {
	if unreserved[c] {
		return append(b, c)
	}
	return append(b, '%', upperHex[c>>4], upperHex[c&15])
}

// appendPath appends a path with each byte decoded and encoded anew. Slashes stay; %2F stays, too, or becomes a slash.
func appendPath(b []byte, raw string, keepEncodedSlashes bool) (_ []byte, ok bool) {
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if c == '/' {
			b = append(b, c)
			continue
		}
		if c == '%' {
			if c, ok = decode(raw[i:]); !ok {
				return b, false
			}
			i += 2
			if c == '/' && !keepEncodedSlashes {
				b = append(b, c)
				continue
			}
		}
		b = appendEncoded(b, c)
	}
	return b, true
}

// appendParameter appends a name or value of a query with each byte decoded and encoded anew. A plus sign is a blank, as it is
// to S3, to the SDKs and to [net/url.ParseQuery]: a plus sign itself comes as %2B.
func appendParameter(b []byte, raw string) (_ []byte, ok bool) {
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		switch c {
		case '+':
			c = ' '
		case '%':
			if c, ok = decode(raw[i:]); !ok {
				return b, false
			}
			i += 2
		}
		b = appendEncoded(b, c)
	}
	return b, true
}

// decode reads the %2F that s begins with.
func decode(s string) (c byte, ok bool) {
	if len(s) < 3 {
		return 0, false
	}
	high, ok1 := unhex(s[1])
	low, ok2 := unhex(s[2])
	return high<<4 | low, ok1 && ok2
}

func unhex(c byte) (digit byte, ok bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

// appendTrimmed appends a header's value without the blanks around it, and with one for each run of them within it. Control
// characters, which could end a line of the canonical request, are none that net/http lets through.
func appendTrimmed(b []byte, value string) (_ []byte, ok bool) {
	start, word := len(b), 0 // word is where the current one begins
	for i := 0; i <= len(value); i++ {
		if i < len(value) && value[i] > ' ' && value[i] != 0x7f {
			continue
		}
		if i < len(value) && value[i] != ' ' && value[i] != '\t' {
			return b, false
		}
		if word < i {
			if len(b) > start {
				b = append(b, ' ')
			}
			b = append(b, value[word:i]...)
		}
		word = i + 1
	}
	return b, true
}
