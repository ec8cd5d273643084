package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
)

// A safeBuffer is a log that is read while it is written.
type safeBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

var servingAt = regexp.MustCompile(`msg=serving listen=(\S+) admin=(\S+) health=(\S*) `)

// After the signal a load balancer is told to leave, and is served until it has had the time to.
func TestDrain(t *testing.T) {
	p := newSite(t, "{local: {type: file, root: DIR/objects}}")
	text, err := os.ReadFile(p.config)
	if err != nil {
		t.Fatal(err)
	}
	c, err := parseConfig(p.config, append(text, "\nlisten: 127.0.0.1:0\nadmin: 127.0.0.1:0\nhealth: 127.0.0.1:0\ndrain: 3s\n"...), noEnvironment)
	if err != nil {
		t.Fatal(err)
	}
	var log safeBuffer
	ctx, signal := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, c, serveFlags{}, slog.New(slog.NewTextHandler(&log, nil))) }()
	defer func() { signal(); <-ended }()
	var at []string
	for deadline := time.Now().Add(30 * time.Second); at == nil; time.Sleep(5 * time.Millisecond) {
		if at = servingAt.FindStringSubmatch(log.String()); time.Now().After(deadline) {
			t.Fatalf("it does not come up:\n%s", &log)
		}
	}
	data, health := "http://"+at[1], "http://"+at[3]
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	ask := func(method, url string) (status int, closes bool, body string) {
		t.Helper()
		r, err := http.NewRequestWithContext(context.Background(), method, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, resp.Close, string(text)
	}
	if status, _, body := ask("GET", health+"/readyz"); status != 200 {
		t.Errorf("/readyz before: %d %s", status, body)
	}
	if status, _, body := ask("GET", health+"/metrics"); status != 200 || !strings.Contains(body, "fenceproxy_") {
		t.Errorf("/metrics: %d %.100s", status, body)
	}
	for _, path := range []string{"/api/v1/fences", "/api/v1/audit", "/"} {
		if status, _, _ := ask("GET", health+path); status != 404 {
			t.Errorf("the address of health answers %d to %s", status, path)
		}
	}
	if status, closes, body := ask("PUT", data+"/bkt"); status != 200 || closes {
		t.Errorf("a write before: %d %s, closes: %v", status, body, closes)
	}

	signal()
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(log.String(), "load balancers are given time"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it does not notice the signal:\n%s", &log)
		}
	}
	if status, _, body := ask("GET", health+"/readyz"); status != 503 || !strings.Contains(body, "starting or stopping") {
		t.Errorf("/readyz after the signal: %d %s", status, body)
	}
	if status, _, _ := ask("GET", health+"/healthz"); status != 200 {
		t.Errorf("/healthz after the signal: %d", status)
	}
	if status, closes, body := ask("PUT", data+"/bkt/a"); status != 200 || !closes {
		t.Errorf("a write after the signal: %d %s, closes: %v; want 200, and that the connection closes", status, body, closes)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	ended <- nil
}

func TestDrainEndsWhenAListenerFails(t *testing.T) {
	f := &front{log: slog.New(slog.DiscardHandler)}
	failed := make(chan error, 1)
	failed <- io.ErrClosedPipe
	wantError(t, f.drain(time.Hour, failed), "a listener failed")
	if err := f.drain(0, failed); err != nil {
		t.Error(err)
	}
}

// leased is a registry with an incarnation, or without.
type leased struct {
	tokens.Maintained
	incarnation uint64
	failure     error
}

func (l leased) Incarnation() uint64 { return l.incarnation }
func (l leased) Failure() error      { return l.failure }

// A proxy that can raise no token sends nobody's writes away that another one would take: it is not ready.
func TestReady(t *testing.T) {
	if err := (&state{registry: leased{incarnation: 3}}).ready(); err != nil {
		t.Error(err)
	}
	wantError(t, (&state{registry: leased{}}).ready(), "the lease of the token registry is over")
	wantError(t, (&state{registry: leased{incarnation: 3, failure: io.ErrClosedPipe}}).ready(), io.ErrClosedPipe.Error())
}
