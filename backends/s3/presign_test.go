package s3

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"pgregory.net/rapid"
)

// expiring opens a store in memory that is known to refuse expired signatures, and whose time is known.
func expiring(t *testing.T, f *fake, change ...func(*Options)) *Store {
	s := f.open(change...)
	s.found.Store(&Findings{Query: true, Trailers: true, Checksums: allChecksums})
	if w := do(s, "HEAD", "/bucket/key", nil); w.Code != 200 {
		t.Fatal(w.Code)
	}
	return s
}

// dated answers with the store's time, which is ahead of ours.
func dated(ahead time.Duration) func(*fake, *recording, int) {
	return func(f *fake, c *recording, _ int) {
		for {
			if _, err := f.request(c); err != nil {
				return
			}
			date := time.Now().Add(ahead).UTC().Format(http.TimeFormat)
			_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nDate: %s\r\n\r\n", date)
		}
	}
}

// checkPresigned makes the signature once more, with the SDK, and compares. It returns from when to when the store takes the
// request.
func checkPresigned(t *testing.T, g got) (from, to time.Time) {
	t.Helper()
	q := g.URL.Query()
	signature := q.Get("X-Amz-Signature")
	q.Del("X-Amz-Signature")
	again := &http.Request{Method: g.Method, Host: g.Host, URL: &url.URL{Host: g.Host, Path: g.URL.Path, RawPath: g.URL.RawPath}, Header: http.Header{}}
	list := strings.Split(q.Get("X-Amz-SignedHeaders"), ";")
	for _, name := range list {
		switch name {
		case "host":
		case "content-length":
			again.ContentLength = g.ContentLength
		default:
			again.Header[http.CanonicalHeaderKey(name)] = g.Header.Values(name)
		}
	}
	for name := range g.Header {
		if (strings.HasPrefix(name, "X-Amz-") || alsoSigned[name]) && again.Header[name] == nil {
			t.Errorf("%s is not signed", name)
		}
	}
	at, err := time.Parse(dateFormat, q.Get("X-Amz-Date"))
	if err != nil {
		t.Fatalf("%v in %s", err, g.head)
	}
	for _, name := range []string{"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-SignedHeaders", "X-Amz-Security-Token"} {
		q.Del(name)
	}
	again.URL.RawQuery = q.Encode()
	who := aws.Credentials{AccessKeyID: testKey, SecretAccessKey: testSecret, SessionToken: g.URL.Query().Get("X-Amz-Security-Token")}
	want, _, err := v4.NewSigner().PresignHTTP(t.Context(), who, again, unsigned, "s3", testRegion, at, func(o *v4.SignerOptions) {
		o.DisableURIPathEscaping, o.DisableHeaderHoisting = true, true
	})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(want, "&X-Amz-Signature="+signature) || g.Header.Get("Authorization")+g.Header.Get(dateHeader) != "" {
		t.Errorf("%s\nis signed otherwise than\n%s", g.head, want)
	}
	expires, err := strconv.Atoi(q.Get("X-Amz-Expires"))
	if err != nil {
		t.Fatal(err)
	}
	return at, at.Add(time.Duration(expires) * time.Second)
}

// TestExpiring: which writes are signed in the query, and that their bodies are covered.
func TestExpiring(t *testing.T) {
	for _, test := range []struct {
		ask     string
		headers []string
		life    time.Duration // 0 if it is signed in the headers
	}{
		{"PUT /bucket/a%2Bb%20c", []string{"If-None-Match", "*", "X-Amz-Meta-A", "b", "Content-Type", "text/plain", "X-Amz-Acl", "private"}, 30 * time.Second},
		{"PUT /bucket/key", []string{"X-Amz-Checksum-Crc32", "AAAAAA==", "Content-Md5", "mgNkuembtIDdJeHwKEyFVQ=="}, 30 * time.Second},
		{"PUT /bucket/key", []string{"X-Amz-Checksum-Sha256", "theirs"}, 30 * time.Second},
		{"PUT /bucket/key", []string{"X-Amz-Checksum-Crc64nvme", "AAAAAAAAAAA=", "X-Amz-Checksum-Type", "FULL_OBJECT"}, 30 * time.Second},
		{"PUT /bucket/key", []string{"X-Amz-Checksum-Xxhash64", "AAAA"}, 0},
		{"PUT /bucket/key", []string{"X-Amz-Checksum-Crc32", "AAAAAA==", "X-Amz-Checksum-Xxhash64", "AAAA"}, 0},
		{"PUT /bucket/key?renameObject", []string{"X-Amz-Rename-Source", "bucket/a"}, 30 * time.Second},
		{"POST /bucket/key?restore", nil, 30 * time.Second},
		{"POST /bucket/key?select&select-type=2", nil, 0}, // it reads
		{"PUT /bucket/key?tagging&versionId=a+b%2F", nil, 30 * time.Second},
		{"DELETE /bucket/key?versionId=1", []string{"If-Match", `"e"`}, 30 * time.Second},
		{"DELETE /bucket/key?uploadId=1", nil, 30 * time.Second},
		{"PUT /bucket/key", []string{"X-Amz-Copy-Source", "bucket/a%2Fb"}, 5 * time.Minute},
		{"POST /bucket?delete", nil, 5 * time.Minute},
		{"POST /bucket/key?uploads", nil, 30 * time.Second},
		{"POST /bucket/key?uploadId=1", []string{"X-Amz-Checksum-Sha256", "of the object"}, 0},
		{"PUT /bucket/key?partNumber=1&uploadId=1", nil, 0},
		{"PUT /bucket", nil, 0},
		{"PUT /bucket?policy", nil, 0},
		{"DELETE /bucket", nil, 0},
		{"GET /bucket/key", nil, 0},
	} {
		for _, content := range []string{"", "content"} {
			for _, token := range []string{"", "session+/="} {
				bubble(t, test.ask, func(t *testing.T) {
					f := newMemory(t, dated(0))
					s := expiring(t, f, func(o *Options) { o.SessionToken = token })
					method, target, _ := strings.Cut(test.ask, " ")
					var gate time.Time
					r := mode{whole: true}.request(t.Context(), target, []byte(content), len(content), func() error {
						time.Sleep(5 * time.Second) // it was signed before
						gate = time.Now()
						return nil
					}, test.headers...)
					r.Method = method
					w := httptest.NewRecorder()
					if s.ServeHTTP(w, r); w.Code != 200 {
						t.Fatal(w.Code, w.Body)
					}
					g := f.requests()[1]
					if string(g.body) != content {
						t.Errorf("%q came", g.body)
					}
					if test.life == 0 {
						checkSignature(t, g)
						return
					}
					if _, to := checkPresigned(t, g); !to.Equal(gate.Add(test.life - 5*time.Second)) {
						t.Errorf("it lives until %s after the gate", to.Sub(gate))
					}
					sums := 0
					for name := range g.Header {
						if strings.HasPrefix(name, "X-Amz-Checksum-") && name != "X-Amz-Checksum-Type" {
							sums++
						}
					}
					given := len(checksumsOf(r.Header)) > 0
					if want := given || content != ""; want != (sums == 1) || !given && want && g.Header.Get(sha256Header) != sumOf(content) {
						t.Errorf("checksums: %s", g.head)
					}
					if g.Header.Get("X-Amz-Content-Sha256") != "" {
						t.Errorf("a hash beside UNSIGNED-PAYLOAD: %s", g.head)
					}
				})
			}
		}
	}
}

func sumOf(content string) string {
	sum, _ := hex.DecodeString(sha256Hex([]byte(content)))
	return base64.StdEncoding.EncodeToString(sum)
}

// TestExpiringWithTheClientsChecksum: it covers the body only if the store was seen to compare its kind.
func TestExpiringWithTheClientsChecksum(t *testing.T) {
	for _, kind := range allChecksums {
		for _, proven := range allChecksums {
			bubble(t, kind+", and "+proven+" is compared", func(t *testing.T) {
				f := newMemory(t, dated(0))
				s := expiring(t, f)
				s.found.Store(&Findings{Query: true, Checksums: []string{proven}})
				sum := digest(kind, []byte("content"))
				r := mode{whole: true}.request(t.Context(), "/bucket/key", []byte("content"), 7, passes, "X-Amz-Checksum-"+kind, sum)
				w := httptest.NewRecorder()
				if s.ServeHTTP(w, r); w.Code != 200 {
					t.Fatal(w.Code, w.Body)
				}
				g := f.requests()[1]
				if kind == proven {
					checkPresigned(t, g)
				} else {
					checkSignature(t, g)
				}
				if got := g.Header.Get("X-Amz-Checksum-" + kind); got != sum {
					t.Errorf("the checksum came as %q", got)
				}
			})
		}
	}
}

// TestNotExpiring: what the store is not known to do is not asked of it.
func TestNotExpiring(t *testing.T) {
	for name, change := range map[string]func(*Store){
		"not probed":    func(s *Store) { s.found.Store(nil) },
		"does not know": func(s *Store) { s.found.Store(&Findings{}) },
		"has no clock":  func(s *Store) { s.clock = storeClock{boot: s.o.Boot} },
		"short":         func(s *Store) { s.o.Settle = 5 * time.Second },
	} {
		bubble(t, name, func(t *testing.T) {
			f := newMemory(t, dated(0))
			s := expiring(t, f)
			change(s)
			if w := (mode{whole: true}).put(t.Context(), s, []byte("content"), passes); w.Code != 200 {
				t.Fatal(w.Code, w.Body)
			}
			checkSignature(t, f.requests()[1])
		})
	}
	bubble(t, "streams", func(t *testing.T) {
		f := newMemory(t, dated(0))
		for _, m := range modes[1:] {
			if w := m.put(t.Context(), expiring(t, f), []byte("content"), passes); w.Code != 200 {
				t.Fatal(w.Code, w.Body)
			}
			g := f.requests()
			checkSignature(t, g[len(g)-1])
		}
	})
}

// TestExpiryByTheStoresClock: whatever the two clocks say, and however long answers are on their way, no signature lives longer
// by the store's clock than half the settle time from when it was made, and little less.
func TestExpiryByTheStoresClock(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		settle := time.Duration(rapid.Int64Range(int64(6*time.Second), int64(30*24*time.Hour)).Draw(rt, "settle"))
		ahead := time.Duration(rapid.Int64Range(int64(-1e6*time.Second), int64(1e6*time.Second)).Draw(rt, "ahead"))
		var booted time.Duration
		store := func() time.Time { return time.Unix(1e9, 0).Add(ahead + booted) }
		s := &Store{o: Options{Settle: settle, SettleLong: settle}, clock: storeClock{boot: func() time.Duration { return booted }}}
		s.found.Store(&Findings{Query: true, Trailers: true, Checksums: allChecksums})
		x := &exchange{s: s, write: true, r: httptest.NewRequest("DELETE", "/bucket/key", nil)}
		var slowest time.Duration
		for range rapid.IntRange(1, 5).Draw(rt, "answers") {
			booted += time.Duration(rapid.Int64Range(0, int64(10*time.Minute)).Draw(rt, "pause"))
			date := store().UTC().Format(http.TimeFormat)
			transit := time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(rt, "transit"))
			slowest = max(slowest, transit)
			booted += transit
			s.clock.learn(date)
		}
		booted += time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(rt, "later"))
		at, expires, ok := x.expiring(http.Header{})
		if !ok {
			rt.Fatal("not signed in the query")
		}
		life := at.Add(expires).Sub(store())
		if most := min(settle/2, maxExpires); life > most || life < most-2*time.Second-slowest || at.After(store()) || expires < time.Second {
			rt.Errorf("from %s, %s: it lives for %s of %s", at.Sub(store()), expires, life, most)
		}
	})
}

// TestStoreClock: a store's clock that is set is followed after a while, and what is no date says nothing.
func TestStoreClock(t *testing.T) {
	var booted time.Duration
	c := storeClock{boot: func() time.Duration { return booted }}
	at := func(sec int64) string { return time.Unix(sec, 0).UTC().Format(http.TimeFormat) }
	c.learn("")
	c.learn("yesterday")
	if _, ok := c.now(); ok {
		t.Error("a time from nowhere")
	}
	for _, step := range []struct {
		booted, date, want int64
	}{
		{10, 1000, 1000}, {20, 1005, 1010}, {30, 1030, 1030}, {40, 900, 1040}, {91, 951, 951}, {92, 952, 952},
	} {
		booted = time.Duration(step.booted) * time.Second
		c.learn(at(step.date))
		if now, ok := c.now(); !ok || now.Unix() != step.want {
			t.Errorf("%+v: %d", step, now.Unix())
		}
	}
}

// TestExpiredAnswer: the refusal of an expired signature is the proxy's to explain; any other is the store's.
func TestExpiredAnswer(t *testing.T) {
	const refusal = "<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"
	for _, test := range []struct {
		method, body string
		query        bool
		status       int
	}{
		{"DELETE", refusal, true, 503},
		{"DELETE", strings.Replace(refusal, "Request has expired", "Access Denied", 1), true, 403},
		{"DELETE", refusal, false, 403},
		{"GET", refusal, true, 403},
	} {
		bubble(t, test.method, func(t *testing.T) {
			f := newMemory(t, func(f *fake, c *recording, _ int) {
				for {
					g, err := f.request(c)
					if err != nil {
						return
					}
					status, body := "403 Forbidden", test.body
					if g.Method == "HEAD" {
						status, body = "200 OK", ""
					}
					date := time.Now().UTC().Format(http.TimeFormat)
					_, _ = fmt.Fprintf(c, "HTTP/1.1 %s\r\nDate: %s\r\nContent-Length: %d\r\n\r\n%s", status, date, len(body), body)
				}
			})
			s := expiring(t, f)
			s.found.Store(&Findings{Query: test.query})
			w := do(s, test.method, "/bucket/key", nil)
			if w.Code != test.status || (test.status == 503) != strings.Contains(w.Body.String(), slowDown) {
				t.Errorf("%s: %d %s, want %d", test.body, w.Code, w.Body, test.status)
			}
			synctest.Wait()
		})
	}
}

// TestExpiringOnVersitygw shows on a real store that signatures in the query are taken, that expired ones change nothing, and
// that another body than the one that was signed, or a part of it, does not become the object.
func TestExpiringOnVersitygw(t *testing.T) {
	s := open(t, versitygw(t))
	s.found.Store(&Findings{Query: true, Trailers: true, Checksums: allChecksums})
	bucket := "/expiring-" + strings.ToLower(rand.Text())
	if w := do(s, "PUT", bucket, nil); w.Code != 200 {
		t.Fatal(w.Code, w.Body)
	}
	send := func(method, target, content string, headers ...string) *httptest.ResponseRecorder {
		r := mode{whole: true}.request(t.Context(), target, []byte(content), len(content), passes, headers...)
		r.Method = method
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		return w
	}
	is := func(key, want string) {
		t.Helper()
		if w := do(s, "GET", bucket+key, nil); w.Body.String() != want {
			t.Errorf("%s is %.200q, want %q", key, w.Body, want)
		}
	}
	tags := func(v string) string {
		return "<Tagging><TagSet><Tag><Key>k</Key><Value>" + v + "</Value></Tag></TagSet></Tagging>"
	}
	batch := "<Delete><Object><Key>key</Key></Object></Delete>"
	writes := []struct {
		method, target, content string
		headers                 []string
		status                  int
	}{
		{"PUT", "/key", "old", nil, 200},
		{"PUT", "/key", "old", []string{"X-Amz-Checksum-Crc32", "P13U5Q=="}, 200},
		{"PUT", "/key?tagging", tags("old"), nil, 200},
		{"PUT", "/copy", "", []string{"X-Amz-Copy-Source", bucket + "/key"}, 200},
		{"DELETE", "/copy", "", nil, 204},
		{"POST", "?delete", batch, nil, 200},
	}
	for _, w := range writes[:4] {
		if got := send(w.method, bucket+w.target, w.content, w.headers...); got.Code != w.status {
			t.Fatalf("%s %s: %d %s", w.method, w.target, got.Code, got.Body)
		}
	}
	is("/copy", "old")
	for _, w := range writes {
		s.clock.mu.Lock()
		s.clock.ahead -= 2 * time.Hour // as if it had been on its way so long
		s.clock.mu.Unlock()
		got := send(w.method, bucket+w.target, strings.ReplaceAll(w.content, "old", "new"), w.headers...)
		if got.Code != 503 || !strings.Contains(got.Body.String(), slowDown) {
			t.Errorf("%s %s, expired: %d %s", w.method, w.target, got.Code, got.Body)
		}
		is("/key", "old")
		is("/copy", "old")
	}
	if w := do(s, "GET", bucket+"/key?tagging", nil); !strings.Contains(w.Body.String(), "old") {
		t.Errorf("the tags are %s", w.Body)
	}
	for _, body := range []string{"new", "new but longer", "n"} {
		if status := s.sendOther(t, bucket+"/key", "old", body); status != 400 {
			t.Errorf("signed old, sent %s: %d", body, status)
		}
		is("/key", "old")
	}
	for _, w := range writes[4:] {
		if got := send(w.method, bucket+w.target, w.content, w.headers...); got.Code != w.status {
			t.Errorf("%s %s: %d %s", w.method, w.target, got.Code, got.Body)
		}
	}
	if w := do(s, "GET", bucket+"/key", nil); w.Code != 404 {
		t.Errorf("after the batch: %d", w.Code)
	}
}

// sendOther sends another body than the one that was signed.
func (s *Store) sendOther(t *testing.T, target, signed, sent string) int {
	out := s.outgoing(t.Context(), httptest.NewRequest(http.MethodPut, target, nil))
	out.ContentLength = int64(len(sent))
	who, err := s.retrieve(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	at, _ := s.clock.now()
	if err := s.signQuery(out, who, sha256Hex([]byte(signed)), at, time.Minute); err != nil {
		t.Fatal(err)
	}
	out.Body = io.NopCloser(strings.NewReader(sent))
	resp, err := s.transport.RoundTrip(out)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}
