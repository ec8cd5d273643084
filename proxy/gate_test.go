package proxy

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"
)

// noDeadlines is a connection that has none.
func noDeadlines() *http.ResponseController {
	return http.NewResponseController(httptest.NewRecorder())
}

// TestGateHoldsTheEnd reads bodies of all sizes, cut in all ways, through buffers of all sizes. Before the gate the store has less
// than the whole; a gate that stays shut gives it neither the last byte nor an end.
func TestGateHoldsTheEnd(t *testing.T) {
	readers := map[string]func(io.Reader) io.Reader{
		"whole": func(r io.Reader) io.Reader { return r }, "one byte": iotest.OneByteReader, "half": iotest.HalfReader,
		"data and end at once": iotest.DataErrReader,
	}
	refused := errors.New("refused")
	rapid.Check(t, func(t *rapid.T) {
		content := rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "content")
		cut := rapid.SampledFrom([]string{"whole", "one byte", "half", "data and end at once"}).Draw(t, "cut")
		buffer := rapid.IntRange(1, 40).Draw(t, "buffer")
		open := rapid.Bool().Draw(t, "open")

		var got []byte
		asked := 0
		body := &gatedBody{src: readers[cut](bytes.NewReader(content)), control: noDeadlines(), gate: func() error {
			asked++
			if len(got) > 0 && len(got) >= len(content) {
				t.Fatalf("the store had all %d bytes before the gate", len(got))
			}
			if !open {
				return refused
			}
			return nil
		}}
		var err error
		for err == nil {
			p := make([]byte, buffer)
			var n int
			n, err = body.Read(p)
			got = append(got, p[:n]...)
		}
		switch {
		case asked != 1:
			t.Fatalf("the gate was asked %d times", asked)
		case open && (err != io.EOF || !bytes.Equal(got, content) || !body.opened || body.failure() != nil):
			t.Fatalf("open: got %d of %d bytes, %v", len(got), len(content), err)
		case !open && (!errors.Is(err, refused) || (len(content) > 0 && len(got) >= len(content)) || body.opened || !errors.Is(body.failure(), refused)):
			t.Fatalf("shut: got %d of %d bytes, %v", len(got), len(content), err)
		}
		if n, again := body.Read(make([]byte, 1)); n != 0 || !errors.Is(again, err) {
			t.Fatalf("after its end: %d, %v", n, again)
		}
	})
}

func TestGateStaysShutForABrokenBody(t *testing.T) {
	for name, c := range map[string]struct {
		src  io.Reader
		head http.Header
		code string
	}{
		"too short":     {iotest.ErrReader(io.ErrUnexpectedEOF), nil, "IncompleteBody"},
		"stalled":       {iotest.ErrReader(os.ErrDeadlineExceeded), nil, "RequestTimeout"},
		"wrong MD5":     {bytes.NewReader([]byte("data")), http.Header{"Content-Md5": {"1B2M2Y8AsgTpgAmY7PhCfg=="}}, "BadDigest"},
		"wrong SHA-256": {bytes.NewReader([]byte("data")), http.Header{"X-Amz-Content-Sha256": {"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}}, "XAmzContentSHA256Mismatch"},
	} {
		t.Run(name, func(t *testing.T) {
			checks, err := checksOf(c.head, "PutObject")
			if err != nil {
				t.Fatal(err)
			}
			body := &gatedBody{src: c.src, control: noDeadlines(), checks: checks, gate: func() error {
				t.Error("the gate was asked")
				return nil
			}}
			got, err := io.ReadAll(body)
			if a := new(exchange).answerTo(err); a.code != c.code || a.status != http.StatusBadRequest || body.opened || len(got) >= 4 {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

func TestRightDigestsPass(t *testing.T) {
	checks, err := checksOf(http.Header{
		"Content-Md5":           {"jXd/OF09/siBXSD3SWAm3A=="},
		"X-Amz-Content-Sha256":  {"3a6eb0790f39ac87c94f3856b2dd2c5d110e6811602261a9a923d3bb23adc8b7"},
		"X-Amz-Checksum-Sha256": {"Om6weQ85rIfJTzhWst0sXREOaBFgImGpqSPTuyOtyLc="},
		"X-Amz-Checksum-Mode":   {"ENABLED"},
	}, "PutObject")
	if err != nil {
		t.Fatal(err)
	}
	body := &gatedBody{src: iotest.OneByteReader(bytes.NewReader([]byte("data"))), control: noDeadlines(), checks: checks, gate: func() error { return nil }}
	if got, err := io.ReadAll(body); err != nil || string(got) != "data" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestChecksOfRefusesWhatItCannotCheck(t *testing.T) {
	for _, h := range []http.Header{
		{"Content-Md5": {"no"}},
		{"Content-Md5": {"AAAA"}},
		{"X-Amz-Content-Sha256": {"12"}},
		{"X-Amz-Content-Sha256": {"x"}},
		{"X-Amz-Content-Sha256": {"STREAMING-AWS4-HMAC-SHA256-PAYLOAD"}},
		{"X-Amz-Content-Sha256": {"STREAMING-UNSIGNED-PAYLOAD-TRAILER"}},
	} {
		if _, err := checksOf(h, "PutObject"); err == nil {
			t.Errorf("%v was taken", h)
		}
	}
	for _, h := range []http.Header{{}, {"X-Amz-Content-Sha256": {"UNSIGNED-PAYLOAD"}}} {
		if checks, err := checksOf(h, "PutObject"); err != nil || len(checks) != 0 {
			t.Errorf("%v: %v, %v", h, checks, err)
		}
	}
}

func TestInterruptedUploadTellsWhy(t *testing.T) {
	cause := errors.New("a higher token was seen")
	r, w := io.Pipe()
	defer w.Close()
	body := &gatedBody{src: r, control: noDeadlines(), gate: func() error { t.Error("the gate was asked"); return nil }}
	go func() {
		_, _ = w.Write([]byte("half"))
		body.interrupt(cause)
		w.CloseWithError(os.ErrDeadlineExceeded) // what the connection's deadline does
	}()
	if _, err := io.ReadAll(body); !errors.Is(err, cause) {
		t.Errorf("%v; want the cause", err)
	}
}

// TestDigests holds each algorithm to the published check value of "123456789".
func TestDigests(t *testing.T) {
	for name, want := range map[string]string{
		"Content-Md5":              "JfnnlDI7RTiF9RgfG2JNCw==",
		"X-Amz-Checksum-Crc32":     "y/Q5Jg==",
		"X-Amz-Checksum-Crc32c":    "4waSgw==",
		"X-Amz-Checksum-Crc64nvme": "rosUhgp5mIg=",
		"X-Amz-Checksum-Sha1":      "98O8HYCOBHMq32eZZczDTKeuNEE=",
		"X-Amz-Checksum-Md5":       "JfnnlDI7RTiF9RgfG2JNCw==",
		"X-Amz-Checksum-Sha512":    "2eZ2LdHI6vbWGzxhkvxAjU1tXxF20MKRabwk5xw/J0rSf81YEbMT1oH35V7ALXPUmclUVba1u1A6z1dPuo/+hQ==",
		"X-Amz-Checksum-Sha256":    "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU=",
	} {
		checks, err := checksOf(http.Header{name: {want}}, "PutObject")
		if err != nil || len(checks) != 1 {
			t.Errorf("%s: %v, %v", name, checks, err)
			continue
		}
		for text, good := range map[string]bool{"123456789": true, "123456780": false} {
			checks[0].hash.Reset()
			body := &gatedBody{src: strings.NewReader(text), control: noDeadlines(), checks: checks, gate: func() error { return nil }}
			if _, err := io.ReadAll(body); (err == nil) != good || body.opened != good {
				t.Errorf("%s of %s: %v", name, text, err)
			}
		}
	}
	if _, err := checksOf(http.Header{"X-Amz-Checksum-Xxhash": {"x"}}, "PutObject"); err == nil {
		t.Error("a checksum that nobody can check was taken")
	}
	if checks, err := checksOf(http.Header{"X-Amz-Checksum-Crc32": {"x"}}, "CompleteMultipartUpload"); err != nil || len(checks) != 0 {
		t.Errorf("the checksum of another body: %v, %v", checks, err)
	}
}

// checksOf are the checks of a request with these headers.
func checksOf(h http.Header, operation string) ([]check, error) {
	x := &exchange{r: &http.Request{Header: h}, op: named(operation)}
	return x.checks()
}

func named(name string) operation { return operation{name: name} }
