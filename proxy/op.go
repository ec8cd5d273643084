package proxy

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"
)

// A level is what an operation is about.
type level int

const (
	service level = iota
	bucket
	object
)

// A way is how an operation goes through the proxy.
type way int

const (
	reads            way = iota // announces its token, then goes to the backend
	lists                       // the same, where its prefix lies within one resource
	writes                      // crosses the gate of its object
	bucketWrites                // follows the bucket's policy
	deletesMany                 // crosses the gates of many objects, judged one by one
	createsUpload               // announces its token: nothing is visible yet
	uploadsPart                 // is refused early, and crosses no gate: nothing is visible yet
	abortsUpload                // as a write, but a stale holder may clear away what is its own
	renames                     // crosses the gates of two objects at once
	postsForm                   // a PutObject in a form, whose key is inside
	fenceShow                   // ours: GET ?fence
	fenceRaise                  // ours: PUT ?fence
	takesLock                   // ours: POST ?fence&lease=TTL
	renewsLock                  // ours: PUT ?fence&lease=ID
	releasesLock                // ours: DELETE ?fence&lease=ID
	listBuckets                 // gathers from all backends
	preflight                   // a browser's question, which neither announces nor changes anything
	refused                     // has no business with a proxy, and perhaps a way around the fence: 501
	unknownOperation            // an operation that is not known: 501
)

// An operation is what a request asks for. Its key is percent-decoded: one object has one key, however it is spelled.
type operation struct {
	name   string // S3's name for it, such as PutObject
	way    way
	level  level
	bucket string
	key    string
	prefix string // of a list
	upload string // the id of a multipart upload
}

// A sub is a sub-resource: the query parameter that turns a request into another operation. The fields name the operation per
// method, "" where S3 has none. Names and parameters: https://docs.aws.amazon.com/AmazonS3/latest/API/API_Operations.html
// docs/operations.md has one line for each operation, and a test holds both against the list of the AWS SDK.
type sub struct{ get, put, post, delete string }

func (s sub) name(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead:
		return s.get
	case http.MethodPut:
		return s.put
	case http.MethodPost:
		return s.post
	case http.MethodDelete:
		return s.delete
	}
	return ""
}

var bucketSubs = map[string]sub{
	"abac":                    {"GetBucketAbac", "PutBucketAbac", "", ""},
	"accelerate":              {"GetBucketAccelerateConfiguration", "PutBucketAccelerateConfiguration", "", ""},
	"acl":                     {"GetBucketAcl", "PutBucketAcl", "", ""},
	"analytics":               {"GetBucketAnalyticsConfiguration", "PutBucketAnalyticsConfiguration", "", "DeleteBucketAnalyticsConfiguration"},
	"cors":                    {"GetBucketCors", "PutBucketCors", "", "DeleteBucketCors"},
	"delete":                  {"", "", "DeleteObjects", ""},
	"encryption":              {"GetBucketEncryption", "PutBucketEncryption", "", "DeleteBucketEncryption"},
	"intelligent-tiering":     {"GetBucketIntelligentTieringConfiguration", "PutBucketIntelligentTieringConfiguration", "", "DeleteBucketIntelligentTieringConfiguration"},
	"inventory":               {"GetBucketInventoryConfiguration", "PutBucketInventoryConfiguration", "", "DeleteBucketInventoryConfiguration"},
	"lifecycle":               {"GetBucketLifecycleConfiguration", "PutBucketLifecycleConfiguration", "", "DeleteBucketLifecycle"},
	"location":                {"GetBucketLocation", "", "", ""},
	"logging":                 {"GetBucketLogging", "PutBucketLogging", "", ""},
	"metadataAnnotationTable": {"", "UpdateBucketMetadataAnnotationTableConfiguration", "", ""},
	"metadataConfiguration":   {"GetBucketMetadataConfiguration", "", "CreateBucketMetadataConfiguration", "DeleteBucketMetadataConfiguration"},
	"metadataInventoryTable":  {"", "UpdateBucketMetadataInventoryTableConfiguration", "", ""},
	"metadataJournalTable":    {"", "UpdateBucketMetadataJournalTableConfiguration", "", ""},
	"metadataTable":           {"GetBucketMetadataTableConfiguration", "", "CreateBucketMetadataTableConfiguration", "DeleteBucketMetadataTableConfiguration"},
	"metrics":                 {"GetBucketMetricsConfiguration", "PutBucketMetricsConfiguration", "", "DeleteBucketMetricsConfiguration"},
	"notification":            {"GetBucketNotificationConfiguration", "PutBucketNotificationConfiguration", "", ""},
	"object-lock":             {"GetObjectLockConfiguration", "PutObjectLockConfiguration", "", ""},
	"ownershipControls":       {"GetBucketOwnershipControls", "PutBucketOwnershipControls", "", "DeleteBucketOwnershipControls"},
	"policy":                  {"GetBucketPolicy", "PutBucketPolicy", "", "DeleteBucketPolicy"},
	"policyStatus":            {"GetBucketPolicyStatus", "", "", ""},
	"publicAccessBlock":       {"GetPublicAccessBlock", "PutPublicAccessBlock", "", "DeletePublicAccessBlock"},
	"replication":             {"GetBucketReplication", "PutBucketReplication", "", "DeleteBucketReplication"},
	"requestPayment":          {"GetBucketRequestPayment", "PutBucketRequestPayment", "", ""},
	"session":                 {"CreateSession", "", "", ""},
	"tagging":                 {"GetBucketTagging", "PutBucketTagging", "", "DeleteBucketTagging"},
	"uploads":                 {"ListMultipartUploads", "", "", ""},
	"versioning":              {"GetBucketVersioning", "PutBucketVersioning", "", ""},
	"versions":                {"ListObjectVersions", "", "", ""},
	"website":                 {"GetBucketWebsite", "PutBucketWebsite", "", "DeleteBucketWebsite"},
}

var objectSubs = map[string]sub{
	"acl":          {"GetObjectAcl", "PutObjectAcl", "", ""},
	"annotation":   {"GetObjectAnnotation", "PutObjectAnnotation", "", "DeleteObjectAnnotation"},
	"attributes":   {"GetObjectAttributes", "", "", ""},
	"encryption":   {"", "UpdateObjectEncryption", "", ""},
	"fence":        {"ShowFence", "AnnounceToken", "TakeLock", "ReleaseLock"},
	"legal-hold":   {"GetObjectLegalHold", "PutObjectLegalHold", "", ""},
	"renameObject": {"", "RenameObject", "", ""},
	"restore":      {"", "", "RestoreObject", ""},
	"retention":    {"GetObjectRetention", "PutObjectRetention", "", ""},
	"select":       {"", "", "SelectObjectContent", ""},
	"tagging":      {"GetObjectTagging", "PutObjectTagging", "", "DeleteObjectTagging"},
	"torrent":      {"GetObjectTorrent", "", "", ""},
	"uploadId":     {"ListParts", "UploadPart", "CompleteMultipartUpload", "AbortMultipartUpload"},
	"uploads":      {"", "", "CreateMultipartUpload", ""},
}

// plainSubs are the operations without a sub-resource, per level.
var plainSubs = map[level]sub{
	service: {"ListBuckets", "", "", ""},
	bucket:  {"ListObjects", "CreateBucket", "PostObject", "DeleteBucket"},
	object:  {"GetObject", "PutObject", "", "DeleteObject"},
}

// writeParameters may stand in the query of a write, some only beside a sub-resource. Any other could change what a store does, so
// that we would fence one operation and it would carry out another.
var writeParameters = map[string]string{
	"x-id": "", "partNumber": "uploadId", "select-type": "select", "lease": "fence", "annotationName": "annotation",
}

// valued are the parameters without whose value a write is another operation.
var valued = map[string]bool{"uploadId": true, "partNumber": true, "versionId": true, "annotationName": true, "lease": true}

// withoutVersion are the writes that are about no version ("This operation does not accept a version-id").
var withoutVersion = map[string]bool{
	"PutObject": true, "CopyObject": true, "CreateMultipartUpload": true, "UploadPart": true, "UploadPartCopy": true,
	"CompleteMultipartUpload": true, "AbortMultipartUpload": true, appendObject: true, renameObject: true,
}

// lists of settings and annotations are what S3 answers where the one that is asked for is not named.
var withoutName = map[string]struct{ parameter, name string }{
	"GetBucketAnalyticsConfiguration":          {"id", "ListBucketAnalyticsConfigurations"},
	"GetBucketIntelligentTieringConfiguration": {"id", "ListBucketIntelligentTieringConfigurations"},
	"GetBucketInventoryConfiguration":          {"id", "ListBucketInventoryConfigurations"},
	"GetBucketMetricsConfiguration":            {"id", "ListBucketMetricsConfigurations"},
	"GetObjectAnnotation":                      {"annotationName", "ListObjectAnnotations"},
}

// mayStand says whether a query parameter that is no sub-resource may stand in a write.
func mayStand(name string, l level, query url.Values) bool {
	switch {
	case name == "versionId" && l == object: // another version, the same key
		return true
	case name == "id" && l == bucket: // which of several settings
		return true
	}
	beside, ok := writeParameters[name]
	return ok && (beside == "" || query.Has(beside))
}

// ways are those of the operations that are neither plain reads nor plain writes.
var ways = map[string]way{
	"ListBuckets": listBuckets,
	"ListObjects": lists, "ListObjectsV2": lists, "ListObjectVersions": lists, "ListMultipartUploads": lists,
	"SelectObjectContent":   reads,
	"DeleteObjects":         deletesMany,
	"CreateMultipartUpload": createsUpload, "UploadPart": uploadsPart, "UploadPartCopy": uploadsPart, "AbortMultipartUpload": abortsUpload,
	renameObject: renames, "PostObject": postsForm,
	"ShowFence": fenceShow, "AnnounceToken": fenceRaise,
	"TakeLock": takesLock, renewLock: renewsLock, "ReleaseLock": releasesLock,
	createSession: refused, listDirectoryBuckets: refused, writeGetObjectResponse: refused,
}

// Operations that are known by more than method and sub-resource.
const (
	appendObject           = "AppendObject"
	createSession          = "CreateSession"
	listDirectoryBuckets   = "ListDirectoryBuckets"
	optionsObject          = "OptionsObject"
	renameObject           = "RenameObject"
	renewLock              = "RenewLock"
	writeGetObjectResponse = "WriteGetObjectResponse"
)

// whyRefused says what is wrong with the operations that are refused for good.
var whyRefused = map[string]string{
	createSession:          "it hands out credentials of the store, and whoever has those writes around the fence: set AWS_S3_DISABLE_EXPRESS_SESSION_AUTH=true",
	listDirectoryBuckets:   "directory buckets are listed at an endpoint of their own, which is not behind this proxy",
	writeGetObjectResponse: "it answers another client's request at S3 Object Lambda, and is not about an object of a bucket",
}

// parseOperation names what a request asks for. path is decoded and has no fence in it any more. The operation is told, as far as
// it is known, beside an error, too.
func parseOperation(r *http.Request, path string) (op operation, err error) {
	if op, err = splitPath(path); err != nil {
		return op, err
	}
	if r.Method == http.MethodOptions && op.level != service { // a browser sends the query of the request that it asks about
		op.name, op.way = optionsObject, preflight
		return op, nil
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil && !isRead(r.Method) {
		return op, badRequest("InvalidURI", "the query cannot be read (%v): what it asks for is unclear", err)
	}
	if err := mistake(r, op, query); err != nil {
		return op, err
	}
	subs, err := subResources(r.Method, op.level, query)
	if err != nil {
		return op, err
	}
	op.name = op.findName(r, subs, query)
	if withoutVersion[op.name] && query.Has("versionId") {
		return op, badRequest(invalidArgument, "%s does not accept a versionId", op.name)
	}
	if err := checkTurning(r, op.name); err != nil {
		return op, err
	}
	op.prefix, op.upload = query.Get("prefix"), query.Get("uploadId")
	if op.way, err = op.chooseWay(r.Method, query); err != nil {
		return op, err
	}
	return op, nil
}

const (
	headerCopySource   = "X-Amz-Copy-Source"
	headerRenameSource = "X-Amz-Rename-Source"
	headerWriteOffset  = "X-Amz-Write-Offset-Bytes"
)

// turning are the headers that turn a write into another one.
var turning = map[string][]string{
	headerCopySource: {"CopyObject", "UploadPartCopy"}, headerRenameSource: {renameObject}, headerWriteOffset: {appendObject},
}

// checkTurning refuses a header that turns a write into another one than the operation that we take it for: a store may go by the header.
func checkTurning(r *http.Request, operation string) error {
	if isRead(r.Method) {
		return nil
	}
	for header, names := range turning {
		if _, ok := r.Header[header]; ok && !slices.Contains(names, operation) {
			return badRequest(invalidArgument, "%s makes no sense in this request: it would be another operation", strings.ToLower(header))
		}
	}
	return nil
}

// copySource is the bucket that CopyObject and UploadPartCopy read from: "/bucket/key" or "bucket/key", percent-encoded, and perhaps a
// version behind it.
func copySource(h http.Header) (bucket string, err error) {
	source, err := url.PathUnescape(strings.TrimPrefix(h.Get(headerCopySource), "/"))
	bucket, key, ok := strings.Cut(source, "/")
	if err != nil || !ok || bucket == "" || key == "" || len(h.Values(headerCopySource)) != 1 {
		return "", badRequest(invalidArgument, "x-amz-copy-source must be one bucket/key, percent-encoded")
	}
	return bucket, nil
}

func isRead(method string) bool { return method == http.MethodGet || method == http.MethodHead }

// maxKey is how long S3 lets a key be, in bytes ("Creating object key names").
const maxKey = 1024

// splitPath takes a path-style path apart. What follows the slash behind the bucket is the key, with whatever slashes it has.
func splitPath(path string) (operation, error) {
	rest, ok := strings.CutPrefix(path, "/")
	if !ok || !utf8.ValidString(path) {
		return operation{}, badRequest("InvalidURI", "the path must begin with a slash and be UTF-8")
	}
	op := operation{level: service}
	op.bucket, op.key, _ = strings.Cut(rest, "/")
	switch {
	case op.key != "":
		op.level = object
	case op.bucket != "":
		op.level = bucket
	}
	switch {
	case op.bucket == "." || op.bucket == "..": // which something behind us may take for a step in a path
		return op, badRequest("InvalidBucketName", "%q is no name of a bucket", op.bucket)
	case op.bucket == "" && rest != "":
		return op, badRequest("InvalidBucketName", "the path %q has no bucket", path)
	case len(op.key) > maxKey:
		return op, badRequest("KeyTooLongError", "a key has at most %d bytes, this one has %d", maxKey, len(op.key))
	}
	return op, nil
}

// subResources returns the sub-resources that a query names. Of a write it refuses what it does not know.
func subResources(method string, l level, query url.Values) (subs []string, err error) {
	known := map[level]map[string]sub{bucket: bucketSubs, object: objectSubs}[l]
	for name, values := range query {
		if !isRead(method) && (len(values) > 1 || values[0] == "" && valued[name]) {
			// A store could take the other one of two, or none for another operation.
			return nil, badRequest(invalidArgument, "the query parameter %q of a write stands once, with a value", name)
		}
		if _, ok := known[name]; ok {
			subs = append(subs, name)
			continue
		}
		if isRead(method) || mayStand(name, l, query) {
			continue
		}
		return nil, notImplemented("the query parameter %q is not known to %s: what a store makes of it cannot be fenced", name, method)
	}
	slices.Sort(subs)
	if len(subs) > 1 && !isRead(method) {
		return nil, badRequest("InvalidArgument", "the query names %s, each another operation", strings.Join(subs, " and "))
	}
	return subs, nil
}

func (op *operation) findName(r *http.Request, subs []string, query url.Values) string {
	table := plainSubs[op.level]
	if len(subs) > 0 {
		table = bucketSubs[subs[0]]
		if op.level == object {
			table = objectSubs[subs[0]]
		}
	}
	name := table.name(r.Method)
	_, copying := r.Header[headerCopySource]
	_, appending := r.Header[headerWriteOffset]
	other, named := withoutName[name]
	switch {
	case isRead(r.Method) && op.level == bucket && query.Has("session"): // whatever else it names
		return createSession
	case named && query.Get(other.parameter) == "":
		return other.name
	case name == "ListBuckets" && (query.Get("x-id") == listDirectoryBuckets || query.Has("max-directory-buckets")):
		return listDirectoryBuckets
	case name == "PostObject" && op.bucket == writeGetObjectResponse: // no bucket has a capital letter
		return writeGetObjectResponse
	case name == "GetObject" && r.Method == http.MethodHead:
		return "HeadObject"
	case name == "ListObjects" && r.Method == http.MethodHead:
		return "HeadBucket"
	case name == "ListObjects" && query.Get("list-type") == "2":
		return "ListObjectsV2"
	case name == "AnnounceToken" && query.Has("lease"):
		return renewLock
	case name == "PutObject" && copying:
		return "CopyObject"
	case name == "UploadPart" && copying:
		return "UploadPartCopy"
	case name == "PutObject" && appending:
		return appendObject
	}
	return name
}

// chooseWay refuses every write that it does not know by name. What is known, and has no way of its own, crosses the gate of its
// object, or follows the policy of its bucket.
func (op *operation) chooseWay(method string, query url.Values) (way, error) {
	w, ok := ways[op.name]
	switch {
	case w == refused:
		return refused, notImplemented("%s does not go through this proxy: %s", op.name, whyRefused[op.name])
	case w.locks() && !query.Has("lease"):
		return w, badRequest(invalidArgument, "lease is missing: POST ?fence&lease=30s takes the lock for 30 s, PUT and DELETE ?fence&lease=ID keep it and give it back")
	case ok:
		return w, nil
	case isRead(method):
		return reads, nil
	case op.name == "":
		return unknownOperation, notImplemented("%s on %s with this query is not an operation of S3 that this proxy knows", method, [...]string{"the service", "a bucket", "an object"}[op.level])
	case op.level == object:
		return writes, nil
	}
	return bucketWrites, nil
}
