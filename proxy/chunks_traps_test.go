package proxy

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

func hmacOf(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// signedInChunks is an upload in signed chunks of 8 KiB (AWS: "Signature calculations for the authorization header, transferring payload in multiple
// chunks"). Of the chunk with the number bad, the signature is another's; -1 is none.
func (f *fixture) signedInChunks(content string, bad int) *http.Request {
	f.Helper()
	const payload, size = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", 8 << 10
	now := time.Now()
	r := f.request("PUT", "/b/a", "", "X-Fence-Token: 34", "X-Amz-Content-Sha256: "+payload, fmt.Sprintf("X-Amz-Decoded-Content-Length: %d", len(content)))
	if err := sdkSigner().SignHTTP(f.Context(), someKey, r, payload, "s3", "us-east-1", now); err != nil {
		f.Fatal(err)
	}
	_, previous, _ := strings.Cut(r.Header.Get("Authorization"), "Signature=")
	day, key := now.UTC().Format("20060102"), []byte("AWS4"+testSecret)
	for _, part := range []string{day, "us-east-1", "s3", "aws4_request"} {
		key = hmacOf(key, part)
	}
	var wire bytes.Buffer
	for i := 0; i*size < len(content)+size; i++ {
		chunk := content[min(i*size, len(content)):min((i+1)*size, len(content))]
		empty, sum := sha256.Sum256(nil), sha256.Sum256([]byte(chunk))
		scope := day + "/us-east-1/s3/aws4_request"
		text := strings.Join([]string{"AWS4-HMAC-SHA256-PAYLOAD", r.Header.Get("X-Amz-Date"), scope, previous, hex.EncodeToString(empty[:]), hex.EncodeToString(sum[:])}, "\n")
		previous = hex.EncodeToString(hmacOf(key, text))
		shown := previous
		if i == bad {
			shown = hex.EncodeToString(empty[:])
		}
		fmt.Fprintf(&wire, "%x;chunk-signature=%s\r\n%s\r\n", len(chunk), shown, chunk)
	}
	r.Body, r.ContentLength = io.NopCloser(&wire), int64(wire.Len())
	return r
}

// TestBadChunk: trap 6, a chunk whose signature is wrong must not be upstream when that is seen (trino aws-proxy #102), and what goes upstream is no chain of
// the client's any more (chorus #265). A store that streams has got what was verified, and no end of it; one that gets bodies whole has heard of nothing.
func TestBadChunk(t *testing.T) {
	t.Parallel()
	content := strings.Repeat("0123456789abcdef", 3<<9) // three chunks, and the last one
	for how, change := range map[string]func(*Backend){
		"streaming": func(*Backend) {},
		"whole": func(b *Backend) {
			b.Settle, b.Probe = time.Second, func(context.Context, string) (Findings, error) { return Findings{}, nil }
		},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			b := &watcher{}
			backend := Backend{Handler: b}
			change(&backend)
			f := newFixtureWith(t, func(c *Config) {
				restricted(nil)(c)
				c.Buffer = 1 << 20
			}, backend)
			for bad := range 4 {
				resp, text := f.send(f.signedInChunks(content, bad))
				if resp.StatusCode != http.StatusForbidden || !strings.Contains(text, "SignatureDoesNotMatch") {
					t.Errorf("chunk %d: %d %s", bad, resp.StatusCode, text)
				}
				got, n := b.last()
				if n > 0 && (how == "whole" && got.method == http.MethodPut || got.err == nil || len(got.body) > bad*8<<10 || !strings.HasPrefix(content, got.body)) {
					t.Errorf("chunk %d: the store got %d bytes, and their end: %v", bad, len(got.body), got.err)
				}
				if mark := f.seen("b/a"); mark != 0 {
					t.Errorf("chunk %d: the mark is at %d", bad, mark)
				}
			}
			if resp, text := f.send(f.signedInChunks(content, -1)); resp.StatusCode != 200 {
				t.Fatalf("a good one: %d %s", resp.StatusCode, text)
			}
			got, _ := b.last()
			if got.body != content || strings.Contains(got.header.Get("X-Amz-Content-Sha256"), "STREAMING") || got.header.Get("X-Amz-Decoded-Content-Length") != "" {
				t.Errorf("of a good one the store got %d bytes, %v", len(got.body), got.header)
			}
		})
	}
}
