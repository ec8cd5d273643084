package misbehave

import (
	"bytes"
	"encoding/xml"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// action finds out what a request is to do.
func (x *request) action(body []byte) (action, *reply) {
	h := x.r.Header
	switch x.op.Name {
	case "CreateBucket", "HeadBucket", "DeleteBucket", "ListObjectsV2", "GetBucketVersioning", "GetObjectLockConfiguration":
		return x.bucketAction(), nil
	case "GetObject", "HeadObject":
		return x.inBucket(x.get), nil
	case "PutObject":
		c, refused := conditionOf(h)
		return x.write(c, func() (*object, *reply) {
			o := newObject(body, md5Tag(body), h)
			o.checksums = x.checksumsOf()
			return o, nil
		}), refused
	case "DeleteObject":
		c, refused := conditionOf(h)
		return x.write(c, func() (*object, *reply) { return nil, nil }), refused
	case "CopyObject":
		return x.copyObject()
	case "DeleteObjects":
		return x.deleteObjects(body)
	case "CreateMultipartUpload":
		return x.inBucket(x.createUpload), nil
	case "UploadPart", "UploadPartCopy":
		return x.uploadPart(body)
	case "CompleteMultipartUpload":
		return x.completeUpload(body)
	case "AbortMultipartUpload":
		return x.inBucket(x.abortUpload), nil
	case "ListParts":
		return x.inBucket(x.listParts), nil
	}
	return nil, refuse(http.StatusNotImplemented, "NotImplemented", "this store does not have the operation")
}

// inBucket is an action for which the bucket must be there.
func (x *request) inBucket(act func(*effect, *bucket) decision) action {
	return func(e *effect) decision {
		b, ok := x.s.buckets[x.op.Bucket]
		if !ok {
			return decision{reply: fail(http.StatusNotFound, "NoSuchBucket", "The specified bucket does not exist")}
		}
		return act(e, b)
	}
}

func refused(r *reply) decision { return decision{reply: *r} }

// kept are the headers that belong to an object, beside x-amz-meta-*.
var kept = []string{"Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Type", "Expires"}

func newObject(content []byte, etag string, h http.Header) *object {
	o := &object{content: content, etag: etag, header: http.Header{}, modified: time.Now().UTC()}
	for _, name := range kept {
		if v := h.Get(name); v != "" {
			o.header.Set(name, v)
		}
	}
	for name, values := range h {
		if strings.HasPrefix(name, "X-Amz-Meta-") {
			o.header[name] = []string{strings.Join(values, ",")}
		}
	}
	if o.header.Get("Content-Type") == "" {
		o.header.Set("Content-Type", "binary/octet-stream")
	}
	return o
}

// write makes, replaces or removes one object, which is made of what is there at the moment of the effect.
func (x *request) write(c condition, make func() (*object, *reply)) action {
	return x.inBucket(func(e *effect, b *bucket) decision {
		if r := c.judge(e, b, x.s.merged(x.op.Key), e.before); r != nil {
			return refused(r)
		}
		o, r := make()
		if r != nil {
			return refused(r)
		}
		d := decision{reply: noContent, commit: func() { x.s.replace(e, b, x.op.Key, o) }}
		if o != nil {
			d.reply = reply{status: http.StatusOK, header: http.Header{"Etag": {o.etag}}}
		}
		return d
	})
}

// get is GetObject and HeadObject. Ranges and conditions are those of HTTP, which are S3's.
func (x *request) get(_ *effect, b *bucket) decision {
	o, ok := b.objects[x.s.merged(x.op.Key)]
	if !ok {
		return decision{reply: fail(http.StatusNotFound, "NoSuchKey", "The specified key does not exist.")}
	}
	rec := &recorder{header: o.header.Clone(), status: http.StatusOK}
	rec.header.Set("Etag", o.etag)
	if strings.EqualFold(x.r.Header.Get("X-Amz-Checksum-Mode"), "ENABLED") {
		maps.Copy(rec.header, o.checksums)
	}
	http.ServeContent(rec, x.r, "", o.modified, bytes.NewReader(o.content))
	return decision{reply: reply{rec.status, rec.header, rec.body.Bytes()}}
}

// A recorder keeps an answer of package http.
type recorder struct {
	status int
	header http.Header
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(status int)      { r.status = status }
func (r *recorder) Write(p []byte) (int, error) { return r.body.Write(p) }

// source finds what a copy is made of, with the lock held.
func (x *request) source() (*object, *reply) {
	name, err := url.PathUnescape(strings.TrimPrefix(x.r.Header.Get("X-Amz-Copy-Source"), "/"))
	bucket, key, ok := strings.Cut(name, "/")
	if err != nil || !ok || key == "" {
		return nil, refuse(http.StatusBadRequest, "InvalidArgument", "Copy Source must mention the source bucket and key: sourcebucket/sourcekey")
	}
	b, ok := x.s.buckets[bucket]
	if !ok {
		return nil, refuse(http.StatusNotFound, "NoSuchBucket", "The specified bucket does not exist")
	}
	o, ok := b.objects[x.s.merged(key)]
	if !ok {
		return nil, refuse(http.StatusNotFound, "NoSuchKey", "The specified key does not exist.")
	}
	return o, nil
}

// copyObject is CopyObject; its condition is on the destination, which AWS has since October 2025.
func (x *request) copyObject() (action, *reply) {
	h := x.r.Header
	c, bad := conditionOf(h)
	replacing := h.Get("X-Amz-Metadata-Directive") == "REPLACE"
	var made *object
	act := x.write(c, func() (*object, *reply) {
		from, r := x.source()
		if r != nil {
			return nil, r
		}
		if made = newObject(from.content, md5Tag(from.content), h); !replacing {
			made.header = from.header
		}
		made.checksums = from.checksums
		return made, nil
	})
	return func(e *effect) decision {
		d := act(e)
		if d.commit != nil {
			d.reply = document(http.StatusOK, struct {
				XMLName            xml.Name `xml:"CopyObjectResult"`
				ETag, LastModified string
			}{ETag: made.etag, LastModified: made.modified.Format(time.RFC3339)})
		}
		return d
	}, bad
}
