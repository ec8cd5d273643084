// Package servers starts real database servers for tests, each on a free port of 127.0.0.1 and in a folder of its own, and ends them with the test.
package servers

import (
	"fmt"
	"net"
	"os"
	"testing"
)

// skip skips a test for want of a server. Where CI is set, that is a failure: nothing may be skipped there unseen.
func skip(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf(format, args...)
	}
	t.Skipf("SKIPPED, and not shown: "+format, args...)
}

// freePort is one that nobody listens on at the moment.
func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// tail is the end of a log.
func tail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("…%s", text[max(0, len(text)-4000):])
}
