package misbehave

import (
	"encoding/xml"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// bucketAction is what is asked of a bucket as a whole.
func (x *request) bucketAction() action {
	switch x.op.Name {
	case "CreateBucket":
		return x.createBucket
	case "DeleteBucket":
		return x.inBucket(x.deleteBucket)
	case "ListObjectsV2":
		return x.inBucket(x.list)
	}
	return x.inBucket(func(*effect, *bucket) decision {
		switch x.op.Name {
		case "GetBucketVersioning":
			return decision{reply: document(http.StatusOK, struct {
				XMLName xml.Name `xml:"VersioningConfiguration"`
			}{})}
		case "GetObjectLockConfiguration":
			return decision{reply: fail(http.StatusNotFound, "ObjectLockConfigurationNotFoundError", "Object Lock configuration does not exist for this bucket")}
		}
		return decision{reply: okay} // HeadBucket
	})
}

func (x *request) createBucket(*effect) decision {
	if _, ok := x.s.buckets[x.op.Bucket]; ok {
		return decision{reply: fail(http.StatusConflict, "BucketAlreadyOwnedByYou", "Your previous request to create the named bucket succeeded and you already own it.")}
	}
	return decision{okay, func() { x.s.buckets[x.op.Bucket] = newBucket() }}
}

func (x *request) deleteBucket(_ *effect, b *bucket) decision {
	if len(b.objects) > 0 {
		return decision{reply: fail(http.StatusConflict, "BucketNotEmpty", "The bucket you tried to delete is not empty")}
	}
	return decision{noContent, func() { delete(x.s.buckets, x.op.Bucket) }}
}

// list is ListObjectsV2 with prefix, start-after, max-keys and continuation. The continuation token is the last key of the page.
func (x *request) list(_ *effect, b *bucket) decision {
	type content struct {
		Key, LastModified, ETag string
		Size                    int
	}
	var page struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		Name, Prefix          string
		MaxKeys, KeyCount     int
		IsTruncated           bool
		NextContinuationToken string `xml:",omitempty"`
		Contents              []content
	}
	q := x.op.Query
	if q.Has("delimiter") {
		return decision{reply: fail(http.StatusNotImplemented, "NotImplemented", "this store has no delimiters")}
	}
	page.Name, page.Prefix, page.MaxKeys = x.op.Bucket, q.Get("prefix"), 1000
	if n, err := strconv.Atoi(q.Get("max-keys")); err == nil {
		page.MaxKeys = min(n, 1000)
	}
	after := max(q.Get("start-after"), q.Get("continuation-token"))
	for _, key := range slices.Sorted(maps.Keys(b.objects)) {
		if !strings.HasPrefix(key, page.Prefix) || key <= after {
			continue
		}
		if len(page.Contents) == page.MaxKeys {
			page.IsTruncated, page.NextContinuationToken = true, page.Contents[len(page.Contents)-1].Key
			break
		}
		o := b.objects[key]
		page.Contents = append(page.Contents, content{key, o.modified.Format(time.RFC3339), o.etag, len(o.content)})
	}
	page.KeyCount = len(page.Contents)
	return decision{reply: document(http.StatusOK, page)}
}

type batch struct {
	XMLName xml.Name                     `xml:"Delete"`
	Objects []struct{ Key, ETag string } `xml:"Object"`
	Quiet   bool
}

// deleteObjects is DeleteObjects. An ETag beside a key is its condition, judged for that key alone.
func (x *request) deleteObjects(body []byte) (action, *reply) {
	var asked batch
	if err := xml.Unmarshal(body, &asked); err != nil || len(asked.Objects) == 0 || len(asked.Objects) > 1000 {
		return nil, refuse(http.StatusBadRequest, "MalformedXML", "The XML you provided was not well-formed or did not validate against our published schema")
	}
	if x.r.Header.Get("Content-Md5") == "" && !hasChecksum(x.r.Header) {
		return nil, refuse(http.StatusBadRequest, "InvalidRequest", "Missing required header for this request: Content-MD5 OR x-amz-checksum-*")
	}
	return x.inBucket(func(e *effect, b *bucket) decision {
		type deleted struct{ Key string }
		type failed struct{ Key, Code, Message string }
		var result struct {
			XMLName xml.Name `xml:"DeleteResult"`
			Deleted []deleted
			Error   []failed
		}
		var keys []string
		for _, o := range asked.Objects {
			if o.ETag != "" && !e.ignore {
				if r := x.judgeEntry(b, o.Key, quoted(o.ETag)); r != "" {
					result.Error = append(result.Error, failed{o.Key, r, "the condition does not hold"})
					continue
				}
			}
			keys = append(keys, o.Key)
			if !asked.Quiet {
				result.Deleted = append(result.Deleted, deleted{o.Key})
			}
		}
		return decision{document(http.StatusOK, result), func() {
			for _, key := range keys {
				x.s.replace(e, b, key, nil)
			}
		}}
	}), nil
}

// judgeEntry returns the code of what is wrong with one entry, "" if nothing is.
func (x *request) judgeEntry(b *bucket, key, etag string) string {
	o, ok := b.objects[x.s.merged(key)]
	switch {
	case !ok:
		return "NoSuchKey"
	case etag != "*" && o.etag != etag:
		return "PreconditionFailed"
	}
	return ""
}

func hasChecksum(h http.Header) bool {
	for name := range h {
		if strings.HasPrefix(name, "X-Amz-Checksum-") {
			return true
		}
	}
	return false
}
