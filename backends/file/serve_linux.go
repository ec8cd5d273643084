package file

import (
	"hash/maphash"
	"maps"
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
	if r.Method == http.MethodOptions {
		return s.preflight(r, bucket)
	}
	if r.Method != http.MethodPut && r.Header["X-Amz-Copy-Source"] != nil {
		return copySourceNotAllowed()
	}
	if readOnly(r) { // S3 logs them and looks at them no further
		maps.DeleteFunc(q, func(k string, _ []string) bool { return strings.HasPrefix(k, "x-") && !strings.HasPrefix(k, "x-amz-") })
	}
	if key == "" {
		return s.serveBucket(w, r, bucket, q)
	}
	return s.serveObject(w, r, bucket, key, q)
}

func readOnly(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

func copySourceNotAllowed() error {
	return invalidArgument("You can only specify a copy source header for copy requests.")
}

func (s *Store) serveService(w http.ResponseWriter, r *http.Request, q url.Values) error {
	may := []string{"max-buckets", "continuation-token", "prefix", "bucket-region"}
	switch {
	case r.Method != http.MethodGet:
		return methodNotAllowed(r)
	case hasOther(q, may):
		return unimplemented("The query parameter %s of ListBuckets is not implemented by the file store.", other(q, may))
	}
	return s.listBuckets(w, r, q)
}

func (s *Store) serveBucket(w http.ResponseWriter, r *http.Request, bucket string, q url.Values) error {
	for _, op := range ofBucket {
		if op.asked(r, q) {
			return op.serve(s, w, r, bucket, q)
		}
	}
	if err := s.needBucket(bucket); err != nil { // S3 says so first
		return err
	}
	return unserved(r, q, bucketOperations, ofBucket)
}

func (s *Store) serveObject(w http.ResponseWriter, r *http.Request, bucket, key string, q url.Values) error {
	if err := takeNullVersion(r, q); err != nil {
		return err
	}
	for _, op := range ofObject {
		if !op.asked(r, q) {
			continue
		}
		n, err := parseName(bucket, key)
		if err != nil {
			return err
		}
		if op.files && n.isDir() {
			return containsData()
		}
		return op.serve(s, w, r, n, q)
	}
	if err := s.needBucket(bucket); err != nil {
		return err
	}
	return unserved(r, q, objectOperations, ofObject)
}

// takeNullVersion takes a versionId off the query of an operation that may be about one version. In a bucket that never had versioning, and
// here none has, the one version of an object is null.
func takeNullVersion(r *http.Request, q url.Values) error {
	v, ok := q["versionId"]
	if !ok || r.Method == http.MethodPost || r.Method == http.MethodPut && !q.Has("tagging") {
		return nil
	}
	if len(v) != 1 || v[0] != nullVersion {
		return invalidArgument("Invalid version id specified").because("The file store keeps no versions: the only one of an object is null.")
	}
	delete(q, "versionId")
	return nil
}

const nullVersion = "null"

// An operation is known by its method, the parameters that it has, and whether it names a source. on is what it is for: a bucket's
// name, or an object's.
type operation[on any] struct {
	name   string // S3's
	method string
	must   []string // parameters
	may    []string
	copies bool
	files  bool // it is not for directory objects
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
	return !hasOther(q, op.parameters())
}

func (op operation[on]) parameters() []string { return append(slices.Clone(op.may), op.must...) }

// onBucket is a handler of a bucket that its query does not matter to.
func onBucket(serve func(*Store, http.ResponseWriter, *http.Request, string) error) func(*Store, http.ResponseWriter, *http.Request, string, url.Values) error {
	return func(s *Store, w http.ResponseWriter, r *http.Request, bucket string, _ url.Values) error {
		return serve(s, w, r, bucket)
	}
}

var ofBucket = slices.Concat([]operation[string]{
	{name: "ListObjects", method: http.MethodGet, may: []string{"prefix", "delimiter", "max-keys", "encoding-type", "marker"}, serve: (*Store).listObjects},
	{
		name: "ListObjectsV2", method: http.MethodGet, must: []string{"list-type"}, serve: (*Store).listObjectsV2,
		may: []string{"prefix", "delimiter", "max-keys", "encoding-type", "continuation-token", "start-after", "fetch-owner"},
	},
	{
		name: "ListObjectVersions", method: http.MethodGet, must: []string{"versions"}, serve: (*Store).listVersions,
		may: []string{"prefix", "delimiter", "max-keys", "encoding-type", "key-marker", "version-id-marker"},
	},
	{name: "HeadBucket", method: http.MethodHead, serve: onBucket((*Store).headBucket)},
	{name: "CreateBucket", method: http.MethodPut, serve: onBucket((*Store).createBucket)},
	{name: "DeleteBucket", method: http.MethodDelete, serve: onBucket((*Store).deleteBucket)},
	{name: "GetBucketTagging", method: http.MethodGet, must: []string{"tagging"}, serve: (*Store).getBucketTagging},
	{name: "PutBucketTagging", method: http.MethodPut, must: []string{"tagging"}, serve: (*Store).putBucketTagging},
	{name: "DeleteBucketTagging", method: http.MethodDelete, must: []string{"tagging"}, serve: (*Store).deleteBucketTagging},
	{name: "DeleteObjects", method: http.MethodPost, must: []string{"delete"}, serve: (*Store).deleteObjects},
	{
		name: "ListMultipartUploads", method: http.MethodGet, must: []string{"uploads"}, serve: (*Store).listUploads,
		may: []string{"prefix", "delimiter", "encoding-type", "key-marker", "upload-id-marker", "max-uploads"},
	},
}, settings)

var ofObject = []operation[name]{
	{name: "GetObject", method: http.MethodGet, may: append([]string{"partNumber"}, overrides...), serve: (*Store).getObject},
	{name: "HeadObject", method: http.MethodHead, may: append([]string{"partNumber"}, overrides...), serve: (*Store).getObject},
	{name: "GetObjectTagging", method: http.MethodGet, must: []string{"tagging"}, serve: (*Store).getTagging},
	{name: "PutObjectTagging", method: http.MethodPut, must: []string{"tagging"}, serve: (*Store).putTagging},
	{name: "DeleteObjectTagging", method: http.MethodDelete, must: []string{"tagging"}, serve: (*Store).deleteTagging},
	{name: "GetObjectAttributes", method: http.MethodGet, must: []string{"attributes"}, serve: (*Store).getAttributes},
	{name: "PutObject", method: http.MethodPut, serve: (*Store).putObject},
	{name: "CopyObject", method: http.MethodPut, copies: true, serve: (*Store).copyObject},
	{name: "DeleteObject", method: http.MethodDelete, serve: (*Store).deleteObject},
	{name: "GetObjectAcl", method: http.MethodGet, must: []string{"acl"}, serve: (*Store).getObjectACL},
	{name: "GetObjectRetention", method: http.MethodGet, must: []string{"retention"}, serve: (*Store).noObjectLock},
	{name: "GetObjectLegalHold", method: http.MethodGet, must: []string{"legal-hold"}, serve: (*Store).noObjectLock},
	{name: "CreateMultipartUpload", method: http.MethodPost, must: []string{"uploads"}, files: true, serve: (*Store).createUpload},
	{name: "UploadPart", method: http.MethodPut, must: []string{"partNumber", "uploadId"}, serve: (*Store).uploadPart},
	{name: "UploadPartCopy", method: http.MethodPut, must: []string{"partNumber", "uploadId"}, copies: true, serve: (*Store).uploadPartCopy},
	{name: "CompleteMultipartUpload", method: http.MethodPost, must: []string{"uploadId"}, serve: (*Store).completeUpload},
	{name: "AbortMultipartUpload", method: http.MethodDelete, must: []string{"uploadId"}, serve: (*Store).abortUpload},
	{
		name: "ListParts", method: http.MethodGet, must: []string{"uploadId"}, serve: (*Store).listParts,
		may: []string{"max-parts", "part-number-marker", "encoding-type"},
	},
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

// refuseHeaders refuses a write that asks for something which the store would silently not do.
func refuseHeaders(h http.Header) error {
	for k, v := range h {
		value := strings.Join(v, ",")
		if k == "X-Amz-Bucket-Object-Lock-Enabled" && strings.EqualFold(value, "false") { // SDKs say what they do not want
			continue
		}
		if refused(k) || k == "X-Amz-Acl" && !slices.Contains([]string{"private", "bucket-owner-full-control"}, value) {
			return unimplemented("The header %s is not implemented by the file store.", strings.ToLower(k))
		}
	}
	return nil
}

func refused(header string) bool {
	for _, p := range []string{
		"X-Amz-Server-Side-Encryption", "X-Amz-Object-Lock-", "X-Amz-Bucket-Object-Lock-",
		"X-Amz-Grant-", "X-Amz-Write-Offset-Bytes", "X-Amz-Copy-Source-Server-Side-Encryption",
	} {
		if strings.HasPrefix(header, p) {
			return true
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
