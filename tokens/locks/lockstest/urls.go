package lockstest

import (
	"strings"
	"testing"

	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// Secret is the password in URLs that are handed to [URLs].
const Secret = "s3cret"

// URLs opens locks by their URLs, and holds what is said of each against what it has to say: "" of one that is good. No error has the Secret in it.
func URLs(t *testing.T, open func(url string) (locks.Service, error), says map[string]string) {
	t.Helper()
	for url, want := range says {
		s, err := open(url)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", url, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v; want %q", url, err, want)
		case err != nil && strings.Contains(err.Error(), Secret):
			t.Errorf("the password is told: %v", err)
		}
		if err == nil {
			_ = s.Close()
		}
	}
}
