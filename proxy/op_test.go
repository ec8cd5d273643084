package proxy

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestOperations(t *testing.T) {
	for _, c := range []struct {
		method, target, header string
		name                   string
		way                    way
		bucket, key            string
	}{
		{"GET", "/", "", "ListBuckets", listBuckets, "", ""},
		{"GET", "/?x-id=ListBuckets", "", "ListBuckets", listBuckets, "", ""},
		{"GET", "/b", "", "ListObjects", lists, "b", ""},
		{"GET", "/b/", "", "ListObjects", lists, "b", ""},
		{"GET", "/b/?list-type=2&prefix=jobs/", "", "ListObjectsV2", lists, "b", ""},
		{"GET", "/b?versions", "", "ListObjectVersions", lists, "b", ""},
		{"GET", "/b?uploads", "", "ListMultipartUploads", lists, "b", ""},
		{"GET", "/b?location", "", "GetBucketLocation", reads, "b", ""},
		{"GET", "/b?whatever=1", "", "ListObjects", lists, "b", ""},
		{"HEAD", "/b", "", "HeadBucket", reads, "b", ""},
		{"PUT", "/b", "", "CreateBucket", bucketWrites, "b", ""},
		{"DELETE", "/b/", "", "DeleteBucket", bucketWrites, "b", ""},
		{"GET", "/b/a/b", "", "GetObject", reads, "b", "a/b"},
		{"GET", "/b/a?unknown", "", "GetObject", reads, "b", "a"},
		{"GET", "/b/a?versionId=3&acl", "", "GetObjectAcl", reads, "b", "a"},
		{"HEAD", "/b/a", "", "HeadObject", reads, "b", "a"},
		{"GET", "/b/a?uploadId=7", "", "ListParts", reads, "b", "a"},
		{"POST", "/b/a?select&select-type=2", "", "SelectObjectContent", reads, "b", "a"},
		{"PUT", "/b/a?x-id=PutObject", "", "PutObject", writes, "b", "a"},
		{"DELETE", "/b/a", "", "DeleteObject", writes, "b", "a"},
		{"PUT", "/b/a", "X-Amz-Copy-Source: /b/c", "CopyObject", writes, "b", "a"},
		{"PUT", "/b/a", "X-Amz-Copy-Source: ", "CopyObject", writes, "b", "a"},
		{"PUT", "/b/a?partNumber=1&uploadId=7", "", "UploadPart", uploadsPart, "b", "a"},
		{"PUT", "/b/a?partNumber=1&uploadId=7", "X-Amz-Copy-Source: /b/c", "UploadPartCopy", uploadsPart, "b", "a"},
		{"POST", "/b/a?uploads", "", "CreateMultipartUpload", createsUpload, "b", "a"},
		{"POST", "/b/a?uploadId=7", "", "CompleteMultipartUpload", writes, "b", "a"},
		{"DELETE", "/b/a?uploadId=7", "", "AbortMultipartUpload", abortsUpload, "b", "a"},
		{"PUT", "/b/a?tagging", "", "PutObjectTagging", writes, "b", "a"},
		{"POST", "/b?delete", "", "DeleteObjects", deletesMany, "b", ""},
		{"PUT", "/b/a?acl", "", "PutObjectAcl", writes, "b", "a"},
		{"PUT", "/b/a?retention&versionId=3", "", "PutObjectRetention", writes, "b", "a"},
		{"POST", "/b/a?restore", "", "RestoreObject", writes, "b", "a"},
		{"DELETE", "/b/a?versionId=1", "", "DeleteObject", writes, "b", "a"},
		{"PUT", "/b?versioning", "", "PutBucketVersioning", bucketWrites, "b", ""},
		{"PUT", "/b?inventory&id=1", "", "PutBucketInventoryConfiguration", bucketWrites, "b", ""},
		{"DELETE", "/b?policy", "", "DeleteBucketPolicy", bucketWrites, "b", ""},
		{"PUT", "/b/a", "X-Amz-Write-Offset-Bytes: 3", "AppendObject", writes, "b", "a"},
		{"PUT", "/b/a", "X-Amz-Write-Offset-Bytes: ", "AppendObject", writes, "b", "a"},
		{"PUT", "/b/a?renameObject", "X-Amz-Rename-Source: c", "RenameObject", renames, "b", "a"},
		{"POST", "/b", "", "PostObject", postsForm, "b", ""},
		{"POST", "/b/", "", "PostObject", postsForm, "b", ""},
		{"OPTIONS", "/b", "", "OptionsObject", preflight, "b", ""},
		{"OPTIONS", "/b/a?uploads&unknown=1", "", "OptionsObject", preflight, "b", "a"},
		{"PUT", "/b/a?encryption", "", "UpdateObjectEncryption", writes, "b", "a"},
		{"PUT", "/b/a?annotation&annotationName=n", "", "PutObjectAnnotation", writes, "b", "a"},
		{"GET", "/b/a?annotation&annotationName=n", "", "GetObjectAnnotation", reads, "b", "a"},
		{"GET", "/b/a?annotation", "", "ListObjectAnnotations", reads, "b", "a"},
		{"GET", "/b/a?annotation&annotationName=", "", "ListObjectAnnotations", reads, "b", "a"},
		{"GET", "/b?inventory", "", "ListBucketInventoryConfigurations", reads, "b", ""},
		{"GET", "/b?inventory&id=1", "", "GetBucketInventoryConfiguration", reads, "b", ""},
		{"PUT", "/b?metadataJournalTable", "", "UpdateBucketMetadataJournalTableConfiguration", bucketWrites, "b", ""},
		{"GET", "/b/a?session", "", "GetObject", reads, "b", "a"},
		{"GET", "/b/a?fence", "", "ShowFence", fenceShow, "b", "a"},
		{"PUT", "/b/a?fence", "", "AnnounceToken", fenceRaise, "b", "a"},
		{"POST", "/b/a?fence&lease=30s", "", "TakeLock", takesLock, "b", "a"},
		{"PUT", "/b/a?lease=x&fence", "", "RenewLock", renewsLock, "b", "a"},
		{"DELETE", "/b/a?fence&lease=x", "", "ReleaseLock", releasesLock, "b", "a"},
		// spellings: what follows the slash behind the bucket is the key, decoded once
		{"PUT", "/b//a", "", "PutObject", writes, "b", "/a"},
		{"PUT", "/b/a//b/", "", "PutObject", writes, "b", "a//b/"},
		{"PUT", "/b/./a", "", "PutObject", writes, "b", "./a"},
		{"PUT", "/b/x/../a", "", "PutObject", writes, "b", "x/../a"},
		{"PUT", "/b/a%2Fb", "", "PutObject", writes, "b", "a/b"},
		{"PUT", "/b%2Fa", "", "PutObject", writes, "b", "a"},
		{"PUT", "/b/a+b", "", "PutObject", writes, "b", "a+b"},
		{"PUT", "/b/a%2Bb", "", "PutObject", writes, "b", "a+b"},
		{"PUT", "/b/a%252Bb", "", "PutObject", writes, "b", "a%2Bb"},
		{"PUT", "/b/a%20b", "", "PutObject", writes, "b", "a b"},
		{"PUT", "/b/%C3%A9", "", "PutObject", writes, "b", "é"},
	} {
		r := httptest.NewRequest(c.method, "http://host"+c.target, nil)
		if name, value, ok := strings.Cut(c.header, ": "); ok {
			r.Header.Set(name, value)
		}
		op, err := parseOperation(r, r.URL.Path)
		if err != nil || op.name != c.name || op.way != c.way || op.bucket != c.bucket || op.key != c.key {
			t.Errorf("%s %s: %+v, %v; want %s, way %d, bucket %q, key %q", c.method, c.target, op, err, c.name, c.way, c.bucket, c.key)
		}
	}
}

// TestUnknownWritesAreRefused: what we do not know by name, a store may carry out as something else than we have fenced.
func TestUnknownWritesAreRefused(t *testing.T) {
	for _, c := range []struct{ method, target, header, name string }{
		{"GET", "/b?session", "", "CreateSession"},
		{"GET", "/?x-id=ListDirectoryBuckets", "", "ListDirectoryBuckets"},
		{"GET", "/?max-directory-buckets=3", "", "ListDirectoryBuckets"},
		{"POST", "/WriteGetObjectResponse", "", "WriteGetObjectResponse"},
		{"PUT", "/b/a?renameObject&versionId=3", "", "RenameObject"},
		{"PUT", "/b/a?versionId=3", "X-Amz-Write-Offset-Bytes: 3", "AppendObject"},
		{"PUT", "/b/a?annotationName=n", "", ""},
		{"PUT", "/b/a?annotation&annotationName=", "", ""},
		{"DELETE", "/b/a?annotation&annotationName=n&annotationName=m", "", ""},
		{"POST", "/b/a?fence&lease=", "", ""},
		{"PUT", "/b/a?fence&lease=1&lease=2", "", ""},
		{"DELETE", "/b/a?fence", "", "ReleaseLock"},
		{"POST", "/b/a?fence", "", "TakeLock"},
		{"PUT", "/b/a?unknown", "", ""},
		{"PUT", "/b/a?partNumber=1", "", ""},
		{"PUT", "/b/a?select-type=2", "", ""},
		{"PUT", "/b/a?lease=1", "", ""},
		{"PUT", "/b/a?acl&id=1", "", ""},
		{"PUT", "/b?versionId=1", "", ""},
		{"PUT", "/b/a?Acl", "", ""},
		{"PUT", "/b/a?acl&tagging", "", ""},
		{"PUT", "/b/a?acl;x", "", ""},
		{"PUT", "/b/a?%zz", "", ""},
		{"PATCH", "/b/a", "", ""},
		{"OPTIONS", "/", "", ""},
	} {
		r := httptest.NewRequest(c.method, "http://host"+c.target, nil)
		if name, value, ok := strings.Cut(c.header, ": "); ok {
			r.Header.Set(name, value)
		}
		op, err := parseOperation(r, r.URL.Path)
		if a := new(exchange).answerTo(err); err == nil || (a.status != http.StatusNotImplemented && a.status != http.StatusBadRequest) || op.name != c.name {
			t.Errorf("%s %s: %q, %v; want a refusal of %q", c.method, c.target, op.name, err, c.name)
		}
	}
}

func TestPathsThatNameNothing(t *testing.T) {
	for _, path := range []string{"", "b/a", "//a", "/b/\xff", "*"} {
		if op, err := splitPath(path); err == nil {
			t.Errorf("%q: %+v", path, op)
		}
	}
}

// FuzzOperation: no request crashes the parser, and nothing that could change a store is taken for a read.
func FuzzOperation(f *testing.F) {
	f.Add("PUT", "/b/a", "acl")
	f.Add("POST", "/b", "delete&x=1")
	f.Fuzz(func(t *testing.T, method, path, query string) {
		r := httptest.NewRequest(http.MethodGet, "http://host/", nil)
		r.Method, r.URL.Path, r.URL.RawQuery = method, path, query
		op, err := parseOperation(r, path)
		if err != nil || isRead(method) || op.name == "SelectObjectContent" {
			return
		}
		if op.way == reads || op.way == lists || op.way == listBuckets {
			t.Fatalf("%s %q?%q is taken for the read %s", method, path, query, op.name)
		}
	})
}

func TestCopySource(t *testing.T) {
	for source, want := range map[string]string{
		"/b/a": "b", "b/a": "b", "b/a%2Fc?versionId=3": "b", "b%2Fa": "b", "/b//a": "b",
		"": "", "b": "", "/b/": "", "//a": "", "b/%zz": "",
	} {
		got, err := copySource(http.Header{headerCopySource: {source}})
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", source, got, err, want)
		}
	}
}
