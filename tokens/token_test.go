package tokens_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/fenceproxy/fenceproxy/tokens"
)

func TestParseToken(t *testing.T) {
	for in, want := range map[string]tokens.Token{
		"1": 1, "34": 34, "9223372036854775807": tokens.Max,
		"0x1": 1, "0x100000002": 0x100000002, "0x00aF": 0xaf, "0x7fffffffffffffff": tokens.Max,
	} {
		if got, err := tokens.ParseToken(in); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", "0", "-1", "+1", "01", "034", " 34", "34 ", "3 4", "34,35", "3_4", "3.0", "1e3", "x", "0x", "0X1", "0x0", "0x-1",
		"0x8000000000000000", "9223372036854775808", "99999999999999999999999", "0b1", "٣", "34\x00", strings.Repeat("9", 5000),
	} {
		if got, err := tokens.ParseToken(in); !errors.Is(err, tokens.ErrBadToken) {
			t.Errorf("%q: %d, %v; want ErrBadToken", in, got, err)
		} else if len(err.Error()) > 300 {
			t.Errorf("%q: the error repeats it whole", in)
		}
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add("34")
	f.Add("0x22")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := tokens.ParseToken(s)
		if err != nil {
			return
		}
		if got < 1 {
			t.Fatalf("%q gave %d", s, got)
		}
		if !strings.HasPrefix(s, "0x") && s != strconv.FormatInt(int64(got), 10) {
			t.Fatalf("%q gave %d: one number has one decimal spelling", s, got)
		}
	})
}

func TestParseHolder(t *testing.T) {
	for _, ok := range []string{"a", "node-1:4711", "arn:aws:iam::1:role/x", strings.Repeat("x", tokens.MaxHolder)} {
		if got, err := tokens.ParseHolder(ok); err != nil || got != ok {
			t.Errorf("%q: %q, %v", ok, got, err)
		}
	}
	for _, bad := range []string{"", " ", "a b", "a,b", "a;b", "a\n", "ü", strings.Repeat("x", tokens.MaxHolder+1)} {
		if _, err := tokens.ParseHolder(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
