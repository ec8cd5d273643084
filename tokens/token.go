// Package tokens knows what a fencing token is, and keeps the promise that is made about it: once a write with token t has
// been answered with success, no write with a token below t takes effect on the same resource.
//
// A [Registry] remembers the highest token of every resource durably. A [Fence] stands in front of it and decides, write by
// write, who may pass.
package tokens

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// A Token is a fencing token: a number that grows with every holder of a lock. See Kleppmann, "How to do distributed
// locking" (2016). Zero is the token of a write that carries none; it is lower than every other.
type Token int64

// Max is the highest token there is.
const Max Token = 1<<63 - 1

// ErrBadToken says that a text is not a fencing token. The error that wraps it says what would be one.
var ErrBadToken = errors.New("not a fencing token")

// ParseToken reads a token as a client writes it: decimal from 1 to 2^63-1, or hexadecimal after 0x, as ZooKeeper prints its
// transaction ids. Signs, blanks, separators and leading zeros (which some readers take for octal) are refused. The error
// wraps [ErrBadToken].
func ParseToken(s string) (Token, error) {
	digits, base := s, 10
	if hex, ok := strings.CutPrefix(s, "0x"); ok {
		digits, base = hex, 16
	}
	if digits == "" || !allDigits(digits, base) || (base == 10 && digits[0] == '0') {
		return 0, badToken(s)
	}
	n, err := strconv.ParseInt(digits, base, 64)
	if err != nil || n < 1 {
		return 0, badToken(s)
	}
	return Token(n), nil
}

func badToken(s string) error {
	if len(s) > 40 {
		s = s[:40] + "…"
	}
	return fmt.Errorf("%q is %w: it must be a whole number from 1 to %d, or its hexadecimal form after 0x", s, ErrBadToken, Max)
}

// allDigits holds what strconv lets through besides digits (a sign) away from it.
func allDigits(s string, base int) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case '0' <= c && c <= '9':
		case base == 16 && ('a' <= c && c <= 'f' || 'A' <= c && c <= 'F'):
		default:
			return false
		}
	}
	return true
}

// MaxHolder is the longest name of a holder, in bytes.
const MaxHolder = 128

// ParseHolder reads the name of a holder: 1 to [MaxHolder] visible ASCII characters other than , and ;.
func ParseHolder(s string) (string, error) {
	if s == "" || len(s) > MaxHolder {
		return "", fmt.Errorf("a holder's name has 1 to %d characters, this one has %d", MaxHolder, len(s))
	}
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c > '~' || c == ',' || c == ';' {
			return "", fmt.Errorf("holder %q: a holder's name is made of visible ASCII characters other than , and ;", s)
		}
	}
	return s, nil
}
