package sigv4

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// FuzzVerify: no request, however it is made, verifies without the secret, or is answered otherwise than by a refusal of S3's.
// Where the refusal tells what should have been signed, then that, signed, is what verifies.
func FuzzVerify(f *testing.F) {
	put := putRequest("/~fence/34/b/a%2Fb+c?x-id=PutObject&acl", "Authorization: "+valid, "X-Amz-Meta-A: 1", "X-Amz-Security-Token: fence=34")
	f.Add(put)
	f.Add(strings.Replace(put, base, base+";x-amz-meta-a;x-amz-security-token", 1))
	f.Add(strings.Replace(put, "X-Amz-Date", "Date", 1))
	f.Add(strings.Replace(putRequest("http://proxy:9000//b/../k", "Authorization: "+valid), "Content-Length: 0", "Transfer-Encoding: chunked", 1))
	f.Add(putRequest("/b/k?X-Amz-Signature=1"))
	f.Add(putRequest("/b/k?Signature=1", "Authorization: AWS a:b"))
	f.Add("GET " + presignedExample + " HTTP/1.1\nHost: h\n\n")
	f.Add("PUT " + presignedExample + "&X-Amz-Content-Sha256=" + emptyHash + "&X-Amz-Security-Token=fence%3D34 HTTP/1.1\nHost: h\n\n")
	f.Add("PUT " + presignedExample + " HTTP/1.1\nHost: h\nX-Amz-Content-Sha256: " + emptyHash + "\n\n")
	f.Add(strings.Replace(chunkedExample, "4f23", "4f24", 1))
	f.Add(strings.Replace(trailerExample, "106e", "106f", 1))
	secret := rand.Text()
	f.Fuzz(func(t *testing.T, raw string) {
		v := New(func(id string) (string, bool) { return secret, id == testKey }, Options{Now: func() time.Time { return testTime }})
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(strings.ReplaceAll(raw, "\n", "\r\n"))))
		if err != nil {
			return
		}
		id, err := v.Verify(r)
		var e *Error
		if !errors.As(err, &e) || e.Code == "" || e.Message == "" || e.Status != 400 && e.Status != 403 && e.Status != 501 {
			t.Fatalf("%q: %+v, %v", raw, id, err)
		}
		if id.AccessKey != "" || id.SignedHeaders != nil {
			t.Fatalf("%q: an identity beside the error %v: %+v", raw, err, id)
		}
		if e.Code != "SignatureDoesNotMatch" {
			return
		}
		lines := strings.Split(detail(e, "StringToSign"), "\n")
		date, region, _ := strings.Cut(lines[2], "/")
		key := deriveKey(secret, date, strings.TrimSuffix(region, "/s3/aws4_request"))
		signature := hexOf(sign(key[:], []byte(detail(e, "StringToSign"))))
		if sent := detail(e, "SignatureProvided"); len(r.Header["Authorization"]) > 0 {
			r.Header.Set("Authorization", strings.Replace(r.Header.Get("Authorization"), "Signature="+sent, "Signature="+signature, 1))
		} else if !strings.Contains(r.RequestURI, sent) {
			return // encoded
		} else {
			r.RequestURI = strings.Replace(r.RequestURI, sent, signature, 1)
		}
		if id, err := v.Verify(r); err != nil || id.AccessKey != testKey || id.Presigned == (len(r.Header["Authorization"]) > 0) {
			t.Fatalf("%q, signed as was told: %+v, %v", raw, id, err)
		}
	})
}

// FuzzChunks holds the reader of chunks to a decoder that has the whole body before it, and to the signatures: with bytes of a
// signed body left out and others put in, it returns whole chunks that were signed, and ends well only with all of what was signed. (Blank lines
// before the signature of a trailer change nothing.)
func FuzzChunks(f *testing.F) {
	const crc = "x-amz-checksum-crc32c:sOO8/Q=="
	for _, wire := range []string{
		"a\r\ndummy data\r\n0\r\n\r\n", "a;x\r\ndummy data\r\n0\r\n" + crc + "\r\n\r\n", "a\r\ndummy data\r\n0\r\n" + crc + "\n\r\n\r\n", "a\r\ndummy data\r\n0\r\n",
		"b\r\ndummy data\r\n0\r\n\r\n", "a\r\ndummy data\r\n0\r\n" + crc + "\nx-amz-trailer-signature:" + emptyHash + "\r\n\r\n", "7fffffffffffffff\r\ndummy data\r\n0\r\n\r\n",
	} {
		for kind := range byte(6) {
			f.Add(kind, uint16(10), []byte(wire), uint16(85), uint8(0))
		}
	}
	f.Add(byte(2), uint16(8), []byte("k"), uint16(8280), uint8(1))
	f.Add(byte(4), uint16(8), []byte("\n"), uint16(8440), uint8(0))
	type signedBody struct {
		chunkBody
		id   Identity
		wire []byte
	}
	var bodies []signedBody
	for _, p := range []Payload{SignedChunks, SignedChunksTrailer} {
		b := smallBody(p)
		id, seed := b.identity(f)
		bodies = append(bodies, signedBody{b, id, b.wire(f, seed)})
	}
	f.Fuzz(func(t *testing.T, kind byte, length uint16, wire []byte, at uint16, cut uint8) {
		p := []Payload{SignedChunks, SignedChunksTrailer, UnsignedChunksTrailer}[kind%3]
		o := ChunkOptions{Length: int64(length)}
		if kind/3%2 == 1 {
			o.Trailers = []string{testTrailer}
		}
		want, trailer, ok := slowDecode(p, wire, o)
		for name, body := range map[string]io.Reader{"at once": bytes.NewReader(wire), "byte by byte": iotest.OneByteReader(bytes.NewReader(wire))} {
			chunks := NewChunks(p, body, o)
			content, err := readAll(chunks, 1+int(at)%50)
			if (err == nil) != ok || ok && (!bytes.Equal(content, want) || !reflect.DeepEqual(chunks.Trailer(), trailer)) {
				t.Fatalf("%s: %q, %v, %q; want %q, %v, %q", name, content, err, chunks.Trailer(), want, ok, trailer)
			}
			if int64(len(content)) > o.Length || err != nil && !errors.As(err, new(*Error)) {
				t.Fatalf("%s: %d bytes, %v", name, len(content), err)
			}
		}
		if p == UnsignedChunksTrailer {
			return
		}
		b := bodies[p-SignedChunks]
		from := min(int(at), len(b.wire))
		changed := append(append(bytes.Clone(b.wire[:from]), wire...), b.wire[min(from+int(cut), len(b.wire)):]...)
		chunks := b.id.Chunks(bytes.NewReader(changed), b.options())
		content, err := readAll(chunks, 1+int(length))
		if !bytes.HasPrefix(b.content, content) || len(content) != 0 && len(content) != minChunk && len(content) != len(b.content) {
			t.Fatalf("%d bytes of what was signed, and others", len(content))
		}
		if err != nil {
			return
		}
		if got := chunks.Trailer(); !bytes.Equal(content, b.content) || got.Get(testTrailer) != b.value || len(got) > 1 {
			t.Fatalf("it ends well, with the trailer %q: %q", got, changed)
		}
	})
}

// FuzzPolicy holds policies and forms to a slow reading of them: what Check allows, and nothing else, is allowed.
func FuzzPolicy(f *testing.F) {
	for _, conditions := range []string{
		`{"bucket": "b"}, ["starts-with", "$key", "user/"], {"acl": "private"}`, `["eq", "$bucket", "b"], ["eq", "$Key", "user/k"], ["content-length-range", 1, "10"], {"acl": "private"}`,
		`{"bucket": "b"}, ["eq", "$key", 34]`, `[], {}, true`, `["starts-with", "$content-type", "text/"], {"bucket": "b"}`, `["eq", "key", "k"]`, `["content-length-range", -1, 9223372036854775808]`,
	} {
		f.Add(`{"expiration": "2013-05-25T00:00:00Z", "conditions": [`+conditions+`]}`, "key=user/k\nacl=private\nx-ignore-a=b")
	}
	f.Add(`{"expiration": "2013-05-25T00:00:00Z", "conditions": [["starts-with", "$content-type", "text/"], {"bucket": "b"}]}`, "content-type=text/plain, text/html")
	f.Fuzz(func(t *testing.T, document, form string) {
		fields := map[string]string{}
		for line := range strings.SplitSeq(form, "\n") {
			if name, value, ok := strings.Cut(line, "="); ok {
				fields[strings.ToLower(name)] = value
			}
		}
		_, policy, err := newTest(at(testTime)).VerifyPost(signedForm(base64.StdEncoding.EncodeToString([]byte(document)), nil))
		var e *Error
		if err != nil {
			if !errors.As(err, &e) || e.Status != 400 && e.Status != 403 || e.Message == "" || policy != nil {
				t.Fatalf("%v", err)
			}
			return
		}
		err = policy.Check(fields, "b")
		if err != nil && (!errors.As(err, &e) || e.Status != 403 || e.Code != accessDenied) {
			t.Fatalf("%v", err)
		}
		if want := slowCheck(t, document, fields); (err == nil) != want {
			t.Fatalf("%v, want %v", err, want)
		}
	})
}

// slowCheck says whether a policy that is well formed allows a form that was sent to bucket b.
func slowCheck(t fataler, document string, fields map[string]string) bool {
	var policy map[string]any
	decoder := json.NewDecoder(strings.NewReader(document))
	decoder.UseNumber()
	if err := decoder.Decode(&policy); err != nil {
		t.Fatalf("%v", err)
	}
	covered := map[string]bool{}
	for _, one := range policy["conditions"].([]any) {
		operation, name, want := "eq", "", ""
		switch one := one.(type) {
		case map[string]any:
			for key, value := range one {
				name, want = key, value.(string)
			}
		case []any:
			if operation = one[0].(string); operation == "content-length-range" {
				continue
			}
			name, want = one[1].(string)[1:], fmt.Sprint(one[2])
		}
		name = strings.ToLower(name)
		covered[name] = true
		value, there := fields[name]
		if name == "bucket" {
			value, there = "b", true
		}
		ok := there && value == want
		if operation == "starts-with" {
			ok = there
			parts := []string{value}
			if name == "content-type" {
				parts = strings.Split(value, ",")
			}
			for _, part := range parts {
				ok = ok && (strings.HasPrefix(part, want) || strings.HasPrefix(strings.TrimSpace(part), want))
			}
		}
		if !ok {
			return false
		}
	}
	for name := range fields {
		if !covered[name] && name != "policy" && name != "file" && name != "x-amz-signature" && !strings.HasPrefix(name, "x-ignore-") {
			return false
		}
	}
	return covered["bucket"]
}

// FuzzSpellings: each spelling of a path that may have been signed leads to what net/http decodes the path to.
func FuzzSpellings(f *testing.F) {
	for _, path := range []string{"/b/k", "/b/a%2fb%2B+", "/~fence/34;holder=a%2Fb/b/k", "//b/../中%ff%00"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("GET " + path + " HTTP/1.1\r\nHost: h\r\n\r\n")))
		if err != nil || !strings.HasPrefix(r.RequestURI, "/") || strings.ContainsAny(path, "? \r\n") {
			return
		}
		s := new(scratch)
		spellings, err := s.spellings(r.RequestURI)
		if err != nil {
			t.Fatalf("%q: %v", path, err)
		}
		for _, spelling := range spellings {
			decoded := make([]byte, 0, len(spelling))
			for i := 0; i < len(spelling); i++ {
				c := spelling[i]
				if c == '%' {
					c, _ = decode(string(spelling[i:]))
					i += 2
				}
				decoded = append(decoded, c)
			}
			if string(decoded) != r.URL.Path {
				t.Errorf("%q: spelled %q, which is %q and not %q", path, spelling, decoded, r.URL.Path)
			}
		}
	})
}
