package misbehave

import (
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"
)

// An Operation is one request.
type Operation struct {
	ID          int    // counts the requests in the order in which they came, from 1
	Name        string // S3's, such as PutObject; "" for what this store does not know
	Bucket, Key string // as the decoded path has them
	Query       url.Values
	Header      http.Header
	Came        time.Time
}

// operation reads what a request asks for.
func (s *Store) operation(r *http.Request) Operation {
	op := Operation{Query: r.URL.Query(), Header: r.Header, Came: time.Now()}
	op.Bucket, op.Key, _ = strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	op.Name = nameOf(r, op)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	op.ID = s.requests
	return op
}

func nameOf(r *http.Request, op Operation) string {
	_, copying := r.Header["X-Amz-Copy-Source"]
	line := r.Method
	switch {
	case op.Bucket == "":
		return ""
	case op.Key == "":
		line += " bucket"
	case copying:
		line += " copy"
	}
	for _, sub := range []string{"delete", "list-type", "object-lock", "partNumber", "uploadId", "uploads", "versioning"} {
		if op.Query.Has(sub) {
			return names[line+" ?"+sub]
		}
	}
	for sub := range op.Query {
		if foreign[sub] {
			return ""
		}
	}
	return names[line]
}

var names = map[string]string{
	"PUT bucket": "CreateBucket", "HEAD bucket": "HeadBucket", "DELETE bucket": "DeleteBucket",
	"GET bucket ?list-type": "ListObjectsV2", "GET bucket ?versioning": "GetBucketVersioning", "GET bucket ?object-lock": "GetObjectLockConfiguration",
	"POST bucket ?delete": "DeleteObjects",
	"PUT":                 "PutObject", "GET": "GetObject", "HEAD": "HeadObject", "DELETE": "DeleteObject", "PUT copy": "CopyObject",
	"POST ?uploads": "CreateMultipartUpload", "PUT ?partNumber": "UploadPart", "PUT copy ?partNumber": "UploadPartCopy",
	"POST ?uploadId": "CompleteMultipartUpload", "DELETE ?uploadId": "AbortMultipartUpload", "GET ?uploadId": "ListParts",
}

// foreign are sub-resources that make another operation of a request, which this store does not have.
var foreign = map[string]bool{
	"acl": true, "tagging": true, "retention": true, "legal-hold": true, "attributes": true, "restore": true, "torrent": true, "select": true,
	"renameObject": true, "policy": true, "lifecycle": true, "versions": true, "location": true, "versionId": true,
}

// merged is the name that a key leads to.
func (s *Store) merged(key string) string {
	o := s.options
	if o.Slashes {
		for strings.Contains(key, "//") {
			key = strings.ReplaceAll(key, "//", "/")
		}
	}
	if o.Dots {
		parts := strings.Split(key, "/")
		if strings.Contains(key, "/./") || strings.Contains(key, "/../") || parts[len(parts)-1] == ".." {
			key = path.Clean(key)
		}
	}
	if o.Case {
		key = strings.ToLower(key)
	}
	return key
}
