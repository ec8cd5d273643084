package sigv4

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"
)

// The two bodies of the Amazon S3 API Reference, "Signature Calculations for the Authorization Header: Transferring Payload in
// Multiple Chunks" and "… with Trailing Headers": 65 KiB of the letter a.
const (
	chunkedExample = "PUT /examplebucket/chunkObject.txt HTTP/1.1\nHost: s3.amazonaws.com\nx-amz-date: 20130524T000000Z\nx-amz-storage-class: REDUCED_REDUNDANCY\n" +
		"x-amz-content-sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD\nContent-Encoding: aws-chunked\nx-amz-decoded-content-length: 66560\nContent-Length: 66824\n" +
		"Authorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,SignedHeaders=content-encoding;content-length;host;" +
		"x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class,Signature=4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9\n\n"
	trailerExample = "PUT /examplebucket/chunkObject.txt HTTP/1.1\nHost: s3.amazonaws.com\nx-amz-date: 20130524T000000Z\nx-amz-storage-class: REDUCED_REDUNDANCY\n" +
		"x-amz-content-sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER\nContent-Encoding: aws-chunked\nx-amz-decoded-content-length: 66560\nx-amz-trailer: x-amz-checksum-crc32c\n" +
		"Authorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,SignedHeaders=content-encoding;host;" +
		"x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class;x-amz-trailer,Signature=106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e\n\n"
)

func TestPublishedChunks(t *testing.T) {
	for _, c := range []struct {
		name, request string
		signatures    [3]string
		end           string
		o             ChunkOptions
	}{
		{
			"chunks", chunkedExample, [3]string{
				"ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
				"0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
				"b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
			}, "\r\n", ChunkOptions{Length: 66560},
		},
		{
			"chunks with a trailer", trailerExample,
			[3]string{
				"b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
				"1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
				"2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
			},
			"x-amz-checksum-crc32c:sOO8/Q==\n\r\nx-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n\r\n",
			ChunkOptions{Length: 66560, Trailers: []string{testTrailer}},
		},
	} {
		id, err := newTest(Options{Region: testRegion}).Verify(parse(t, c.request))
		if err != nil || !id.Payload.Chunked() {
			t.Fatalf("%s: %+v, %v", c.name, id, err)
		}
		wire := "10000;chunk-signature=" + c.signatures[0] + "\r\n" + strings.Repeat("a", 65536) + "\r\n400;chunk-signature=" + c.signatures[1] + "\r\n" +
			strings.Repeat("a", 1024) + "\r\n0;chunk-signature=" + c.signatures[2] + "\r\n" + c.end
		chunks := id.Chunks(strings.NewReader(wire), c.o)
		content, err := io.ReadAll(chunks)
		if err != nil || string(content) != strings.Repeat("a", 66560) {
			t.Errorf("%s: %d bytes, %v", c.name, len(content), err)
		}
		if len(c.o.Trailers) > 0 && chunks.Trailer().Get(testTrailer) != "sOO8/Q==" {
			t.Errorf("%s: trailer %q", c.name, chunks.Trailer())
		}
		content, err = io.ReadAll(id.Chunks(strings.NewReader(strings.Replace(wire, "aaa\r\n", "aab\r\n", 1)), c.o))
		var e *Error
		if !errors.As(err, &e) || e.Status != 403 || e.Code != "SignatureDoesNotMatch" || detail(e, "AWSAccessKeyId") != testKey || len(content) != 0 {
			t.Errorf("%s, changed: %d bytes, %v", c.name, len(content), err)
		}
	}
}

func drawChunkBody(t *rapid.T) chunkBody {
	b := chunkBody{payload: rapid.SampledFrom([]Payload{SignedChunks, SignedChunksTrailer, UnsignedChunksTrailer}).Draw(t, "payload")}
	total := 0
	for range rapid.IntRange(0, 3).Draw(t, "chunks") {
		size := rapid.SampledFrom([]int{minChunk, minChunk + 1, 2*minChunk - 1, firstChunk, firstChunk + 1, 40000}).Draw(t, "chunk")
		b.sizes = append(b.sizes, size)
		total += size
	}
	total += rapid.SampledFrom([]int{0, 1, 2, 100, minChunk - 1, 70000}).Draw(t, "last chunk")
	b.content = bytes.Repeat([]byte("the content "), total/12+1)[:total]
	if b.payload == SignedChunksTrailer || b.payload == UnsignedChunksTrailer && rapid.Bool().Draw(t, "trailer") {
		b.value = rapid.SampledFrom([]string{"sOO8/Q==", "x", "a:b"}).Draw(t, "value")
	}
	return b
}

// TestChunksAgainstTheSDK: what the SDK signs comes out as it went in, however it arrives and is read.
func TestChunksAgainstTheSDK(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := drawChunkBody(t)
		id, seed := b.identity(t)
		wire := b.wire(t, seed)
		var body io.Reader = bytes.NewReader(wire)
		switch rapid.IntRange(0, 4).Draw(t, "arrives") {
		case 0:
			body = iotest.OneByteReader(body)
		case 1:
			body = iotest.HalfReader(body)
		case 2:
			body = iotest.DataErrReader(body)
		case 3:
			at := rapid.IntRange(0, len(wire)).Draw(t, "split")
			body = io.MultiReader(bytes.NewReader(wire[:at]), bytes.NewReader(wire[at:]))
		}
		for name, chunks := range map[string]*ChunkReader{"verified": id.Chunks(body, b.options()), "unverified": NewChunks(b.payload, bytes.NewReader(wire), b.options())} {
			content, err := readAll(chunks, rapid.SampledFrom([]int{1, 7, 512, 8192, 100000}).Draw(t, "read"))
			if err != nil || !bytes.Equal(content, b.content) {
				t.Fatalf("%s: %d bytes of %d, %v", name, len(content), len(b.content), err)
			}
			if !maps.EqualFunc(chunks.Trailer(), trailerOf(b.value), func(a, b []string) bool { return a[0] == b[0] }) {
				t.Fatalf("%s: trailer %v", name, chunks.Trailer())
			}
		}
	})
}

// smallBody has every part that a body may have, in few bytes.
func smallBody(p Payload) chunkBody {
	b := chunkBody{payload: p, content: bytes.Repeat([]byte("0123456789"), 820), sizes: []int{minChunk}}
	if p != SignedChunks {
		b.value = "sOO8/Q=="
	}
	return b
}

// TestSplitsOfChunks: a body may arrive in two pieces, cut anywhere.
func TestSplitsOfChunks(t *testing.T) {
	for _, p := range []Payload{SignedChunks, SignedChunksTrailer, UnsignedChunksTrailer} {
		b := smallBody(p)
		id, seed := b.identity(t)
		wire := b.wire(t, seed)
		for at := range wire {
			if at > 200 && at < len(wire)-400 { // all of it is content
				continue
			}
			body := io.MultiReader(bytes.NewReader(wire[:at]), bytes.NewReader(wire[at:]))
			if content, err := io.ReadAll(id.Chunks(body, b.options())); err != nil || !bytes.Equal(content, b.content) {
				t.Fatalf("%v, cut at %d: %d bytes, %v", p, at, len(content), err)
			}
		}
	}
}

// TestChangedChunks flips bits all over a signed body, and cuts it anywhere: no byte that was not signed is ever returned, and no
// body that was cut within what is signed ends well.
func TestChangedChunks(t *testing.T) {
	for _, p := range []Payload{SignedChunks, SignedChunksTrailer} {
		b := smallBody(p)
		id, seed := b.identity(t)
		wire := b.wire(t, seed)
		check := func(what string, changed []byte, harmless bool) {
			content, err := io.ReadAll(id.Chunks(bytes.NewReader(changed), b.options()))
			whole := len(content) == 0 || len(content) == minChunk || len(content) == len(b.content)
			if !whole || !bytes.HasPrefix(b.content, content) || (err == nil) && !harmless || err == nil && !bytes.Equal(content, b.content) {
				t.Fatalf("%v, %s: %d bytes, %v", p, what, len(content), err)
			}
			var e *Error
			if err != nil && (!errors.As(err, &e) || e.Code != incompleteBody && e.Code != "SignatureDoesNotMatch" && e.Code != "InvalidChunkSizeError" && e.Code != "MalformedTrailerError") {
				t.Fatalf("%v, %s: %v", p, what, err)
			}
		}
		for at := range wire {
			for _, bit := range []int{at % 8, (at + 3) % 8, 5} { // 5 makes another case of a letter
				if at > 200 && at < len(wire)-400 && at%13 != 0 { // of the content, a few
					continue
				}
				changed := bytes.Clone(wire)
				changed[at] ^= 1 << bit
				// Names of trailers are signed in lower case, blanks around values not at all, and lines may end in \n: it is the same trailer.
				_, trailer, ok := slowDecode(p, changed, b.options())
				harmless := ok && p == SignedChunksTrailer && at > len(wire)-250 && trailer.Get(testTrailer) == b.value
				check(fmt.Sprintf("bit %d of byte %d", bit, at), changed, harmless)
			}
		}
		for end := range wire {
			check(fmt.Sprintf("cut at %d", end), wire[:end], end == len(wire)-2) // some clients leave out the last line end
		}
		check("more behind it", append(bytes.Clone(wire), '\n'), false)
		check("twice", append(bytes.Clone(wire), wire...), false)
	}
}

// TestSwappedChunks: each signature covers the one before it.
func TestSwappedChunks(t *testing.T) {
	b := chunkBody{payload: SignedChunks, content: append(bytes.Repeat([]byte("a"), minChunk), bytes.Repeat([]byte("b"), minChunk)...), sizes: []int{minChunk, minChunk}}
	id, seed := b.identity(t)
	wire := b.wire(t, seed)
	const length = minChunk + len("2000;chunk-signature=\r\n\r\n") + digestLength
	swapped := append(append(bytes.Clone(wire[length:2*length]), wire[:length]...), wire[2*length:]...)
	if content, err := io.ReadAll(id.Chunks(bytes.NewReader(swapped), b.options())); codeOf(err) != "SignatureDoesNotMatch" || len(content) != 0 {
		t.Errorf("swapped: %d bytes, %v", len(content), err)
	}
	left := append(bytes.Clone(wire[:length]), wire[2*length:]...)
	if content, err := io.ReadAll(id.Chunks(bytes.NewReader(left), b.options())); codeOf(err) != "SignatureDoesNotMatch" || len(content) != minChunk {
		t.Errorf("one left out: %d bytes, %v", len(content), err)
	}
	other, _ := chunkBody{payload: SignedChunks}.identity(t)
	if content, err := io.ReadAll(other.Chunks(bytes.NewReader(wire), b.options())); codeOf(err) != "SignatureDoesNotMatch" || len(content) != 0 {
		t.Errorf("behind another request: %d bytes, %v", len(content), err)
	}
	for range 2 { // an identity may be asked for its chunks again
		if content, err := io.ReadAll(id.Chunks(bytes.NewReader(wire), b.options())); err != nil || !bytes.Equal(content, b.content) {
			t.Errorf("%d bytes, %v", len(content), err)
		}
	}
}
