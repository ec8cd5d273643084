package s3

import (
	"bytes"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A probeStore is a small S3 that does all that the probe asks for, but for its flaws. Each flaw is a word in the tests.
type probeStore struct {
	flaws map[string]bool

	mu      sync.Mutex // guards the rest, and is not held while a body comes in
	objects map[string][]probeVersion
	uploads map[string]probeUpload
	refusal map[string]int // how many writes a condition has refused, by key
	last    int            // version or upload
}

type probeVersion struct {
	id, content string
	removed     bool // it is a delete marker
}

type probeUpload struct{ key, content string }

func newProbeStore(flaws ...string) *probeStore {
	s := &probeStore{
		flaws: map[string]bool{}, objects: map[string][]probeVersion{}, uploads: map[string]probeUpload{}, refusal: map[string]int{},
	}
	for _, f := range flaws {
		s.flaws[f] = true
	}
	return s
}

// A probeNo is a refusal.
type probeNo struct {
	status int
	code   string
}

func (n *probeNo) Error() string { return n.code }

var (
	noCondition = &probeNo{412, "PreconditionFailed"}
	noKey       = &probeNo{404, "NoSuchKey"}
	noIdea      = &probeNo{501, "NotImplemented"}
	noAccess    = &probeNo{403, "AccessDenied"}
	noLuck      = &probeNo{503, "ServiceUnavailable"}
)

func (s *probeStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := s.serve(w, r)
	if no, ok := err.(*probeNo); ok {
		w.WriteHeader(no.status)
		body = "<Error><Code>" + no.code + "</Code></Error>"
	} else if err != nil {
		panic(http.ErrAbortHandler)
	}
	_, _ = io.WriteString(w, body)
}

func (s *probeStore) serve(w http.ResponseWriter, r *http.Request) (answer string, err error) {
	_, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	key, q := s.name(key), r.URL.Query()
	byQuery := q.Has("X-Amz-Signature")
	if byQuery {
		if err := s.admit(r); err != nil {
			return "", err
		}
	}
	if byQuery && s.flaws["query conditions"] {
		r.Header.Del(ifMatch)
	}
	early, earlyErr := s.now(key), error(nil)
	if s.flaws["put early"] && r.Method == http.MethodPut {
		earlyErr = s.judge("put", r.Header, early)
	}
	content, err := s.read(r, byQuery)
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.flaws["no bucket"]:
		return "", &probeNo{404, "NoSuchBucket"}
	case key == "":
		return s.bucket(w, r, q, content)
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		if s.flaws["unreadable"] || s.flaws["no heads"] && r.Method == http.MethodHead {
			return "", noAccess
		}
		return s.get(w, key)
	case r.Method == http.MethodDelete && s.flaws["irremovable"]:
		return "", noAccess
	case r.Method == http.MethodDelete:
		return "", s.remove(w, r, key, q)
	case r.Method == http.MethodPost && q.Has("uploads"):
		s.last++
		id := strconv.Itoa(s.last)
		s.uploads[id] = probeUpload{key: key}
		return "<X><UploadId>" + id + "</UploadId></X>", nil
	case r.Method == http.MethodPost:
		return s.complete(w, r, key, q.Get("uploadId"))
	case q.Has("uploadId"):
		s.uploads[q.Get("uploadId")] = probeUpload{key, content}
		w.Header().Set("Etag", `"part"`)
		return "", nil
	case r.Header.Get(copySource) != "":
		return s.copy(w, r, key)
	case s.flaws["forbidden"]:
		return "", noAccess
	case s.flaws["odd names refused"] && (strings.Contains(key, "//") || strings.Contains(key, "/.")):
		return "", &probeNo{400, "InvalidArgument"}
	case s.flaws["put early"]:
		err = earlyErr
	default:
		err = s.judgeLocked("put", key, r.Header)
	}
	return "", s.write(w, "put", key, content, err)
}

// name is the key that a name leads to.
func (s *probeStore) name(key string) string {
	if s.flaws["slashes"] {
		for strings.Contains(key, "//") {
			key = strings.ReplaceAll(key, "//", "/")
		}
	}
	if s.flaws["dots"] {
		key = strings.ReplaceAll(strings.ReplaceAll(key, "/./", "/"), "/z/../", "/")
	}
	if s.flaws["case"] {
		key = strings.ToLower(key)
	}
	return key
}

// admit judges a signature in the query.
func (s *probeStore) admit(r *http.Request) error {
	q := r.URL.Query()
	at, err := time.Parse(dateFormat, q.Get("X-Amz-Date"))
	life, err2 := strconv.Atoi(q.Get("X-Amz-Expires"))
	expired := time.Since(at) > time.Duration(life)*time.Second
	if s.flaws["skew only"] {
		expired = time.Since(at) > 15*time.Minute
	}
	switch {
	case err != nil || err2 != nil || s.flaws["no query"] || s.flaws["no query "+r.Method] ||
		s.flaws["no query copy"] && r.Header.Get(copySource) != "":
		return noAccess
	case expired && !s.flaws["query expiry"]:
		return noAccess
	case r.ContentLength > 0 && !strings.Contains(q.Get("X-Amz-SignedHeaders"), "x-amz-checksum-"):
		return &probeNo{400, "InvalidRequest"}
	}
	return nil
}

// read reads a body to its good end.
func (s *probeStore) read(r *http.Request, byQuery bool) (string, error) {
	hash := r.Header.Get("X-Amz-Content-Sha256")
	chunked, hasTrailer := inChunks(r.Header), hash == signedTrailer
	if hash == signedChunks && s.flaws["no chunks"] || hasTrailer && s.flaws["no trailers"] {
		return "", noIdea
	}
	b, err := io.ReadAll(r.Body)
	kind := map[bool]string{true: "query", false: "hash"}[byQuery]
	switch {
	case hasTrailer:
		kind = "trailer"
	case chunked:
		kind = "chunks"
	}
	if err != nil && !s.flaws["torn "+kind] {
		return "", err
	}
	sum := sha256.Sum256(b)
	switch {
	case chunked:
		return s.unchunk(r, b, err != nil, hasTrailer)
	case byQuery && err == nil:
		return string(b), s.compare(r.Header, b)
	case !byQuery && !s.flaws["hash"] && err == nil && hash != hex.EncodeToString(sum[:]):
		return "", &probeNo{400, "XAmzContentSHA256Mismatch"}
	}
	return string(b), nil
}

// compare compares the checksums with a body.
func (s *probeStore) compare(h http.Header, b []byte) error {
	for _, kind := range checksumsOf(h) {
		switch {
		case s.flaws[kind+" unknown"]:
			return noIdea
		case !s.flaws[kind+" ignored"] && h.Get(checksumPrefix+kind) != digest(kind, b):
			return &probeNo{400, "BadDigest"}
		}
	}
	return nil
}

func (s *probeStore) unchunk(r *http.Request, b []byte, torn, hasTrailer bool) (string, error) {
	links, err := chainOf(r)
	if err != nil {
		return "", err
	}
	if s.flaws["chunk signatures"] {
		links = nil
	}
	if hasTrailer && s.flaws["trailer as content"] {
		_, end, _ := bytes.Cut(b, []byte(crlf+"0"+signatureIs))
		data, _, err := parseChunks(b, links, hasTrailer)
		return string(data) + string(end), err
	}
	data, behind, err := parseChunks(b, links, hasTrailer)
	switch {
	case err == errForged:
		return "", &probeNo{403, "SignatureDoesNotMatch"}
	case err != nil && !torn:
		return "", &probeNo{400, "IncompleteBody"}
	case s.flaws["trailer ignored"]:
		return string(data), nil
	}
	return string(data), s.compare(behind, data)
}

// now is the object, nil if there is none.
func (s *probeStore) now(key string) *probeVersion {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current(key)
}

func (s *probeStore) current(key string) *probeVersion {
	versions := s.objects[key]
	if len(versions) == 0 || versions[len(versions)-1].removed {
		return nil
	}
	v := versions[len(versions)-1]
	return &v
}

func probeETag(content string) string {
	sum := md5.Sum([]byte(content))
	return `"` + hex.EncodeToString(sum[:]) + `"`
}

func (s *probeStore) judgeLocked(op, key string, h http.Header) error {
	err := s.judge(op, h, s.current(key))
	if err == noCondition {
		s.refusal[key]++
		if s.flaws[op+" races"] && s.refusal[key] > 1 {
			return nil // as a store does that looks, and then writes
		}
	}
	return err
}

// judge judges a condition. A flaw is either blind to it or does not know it.
func (s *probeStore) judge(op string, h http.Header, v *probeVersion) error {
	for _, name := range []string{ifMatch, ifNoneMatch} {
		want := h.Get(name)
		switch {
		case want == "" || s.flaws[op+" "+name] || s.flaws["put absent"] && v == nil:
			continue
		case s.flaws[op+" 501"]:
			return noIdea
		case s.flaws[op+" refuses all"]:
			return noCondition
		case name == ifNoneMatch && v != nil:
			return noCondition
		case name == ifMatch && v == nil:
			return noKey
		case name == ifMatch && want != probeETag(v.content):
			return noCondition
		}
	}
	return nil
}

// write makes an object, unless a condition was judged against it.
func (s *probeStore) write(w http.ResponseWriter, op, key, content string, no error) error {
	if no == noCondition && s.flaws[op+" says yes"] {
		return nil
	}
	if no != nil {
		return no
	}
	s.append(w, key, probeVersion{content: content})
	return nil
}

func (s *probeStore) append(w http.ResponseWriter, key string, v probeVersion) {
	s.last++
	v.id = strconv.Itoa(s.last)
	if !s.flaws["versions"] {
		s.objects[key] = nil
	} else {
		w.Header().Set("X-Amz-Version-Id", v.id)
	}
	if v.removed && !s.flaws["versions"] {
		delete(s.objects, key)
		return
	}
	s.objects[key] = append(s.objects[key], v)
}

func (s *probeStore) get(w http.ResponseWriter, key string) (string, error) {
	v := s.current(key)
	if v == nil {
		return "", noKey
	}
	w.Header().Set("Etag", probeETag(v.content))
	w.Header().Set("Content-Length", strconv.Itoa(len(v.content)))
	return v.content, nil
}

func (s *probeStore) remove(w http.ResponseWriter, r *http.Request, key string, q map[string][]string) error {
	if q["uploadId"] != nil {
		delete(s.uploads, q["uploadId"][0])
		return nil
	}
	if id := q["versionId"]; id != nil {
		s.objects[key] = slices.DeleteFunc(s.objects[key], func(v probeVersion) bool { return v.id == id[0] })
		return nil
	}
	if err := s.judgeLocked("delete", key, r.Header); err != nil {
		return err
	}
	if len(s.objects[key]) > 0 {
		s.append(w, key, probeVersion{removed: true})
	}
	return nil
}

func (s *probeStore) complete(w http.ResponseWriter, r *http.Request, key, id string) (string, error) {
	u, ok := s.uploads[id]
	if !ok {
		return "", &probeNo{404, "NoSuchUpload"}
	}
	err := s.judgeLocked("complete", key, r.Header)
	if err == noCondition && s.flaws["complete refuses in 200"] {
		return "<Error><Code>PreconditionFailed</Code></Error>", nil
	}
	if err = s.write(w, "complete", key, u.content, err); err == nil {
		delete(s.uploads, id)
	}
	return "", err
}

func (s *probeStore) copy(w http.ResponseWriter, r *http.Request, key string) (string, error) {
	_, source, _ := strings.Cut(strings.TrimPrefix(unescape(r.Header.Get(copySource)), "/"), "/")
	v := s.current(source)
	if v == nil {
		return "", noKey
	}
	return "", s.write(w, "copy", key, v.content, s.judgeLocked("copy", key, r.Header))
}

func (s *probeStore) bucket(w http.ResponseWriter, r *http.Request, q map[string][]string, content string) (string, error) {
	switch {
	case r.Method == http.MethodPost:
		return s.batch(w, content)
	case q["object-lock"] != nil && s.flaws["retention"]:
		return "<X><Rule><DefaultRetention><Mode>COMPLIANCE</Mode></DefaultRetention></Rule></X>", nil
	case q["object-lock"] != nil && s.flaws["lock unreadable"]:
		return "", noAccess
	case q["object-lock"] != nil && s.flaws["fails"]:
		return "", noLuck
	case q["object-lock"] != nil:
		return "", &probeNo{404, "ObjectLockConfigurationNotFoundError"}
	case s.flaws["no lists"]:
		return "", noAccess
	}
	return s.list(q), nil
}

func (s *probeStore) list(q map[string][]string) string {
	var b strings.Builder
	for key, versions := range s.objects {
		if q["list-type"] != nil && s.current(key) != nil {
			fmt.Fprintf(&b, "<Contents><Key>%s</Key></Contents>", key)
		}
		for _, v := range versions {
			if q["versions"] != nil && s.flaws["versions"] {
				name := map[bool]string{false: "Version", true: "DeleteMarker"}[v.removed]
				fmt.Fprintf(&b, "<%[1]s><Key>%[2]s</Key><VersionId>%[3]s</VersionId></%[1]s>", name, key, v.id)
			}
		}
	}
	for id, u := range s.uploads {
		if q["uploads"] != nil {
			fmt.Fprintf(&b, "<Upload><Key>%s</Key><UploadId>%s</UploadId></Upload>", u.key, id)
		}
	}
	return "<List>" + b.String() + "</List>"
}

func (s *probeStore) batch(w http.ResponseWriter, content string) (string, error) {
	var d struct {
		Object []struct{ Key, ETag string }
	}
	if err := xml.Unmarshal([]byte(content), &d); err != nil {
		return "", &probeNo{400, "MalformedXML"}
	}
	var b strings.Builder
	for _, o := range d.Object {
		h := http.Header{}
		if o.ETag != "" {
			h.Set(ifMatch, o.ETag)
		}
		if err := s.judgeLocked("batch", o.Key, h); err != nil {
			fmt.Fprintf(&b, "<Error><Key>%s</Key><Code>%v</Code></Error>", o.Key, err)
			continue
		}
		if len(s.objects[o.Key]) > 0 {
			s.append(w, o.Key, probeVersion{removed: true})
		}
		fmt.Fprintf(&b, "<Deleted><Key>%s</Key></Deleted>", o.Key)
	}
	return "<DeleteResult>" + b.String() + "</DeleteResult>", nil
}

// left is what the store still has.
func (s *probeStore) left() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, versions := range s.objects {
		for _, v := range versions {
			all = append(all, key+" "+v.id)
		}
	}
	for id, u := range s.uploads {
		all = append(all, u.key+" upload "+id)
	}
	return all
}
