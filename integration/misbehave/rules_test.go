package misbehave

import (
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestObjects(t *testing.T) {
	inWorld(t, Options{}, func(w *world) {
		g := w.put("a/b c", "one", "Content-Type", "text/plain", "X-Amz-Meta-Who", "me")
		if g.etag != tag("one") {
			w.Errorf("ETag %s", g.etag)
		}
		w.has("a/b%20c", "one")
		w.put("a//b", "slashes")
		w.put("a/b", "slash")
		w.put("A/b", "case")
		w.put("a/./b", "dot")
		w.has("a//b", "slashes")
		w.has("a/b", "slash")
		w.has("A/b", "case")
		w.has("a/./b", "dot")
		h := w.want(w.do("HEAD", "/b/a/b%20c", ""), 200, "")
		if h.header.Get("Content-Type") != "text/plain" || h.header.Get("X-Amz-Meta-Who") != "me" || h.etag != tag("one") || h.header.Get("Content-Length") != "3" {
			w.Errorf("HEAD: %v", h.header)
		}
		w.want(w.do("GET", "/b/nothing", ""), 404, "NoSuchKey")
		w.want(w.do("HEAD", "/b/nothing", ""), 404, "")
		w.want(w.do("PUT", "/none/a", "x"), 404, "NoSuchBucket")
		w.want(w.do("DELETE", "/b/a/b", ""), 204, "")
		w.want(w.do("DELETE", "/b/a/b", ""), 204, "")
		w.has("a/b", "")
		if g := w.do("GET", "/b/a//b", "", "Range", "bytes=1-2"); g.status != 206 || g.body != "la" {
			w.Errorf("range: %+v", g)
		}
		w.want(w.do("PUT", "/b/a?tagging", "x"), 501, "NotImplemented")
	})
}

func TestBuckets(t *testing.T) {
	inWorld(t, Options{}, func(w *world) {
		w.want(w.do("HEAD", "/c", ""), 404, "")
		w.want(w.do("PUT", "/c", ""), 200, "")
		w.want(w.do("PUT", "/c", ""), 409, "BucketAlreadyOwnedByYou")
		w.want(w.do("HEAD", "/c", ""), 200, "")
		if g := w.want(w.do("GET", "/c?versioning", ""), 200, ""); !strings.HasSuffix(g.body, "<VersioningConfiguration></VersioningConfiguration>") {
			w.Errorf("versioning: %s", g.body)
		}
		w.want(w.do("GET", "/c?object-lock", ""), 404, "ObjectLockConfigurationNotFoundError")
		w.want(w.do("PUT", "/c/k", "x"), 200, "")
		w.want(w.do("DELETE", "/c", ""), 409, "BucketNotEmpty")
		w.want(w.do("DELETE", "/c/k", ""), 204, "")
		w.want(w.do("DELETE", "/c", ""), 204, "")
	})
}

func TestList(t *testing.T) {
	inWorld(t, Options{}, func(w *world) {
		for _, key := range []string{"p/3", "p/1", "q", "p/2"} {
			w.put(key, key)
		}
		var keys []string
		next := ""
		for pages := 1; ; pages++ {
			g := w.want(w.do("GET", "/b?list-type=2&prefix=p/&max-keys=2"+next, ""), 200, "")
			var page struct {
				IsTruncated           bool
				NextContinuationToken string
				Contents              []struct {
					Key  string
					ETag string
					Size int
				}
			}
			if err := xml.Unmarshal([]byte(g.body), &page); err != nil {
				w.Fatal(err)
			}
			for _, c := range page.Contents {
				keys = append(keys, fmt.Sprintf("%s:%v:%d", c.Key, c.ETag == tag(c.Key), c.Size))
			}
			if !page.IsTruncated {
				if pages != 2 {
					w.Errorf("%d pages", pages)
				}
				break
			}
			next = "&continuation-token=" + page.NextContinuationToken
		}
		if got := strings.Join(keys, " "); got != "p/1:true:3 p/2:true:3 p/3:true:3" {
			w.Errorf("listed %s", got)
		}
	})
}

func TestConditions(t *testing.T) {
	inWorld(t, Options{}, func(w *world) {
		w.want(w.do("PUT", "/b/k", "x", "If-Match", tag("x")), 404, "NoSuchKey")
		w.put("k", "one", "If-None-Match", "*")
		w.want(w.do("PUT", "/b/k", "two", "If-None-Match", "*"), 412, "PreconditionFailed")
		w.want(w.do("PUT", "/b/k", "two", "If-Match", tag("two")), 412, "PreconditionFailed")
		w.want(w.do("PUT", "/b/k", "two", "If-None-Match", tag("x")), 501, "NotImplemented")
		w.want(w.do("PUT", "/b/k", "two", "If-None-Match", "*", "If-Match", tag("one")), 501, "NotImplemented")
		w.has("k", "one")
		w.put("k", "two", "If-Match", tag("one"))
		w.put("k", "three", "If-Match", strings.Trim(tag("two"), `"`))
		w.put("k", "four", "If-Match", "*")
		w.want(w.do("DELETE", "/b/k", "", "If-Match", tag("two")), 412, "PreconditionFailed")
		w.want(w.do("DELETE", "/b/k", "", "If-Match", tag("four")), 204, "")
		w.want(w.do("DELETE", "/b/k", "", "If-Match", tag("four")), 404, "NoSuchKey")
		w.wantJournal("PutObject k=one, PutObject k=two, PutObject k=three, PutObject k=four, DeleteObject k=")
	})
}

// TestConditionAtCommit lets the object change while a body comes: it is the commit that counts, and a condition that holds again is a
// conflict.
func TestConditionAtCommit(t *testing.T) {
	for _, c := range []struct {
		name    string
		header  [2]string
		between func(*world)
		status  int
		code    string
	}{
		{"nothing", [2]string{"If-Match", tag("old")}, func(*world) {}, 200, ""},
		{"replaced", [2]string{"If-Match", tag("old")}, func(w *world) { w.put("k", "new") }, 412, "PreconditionFailed"},
		{"the same again", [2]string{"If-Match", tag("old")}, func(w *world) { w.put("k", "old") }, 409, "ConditionalRequestConflict"},
		{"removed", [2]string{"If-Match", tag("old")}, func(w *world) { w.do("DELETE", "/b/k", "") }, 404, "NoSuchKey"},
		{"removed, for one that makes", [2]string{"If-None-Match", "*"}, func(w *world) { w.do("DELETE", "/b/k", "") }, 409, "ConditionalRequestConflict"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, Options{}, func(w *world) {
				w.put("k", "old")
				pr, pw := io.Pipe()
				go func() {
					_, _ = io.WriteString(pw, "la")
					time.Sleep(time.Second)
					c.between(w)
					_, _ = io.WriteString(pw, "te")
					_ = pw.Close()
				}()
				r := w.request("PUT", "/b/k", pr, c.header[0], c.header[1])
				r.ContentLength = 4
				w.want(w.send(r), c.status, c.code)
				if c.status == 200 {
					w.has("k", "late")
				}
			})
		})
	}
}

func TestRaceHasOneWinner(t *testing.T) {
	inWorld(t, Options{}, func(w *world) {
		for _, condition := range [][2]string{{"If-None-Match", "*"}, {"If-Match", tag("first")}} {
			var wins atomic.Int32
			var all sync.WaitGroup
			for i := range 16 {
				all.Go(func() {
					content := fmt.Sprint(i)
					if condition[0] == "If-None-Match" {
						content = "first"
					}
					switch g := w.do("PUT", "/b/k", content, condition[0], condition[1]); g.status {
					case 200:
						wins.Add(1)
					case 409, 412:
					default:
						w.Errorf("%+v", g)
					}
				})
			}
			all.Wait()
			if wins.Load() != 1 {
				w.Errorf("%v: %d won", condition, wins.Load())
			}
		}
	})
}

func TestCopy(t *testing.T) {
	inWorld(t, Options{}, func(w *world) {
		w.put("from", "content", "X-Amz-Meta-A", "1")
		const source = "X-Amz-Copy-Source"
		g := w.want(w.do("PUT", "/b/to", "", source, "/b/from", "If-None-Match", "*", "X-Amz-Meta-B", "2"), 200, "")
		if !strings.Contains(g.body, "CopyObjectResult") || !strings.Contains(g.body, strings.Trim(tag("content"), `"`)) {
			w.Error(g.body)
		}
		if h := w.do("HEAD", "/b/to", ""); h.header.Get("X-Amz-Meta-A") != "1" || h.header.Get("X-Amz-Meta-B") != "" {
			w.Errorf("copied metadata: %v", h.header)
		}
		w.want(w.do("PUT", "/b/to", "", source, "b/from", "If-None-Match", "*"), 412, "PreconditionFailed")
		w.want(w.do("PUT", "/b/to", "", source, "b/from", "If-Match", tag("x")), 412, "PreconditionFailed")
		w.want(w.do("PUT", "/b/to", "", source, "b/from", "If-Match", tag("content"), "X-Amz-Metadata-Directive", "REPLACE", "X-Amz-Meta-B", "2"), 200, "")
		if h := w.do("HEAD", "/b/to", ""); h.header.Get("X-Amz-Meta-A") != "" || h.header.Get("X-Amz-Meta-B") != "2" {
			w.Errorf("replaced metadata: %v", h.header)
		}
		w.want(w.do("PUT", "/b/to", "", source, "b/none"), 404, "NoSuchKey")
		w.want(w.do("PUT", "/b/to", "", source, "none/from"), 404, "NoSuchBucket")
	})
}

func TestDeleteObjects(t *testing.T) {
	inWorld(t, Options{}, func(w *world) {
		for _, key := range []string{"1", "2", "3"} {
			w.put(key, key)
		}
		body := fmt.Sprintf("<Delete><Object><Key>1</Key><ETag>%s</ETag></Object><Object><Key>2</Key><ETag>%s</ETag></Object><Object><Key>3</Key></Object><Object><Key>4</Key></Object></Delete>",
			strings.Trim(tag("1"), `"`), strings.Trim(tag("x"), `"`))
		w.want(w.do("POST", "/b?delete", body), 400, "InvalidRequest")
		sum := md5.Sum([]byte(body))
		g := w.want(w.do("POST", "/b?delete", body, "Content-Md5", base64.StdEncoding.EncodeToString(sum[:])), 200, "")
		for _, part := range []string{"<Deleted><Key>1</Key></Deleted>", "<Error><Key>2</Key><Code>PreconditionFailed</Code>", "<Deleted><Key>3</Key></Deleted>", "<Deleted><Key>4</Key></Deleted>"} {
			if !strings.Contains(g.body, part) {
				w.Errorf("no %s in %s", part, g.body)
			}
		}
		w.has("1", "")
		w.has("2", "2")
		w.has("3", "")
	})
}

// begin begins an upload with two parts, and returns its id and the document that completes it.
func (w *world) begin(key string, headers ...string) (id, list string) {
	w.Helper()
	g := w.want(w.do("POST", "/b/"+key+"?uploads", "", headers...), 200, "")
	var created struct{ UploadId string }
	if err := xml.Unmarshal([]byte(g.body), &created); err != nil || created.UploadId == "" {
		w.Fatalf("%v %s", err, g.body)
	}
	list = "<CompleteMultipartUpload>"
	for i, content := range []string{"one", "two"} {
		target := fmt.Sprintf("/b/%s?partNumber=%d&uploadId=%s", key, i+1, created.UploadId)
		p := w.want(w.do("PUT", target, content), 200, "")
		list += fmt.Sprintf("<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>", i+1, p.etag)
	}
	return created.UploadId, list + "</CompleteMultipartUpload>"
}

func TestMultipart(t *testing.T) {
	inWorld(t, Options{}, func(w *world) {
		id, list := w.begin("k", "X-Amz-Meta-A", "1")
		w.has("k", "")
		if g := w.want(w.do("GET", "/b/k?uploadId="+id, ""), 200, ""); strings.Count(g.body, "<Part>") != 2 {
			w.Error(g.body)
		}
		w.want(w.do("POST", "/b/k?uploadId="+id, strings.Replace(list, "<PartNumber>2", "<PartNumber>3", 1)), 400, "InvalidPart")
		w.want(w.do("POST", "/b/k?uploadId=x", list), 404, "NoSuchUpload")
		w.want(w.do("POST", "/b/k?uploadId="+id, "<nonsense"), 400, "MalformedXML")
		w.want(w.do("POST", "/b/k?uploadId="+id, list, "If-None-Match", "*"), 200, "")
		w.has("k", "onetwo")
		one, two := md5.Sum([]byte("one")), md5.Sum([]byte("two"))
		h := w.do("HEAD", "/b/k", "")
		if want := strings.Trim(md5Tag(append(one[:], two[:]...)), `"`); h.etag != `"`+want+`-2"` || h.header.Get("X-Amz-Meta-A") != "1" {
			w.Errorf("HEAD: %v, want %s-2", h.header, want)
		}
		w.want(w.do("POST", "/b/k?uploadId="+id, list), 404, "NoSuchUpload")

		id, list = w.begin("k")
		w.want(w.do("DELETE", "/b/k?uploadId="+id, ""), 204, "")
		w.want(w.do("POST", "/b/k?uploadId="+id, list), 404, "NoSuchUpload")

		id, list = w.begin("k")
		w.want(w.do("PUT", "/b/k?partNumber=2&uploadId="+id, "", "X-Amz-Copy-Source", "b/k"), 200, "")
		w.want(w.do("POST", "/b/k?uploadId="+id, strings.Replace(list, tag("two"), h.etag, 1)), 400, "InvalidPart")
		w.want(w.do("POST", "/b/k?uploadId="+id, strings.Replace(list, tag("two"), tag("onetwo"), 1)), 200, "")
		w.has("k", "oneonetwo")
	})
}

// TestCompleteConflicts: any PUT since the upload began is a conflict for a Complete with a condition, one of the same bytes, too.
func TestCompleteConflicts(t *testing.T) {
	inWorld(t, Options{}, func(w *world) {
		w.put("k", "old")
		id, list := w.begin("k")
		w.want(w.do("POST", "/b/k?uploadId="+id, list, "If-None-Match", "*"), 412, "PreconditionFailed")
		w.put("k", "old")
		w.want(w.do("POST", "/b/k?uploadId="+id, list, "If-Match", tag("old")), 409, "ConditionalRequestConflict")
		w.has("k", "old")
		w.want(w.do("POST", "/b/k?uploadId="+id, list), 200, "")
		w.has("k", "onetwo")
	})
}

func TestSignatures(t *testing.T) {
	inWorld(t, Options{Now: func() time.Time { return time.Now().Add(time.Hour) }}, func(w *world) {
		s := w.store
		date := func(after time.Duration) string {
			return time.Now().Add(time.Hour + after).UTC().Format("20060102T150405Z")
		}
		signed := func(at string, names string) []string {
			return []string{"X-Amz-Date", at, "Authorization", "AWS4-HMAC-SHA256 Credential=x, SignedHeaders=" + names + ", Signature=x"}
		}
		query := func(at string, expires int, names string) string {
			return fmt.Sprintf("/b/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Date=%s&X-Amz-Expires=%d&X-Amz-SignedHeaders=%s&X-Amz-Signature=x", at, expires, names)
		}
		for _, c := range []struct {
			what, target string
			headers      []string
			status       int
			says         string
		}{
			{"none", "/b/k", nil, 403, "AccessDenied"},
			{"in the headers", "/b/k", signed(date(0), "host;x-amz-date"), 200, ""},
			{"x-amz-date unsigned", "/b/k", signed(date(0), "host"), 403, "not signed"},
			{"by another clock", "/b/k", signed(date(-time.Hour), "host;x-amz-date"), 403, "RequestTimeTooSkewed"},
			{"in the query", query(date(0), 1, "host"), nil, 200, ""},
			{"in the query, its last second", query(date(-time.Minute), 60, "host"), nil, 200, ""},
			{"expired", query(date(-time.Minute), 59, "host"), nil, 403, "Request has expired"},
			{"expires at once", query(date(0), 0, "host"), nil, 400, "AuthorizationQueryParametersError"},
			{"in the query, a header unsigned", query(date(0), 9, "host"), []string{"X-Amz-Meta-A", "1"}, 403, "not signed"},
			{"in the query, all signed", query(date(0), 9, "host%3Bx-amz-meta-a"), []string{"X-Amz-Meta-A", "1"}, 200, ""},
		} {
			headers := append([]string{"Content-Length", "1"}, c.headers...)
			if rec := bare(s, "PUT", c.target, strings.NewReader("x"), headers...); rec.Code != c.status || !strings.Contains(rec.Body.String(), c.says) {
				w.Errorf("%s: %d %s, want %d %s", c.what, rec.Code, rec.Body, c.status, c.says)
			}
		}
	})
}

func TestBodies(t *testing.T) {
	inWorld(t, Options{}, func(w *world) {
		w.put("k", "old")
		sum := func(s string) string { // as S3's checksums have it
			sum := sha256.Sum256([]byte(s))
			return base64.StdEncoding.EncodeToString(sum[:])
		}
		w.want(w.do("PUT", "/b/k", "new", "X-Amz-Content-Sha256", hashOf("other")), 400, "XAmzContentSHA256Mismatch")
		w.want(w.do("PUT", "/b/k", "new", "X-Amz-Checksum-Sha256", sum("other")), 400, "BadDigest")
		w.want(w.do("PUT", "/b/k", "new", "Content-Md5", "AAAA"), 400, "BadDigest")
		for _, broken := range []string{frames("ne", "w"), frames("ne", ""), frames("new", "") + "x", "zz\r\n", "3;chunk-signature=0\r\nnew\r\n", frames("ne", "")[:40]} {
			w.want(w.do("PUT", "/b/k", broken, "X-Amz-Content-Sha256", chunked, "X-Amz-Decoded-Content-Length", "3"), 400, "IncompleteBody")
		}
		w.has("k", "old")
		w.put("k", "1", "X-Amz-Content-Sha256", hashOf("1"), "X-Amz-Checksum-Sha256", sum("1"))
		w.put("k", frames("ne", "w", ""), "X-Amz-Content-Sha256", chunked, "X-Amz-Decoded-Content-Length", "3")
		w.has("k", "new")
		w.put("k", "u", "X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
		rec := bare(w.store, "PUT", "/b/k", struct{ io.Reader }{strings.NewReader("x")}, "Authorization", "AWS4-HMAC-SHA256 SignedHeaders=host;x-amz-date,", "X-Amz-Date", time.Now().UTC().Format("20060102T150405Z"))
		if rec.Code != http.StatusNotImplemented {
			w.Errorf("a body of unknown length: %d", rec.Code)
		}
		w.has("k", "u")
	})
}

// TestChunkSignatures is the example of AWS's "Transferring payload in multiple chunks", whose signatures are all published.
func TestChunkSignatures(t *testing.T) {
	h := http.Header{"X-Amz-Date": {"20130524T000000Z"}, "Authorization": {"AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request," +
		"SignedHeaders=x,Signature=4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"}}
	for _, broken := range []int{-1, 0, 1, 2} {
		links := newChain("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", h)
		for i, c := range []struct {
			size      int
			signature string
		}{
			{64 << 10, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"},
			{1 << 10, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"},
			{0, "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"},
		} {
			chunk := []byte(strings.Repeat("a", c.size))
			if i == broken {
				chunk = append(chunk, 'b')
			}
			if good := links.signed(chunk, c.signature); good != (broken < 0 || i < broken) {
				t.Errorf("chunk %d of a chain that is broken at %d: %v", i, broken, good)
			}
		}
	}
	inWorld(t, Options{Secret: "x"}, func(w *world) {
		w.want(w.do("PUT", "/b/k", frames("ne", "w", ""), "X-Amz-Content-Sha256", chunked, "X-Amz-Decoded-Content-Length", "3"), 403, "SignatureDoesNotMatch")
		w.has("k", "")
	})
}

// TestShortBodyChangesNothing hangs up in the middle of a body.
func TestShortBodyChangesNothing(t *testing.T) {
	inWorld(t, Options{}, func(w *world) {
		w.put("k", "old")
		w.cutOff("ne", 3)
		w.has("k", "old")
		w.wantJournal("PutObject k=old")
	})
}

// cutOff sends a PUT of k that says it has length bytes, and hangs up after content.
func (w *world) cutOff(content string, length int) {
	w.Helper()
	c, err := w.net.Dial(w.Context(), "", "")
	if err != nil {
		w.Fatal(err)
	}
	r := w.request("PUT", "/b/k", nil)
	_, err = fmt.Fprintf(c, "PUT /b/k HTTP/1.1\r\nHost: store\r\nAuthorization: %s\r\nX-Amz-Date: %s\r\nContent-Length: %d\r\n\r\n%s",
		r.Header.Get("Authorization"), r.Header.Get("X-Amz-Date"), length, content)
	if err != nil {
		w.Fatal(err)
	}
	_ = c.Close()
	synctest.Wait()
}
