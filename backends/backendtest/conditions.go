package backendtest

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
)

func nothing() *bytes.Reader { return bytes.NewReader(nil) }

func (c *client) putIf(key, content string, headers ...string) answer {
	c.Helper()
	return c.do(http.MethodPut, c.key(key), strings.NewReader(content), headers...)
}

func testConditionalPut(c *client) {
	c.want(c.putIf("key", "x", "If-Match", etagOf("x")), http.StatusNotFound, "NoSuchKey")
	c.want(c.putIf("dir/key", "x", "If-Match", etagOf("x")), http.StatusNotFound, "NoSuchKey")
	c.absent("key")
	c.want(c.putIf("key", "one", "If-None-Match", "*"), http.StatusOK, "")
	c.want(c.putIf("key", "two", "If-None-Match", "*"), http.StatusPreconditionFailed, "PreconditionFailed")
	c.holds("key", "one")
	c.want(c.putIf("key", "two", "If-Match", etagOf("other")), http.StatusPreconditionFailed, "PreconditionFailed")
	c.holds("key", "one")
	c.want(c.putIf("key", "two", "If-Match", etagOf("one")), http.StatusOK, "")
	c.want(c.putIf("key", "three", "If-Match", etagOf("one")), http.StatusPreconditionFailed, "PreconditionFailed")
	c.holds("key", "two")
	c.want(c.putIf("deep/er/key", "one", "If-None-Match", "*"), http.StatusOK, "")
	c.holds("deep/er/key", "one")
}

// testConditionAtCommit lets a condition turn false after the body has begun: it is the commit that counts.
func testConditionAtCommit(c *client) {
	c.put("key", "old")
	a := c.putScripted("key", "late", 4, false, func() error {
		c.put("key", "between")
		return io.EOF
	}, "If-Match", etagOf("old"))
	c.want(a, http.StatusPreconditionFailed, "PreconditionFailed")
	c.holds("key", "between")

	a = c.putScripted("new", "late", 4, false, func() error {
		c.put("new", "between")
		return io.EOF
	}, "If-None-Match", "*")
	c.want(a, http.StatusPreconditionFailed, "PreconditionFailed")
	c.holds("new", "between")

	a = c.putScripted("key", "late", 4, false, func() error { // and one that turns true counts as true
		c.put("key", "awaited")
		return io.EOF
	}, "If-Match", etagOf("awaited"))
	c.want(a, http.StatusOK, "")
	c.holds("key", "late")
}

func testConditionForms(c *client) {
	c.put("key", "old")
	for _, headers := range [][]string{
		{"If-None-Match", etagOf("other")},
		{"If-None-Match", "*", "If-Match", etagOf("old")},
		{"If-Match", etagOf("old"), "If-None-Match", "*"},
	} {
		c.want(c.putIf("key", "new", headers...), http.StatusNotImplemented, "NotImplemented")
		c.holds("key", "old")
	}
	c.want(c.putIf("key", "new", "If-Match", strings.Trim(etagOf("old"), `"`)), http.StatusOK, "") // S3 takes it bare
	c.holds("key", "new")
}

const racers = 32

// race sends one conditional PUT from each racer and returns the content of the only one that may have won.
func (c *client) race(key string, headers ...string) string {
	var wins atomic.Int32
	var winner atomic.Value
	var all, ready sync.WaitGroup
	ready.Add(racers)
	for i := range racers {
		all.Go(func() {
			content := fmt.Sprintf("racer %d of %s %v", i, key, headers)
			a := c.putScripted(key, content, len(content), i%2 == 0, func() error {
				ready.Done()
				ready.Wait() // all have sent everything but the end
				return io.EOF
			}, headers...)
			switch a.status {
			case http.StatusOK:
				wins.Add(1)
				winner.Store(content)
			case http.StatusPreconditionFailed, http.StatusConflict:
			default:
				c.Errorf("racer %d: %d %s", i, a.status, a.body)
			}
		})
	}
	all.Wait()
	if n := wins.Load(); n != 1 {
		c.Fatalf("%d of %d writes with %v won, want one", n, racers, headers)
	}
	return winner.Load().(string)
}

func testRaceToBeFirst(c *client) {
	for _, key := range []string{"key", "new/dir/key"} {
		c.holds(key, c.race(key, "If-None-Match", "*"))
	}
}

func testRaceToReplace(c *client) {
	c.put("key", "old")
	etag := etagOf("old")
	for range 5 {
		won := c.race("key", "If-Match", etag)
		c.holds("key", won)
		etag = etagOf(won)
	}
}

func testConditionalDelete(c *client) {
	a := c.do(http.MethodDelete, c.key("key"), nil, "If-Match", etagOf("x"))
	if a.status != http.StatusNotFound && a.status != http.StatusPreconditionFailed {
		c.Errorf("DELETE with If-Match of an absent key: %d %s", a.status, a.body)
	}
	c.put("key", "content")
	c.want(c.do(http.MethodDelete, c.key("key"), nil, "If-Match", etagOf("x")), http.StatusPreconditionFailed, "PreconditionFailed")
	c.holds("key", "content")
	c.want(c.do(http.MethodDelete, c.key("key"), nil, "If-Match", etagOf("content")), http.StatusNoContent, "")
	c.absent("key")
	c.put("key", "content")
	c.want(c.do(http.MethodDelete, c.key("key"), nil, "If-Match", "*"), http.StatusNoContent, "")
	c.absent("key")
}

// testDeleteRace lets a conditional DELETE and a conditional PUT want the same version: one gets it.
func testDeleteRace(c *client) {
	for round := range 50 {
		key := fmt.Sprintf("dir/%d", round)
		c.put(key, "old")
		var put, del answer
		var both sync.WaitGroup
		both.Go(func() { put = c.putIf(key, "new", "If-Match", etagOf("old")) })
		both.Go(func() { del = c.do(http.MethodDelete, c.key(key), nil, "If-Match", etagOf("old")) })
		both.Wait()
		switch {
		case put.status == http.StatusOK && del.status == http.StatusPreconditionFailed:
			c.holds(key, "new")
		case put.status >= 400 && put.status < 500 && del.status == http.StatusNoContent:
			c.absent(key)
		default:
			c.Fatalf("PUT answered %d and DELETE %d: both had If-Match of one version", put.status, del.status)
		}
	}
}
