package misbehave

import (
	"bufio"
	"crypto/hmac"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
)

const chunked = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"

// readBody reads the whole body and verifies it: its length, its chunks and its digests. A body that breaks off costs the connection,
// and changes nothing.
func (x *request) readBody() ([]byte, *reply) {
	if x.r.ContentLength < 0 {
		return nil, refuse(http.StatusNotImplemented, "NotImplemented", "A header you provided implies functionality that is not implemented: Transfer-Encoding")
	}
	if _, ok := x.r.Header["Content-Length"]; !ok && x.op.Name == "PutObject" {
		return nil, refuse(http.StatusLengthRequired, "MissingContentLength", "You must provide the Content-Length HTTP header.")
	}
	var body []byte
	var err error
	if x.r.Header.Get("X-Amz-Content-Sha256") == chunked {
		body, err = x.readChunks()
	} else {
		body, err = io.ReadAll(x.r.Body)
	}
	switch {
	case err != nil && x.fault.Torn && len(body) > 0:
		return body, nil
	case errors.Is(err, errChunks):
		return nil, refuse(http.StatusBadRequest, "IncompleteBody", "The request body terminated unexpectedly: %v", err)
	case errors.Is(err, errSignature):
		return nil, refuse(http.StatusForbidden, "SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided: %v", err)
	case err != nil:
		panic(http.ErrAbortHandler)
	}
	if refused := x.checkDigests(body); refused != nil {
		return nil, refused
	}
	if x.fault.Cut > 0 && x.fault.Cut < len(body) {
		body = body[:x.fault.Cut]
	}
	return body, nil
}

var (
	errChunks    = errors.New("the chunks are not what was announced")
	errSignature = errors.New("the signature of a chunk is another")
)

// readChunks decodes aws-chunked ("Transferring payload in multiple chunks"). What was read so far comes beside an error.
func (x *request) readChunks() ([]byte, error) {
	want, err := strconv.ParseInt(x.r.Header.Get("X-Amz-Decoded-Content-Length"), 10, 64)
	if err != nil {
		return nil, errChunks
	}
	in := bufio.NewReader(x.r.Body)
	links := newChain(x.s.options.Secret, x.r.Header)
	var data []byte
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return data, brokenOff(err)
		}
		size, signature, _ := strings.Cut(strings.TrimSuffix(line, "\r\n"), ";chunk-signature=")
		n, err := strconv.ParseInt(size, 16, 64)
		if err != nil || n < 0 || n > want || len(signature) != 2*sha256.Size {
			return data, errChunks
		}
		chunk := make([]byte, n+2) // CRLF
		if got, err := io.ReadFull(in, chunk); err != nil {
			return append(data, chunk[:min(int64(got), n)]...), brokenOff(err)
		}
		chunk = chunk[:n]
		if !links.signed(chunk, signature) {
			return data, errSignature
		}
		if data = append(data, chunk...); n == 0 {
			break
		}
	}
	if rest, err := io.Copy(io.Discard, in); err != nil || rest > 0 || int64(len(data)) != want {
		return data, errChunks
	}
	return data, nil
}

// brokenOff is a body that has the length that Content-Length said, and not its last chunk.
func brokenOff(err error) error {
	if err == io.EOF {
		return errChunks
	}
	return err
}

// A chain is that of the chunks' signatures: each covers the one before, the first the request's.
type chain struct {
	key      []byte
	head     string // algorithm, date and scope
	previous string
}

func newChain(secret string, h http.Header) *chain {
	if secret == "" {
		return nil
	}
	authorization, date := h.Get("Authorization"), h.Get("X-Amz-Date")
	_, scope, _ := strings.Cut(authorization, "Credential=")
	scope, _, _ = strings.Cut(scope, ",")
	_, scope, _ = strings.Cut(scope, "/") // behind the access key
	_, seed, _ := strings.Cut(authorization, "Signature=")
	c := &chain{key: []byte("AWS4" + secret), head: chunked[len("STREAMING-"):] + "\n" + date + "\n" + scope + "\n", previous: seed}
	for part := range strings.SplitSeq(scope, "/") {
		c.key = mac(c.key, part)
	}
	return c
}

func (c *chain) signed(chunk []byte, signature string) bool {
	if c == nil {
		return true
	}
	none, sum := sha256.Sum256(nil), sha256.Sum256(chunk)
	c.previous = hex.EncodeToString(mac(c.key, c.head+c.previous+"\n"+hex.EncodeToString(none[:])+"\n"+hex.EncodeToString(sum[:])))
	return c.previous == signature
}

func mac(key []byte, message string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(message))
	return h.Sum(nil)
}

// checkDigests compares the digests that were sent ahead ("Checking object integrity"). That of a Complete is of the object to come.
func (x *request) checkDigests(body []byte) *reply {
	h := x.r.Header
	sum256, sum5 := sha256.Sum256(body), md5.Sum(body)
	if v := h.Get("X-Amz-Content-Sha256"); v != "" && v != chunked && v != "UNSIGNED-PAYLOAD" && v != hex.EncodeToString(sum256[:]) {
		return refuse(http.StatusBadRequest, "XAmzContentSHA256Mismatch", "The provided 'x-amz-content-sha256' header does not match what was computed.")
	}
	if v := h.Get("X-Amz-Checksum-Sha256"); v != "" && x.op.Name != "CompleteMultipartUpload" && v != base64.StdEncoding.EncodeToString(sum256[:]) {
		return refuse(http.StatusBadRequest, "BadDigest", "The SHA256 you specified did not match the calculated checksum.")
	}
	if v := h.Get("Content-Md5"); v != "" && v != base64.StdEncoding.EncodeToString(sum5[:]) {
		return refuse(http.StatusBadRequest, "BadDigest", "The Content-MD5 you specified did not match what we received.")
	}
	return nil
}

func md5Tag(content []byte) string {
	sum := md5.Sum(content)
	return `"` + hex.EncodeToString(sum[:]) + `"`
}
