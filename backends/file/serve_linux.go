package file

import (
	"hash/maphash"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// ServeHTTP answers one request of the S3 API, path style. What it promises is in package backends.
func (s *Store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.enter() {
		writeError(w, r, refuse(http.StatusServiceUnavailable, "ServiceUnavailable", "Nothing was changed: the file store is closed."))
		return
	}
	defer s.running.Done()
	if err := s.serve(w, r); err != nil {
		writeError(w, r, err)
	}
}

// serve finds the operation. An error that it returns has not been answered yet.
func (s *Store) serve(w http.ResponseWriter, r *http.Request) error {
	q, err := url.ParseQuery(r.URL.RawQuery) // r.URL.Query drops what it cannot read: ?tagging; would be no sub-resource
	if err != nil {
		return invalidArgument("The query cannot be read: %s.", err)
	}
	bucket, key := splitPath(r.URL.Path)
	switch {
	case !strings.HasPrefix(r.URL.Path, "/"):
		return notImplemented("%s of %q is not implemented.", r.Method, r.URL.Path)
	case bucket == "" && key == "":
		return s.serveService(w, r, q)
	}
	if err := checkBucket(bucket); err != nil {
		return err
	}
	if key == "" {
		return s.serveBucket(w, r, bucket, q)
	}
	return s.serveObject(w, r, bucket, key, q)
}

func (s *Store) serveService(w http.ResponseWriter, r *http.Request, q url.Values) error {
	if r.Method != http.MethodGet || hasOther(q, nil) {
		return unknownOperation(r, q, "the service", nil)
	}
	return s.listBuckets(w, r)
}

func (s *Store) serveBucket(w http.ResponseWriter, r *http.Request, bucket string, q url.Values) error {
	_, location := q["location"]
	switch {
	case r.Method == http.MethodGet && location && !hasOther(q, []string{"location"}):
		return s.getBucketLocation(w, r, bucket)
	case r.Method == http.MethodGet && !hasOther(q, listParameters(q)):
		return s.listObjects(w, r, bucket, q)
	case r.Method == http.MethodHead && !hasOther(q, nil):
		return s.headBucket(w, bucket)
	case r.Method == http.MethodPut && !hasOther(q, nil):
		return s.createBucket(w, r, bucket)
	case r.Method == http.MethodDelete && !hasOther(q, nil):
		return s.deleteBucket(w, r, bucket)
	}
	for _, op := range ofBucket {
		if op.asked(r, q) {
			return op.serve(s, w, r, bucket, q)
		}
	}
	return unknownOperation(r, q, "a bucket", listParameters(q))
}

func (s *Store) serveObject(w http.ResponseWriter, r *http.Request, bucket, key string, q url.Values) error {
	for _, op := range ofObject {
		if !op.asked(r, q) {
			continue
		}
		n, err := parseName(bucket, key)
		if err != nil {
			return err
		}
		return op.serve(s, w, r, n, q)
	}
	return unknownOperation(r, q, "an object", overrides)
}

// An operation is known by its method, the parameters that it has, and whether it names a source. on is what it is for: a bucket's
// name, or an object's.
type operation[on any] struct {
	method string
	must   []string // parameters
	may    []string
	copies bool
	serve  func(*Store, http.ResponseWriter, *http.Request, on, url.Values) error
}

func (op operation[on]) asked(r *http.Request, q url.Values) bool {
	if _, copies := r.Header["X-Amz-Copy-Source"]; r.Method != op.method || copies != op.copies {
		return false
	}
	for _, p := range op.must {
		if len(q[p]) != 1 { // of two upload ids, the proxy could have judged the other one
			return false
		}
	}
	return !hasOther(q, append(slices.Clone(op.may), op.must...))
}

var ofBucket = []operation[string]{
	{method: http.MethodPost, must: []string{"delete"}, serve: (*Store).deleteObjects},
	{
		method: http.MethodGet, must: []string{"uploads"}, serve: (*Store).listUploads,
		may: []string{"prefix", "delimiter", "encoding-type", "key-marker", "upload-id-marker", "max-uploads"},
	},
}

var ofObject = []operation[name]{
	{method: http.MethodGet, may: overrides, serve: (*Store).getObject},
	{method: http.MethodHead, may: overrides, serve: (*Store).getObject},
	{method: http.MethodPut, serve: (*Store).putObject},
	{method: http.MethodPut, copies: true, serve: (*Store).copyObject},
	{method: http.MethodDelete, serve: (*Store).deleteObject},
	{method: http.MethodPost, must: []string{"uploads"}, serve: (*Store).createUpload},
	{method: http.MethodPut, must: []string{"partNumber", "uploadId"}, serve: (*Store).uploadPart},
	{method: http.MethodPut, must: []string{"partNumber", "uploadId"}, copies: true, serve: (*Store).uploadPartCopy},
	{method: http.MethodPost, must: []string{"uploadId"}, serve: (*Store).completeUpload},
	{method: http.MethodDelete, must: []string{"uploadId"}, serve: (*Store).abortUpload},
	{method: http.MethodGet, must: []string{"uploadId"}, may: []string{"max-parts", "part-number-marker", "encoding-type"}, serve: (*Store).listParts},
}

// hasOther says whether the query has a parameter that changes what is asked for, other than those in known.
func hasOther(q url.Values, known []string) bool { return other(q, known) != "" }

func other(q url.Values, known []string) string {
	var found []string
	for k := range q {
		if !slices.Contains(known, k) && !ofSignature(k) {
			found = append(found, k)
		}
	}
	slices.Sort(found)
	if len(found) == 0 {
		return ""
	}
	return found[0]
}

// ofSignature knows the parameters that say who asks and how a body is checked. The caller has judged them.
func ofSignature(k string) bool {
	k = strings.ToLower(k)
	return slices.Contains(signature, k) || strings.HasPrefix(k, "x-amz-checksum-")
}

var signature = []string{
	"x-id", "x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-expires", "x-amz-signedheaders", "x-amz-signature",
	"x-amz-security-token", "x-amz-content-sha256", "x-amz-sdk-checksum-algorithm",
}

// unknownOperation names what is not there.
func unknownOperation(r *http.Request, q url.Values, of string, known []string) error {
	if sub := other(q, known); sub != "" {
		return notImplemented("The operation %s of %s with ?%s is not implemented by the file store.", r.Method, of, sub)
	}
	return notImplemented("The operation %s of %s is not implemented by the file store.", r.Method, of)
}

// refuseHeaders refuses a write that asks for something which the store would silently not do.
func refuseHeaders(h http.Header) error {
	for k, v := range h {
		if refused(k) || k == "X-Amz-Acl" && !slices.Contains([]string{"private", "bucket-owner-full-control"}, strings.Join(v, ",")) {
			return notImplemented("The header %s is not implemented by the file store.", strings.ToLower(k))
		}
	}
	return nil
}

func refused(header string) bool {
	for _, p := range []string{
		"X-Amz-Server-Side-Encryption", "X-Amz-Object-Lock-", "X-Amz-Bucket-Object-Lock-", "X-Amz-Tagging",
		"X-Amz-Grant-", "X-Amz-Website-", "X-Amz-Write-Offset-Bytes", "X-Amz-Copy-Source-Server-Side-Encryption",
	} {
		if strings.HasPrefix(header, p) {
			return header != "X-Amz-Tagging-Directive" // there are no tags to copy or to replace
		}
	}
	return false
}

var seed = maphash.MakeSeed()

// key returns the lock of an object's key. Keys share locks; that costs time only.
func (s *Store) key(n name) *sync.Mutex {
	var h maphash.Hash
	h.SetSeed(seed)
	for _, part := range append([]string{n.bucket, n.base}, n.dirs...) {
		_, _ = h.WriteString(part)
		_ = h.WriteByte(0)
	}
	return &s.keys[h.Sum64()%uint64(len(s.keys))]
}
