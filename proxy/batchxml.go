package proxy

import (
	"bytes"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/fenceproxy/fenceproxy/internal/checksum"
	"github.com/fenceproxy/fenceproxy/proxy/rules"
)

// maxBatch is how many keys S3 takes in one DeleteObjects.
const maxBatch = 1000

// A batch is the body of DeleteObjects. It is never handed on as it came: what we have read of it is what the store gets, lest the store
// read another key out of the same text.
type batch struct {
	XMLName xml.Name    `xml:"http://s3.amazonaws.com/doc/2006-03-01/ Delete"`
	Objects []batchItem `xml:"Object"`
	Quiet   bool

	entries []batchEntry
}

// A batchItem is one object as S3's XML has it.
type batchItem struct {
	Key              string
	VersionId        string `xml:",omitempty"`
	ETag             string `xml:",omitempty"`
	LastModifiedTime string `xml:",omitempty"`
	Size             string `xml:",omitempty"`
}

// A readItem is one as it came. Its fields are lists to notice a second one, and elements where text should be.
type readItem struct {
	Key, VersionId, ETag, LastModifiedTime, Size []readText

	Unknown []struct{ XMLName xml.Name } `xml:",any"`
}

type readText struct {
	Text    string                       `xml:",chardata"`
	Unknown []struct{ XMLName xml.Name } `xml:",any"`
}

// A batchEntry is one object, and what is said of it.
type batchEntry struct {
	batchItem
	target      rules.Target
	conditioned bool // its ETag is ours
	refusal     error
}

// A batchAnswer is S3's DeleteResult.
type batchAnswer struct {
	XMLName xml.Name `xml:"DeleteResult"`
	Deleted []batchDeleted
	Errors  []batchError `xml:"Error"`
}

type batchDeleted struct {
	Key                   string
	VersionId             string `xml:",omitempty"`
	DeleteMarker          string `xml:",omitempty"`
	DeleteMarkerVersionId string `xml:",omitempty"`
}

type batchError struct {
	Key       string
	VersionId string `xml:",omitempty"`
	Code      string
	Message   string
}

func parseBatch(text []byte) (*batch, error) {
	var read struct { // in any namespace: not every client writes one
		XMLName xml.Name   `xml:"Delete"`
		Objects []readItem `xml:"Object"`
		Quiet   bool
		Unknown []struct{ XMLName xml.Name } `xml:",any"`
	}
	if err := xml.Unmarshal(text, &read); err != nil {
		return nil, malformedXML("the body is not a Delete: %v", err)
	}
	if len(read.Objects) > maxBatch {
		return nil, malformedXML("a Delete has %d objects at most; this one has %d", maxBatch, len(read.Objects))
	}
	if len(read.Unknown) > 0 {
		return nil, malformedXML("a Delete has no %.60s", read.Unknown[0].XMLName.Local)
	}
	b := &batch{Quiet: read.Quiet}
	seen := map[batchItem]bool{} // a condition holds for the first of two only
	for i, r := range read.Objects {
		item, problem := r.item()
		if problem != "" {
			return nil, malformedXML("object %d %s", i+1, problem)
		}
		if !seen[item] {
			b.entries = append(b.entries, batchEntry{batchItem: item})
		}
		seen[item] = true
	}
	return b, nil
}

func malformedXML(format string, args ...any) error {
	return badRequest("MalformedXML", format, args...)
}

// item is what was meant, or what is wrong with it.
func (r readItem) item() (item batchItem, problem string) {
	if len(r.Unknown) > 0 {
		return item, fmt.Sprintf("has a %.60s, which is not known", r.Unknown[0].XMLName.Local)
	}
	for _, field := range []struct {
		name string
		read []readText
		into *string
	}{
		{"Key", r.Key, &item.Key},
		{"VersionId", r.VersionId, &item.VersionId},
		{"ETag", r.ETag, &item.ETag},
		{"LastModifiedTime", r.LastModifiedTime, &item.LastModifiedTime},
		{"Size", r.Size, &item.Size},
	} {
		switch {
		case len(field.read) == 0:
		case len(field.read) > 1:
			return item, "has more than one " + field.name
		case len(field.read[0].Unknown) > 0:
			return item, "has an element in its " + field.name
		default:
			*field.into = field.read[0].Text
		}
	}
	switch {
	case item.Key == "":
		return item, "must have one key"
	case len(item.Key) > maxKey:
		return item, "has a key of more than " + strconv.Itoa(maxKey) + " bytes"
	}
	return item, ""
}

// setBody gives a request a body of ours, with the digests that belong to it instead of the client's.
func setBody(r *http.Request, body []byte) *content {
	for name := range r.Header {
		if strings.HasPrefix(name, checksum.HeaderPrefix) {
			r.Header.Del(name)
		}
	}
	r.Header.Del("X-Amz-Sdk-Checksum-Algorithm")
	sum5, sum256 := md5.Sum(body), sha256.Sum256(body)
	r.Header.Set("Content-Md5", base64.StdEncoding.EncodeToString(sum5[:]))
	r.Header.Set("Content-Length", strconv.Itoa(len(body)))
	return &content{ReaderAt: bytes.NewReader(body), size: int64(len(body)), sha256: hex.EncodeToString(sum256[:])}
}
