package file

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// methods are the operations of one sub-resource, by method; "" where S3 has none. lists is what GET is where no id is given.
type methods struct{ get, put, post, delete, lists string }

func (m methods) name(r *http.Request, q url.Values) string {
	switch r.Method {
	case http.MethodGet:
		if m.lists != "" && q.Get("id") == "" && q.Get("annotationName") == "" {
			return m.lists
		}
		return m.get
	case http.MethodPut:
		return m.put
	case http.MethodPost:
		return m.post
	case http.MethodDelete:
		return m.delete
	}
	return ""
}

// bucketOperations names the operations that S3 has of a bucket, by the query parameter that makes a request one of them. What is not
// in ofBucket is refused by its name.
var bucketOperations = map[string]methods{
	"":                        {get: "ListObjects", put: "CreateBucket", delete: "DeleteBucket"},
	"abac":                    {get: "GetBucketAbac", put: "PutBucketAbac"},
	"accelerate":              {get: "GetBucketAccelerateConfiguration", put: "PutBucketAccelerateConfiguration"},
	"acl":                     {get: "GetBucketAcl", put: "PutBucketAcl"},
	"analytics":               {get: "GetBucketAnalyticsConfiguration", lists: "ListBucketAnalyticsConfigurations", put: "PutBucketAnalyticsConfiguration", delete: "DeleteBucketAnalyticsConfiguration"},
	"cors":                    {get: "GetBucketCors", put: "PutBucketCors", delete: "DeleteBucketCors"},
	"delete":                  {post: "DeleteObjects"},
	"encryption":              {get: "GetBucketEncryption", put: "PutBucketEncryption", delete: "DeleteBucketEncryption"},
	"intelligent-tiering":     {get: "GetBucketIntelligentTieringConfiguration", lists: "ListBucketIntelligentTieringConfigurations", put: "PutBucketIntelligentTieringConfiguration", delete: "DeleteBucketIntelligentTieringConfiguration"},
	"inventory":               {get: "GetBucketInventoryConfiguration", lists: "ListBucketInventoryConfigurations", put: "PutBucketInventoryConfiguration", delete: "DeleteBucketInventoryConfiguration"},
	"lifecycle":               {get: "GetBucketLifecycleConfiguration", put: "PutBucketLifecycleConfiguration", delete: "DeleteBucketLifecycle"},
	"list-type":               {get: "ListObjectsV2"},
	"location":                {get: "GetBucketLocation"},
	"logging":                 {get: "GetBucketLogging", put: "PutBucketLogging"},
	"metadataAnnotationTable": {put: "UpdateBucketMetadataAnnotationTableConfiguration"},
	"metadataConfiguration":   {get: "GetBucketMetadataConfiguration", post: "CreateBucketMetadataConfiguration", delete: "DeleteBucketMetadataConfiguration"},
	"metadataInventoryTable":  {put: "UpdateBucketMetadataInventoryTableConfiguration"},
	"metadataJournalTable":    {put: "UpdateBucketMetadataJournalTableConfiguration"},
	"metadataTable":           {get: "GetBucketMetadataTableConfiguration", post: "CreateBucketMetadataTableConfiguration", delete: "DeleteBucketMetadataTableConfiguration"},
	"metrics":                 {get: "GetBucketMetricsConfiguration", lists: "ListBucketMetricsConfigurations", put: "PutBucketMetricsConfiguration", delete: "DeleteBucketMetricsConfiguration"},
	"notification":            {get: "GetBucketNotificationConfiguration", put: "PutBucketNotificationConfiguration"},
	"object-lock":             {get: "GetObjectLockConfiguration", put: "PutObjectLockConfiguration"},
	"ownershipControls":       {get: "GetBucketOwnershipControls", put: "PutBucketOwnershipControls", delete: "DeleteBucketOwnershipControls"},
	"policy":                  {get: "GetBucketPolicy", put: "PutBucketPolicy", delete: "DeleteBucketPolicy"},
	"policyStatus":            {get: "GetBucketPolicyStatus"},
	"publicAccessBlock":       {get: "GetPublicAccessBlock", put: "PutPublicAccessBlock", delete: "DeletePublicAccessBlock"},
	"replication":             {get: "GetBucketReplication", put: "PutBucketReplication", delete: "DeleteBucketReplication"},
	"requestPayment":          {get: "GetBucketRequestPayment", put: "PutBucketRequestPayment"},
	"session":                 {get: "CreateSession"},
	"tagging":                 {get: "GetBucketTagging", put: "PutBucketTagging", delete: "DeleteBucketTagging"},
	"uploads":                 {get: "ListMultipartUploads"},
	"versioning":              {get: "GetBucketVersioning", put: "PutBucketVersioning"},
	"versions":                {get: "ListObjectVersions"},
	"website":                 {get: "GetBucketWebsite", put: "PutBucketWebsite", delete: "DeleteBucketWebsite"},
}

// objectOperations are those of an object.
var objectOperations = map[string]methods{
	"":             {get: "GetObject", put: "PutObject", delete: "DeleteObject"},
	"acl":          {get: "GetObjectAcl", put: "PutObjectAcl"},
	"annotation":   {get: "GetObjectAnnotation", lists: "ListObjectAnnotations", put: "PutObjectAnnotation", delete: "DeleteObjectAnnotation"},
	"attributes":   {get: "GetObjectAttributes"},
	"encryption":   {put: "UpdateObjectEncryption"},
	"legal-hold":   {get: "GetObjectLegalHold", put: "PutObjectLegalHold"},
	"renameObject": {put: "RenameObject"},
	"restore":      {post: "RestoreObject"},
	"retention":    {get: "GetObjectRetention", put: "PutObjectRetention"},
	"select":       {post: "SelectObjectContent"},
	"tagging":      {get: "GetObjectTagging", put: "PutObjectTagging", delete: "DeleteObjectTagging"},
	"torrent":      {get: "GetObjectTorrent"},
	"uploadId":     {get: "ListParts", put: "UploadPart", post: "CompleteMultipartUpload", delete: "AbortMultipartUpload"},
	"uploads":      {post: "CreateMultipartUpload"},
}

// unserved answers a request that is none of a table's, by the name of what it asks for.
func unserved[on any](r *http.Request, q url.Values, named map[string]methods, table []operation[on]) error {
	var subs []string
	for k := range q {
		if _, ok := named[k]; ok {
			subs = append(subs, k)
		}
	}
	slices.Sort(subs)
	if len(subs) > 1 {
		return invalidArgument("Conflicting query string parameters: %s", strings.Join(subs, ", "))
	}
	name := named[strings.Join(subs, "")].name(r, q)
	if name == "" {
		return methodNotAllowed(r)
	}
	for _, op := range table {
		if op.name == name {
			return notThisForm(r, q, op)
		}
	}
	return unimplemented("%s is not implemented by the file store.", name)
}

// notThisForm answers an operation that the file store has, with something that it does not.
func notThisForm[on any](r *http.Request, q url.Values, op operation[on]) error {
	for _, p := range op.must {
		if len(q[p]) != 1 {
			return invalidArgument("%s needs the query parameter %s once.", op.name, p)
		}
	}
	if p := other(q, op.parameters()); p != "" {
		return unimplemented("The query parameter %s of %s is not implemented by the file store.", p, op.name)
	}
	if r.Header["X-Amz-Copy-Source"] != nil {
		return copySourceNotAllowed()
	}
	return unimplemented("This form of %s is not implemented by the file store.", op.name)
}

func methodNotAllowed(r *http.Request) error {
	return refuse(http.StatusMethodNotAllowed, "MethodNotAllowed", "The specified method is not allowed against this resource.").
		because("S3 has no such operation: %s %s.", r.Method, r.URL.RequestURI())
}
