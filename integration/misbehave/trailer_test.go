package misbehave

import (
	"net/http"
	"strings"
	"testing"
)

// trailing is a body in chunks with the CRC32 of "new" behind it, and what goes with it. A signature is looked at only where there is a secret.
func trailing(checksum string, chunks ...string) (body string, headers []string) {
	body = strings.TrimSuffix(frames(append(chunks, "")...), "\r\n") + "x-amz-checksum-crc32:" + checksum + "\r\nx-amz-trailer-signature:" + strings.Repeat("0", 64) + "\r\n\r\n"
	return body, []string{"X-Amz-Content-Sha256", chunkedTrailer, "X-Amz-Decoded-Content-Length", "3", "X-Amz-Trailer", "x-amz-checksum-crc32"}
}

const (
	crcOfNew   = "a+NERQ=="
	crcOfOther = "AAAAAA=="
)

// TestTrailer: what comes behind a body is its checksum: it is compared, and kept with the object.
func TestTrailer(t *testing.T) {
	inWorld(t, Options{}, func(w *world) {
		body, headers := trailing(crcOfNew, "ne", "w")
		w.put("k", body, headers...)
		w.has("k", "new")
		if g := w.do("GET", "/b/k", "", "X-Amz-Checksum-Mode", "ENABLED"); g.header.Get("X-Amz-Checksum-Crc32") != crcOfNew {
			t.Errorf("it is kept with %q", g.header)
		}
		if g := w.do("GET", "/b/k", ""); g.header.Get("X-Amz-Checksum-Crc32") != "" {
			t.Error("a checksum that nobody has asked for")
		}
		if j := w.store.Journal(); len(j) != 1 || j[0].Checksums.Get("X-Amz-Checksum-Crc32") != crcOfNew {
			t.Errorf("%+v", j)
		}
		body, headers = trailing(crcOfOther, "new")
		w.want(w.do("PUT", "/b/k", body, headers...), 400, "BadDigest")
		for _, cut := range []int{1, 2, 80, 100} {
			body, headers := trailing(crcOfNew, "new")
			w.want(w.do("PUT", "/b/k", body[:len(body)-cut], headers...), 400, "IncompleteBody")
		}
		body, headers = trailing(crcOfNew, "new")
		w.want(w.do("PUT", "/b/k", body, headers[:4]...), 400, "MalformedTrailerError")
		w.want(w.do("PUT", "/b/k", strings.Replace(body, "crc32:", "crc32c:", 1), headers...), 400, "MalformedTrailerError")
		w.want(w.do("PUT", "/b/k", frames("new", ""), headers...), 400, "MalformedTrailerError")
		w.want(w.do("PUT", "/b/k", body, append(headers, "X-Amz-Checksum-Crc32", crcOfNew)...), 400, "InvalidRequest")
		w.wantJournal("PutObject k=new")
	})
}

func TestUnsignedTrailer(t *testing.T) {
	inWorld(t, Options{Secret: "s"}, func(w *world) {
		headers := []string{"X-Amz-Content-Sha256", unsignedTrailer, "X-Amz-Decoded-Content-Length", "3", "X-Amz-Trailer", "x-amz-checksum-crc32", "X-Amz-Sdk-Checksum-Algorithm", "CRC32"}
		w.put("k", "2\r\nne\r\n1\r\nw\r\n0\r\nx-amz-checksum-crc32:"+crcOfNew+"\r\n\r\n", headers...)
		w.has("k", "new")
		w.want(w.do("PUT", "/b/k", "3\r\nnew\r\n0\r\nx-amz-checksum-crc32:"+crcOfOther+"\r\n\r\n", headers...), 400, "BadDigest")
		w.put("none", "3\r\nnew\r\n0\r\n\r\n", headers[:4]...)
	})
}

// TestNoTrailers is a store that came before them.
func TestNoTrailers(t *testing.T) {
	inWorld(t, Options{NoTrailers: true}, func(w *world) {
		body, headers := trailing(crcOfNew, "new")
		w.want(w.do("PUT", "/b/k", body, headers...), 501, "NotImplemented")
		headers[1] = unsignedTrailer
		w.want(w.do("PUT", "/b/k", body, headers...), 501, "NotImplemented")
		w.put("k", frames("new", ""), "X-Amz-Content-Sha256", chunked, "X-Amz-Decoded-Content-Length", "3")
	})
}

// TestTrailerSignature is the example of AWS's "Signature calculations for trailing headers".
func TestTrailerSignature(t *testing.T) {
	h := http.Header{}
	h.Set("X-Amz-Date", "20130524T000000Z")
	h.Set("Authorization", "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e")
	for _, test := range []struct {
		lines string
		good  bool
	}{{"x-amz-checksum-crc32c:sOO8/Q==\n", true}, {"x-amz-checksum-crc32c:sOO8/A==\n", false}} {
		links := newChain("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", h)
		for _, chunk := range []struct {
			size      int
			signature string
		}{
			{65536, "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2"},
			{1024, "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7"},
			{0, "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992"},
		} {
			if !links.signed([]byte(strings.Repeat("a", chunk.size)), chunk.signature) {
				t.Errorf("a chunk of %d bytes has another signature", chunk.size)
			}
		}
		if got := links.signedTrailer(test.lines, "d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435"); got != test.good {
			t.Errorf("%q: %v", test.lines, got)
		}
	}
}

// TestNamedChecksum: the name of a checksum that does not come is refused.
func TestNamedChecksum(t *testing.T) {
	inWorld(t, Options{}, func(w *world) {
		w.want(w.do("PUT", "/b/k", "new", "X-Amz-Sdk-Checksum-Algorithm", "CRC32"), 400, "InvalidRequest")
		w.put("k", "new", "X-Amz-Sdk-Checksum-Algorithm", "CRC32", "X-Amz-Checksum-Crc32", crcOfNew)
		w.want(w.do("PUT", "/b/k", "new", "X-Amz-Checksum-Crc32", crcOfOther), 400, "BadDigest")
	})
}
