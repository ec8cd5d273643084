package zookeeper

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens/locks"
	"github.com/fenceproxy/fenceproxy/tokens/locks/lockstest"
)

func TestOpen(t *testing.T) {
	lockstest.URLs(t, Open, map[string]string{
		"zookeeper://h1:2181/locks/compactor":                  "",
		"zookeeper://h1:2181,h2:2181,h3:2181/compactor":        "",
		"zookeeper://u:p@h1:2181/compactor":                    "",
		"zookeeper://h1:2181/compactor?tls=true":               "",
		"zookeeper://h1:2181/compactor?tls=true&ca=/nowhere":   "no such file",
		"zookeeper://h1:2181/compactor?tls=true&cert=/nowhere": "belong together",
		"zookeeper://h1:2181/compactor?ca=/nowhere":            "say tls=true",
		"zookeeper://h1:2181/compactor?ttl=3":                  "?ttl= is not known",
		"zookeeper://h1/compactor":                             "each is host:port",
		"zookeeper://h1:2181,:2181/compactor":                  "each is host:port",
		"zookeeper:///compactor":                               "each is host:port",
		"zookeeper://h1:2181":                                  "the path of the lock's node",
		"zookeeper://h1:2181/":                                 "the path of the lock's node",
		"zookeeper://h1:2181/locks/":                           "the path of the lock's node",
		"zookeeper://h1:2181/locks//a":                         "the path of the lock's node",
		"zookeeper://h1:2181/../a":                             "the path of the lock's node",
		"zookeeper://user@h1:2181/a":                           "user:password@",
		"http://h1:2181/a":                                     "the URL of a ZooKeeper lock is",
		"zookeeper://u:s3cret@h1/a":                            "each is host:port",
		"zookeeper://u:s3cret@h 1/a":                           "cannot be read",
	})
}

func TestClosed(t *testing.T) {
	s, err := Open("zookeeper://127.0.0.1:1/compactor")
	if err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
	if h, err := s.Acquire(t.Context(), locks.Request{Holder: "a", TTL: time.Second}); !errors.Is(err, errClosed) {
		t.Errorf("%v, %v", h, err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if h, err := s.Acquire(ended, locks.Request{Holder: "a", TTL: time.Second}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", h, err)
	}
}

// TestFind: whose turn it is, among nodes as the clients that are known make them.
func TestFind(t *testing.T) {
	const ours = "_c_0b4b-lock-"
	for _, c := range []struct {
		children []string
		want     place
		refused  string
	}{
		{nil, place{}, ""},
		{[]string{ours + "0000000003"}, place{mine: ours + "0000000003", first: ours + "0000000003"}, ""},
		{[]string{"_c_ffff-lock-0000000004", ours + "0000000003"}, place{mine: ours + "0000000003", first: ours + "0000000003"}, ""},
		{
			[]string{"lock-0000000002", ours + "0000000003", "5f3a__lock__0000000001"},
			place{ours + "0000000003", "lock-0000000002", "5f3a__lock__0000000001"},
			"",
		},
		{ // made twice
			[]string{ours + "0000000007", ours + "0000000003", "lock-0000000002"},
			place{ours + "0000000003", "lock-0000000002", "lock-0000000002"},
			"",
		},
		{[]string{"lock-0000000002"}, place{before: "lock-0000000002", first: "lock-0000000002"}, ""},
		{[]string{ours + "0000000003", "lock--2147483648"}, place{}, "lock--2147483648"}, // beyond 2^31
		{[]string{ours + "0000000003", "compactor"}, place{}, "compactor"},
		{[]string{ours + "0000000003", "leases-0000000001"}, place{}, "leases-0000000001"},
		{[]string{ours + "0000000003", "lock-00000000x1"}, place{}, "lock-00000000x1"},
	} {
		p, err := find(c.children, ours)
		if c.refused != "" {
			if err == nil || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%q: %v; want a complaint of %s", c.children, err, c.refused)
			}
			continue
		}
		if err != nil || p != c.want {
			t.Errorf("%q: %+v, %v; want %+v", c.children, p, err, c.want)
		}
	}
}
