package s3

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// An apiError is an answer of our own, in S3's words.
type apiError struct {
	status        int
	code, message string
}

func (e *apiError) Error() string { return e.code + ": " + e.message }

// badBody is a body that came to no good end. Nothing was changed, and the client is to know why.
func badBody(code, format string, args ...any) error {
	return &apiError{http.StatusBadRequest, code, fmt.Sprintf(format, args...)}
}

// unchanged answers 503, which promises that nothing was changed and never will be.
func unchanged(message string) error {
	return &apiError{http.StatusServiceUnavailable, "ServiceUnavailable", message + " Nothing was changed."}
}

// tooLate answers a write that the store was not sent, or refused to take, because its time was over. Clients come back after
// SlowDown.
func tooLate() error {
	const message = "Between the fence and the store the request took longer than it may. Nothing was changed."
	return &apiError{http.StatusServiceUnavailable, "SlowDown", message}
}

// unknown answers a request that the store may have carried out.
func unknown(status int, code string) error {
	return &apiError{status, code, "The store has the request and did not tell what became of it. It may or may not have taken effect."}
}

// refuse answers for the store. Addresses and causes are for the log.
func (x *exchange) refuse(err error) {
	var e *apiError
	if !errors.As(err, &e) {
		e = &apiError{http.StatusInternalServerError, "InternalError", err.Error()}
	}
	body, err := xml.Marshal(struct {
		XMLName                            xml.Name `xml:"Error"`
		Code, Message, Resource, RequestId string
	}{Code: e.code, Message: e.message, Resource: x.r.URL.Path, RequestId: x.w.Header().Get("X-Amz-Request-Id")})
	if err != nil {
		panic(err) // strings always marshal
	}
	body = append([]byte(xml.Header), body...)
	x.w.Header().Set("Content-Type", "application/xml")
	x.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	x.w.WriteHeader(e.status)
	if x.r.Method != http.MethodHead {
		_, _ = x.w.Write(body) // a client that has gone needs no answer
	}
}

// maxError bounds what is read ahead of a refusal, in bytes.
const maxError = 64 << 10

// forward passes the store's answer on as it comes.
func (x *exchange) forward(resp *http.Response) error {
	if x.write && resp.StatusCode >= 300 {
		if err := x.judge(resp); err != nil {
			return err
		}
	}
	pass(x.w.Header(), resp.Header)
	x.w.WriteHeader(resp.StatusCode)
	if x.r.Method == http.MethodHead {
		return nil
	}
	if err := x.copy(resp); err != nil {
		x.s.o.Log.Info("an answer broke off", "method", x.r.Method, "path", x.r.URL.Path, "cause", err)
		panic(http.ErrAbortHandler) // status and headers are out: cut the connection, lest half an answer looks whole
	}
	return nil
}

// pass passes headers on. The store's X-Amz-Request-Id goes in the place of ours: with X-Amz-Id-2 it is what the store's operator asks for.
func pass(to, from http.Header) {
	to["Content-Type"] = nil // or net/http guesses one
	connection := from["Connection"]
	for name, values := range from {
		if !hopByHop(name) && !named(connection, name) {
			to[name] = values
		}
	}
}

func hopByHop(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}

// judge reads a refusal before it is passed on. 503 is a promise by the contract of backends. S3's SlowDown is one, too, but
// a 503 may also be of something between here and the store that lost it after it had the request: that is passed on as 502.
func (x *exchange) judge(resp *http.Response) error {
	x.clock.Reset(x.s.o.StallTimeout)
	var b bytes.Buffer
	if _, err := b.ReadFrom(io.LimitReader(resp.Body, maxError)); err != nil {
		return x.failed(err)
	}
	if x.queried && resp.StatusCode == http.StatusForbidden && isExpired(b.Bytes()) {
		x.s.o.Log.Warn("the signature of a write had expired when it came to the store", "method", x.r.Method, "path", x.r.URL.Path)
		return tooLate()
	}
	if resp.StatusCode == http.StatusServiceUnavailable && !x.incomplete() && !strings.Contains(b.String(), "<Code>SlowDown</Code>") {
		resp.StatusCode = http.StatusBadGateway
	}
	rest := resp.Body
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(&b, rest), rest}
	return nil
}

// isExpired knows S3's refusal of a request whose X-Amz-Expires is over.
func isExpired(document []byte) bool {
	return bytes.Contains(document, []byte("<Code>AccessDenied</Code>")) && bytes.Contains(document, []byte("Request has expired"))
}

var buffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// copy passes a body on. One without a length may be whitespace that keeps a client waiting: each piece goes out at once.
func (x *exchange) copy(resp *http.Response) error {
	flush := func() {}
	if resp.ContentLength < 0 {
		control := http.NewResponseController(x.w)
		flush = func() { _ = control.Flush() } // a writer that cannot does not hold back
		flush()
	}
	p := buffers.Get().(*[32 << 10]byte)
	defer buffers.Put(p)
	for {
		x.clock.Reset(x.s.o.StallTimeout)
		n, err := resp.Body.Read(p[:])
		if n > 0 {
			x.clock.Stop() // the client may take its time
			if _, err := x.w.Write(p[:n]); err != nil {
				return err
			}
			flush()
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
