package s3

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A line of the head of a request, as it stood on the wire: what net/http makes of it is not what the store sees.
func (g got) line(header string) (lines []string) {
	for line := range strings.SplitSeq(g.head, crlf) {
		if name, value, _ := strings.Cut(line, ":"); strings.EqualFold(name, header) {
			lines = append(lines, strings.TrimPrefix(value, " "))
		}
	}
	return lines
}

// TestUntouched: trap 1, HTTP is forwarded and not made anew. Reads that nobody here has heard of, sub-resources, versions, parts, ranges and
// overrides of the answer reach the store with the headers and the parameters that they had, and no header is invented. Trap 4: of what those on the way
// may rewrite, nothing is signed.
func TestUntouched(t *testing.T) {
	f := newFake(t, answering(ok))
	s := open(t, f.url)
	for _, test := range []struct {
		method, target, wire string
		headers              []string
	}{
		{"GET", "/bucket?anything&in=the+world", "/bucket?anything=&in=the%20world", nil},
		{"GET", "/bucket/key?not-yet-invented=1", "/bucket/key?not-yet-invented=1", []string{"X-Amz-Not-Yet-Invented", "2"}},
		{"GET", "/bucket/key?attributes", "/bucket/key?attributes=", []string{"X-Amz-Object-Attributes", "ETag,Checksum", "X-Amz-Max-Parts", "2"}},
		{"GET", "/bucket?policyStatus", "/bucket?policyStatus=", []string{"X-Amz-Expected-Bucket-Owner", "111122223333"}},
		{"GET", "/bucket/key?torrent", "/bucket/key?torrent=", []string{"X-Amz-Request-Payer", "requester"}},
		{"HEAD", "/bucket/key?versionId=a%2Fb%2B&partNumber=2", "/bucket/key?versionId=a%2Fb%2B&partNumber=2", []string{"X-Amz-Checksum-Mode", "ENABLED"}},
		{
			"GET", "/bucket/key?response-content-type=text%2Fplain%3B%20charset%3Dx&response-expires=now", "/bucket/key?response-content-type=text%2Fplain%3B%20charset%3Dx&response-expires=now",
			[]string{"Range", "bytes=-5", "If-None-Match", `"a", "b"`, "If-Modified-Since", "Sat, 01 Jan 2000 00:00:00 GMT", "Accept-Encoding", "identity;q=1, *;q=0", "User-Agent", "me/1"},
		},
		{"GET", "/bucket?list-type=2&encoding-type=url&delimiter=%2F&start-after=a+b", "/bucket?list-type=2&encoding-type=url&delimiter=%2F&start-after=a%20b", nil},
		{"POST", "/bucket/key?select&select-type=2", "/bucket/key?select=&select-type=2", nil},
		{"POST", "/bucket/key?restore&versionId=1", "/bucket/key?restore=&versionId=1", nil},
		{"PUT", "/bucket/key?renameObject", "/bucket/key?renameObject=", []string{"X-Amz-Rename-Source", "bucket/a%2Bb", "X-Amz-Rename-Source-If-Match", `"e"`, "X-Amz-Client-Token", "t"}},
		{"PUT", "/bucket/key", "/bucket/key", []string{"X-Amz-Write-Offset-Bytes", "1024"}},
		{"OPTIONS", "/bucket/key", "/bucket/key", []string{"Origin", "https://a.example", "Access-Control-Request-Method", "PUT", "Access-Control-Request-Headers", "x-amz-date, content-type"}},
	} {
		before := len(f.requests())
		if w := do(s, test.method, test.target, nil, test.headers...); w.Code != 200 {
			t.Fatalf("%s %s: %d %s", test.method, test.target, w.Code, w.Body)
		}
		g := f.requests()[before]
		checkSignature(t, g)
		if !strings.HasPrefix(g.head, test.method+" "+test.wire+" HTTP/1.1"+crlf) {
			t.Errorf("%s %s went as %s", test.method, test.target, g.head)
		}
		own := map[string]bool{"Host": true, "X-Amz-Date": true, "X-Amz-Content-Sha256": true, "Authorization": true, "Content-Length": true}
		for i := 0; i < len(test.headers); i += 2 {
			own[test.headers[i]] = true
			if v := g.line(test.headers[i]); !slices.Equal(v, test.headers[i+1:i+2]) {
				t.Errorf("%s %s: %s went as %q", test.method, test.target, test.headers[i], v)
			}
		}
		for name := range g.Header {
			if !own[name] {
				t.Errorf("%s %s: nobody has sent %s: %q", test.method, test.target, name, g.Header[name])
			}
		}
		_, signed, _ := strings.Cut(g.Header.Get("Authorization"), "SignedHeaders=")
		for _, name := range []string{"range", "accept-encoding", "user-agent", "origin", "if-modified-since"} {
			if signed, _, _ := strings.Cut(signed, ","); slices.Contains(strings.Split(signed, ";"), name) {
				t.Errorf("%s is signed", name)
			}
		}
	}
}

// TestHeaderBytes: trap 12, metadata that is not ASCII; trap 5, the ways in which clients encode what they copy from. They stay byte by byte what they
// were, in a signature that covers them, wherever it stands.
func TestHeaderBytes(t *testing.T) {
	values := []string{
		"gr\u00fc\u00dfe \u65e5\u672c", "=?UTF-8?B?w7w=?=", "\xe4\xf6\xfc in Latin-1", "\xff\xfe", "tab\there", "a;b,c=d", `"quoted"`, "",
		"/bucket/a%2Fb", "bucket/a/b", "bucket/a+b", "bucket/a%2Bb%20c", "bucket/\u00fc \u65e5?versionId=a+b%2F", "bucket/%C3%BC", "arn:aws:s3:us-east-1:1:accesspoint/x/object/k",
	}
	for _, queried := range []bool{false, true} {
		bubble(t, fmt.Sprintf("in the query %v", queried), func(t *testing.T) {
			f := newMemory(t, dated(0))
			s := expiring(t, f)
			if !queried {
				s.found.Store(nil)
			}
			for _, v := range values {
				before := len(f.requests())
				if w := do(s, "PUT", "/bucket/key", nil, "X-Amz-Copy-Source", v, "X-Amz-Meta-V", v); w.Code != 200 {
					t.Fatalf("%q: %d %s", v, w.Code, w.Body)
				}
				g := f.requests()[before]
				for _, name := range []string{"X-Amz-Copy-Source", "X-Amz-Meta-V"} {
					if came := g.line(name); !slices.Equal(came, []string{v}) {
						t.Errorf("%s: %q came as %q", name, v, came)
					}
				}
				if queried {
					checkPresigned(t, g)
				} else {
					checkSignature(t, g)
				}
			}
		})
	}
}

// TestContentEncoding: trap 6, aws-chunked is of the way here, and not of the object. The other ones stay, in their order; and without it everything stays.
func TestContentEncoding(t *testing.T) {
	f := newFake(t, answering(ok))
	s := open(t, f.url)
	for in, want := range map[string]string{
		"gzip": "gzip", "gzip, br": "gzip, br", "br,gzip": "br,gzip", "aws-chunked": "", "aws-chunked,gzip": "gzip", "gzip, AWS-Chunked, br": "gzip,br",
		"gzip,aws-chunked,": "gzip", "x-aws-chunked": "x-aws-chunked",
	} {
		before := len(f.requests())
		if w := do(s, "PUT", "/bucket/key", strings.NewReader("content"), "Content-Encoding", in); w.Code != 200 {
			t.Fatal(w.Code, w.Body)
		}
		if got := strings.Join(f.requests()[before].line("Content-Encoding"), "|"); got != want {
			t.Errorf("%q went as %q, want %q", in, got, want)
		}
	}
}

// TestEmptyObject: trap 7, an object of nothing has a length and the hash of nothing, whatever its signature and its checksum; trap 3, nobody waits
// to be asked for it.
func TestEmptyObject(t *testing.T) {
	for _, queried := range []bool{false, true} {
		bubble(t, fmt.Sprintf("in the query %v", queried), func(t *testing.T) {
			f := newMemory(t, dated(0))
			s := expiring(t, f)
			if !queried {
				s.found.Store(nil)
			}
			r := mode{whole: true}.request(t.Context(), "/bucket/key", nil, 0, passes, "X-Amz-Checksum-Crc32", "AAAAAA==", "X-Amz-Sdk-Checksum-Algorithm", "CRC32", "Expect", "100-continue")
			w := httptest.NewRecorder()
			if s.ServeHTTP(w, r); w.Code != 200 {
				t.Fatal(w.Code, w.Body)
			}
			g := f.requests()[1]
			for name, want := range map[string]string{"Content-Length": "0", "Expect": "", "Transfer-Encoding": "", "X-Amz-Checksum-Crc32": "AAAAAA==", "X-Amz-Sdk-Checksum-Algorithm": "CRC32"} {
				if got := strings.Join(g.line(name), "|"); got != want {
					t.Errorf("%s is %q, want %q", name, got, want)
				}
			}
		})
	}
}

// TestAnswers: traps 8 and 9, what the store answers is what its client gets: quotes of ETags, ids, lists as they are encoded, no body where there is
// none, an error inside a success; and nothing is added. Trap 11: the refusal of a clock says both times.
func TestAnswers(t *testing.T) {
	const skewed = "<Error><Code>RequestTimeTooSkewed</Code><RequestTime>1</RequestTime><ServerTime>2</ServerTime></Error>"
	const list = "<ListBucketResult><EncodingType>url</EncodingType><Key>a%2Bb+c</Key></ListBucketResult>"
	for name, test := range map[string]struct {
		ask, head, body string
	}{
		"part of an object": {"GET /bucket/key", "206 Partial Content\r\nContent-Range: bytes 1-3/9\r\nEtag: \"a-2\"\r\nContent-Encoding: gzip\r\nAccept-Ranges: bytes", "\x1f\x8b\x00"},
		"ETag bare":         {"GET /bucket/key", "200 OK\r\nEtag: abc", "x"},
		"ETag weak":         {"PUT /bucket/key", "200 OK\r\nContent-Length: 0\r\nEtag: W/\"abc\"", ""},
		"HEAD":              {"HEAD /bucket/key", "200 OK\r\nContent-Length: 123456789\r\nEtag: \"e\"\r\nX-Amz-Meta-V: v", ""},
		"HEAD of nothing":   {"HEAD /bucket/key", "404 Not Found\r\nX-Amz-Request-Id: R\r\nX-Amz-Id-2: I/2=", ""},
		"unchanged":         {"GET /bucket/key", "304 Not Modified\r\nEtag: \"e\"\r\nLast-Modified: Sat, 01 Jan 2000 00:00:00 GMT", ""},
		"no content":        {"DELETE /bucket/key", "204 No Content\r\nX-Amz-Version-Id: null\r\nX-Amz-Delete-Marker: true", ""},
		"list":              {"GET /bucket?list-type=2&encoding-type=url", "200 OK\r\nContent-Type: application/xml", list},
		"no type":           {"GET /bucket/key", "200 OK", "<html>hi"},
		"error in 200":      {"POST /bucket/key?uploadId=1", "200 OK\r\nContent-Type: application/xml", "   <Error><Code>PreconditionFailed</Code></Error>"},
		"metadata":          {"GET /bucket/key", "200 OK\r\nContent-Length: 0\r\nX-Amz-Meta-A: gr\u00fc\u00dfe \xff\r\nX-Amz-Missing-Meta: 1", ""},
		"clock":             {"PUT /bucket/key", "403 Forbidden\r\nX-Amz-Request-Id: R", skewed},
		"redirect":          {"GET /bucket/key", "307 Temporary Redirect\r\nContent-Length: 0\r\nLocation: http://elsewhere/", ""},
		"preflight":         {"OPTIONS /bucket/key", "200 OK\r\nContent-Length: 0\r\nAccess-Control-Allow-Origin: *\r\nVary: Origin, Access-Control-Request-Headers", ""},
	} {
		t.Run(name, func(t *testing.T) {
			answer := "HTTP/1.1 " + test.head + "\r\nDate: Sat, 01 Jan 2000 00:00:00 GMT\r\n\r\n"
			if test.body != "" {
				answer = fmt.Sprintf("HTTP/1.1 %s\r\nContent-Length: %d%s", test.head, len(test.body), answer[len("HTTP/1.1 ")+len(test.head):])
			}
			f := newFake(t, func(f *fake, c *recording, _ int) {
				if _, err := f.request(c); err == nil {
					_, _ = io.WriteString(c, answer+test.body)
				}
			})
			front := newRaw(t, open(t, f.url))
			method, target, _ := strings.Cut(test.ask, " ")
			head, body, _ := strings.Cut(front.ask(t, method, target), "\r\n\r\n")
			if body != test.body {
				t.Errorf("the body came as %q", body)
			}
			want := append(strings.Split(strings.TrimSuffix(answer, "\r\n\r\n"), "\r\n"), "Connection: close")
			got := strings.Split(head, "\r\n")
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("the head came as\n%q, want\n%q", got, want)
			}
		})
	}
}

// A raw front is the store behind a server of net/http, asked on a connection whose bytes can be seen.
type raw struct{ address string }

func newRaw(t *testing.T, h http.Handler) raw {
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return raw{strings.TrimPrefix(server.URL, "http://")}
}

func (r raw) ask(t *testing.T, method, target string) string {
	t.Helper()
	c, err := net.Dial("tcp", r.address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: front\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", method, target); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(answer)
}

// TestLongUpload: trap 11, the time of an upload is judged when its head comes. One that takes longer than a signature lives goes on under the one that
// it began with, to its last chunk.
func TestLongUpload(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		began := time.Now()
		f := newMemory(t, answering(ok))
		content := make([]byte, 3*chunkSize)
		r := mode{kind: "Sha256"}.request(t.Context(), "/bucket/key", content, len(content), func() error {
			time.Sleep(time.Hour)
			synctest.Wait()
			return nil
		})
		w := httptest.NewRecorder()
		if f.open().ServeHTTP(w, r); w.Code != 200 {
			t.Fatal(w.Code, w.Body)
		}
		g := f.requests()[0]
		if data, _ := unframe(t, g); len(data) != len(content) || g.Header.Get(dateHeader) != began.UTC().Format(dateFormat) {
			t.Errorf("%d bytes, signed at %s", len(data), g.Header.Get(dateHeader))
		}
	})
}

// TestMemory: trap 12, no body is read in whole. A streaming upload keeps two chunks, however long it is.
func TestMemory(t *testing.T) {
	store := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	defer store.Close()
	s := open(t, store.URL)
	const size = 64 << 20
	for _, kind := range []string{"", "Crc32"} {
		r := httptest.NewRequest(http.MethodPut, "/bucket/key", nil)
		r.Body, r.ContentLength = io.NopCloser(io.LimitReader(zeros{}, size)), size
		if kind != "" {
			r.Trailer = http.Header{checksumPrefix + kind: {digest(kind, nil)}}
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		runtime.ReadMemStats(&after)
		if w.Code != 200 {
			t.Fatal(w.Code, w.Body)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > size/16 {
			t.Errorf("%d bytes took %d bytes of memory", size, took)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestWhitespace: trap 8, the blanks that keep a client waiting come at once, ahead of any document: for the proxy each piece is a Write and a Flush.
func TestWhitespace(t *testing.T) {
	for _, ask := range []string{"POST /bucket/key?uploadId=1", "PUT /bucket/key", "GET /bucket/key?attributes"} {
		bubble(t, ask, func(t *testing.T) {
			document := "<?xml version=\"1.0\"?>\n<Done/>"
			f := newMemory(t, func(f *fake, c *recording, _ int) {
				if _, err := f.request(c); err != nil {
					return
				}
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
				for _, piece := range []string{" ", " \n", document} {
					time.Sleep(50 * time.Second) // more than a store has to answer, altogether
					_, _ = fmt.Fprintf(c, "%x\r\n%s\r\n", len(piece), piece)
				}
				_, _ = io.WriteString(c, "0\r\n\r\n")
			})
			began := time.Now()
			w := &pieces{ResponseRecorder: httptest.NewRecorder(), began: began}
			method, target, _ := strings.Cut(ask, " ")
			r := httptest.NewRequest(method, target, strings.NewReader("<X/>"))
			r.Header.Set("X-Amz-Copy-Source", "bucket/a")
			f.open().ServeHTTP(w, r)
			want := []string{"0s: ", "50s:  ", "1m40s:  \n", "2m30s: " + document}
			if !slices.Equal(w.out, want) {
				t.Errorf("%q came, want %q", w.out, want)
			}
		})
	}
}

// pieces notes what is flushed, and when.
type pieces struct {
	*httptest.ResponseRecorder
	began time.Time
	out   []string
	last  bytes.Buffer
}

func (p *pieces) Write(b []byte) (int, error) { return p.last.Write(b) }

func (p *pieces) Flush() {
	p.out = append(p.out, fmt.Sprintf("%v: %s", time.Since(p.began), &p.last))
	p.last.Reset()
}
