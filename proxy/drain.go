package proxy

import (
	"context"
	"io"
	"net/http"
	"strings"
	"time"
)

// How much of a body that will not be used is read before its client is answered. A client of aws-sdk-go-v2 looks at the answer
// only when it has sent everything, and loses it if the connection is cut before.
const (
	drainBytes = 64 << 20
	drainTime  = 10 * time.Second
	// An upload that is cut off half way may have stalled long ago: its client is not waited for as long.
	drainInterrupted = 2 * time.Second
)

// drain reads the rest of a body that is refused, within bounds, so that the answer reaches the client. Where it cannot be read
// whole, the connection is closed behind the answer.
func (x *exchange) drain(patience time.Duration) {
	if x.wireLength == 0 {
		return
	}
	if x.unsent() {
		return // the server sees that nothing was read, sends no 100 Continue and closes the connection
	}
	_ = x.control.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.CopyN(io.Discard, x.wire, drainBytes+1); err != io.EOF {
		// The deadline stays: the server reads on before it closes, and would wait for this client without one.
		_ = x.control.SetReadDeadline(time.Now())
		x.w.Header().Set("Connection", "close")
		return
	}
	_ = x.control.SetReadDeadline(time.Time{})
}

// drainRefused drains for a write that was refused, or cut off: then its upload may have stalled long ago.
func (x *exchange) drainRefused(ctx context.Context) {
	if ctx.Err() != nil {
		x.drain(drainInterrupted)
		return
	}
	x.drain(drainTime)
}

func expectsContinue(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Expect"), "100-continue")
}

// unsent says that the client waits for 100 Continue before it sends its body: to read would ask for it. aws-sdk-go-v2 sends the
// header and does not wait.
func (x *exchange) unsent() bool {
	return !x.bodyTouched && expectsContinue(x.r) &&
		!strings.Contains(x.r.UserAgent(), "aws-sdk-go")
}
