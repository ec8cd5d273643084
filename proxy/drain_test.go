package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"
)

// A slowClient sends a byte each second, and has a connection with a deadline.
type slowClient struct {
	*httptest.ResponseRecorder
	deadline time.Time
	left     int // bytes
}

func (c *slowClient) SetReadDeadline(t time.Time) error {
	c.deadline = t
	return nil
}

func (c *slowClient) Read(p []byte) (int, error) {
	switch time.Sleep(time.Second); {
	case !c.deadline.IsZero() && time.Now().After(c.deadline):
		return 0, os.ErrDeadlineExceeded
	case c.left == 0:
		return 0, io.EOF
	}
	c.left--
	return copy(p, "x"), nil
}

// TestARefusedUploadIsReadToItsEnd: aws-sdk-go-v2 looks at its answer only when it has sent everything. What is refused before a byte of it was read
// is waited for as long as what the fence refuses.
func TestARefusedUploadIsReadToItsEnd(t *testing.T) {
	t.Parallel()
	const size = 6 // seconds
	streaming := func(change func(*Config, *Backend)) func(*Config, *Backend) {
		return func(c *Config, b *Backend) {
			c.Memory = 0
			change(c, b)
		}
	}
	failing := func(err error) func(*Config, *Backend) {
		return func(_ *Config, b *Backend) {
			b.Probe = func(context.Context, string) (Findings, error) { return Findings{}, err }
		}
	}
	for what, c := range map[string]struct {
		change func(*Config, *Backend)
		target string
		status int
	}{
		"no such bucket":       {failing(&StoreRefusal{Status: 404, Code: "NoSuchBucket"}), "/b/a", 404},
		"a store out of reach": {failing(errors.New("no network")), "/b/a", 503},
		"a merged name":        {probing(ConditionalAuto, Findings{Conditions: all.Conditions, Merges: []string{"case"}}), "/b/A", 400},
		"a store not asked":    {probing(ConditionalAuto, Findings{Skipped: "no permission"}), "/b/a", 403},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			before(t, streaming(c.change), func(r *remote) {
				client := &slowClient{ResponseRecorder: httptest.NewRecorder(), left: size}
				r.h.ServeHTTP(client, r.request("PUT", c.target, client, size, "X-Fence-Token: 34"))
				if client.Code != c.status || client.left != 0 || client.Header().Get("Connection") != "" {
					t.Errorf("%d %v, %d bytes unread; want %d, and all read", client.Code, client.Header(), client.left, c.status)
				}
				if !client.deadline.IsZero() {
					t.Error("a deadline is left on the connection")
				}
				r.quiet()
				r.settled()
			})
		})
	}
}

// A brokenDisk has some bytes of a body, and fails.
type brokenDisk struct{ good int64 }

var errDisk = errors.New("input/output error")

func (d brokenDisk) ReadAt(p []byte, off int64) (int, error) {
	if off >= d.good {
		return 0, errDisk
	}
	return len(p[:min(int64(len(p)), d.good-off)]), nil
}

// TestABodyThatCannotBeReadAgain is the proxy's fault and not its client's, and it does not come to the gate.
func TestABodyThatCannotBeReadAgain(t *testing.T) {
	t.Parallel()
	for _, good := range []int64{0, 60} {
		c := &content{ReaderAt: brokenDisk{good}, size: 100, late: true}
		out := httptest.NewRequest("PUT", "/b/a", nil)
		body := c.deliver(out, func() error {
			t.Error("it came to the gate")
			return nil
		})
		n, err := io.Copy(io.Discard, out.Body)
		if n != good || !errors.Is(err, errDisk) {
			t.Errorf("%d bytes, %v", n, err)
		}
		if _, err := out.Body.Read(make([]byte, 1)); !errors.Is(err, errDisk) {
			t.Errorf("and again: %v", err)
		}
		if body.passed() || !errors.Is(body.failure(), errDisk) {
			t.Errorf("passed %v, %v", body.passed(), body.failure())
		}
		if a := (&exchange{r: out}).answerTo(body.failure()); a.status != http.StatusInternalServerError || a.code != internalError {
			t.Errorf("the client is told %+v", a)
		}
	}
}
