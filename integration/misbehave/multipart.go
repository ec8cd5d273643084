package misbehave

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
)

// An upload is a multipart upload that has not ended.
type upload struct {
	key    string
	header http.Header
	since  int // how often the object had changed when it began
	parts  map[int]part
}

type part struct {
	content []byte
	etag    string
}

// An upload's parts have 5 MiB at least on AWS, but for the last. That is left out here, so that tests need not move so much.
const maxParts = 10000

func (x *request) createUpload(_ *effect, b *bucket) decision {
	id := fmt.Sprintf("upload-%d", x.op.ID) // the same in an answer that is made up before it is true
	u := &upload{key: x.op.Key, header: x.r.Header.Clone(), since: b.changes[x.s.merged(x.op.Key)], parts: map[int]part{}}
	return decision{
		reply: document(http.StatusOK, struct {
			XMLName               xml.Name `xml:"InitiateMultipartUploadResult"`
			Bucket, Key, UploadId string
		}{Bucket: x.op.Bucket, Key: x.op.Key, UploadId: id}),
		commit: func() { b.uploads[id] = u },
	}
}

// upload finds the one that a request names.
func (x *request) upload(b *bucket) (*upload, *reply) {
	u, ok := b.uploads[x.op.Query.Get("uploadId")]
	if !ok || u.key != x.op.Key {
		return nil, refuse(http.StatusNotFound, "NoSuchUpload", "The specified upload does not exist.")
	}
	return u, nil
}

func (x *request) uploadPart(body []byte) (action, *reply) {
	n, err := strconv.Atoi(x.op.Query.Get("partNumber"))
	if err != nil || n < 1 || n > maxParts {
		return nil, refuse(http.StatusBadRequest, "InvalidArgument", "Part number must be an integer between 1 and %d, inclusive", maxParts)
	}
	return x.inBucket(func(_ *effect, b *bucket) decision {
		u, r := x.upload(b)
		if r != nil {
			return refused(r)
		}
		content := body
		if x.op.Name == "UploadPartCopy" {
			from, r := x.source()
			if r != nil {
				return refused(r)
			}
			content = from.content
		}
		etag := md5Tag(content)
		answer := reply{status: http.StatusOK, header: http.Header{"Etag": {etag}}}
		if x.op.Name == "UploadPartCopy" {
			answer = document(http.StatusOK, struct {
				XMLName xml.Name `xml:"CopyPartResult"`
				ETag    string
			}{ETag: etag})
		}
		return decision{answer, func() { u.parts[n] = part{content, etag} }}
	}), nil
}

type completion struct {
	XMLName xml.Name `xml:"CompleteMultipartUpload"`
	Parts   []struct {
		PartNumber int
		ETag       string
	} `xml:"Part"`
}

// completeUpload makes an object of the parts. With a condition it is refused if the object has changed since the upload began, by the
// same bytes even.
func (x *request) completeUpload(body []byte) (action, *reply) {
	var list completion
	if err := xml.Unmarshal(body, &list); err != nil || len(list.Parts) == 0 {
		return nil, refuse(http.StatusBadRequest, "MalformedXML", "The XML you provided was not well-formed or did not validate against our published schema")
	}
	c, bad := conditionOf(x.r.Header)
	return x.inBucket(func(e *effect, b *bucket) decision {
		u, r := x.upload(b)
		if r != nil {
			return refused(r)
		}
		o, r := u.assemble(list)
		if r != nil {
			return refused(r)
		}
		name := x.s.merged(x.op.Key)
		if (c != condition{}) && !e.ignore && b.changes[name] != u.since {
			return refused(conflict())
		}
		if r := c.judge(e, b, name, u.since); r != nil {
			return refused(r)
		}
		return decision{
			reply: document(http.StatusOK, struct {
				XMLName           xml.Name `xml:"CompleteMultipartUploadResult"`
				Bucket, Key, ETag string
			}{Bucket: x.op.Bucket, Key: x.op.Key, ETag: o.etag}),
			commit: func() {
				delete(b.uploads, x.op.Query.Get("uploadId"))
				x.s.replace(e, b, x.op.Key, o)
			},
		}
	}), bad
}

// assemble puts the parts together. The ETag is the MD5 of their MD5s, and their number.
func (u *upload) assemble(list completion) (*object, *reply) {
	var content bytes.Buffer
	sums := md5.New()
	for i, p := range list.Parts {
		have, ok := u.parts[p.PartNumber]
		switch {
		case i > 0 && p.PartNumber <= list.Parts[i-1].PartNumber:
			return nil, refuse(http.StatusBadRequest, "InvalidPartOrder", "The list of parts was not in ascending order.")
		case !ok || have.etag != quoted(p.ETag):
			return nil, refuse(http.StatusBadRequest, "InvalidPart", "One or more of the specified parts could not be found.")
		}
		content.Write(have.content)
		sum := md5.Sum(have.content)
		sums.Write(sum[:])
	}
	etag := fmt.Sprintf(`"%s-%d"`, hex.EncodeToString(sums.Sum(nil)), len(list.Parts))
	return newObject(content.Bytes(), etag, u.header), nil
}

func (x *request) abortUpload(_ *effect, b *bucket) decision {
	if _, r := x.upload(b); r != nil {
		return refused(r)
	}
	return decision{noContent, func() { delete(b.uploads, x.op.Query.Get("uploadId")) }}
}

func (x *request) listParts(_ *effect, b *bucket) decision {
	u, r := x.upload(b)
	if r != nil {
		return refused(r)
	}
	type listed struct {
		PartNumber int
		ETag       string
		Size       int
	}
	var parts []listed
	for _, n := range slices.Sorted(maps.Keys(u.parts)) {
		parts = append(parts, listed{n, u.parts[n].etag, len(u.parts[n].content)})
	}
	return decision{reply: document(http.StatusOK, struct {
		XMLName               xml.Name `xml:"ListPartsResult"`
		Bucket, Key, UploadId string
		IsTruncated           bool
		Parts                 []listed `xml:"Part"`
	}{Bucket: x.op.Bucket, Key: x.op.Key, UploadId: x.op.Query.Get("uploadId"), Parts: parts})}
}
