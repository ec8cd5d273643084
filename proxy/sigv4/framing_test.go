package sigv4

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
)

const (
	saysIncomplete = "The request body terminated unexpectedly"
	saysLength     = "You did not provide the number of bytes specified by the Content-Length HTTP header"
	saysSize       = "Only the last chunk is allowed to have a size less than 8192 bytes"
	saysTrailer    = "The request contained trailing data that was not well-formed or did not conform to our published schema."
)

// sized is a body of unsigned chunks with these sizes.
func sized(sizes ...int) string {
	var b strings.Builder
	for _, size := range sizes {
		fmt.Fprintf(&b, "%x\r\n%s\r\n", size, strings.Repeat("a", size))
	}
	return b.String()
}

// TestFraming has bodies in unsigned chunks, and what S3 says of them: test suites compare the sentences.
func TestFraming(t *testing.T) {
	const crc = "x-amz-checksum-crc32c:sOO8/Q=="
	announced := []string{testTrailer}
	for _, c := range []struct {
		name, wire string
		length     int64
		trailers   []string
		says       string
	}{
		{"one chunk", "a\r\ndummy data\r\n0\r\n\r\n", 10, nil, ""},
		{"in upper case", "A\r\ndummy data\r\n0\r\n\r\n", 10, nil, ""},
		{"leading zeros", "0000000A\r\ndummy data\r\n000\r\n\r\n", 10, nil, ""},
		{"blanks behind the size", "a  \r\ndummy data\r\n0 \r\n\r\n", 10, nil, ""},
		{"extensions", "a;chunk-signature=x;y\r\ndummy data\r\n0;z\r\n\r\n", 10, nil, ""},
		{"nothing", "0\r\n\r\n", 0, nil, ""},
		{"no last line end", "a\r\ndummy data\r\n0\r\n", 10, nil, ""},
		{"a trailer", "a\r\ndummy data\r\n0\r\n" + crc + "\r\n\r\n", 10, announced, ""},
		{"a trailer with blanks", "a\r\ndummy data\r\n0\r\nX-Amz-Checksum-CRC32C:  sOO8/Q== \r\n\r\n", 10, announced, ""},
		{"minio-go's trailer", "a\r\ndummy data\r\n0\r\n" + crc + "\n\r\n\r\n", 10, announced, ""},
		{"minio-go's trailer, cut", "a\r\ndummy data\r\n0\r\n" + crc + "\n\r\n", 10, announced, ""},
		{"a trailer whose lines end in \\n", "a\r\ndummy data\r\n0\r\n" + crc + "\n\n\n", 10, announced, ""},

		{"a line that ends in \\n", "A\ndummy data\r\n0\r\n\r\n", 10, announced, saysIncomplete},
		{"no line end behind a chunk", "A\r\ndummy data0\r\n\r\n", 10, announced, saysIncomplete},
		{"more than the chunk", "A\r\nXYZ\r\ndummy data\r\n0\r\n\r\n", 10, announced, saysIncomplete},
		{"less than the chunk", "B\r\ndummy data\r\n0\r\n\r\n", 10, announced, saysIncomplete},
		{"no trailer, and an end", "A\r\ndummy data\r\n0\r\n", 10, announced, saysIncomplete},
		{"no end behind the trailer", "A\r\ndummy data\r\n0\r\n" + crc + "\r\n", 10, announced, saysIncomplete},
		{"half a trailer", "A\r\ndummy data\r\n0\r\n" + crc, 10, announced, saysIncomplete},
		{"a size alone", "A\r\n", 10, announced, saysIncomplete},
		{"half a size", "A", 10, nil, saysIncomplete},
		{"no body", "", 10, nil, saysIncomplete},
		{"a size that is none", "size\r\ndummy data\r\n0\r\n\r\n", 10, nil, saysIncomplete},
		{"a size with a sign", "+a\r\ndummy data\r\n0\r\n\r\n", 10, nil, saysIncomplete},
		{"a negative size", "-a\r\ndummy data\r\n0\r\n\r\n", 10, nil, saysIncomplete},
		{"a size in C", "0xa\r\ndummy data\r\n0\r\n\r\n", 10, nil, saysIncomplete},
		{"an empty size", "\r\ndummy data\r\n0\r\n\r\n", 10, nil, saysIncomplete},
		{"a size of 2^63", "8000000000000000\r\ndummy data\r\n0\r\n\r\n", 10, nil, saysIncomplete},
		{"a size of 2^64", "10000000000000000\r\ndummy data\r\n0\r\n\r\n", 10, nil, saysIncomplete},
		{"a line too long", "a;" + strings.Repeat("x", maxChunkHeader) + "\r\ndummy data\r\n0\r\n\r\n", 10, nil, saysIncomplete},
		{"a line without end", strings.Repeat("0", 1<<20), 10, nil, saysIncomplete},
		{"the last size is none", "a\r\ndummy data\r\nJ\r\n" + crc + "\r\n\r\n", 10, announced, saysIncomplete},

		{"shorter than announced", "b\r\nabcdefghijk\r\n0\r\n\r\n", 200, nil, saysLength},
		{"longer than announced", "b\r\nabcdefghijk\r\n0\r\n\r\n", 5, nil, saysLength},
		{"longer by a chunk", sized(minChunk, 10, 0), minChunk, nil, saysLength},
		{"announced as nothing", "1\r\na\r\n0\r\n\r\n", 0, nil, saysLength},
		{"largest size", "7fffffffffffffff\r\ndummy data\r\n0\r\n\r\n", 10, nil, saysIncomplete},

		{"sizes", sized(8192, 8192, 100, 0), 16484, nil, ""},
		{"other sizes", sized(8200, 8201, 10000, 10, 0), 26411, nil, ""},
		{"a small one first", sized(100, 8192, 100, 0), 8392, nil, saysSize},
		{"a small one in the middle", sized(8192, 10, 100, 0), 8302, nil, saysSize},
		{"one byte too small", sized(8191, 1, 0), 8192, nil, saysSize},

		{"announced, and not there", "5\r\nhello\r\n0\r\n\r\n", 5, announced, saysTrailer},
		{"there, and not announced", "5\r\nhello\r\n0\r\n" + crc + "\r\n\r\n", 5, nil, saysTrailer},
		{"another one", "5\r\nhello\r\n0\r\nx-amz-checksum-sha1:YR/1TvTYOJz5gtqVFoBJBtmTibY=\r\n\r\n", 5, announced, saysTrailer},
		{"one more", "5\r\nhello\r\n0\r\n" + crc + "\r\nx-amz-meta-a:1\r\n\r\n", 5, announced, saysTrailer},
		{"twice", "5\r\nhello\r\n0\r\n" + crc + "\r\n" + crc + "\r\n\r\n", 5, announced, saysTrailer},
		{"one of two", "5\r\nhello\r\n0\r\n" + crc + "\r\n\r\n", 5, []string{testTrailer, "X-Amz-Meta-A"}, saysTrailer},
		{"no name", "5\r\nhello\r\n0\r\n:sOO8/Q==\r\n\r\n", 5, announced, saysTrailer},
		{"no colon", "5\r\nhello\r\n0\r\nsOO8\r\n\r\n", 5, announced, saysTrailer},
		{"signed, though not by its announcement", "5\r\nhello\r\n0\r\n" + crc + "\r\nx-amz-trailer-signature:" + emptyHash + "\r\n\r\n", 5, announced, saysTrailer},
		{"a control character", "5\r\nhello\r\n0\r\nx-amz-checksum-crc32c:a\rb\r\n\r\n", 5, announced, saysIncomplete},
		{"long trailers", "5\r\nhello\r\n0\r\n" + crc + strings.Repeat(" ", maxTrailer) + "\r\n\r\n", 5, announced, saysIncomplete},
		{"many lines", "5\r\nhello\r\n0\r\n" + strings.Repeat("a:b\r\n", maxTrailer/5+1) + "\r\n", 5, announced, saysIncomplete},

		{"more behind it", "a\r\ndummy data\r\n0\r\n\r\nx", 10, nil, "The request body goes on behind its last chunk"},
		{"more behind the trailer", "a\r\ndummy data\r\n0\r\n" + crc + "\r\n\r\n\r\n", 10, announced, "The request body goes on behind its last chunk"},
	} {
		for how, body := range map[string]io.Reader{"at once": strings.NewReader(c.wire), "byte by byte": iotest.OneByteReader(strings.NewReader(c.wire))} {
			chunks := NewChunks(UnsignedChunksTrailer, body, ChunkOptions{Length: c.length, Trailers: c.trailers})
			content, err := io.ReadAll(chunks)
			var e *Error
			switch {
			case c.says == "" && (err != nil || int64(len(content)) != c.length || len(chunks.Trailer()) != len(c.trailers)):
				t.Errorf("%s, %s: %q, %v", c.name, how, content, err)
			case c.says != "" && (!errors.As(err, &e) || e.Status != 400 || e.Message != c.says || chunks.Trailer() != nil):
				t.Errorf("%s, %s: %v, want %s", c.name, how, err, c.says)
			case int64(len(content)) > c.length:
				t.Errorf("%s, %s: %d bytes of %d", c.name, how, len(content), c.length)
			}
			if n, again := chunks.Read(make([]byte, 1)); n != 0 || again == nil || err != nil && !errors.Is(again, err) {
				t.Errorf("%s, %s: read again: %d, %v", c.name, how, n, again)
			}
		}
	}
}

// TestSignedFraming changes a signed body as broken clients do.
func TestSignedFraming(t *testing.T) {
	const name = "x-amz-trailer-signature:"
	replace := func(old, new string) func(string) string {
		return func(wire string) string { return strings.Replace(wire, old, new, 1) }
	}
	last := func(old, new string) func(string) string {
		return func(wire string) string {
			at := strings.LastIndex(wire, old)
			return wire[:at] + new + wire[at+len(old):]
		}
	}
	for _, c := range []struct {
		name    string
		payload Payload
		change  func(wire string) string
		says    string
	}{
		{"no signature", SignedChunks, func(wire string) string { return "7\r\n" + wire[strings.Index(wire, "\n")+1:] }, saysIncomplete},
		{"another extension", SignedChunks, replace("chunk-signature", "chunk-signatur"), saysIncomplete},
		{"two extensions", SignedChunks, replace("7;", "7;a=b;"), saysIncomplete},
		{"a colon", SignedChunks, replace("7;", "7:"), saysIncomplete},
		{"a short signature", SignedChunks, func(wire string) string { return wire[:20] + wire[21:] }, saysIncomplete},
		{"no line end behind the size", SignedChunks, replace("\r\n", ""), saysIncomplete},
		{"no line end behind the chunk", SignedChunks, replace("abcdefg\r\n", "abcdefg"), saysIncomplete},
		{"something else behind the chunk", SignedChunks, replace("abcdefg\r\n", "abcdefg wrong"), saysIncomplete},
		{"something else at the end", SignedChunks, last("\r\n\r\n", "bbbb"), saysIncomplete},
		{"the last byte", SignedChunks, last("\n", "s"), saysIncomplete},
		{"no last line end", SignedChunks, last("\r\n", ""), ""},
		{"a trailer that cannot be", SignedChunks, last("\r\n", "x-amz-checksum-crc32c:sOO8/Q==\r\n\r\n"), saysIncomplete},

		{"trailer: the line end of the last chunk", SignedChunksTrailer, func(wire string) string { return wire[:175] + "k" + wire[176:] }, saysIncomplete},
		{"trailer: no signature", SignedChunksTrailer, func(wire string) string { return wire[:strings.Index(wire, name)] + "\r\n" }, saysIncomplete},
		{"trailer: no line end", SignedChunksTrailer, replace("\n"+name, "bcd"+name), saysIncomplete},
		{"trailer: another name of the signature", SignedChunksTrailer, replace(name, "x-amz-trailer-sig:"), saysIncomplete},
		{"trailer: a long signature", SignedChunksTrailer, replace(name, name+"a"), saysIncomplete},
		{"trailer: no end", SignedChunksTrailer, last("\r\n", "pp"), saysIncomplete},
		{"trailer: no line ends at the end", SignedChunksTrailer, last("\r\n\r\n", "erty"), saysIncomplete},
		{"trailer: no last line end", SignedChunksTrailer, last("\r\n", ""), ""},
		{"trailer: more behind the signature", SignedChunksTrailer, last("\r\n", "a:b\r\n\r\n"), saysIncomplete},
		{"trailer: minio-go's line end", SignedChunksTrailer, replace("\r\n"+name, "\n\r\n"+name), ""},
		{"trailer: none", SignedChunksTrailer, replace("x-amz-checksum-crc32c:sOO8/Q==", ""), saysTrailer},
		{"trailer: another", SignedChunksTrailer, replace("x-amz-checksum-crc32c", "x-amz-checksum-sha1"), saysTrailer},
		{"trailer: not as signed", SignedChunksTrailer, replace("sOO8", "sOO9"), "The request signature we calculated does not match the signature you provided. Check your key and signing method."},
	} {
		b := chunkBody{payload: c.payload, content: []byte("abcdefg")}
		if c.payload == SignedChunksTrailer {
			b.value = "sOO8/Q=="
		}
		id, seed := b.identity(t)
		wire := c.change(string(b.wire(t, seed)))
		content, err := io.ReadAll(id.Chunks(strings.NewReader(wire), b.options()))
		var e *Error
		if c.says == "" && (err != nil || string(content) != "abcdefg") || c.says != "" && (!errors.As(err, &e) || e.Message != c.says) {
			t.Errorf("%s: %q: %q, %v; want %q", c.name, wire, content, err, c.says)
		}
	}
}

// TestSignedLengths: the announced length counts for signed chunks as well, and the smallest and largest chunk.
func TestSignedLengths(t *testing.T) {
	for _, c := range []struct {
		length int64
		size   int
		says   string
	}{{100, 8, saysLength}, {100, 99, saysLength}, {99, 100, saysLength}, {100, 100, ""}, {0, 1, saysLength}} {
		b := chunkBody{payload: SignedChunks, content: make([]byte, c.size)}
		id, seed := b.identity(t)
		content, err := io.ReadAll(id.Chunks(bytes.NewReader(b.wire(t, seed)), ChunkOptions{Length: c.length}))
		var e *Error
		if (err == nil) != (c.says == "") || errors.As(err, &e) && e.Message != c.says || int64(len(content)) > c.length {
			t.Errorf("%d bytes, %d announced: %d, %v", c.size, c.length, len(content), err)
		}
	}
	b := chunkBody{payload: SignedChunks, content: make([]byte, 30), sizes: []int{10, 10}}
	id, seed := b.identity(t)
	_, err := io.ReadAll(id.Chunks(bytes.NewReader(b.wire(t, seed)), b.options()))
	var e *Error
	if !errors.As(err, &e) || e.Message != saysSize || detail(e, "Chunk") != "1" || detail(e, "BadChunkSize") != "10" {
		t.Errorf("small chunks: %v", err)
	}
	large := fmt.Sprintf("%x;chunk-signature=%s\r\n", maxChunk+1, emptyHash)
	_, err = io.ReadAll(id.Chunks(io.MultiReader(strings.NewReader(large), iotest.ErrReader(errors.New("read past the line"))), ChunkOptions{Length: maxChunk + 1}))
	if !errors.As(err, &e) || e.Code != "InvalidChunkSizeError" || detail(e, "BadChunkSize") != "16777217" {
		t.Errorf("a large chunk: %v", err)
	}
}

// TestMemoryOfChunks: what is held grows with what arrived, is asked for, and is given back once.
func TestMemoryOfChunks(t *testing.T) {
	const size = 3 << 20
	b := chunkBody{payload: SignedChunks, content: make([]byte, size)}
	id, seed := b.identity(t)
	wire := b.wire(t, seed)
	var asked int64
	o := b.options()
	o.Reserve = func(n int64) bool { asked += n; return n > 0 }
	chunks := id.Chunks(bytes.NewReader(wire), o)
	if content, err := io.ReadAll(chunks); err != nil || len(content) != size {
		t.Fatalf("%d bytes, %v", len(content), err)
	}
	if got := chunks.Release(); got != asked || got != size-freeChunk || chunks.Release() != 0 {
		t.Errorf("%d bytes given back of %d", got, asked)
	}

	asked = 0
	chunks = id.Chunks(bytes.NewReader(wire[:freeChunk]), o)
	if _, err := io.ReadAll(chunks); codeOf(err) != incompleteBody || asked > freeChunk {
		t.Errorf("%v, %d bytes reserved for a chunk of which %d came", err, asked, freeChunk)
	}

	o.Reserve = func(int64) bool { return false }
	chunks = id.Chunks(bytes.NewReader(wire), o)
	content, err := io.ReadAll(chunks)
	var e *Error
	if !errors.As(err, &e) || e.Status != 503 || e.Code != "SlowDown" || len(content) != 0 || chunks.Release() != 0 {
		t.Errorf("no memory: %d bytes, %v", len(content), err)
	}
	small := chunkBody{payload: SignedChunks, content: make([]byte, 2*freeChunk), sizes: []int{freeChunk}}
	id, seed = small.identity(t)
	chunks = id.Chunks(bytes.NewReader(small.wire(t, seed)), ChunkOptions{Length: 2 * freeChunk, Reserve: o.Reserve})
	if content, err := io.ReadAll(chunks); err != nil || len(content) != 2*freeChunk {
		t.Errorf("chunks that need no asking: %d bytes, %v", len(content), err)
	}
	chunks = id.Chunks(bytes.NewReader(small.wire(t, seed)), ChunkOptions{Length: 2 * freeChunk})
	if n, err := chunks.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	chunks.Release()
	if n, err := chunks.Read(make([]byte, 1)); n != 0 || err == nil || err == io.EOF {
		t.Errorf("read after the release: %d, %v", n, err)
	}
}

// TestBodyErrors: what the body itself returns comes through, wherever it is.
func TestBodyErrors(t *testing.T) {
	broken := errors.New("broken")
	for _, p := range []Payload{SignedChunks, SignedChunksTrailer, UnsignedChunksTrailer} {
		b := smallBody(p)
		id, seed := b.identity(t)
		wire := b.wire(t, seed)
		for at := 0; at <= len(wire); at++ {
			if at > 200 && at < len(wire)-400 {
				continue
			}
			content, err := io.ReadAll(id.Chunks(io.MultiReader(bytes.NewReader(wire[:at]), iotest.ErrReader(broken)), b.options()))
			if !errors.Is(err, broken) || !bytes.HasPrefix(b.content, content) {
				t.Fatalf("%v, broken at %d: %d bytes, %v", p, at, len(content), err)
			}
		}
	}
}

func TestUnverified(t *testing.T) {
	for value, want := range map[string]Payload{
		unsignedPayload: Unsigned, emptyHash: Hashed, strings.ToUpper(emptyHash): Hashed, streamingSigned: SignedChunks, streamingTrailer: SignedChunksTrailer, unsignedTrailer: UnsignedChunksTrailer,
	} {
		p, err := Unverified(http.Header{"X-Amz-Content-Sha256": {value}})
		if err != nil || p != want || p.Chunked() != strings.HasPrefix(value, streaming) || p.String() == "unknown" {
			t.Errorf("%s: %v, %v", value, p, err)
		}
	}
	if p, err := Unverified(http.Header{}); p != Unsigned || err != nil {
		t.Errorf("none: %v, %v", p, err)
	}
	for value, code := range map[string]string{"": invalidArgument, "x": invalidArgument, streamingV4A + "P256-SHA256-PAYLOAD": notImplemented} {
		if _, err := Unverified(http.Header{"X-Amz-Content-Sha256": {value}}); codeOf(err) != code {
			t.Errorf("%s: %v", value, err)
		}
	}
	if _, err := Unverified(http.Header{"X-Amz-Content-Sha256": {emptyHash, emptyHash}}); codeOf(err) != invalidArgument {
		t.Errorf("two: %v", err)
	}
}
