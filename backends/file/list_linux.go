package file

import (
	"encoding/base64"
	"encoding/xml"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const maxList = 1000 // entries of one answer: S3's limit

// A listRequest is what all lists of objects ask for.
type listRequest struct {
	bucket, prefix, delimiter string
	after                     string // list what comes after this key or common prefix
	max                       int
	encoding                  string // encoding-type
	encode                    func(string) string
}

func parseList(bucket string, q url.Values, after string) (listRequest, error) {
	ask := listRequest{bucket: bucket, prefix: q.Get("prefix"), delimiter: q.Get("delimiter"), after: after, encoding: q.Get("encoding-type")}
	var err error
	if ask.encode, err = keyEncoding(ask.encoding); err != nil {
		return ask, err
	}
	ask.max, err = count("max-keys", q.Get("max-keys"), maxList)
	ask.max = min(ask.max, maxList) // S3 takes more than it gives
	return ask, err
}

func keyEncoding(kind string) (func(string) string, error) {
	switch kind {
	case "":
		return func(s string) string { return s }, nil
	case "url":
		return encodeKey, nil
	}
	return nil, invalidParameter("encoding-type", kind, "Invalid Encoding Method specified in Request")
}

// encodeKey leaves only what every decoder leaves alone: some take + for a blank, so a blank is %20.
func encodeKey(key string) string {
	return strings.NewReplacer("+", "%20", "%2F", "/").Replace(url.QueryEscape(key))
}

// listHead is what the answers to all lists of objects begin with.
type listHead struct {
	XMLNS        string `xml:"xmlns,attr"`
	Name         string
	Prefix       string
	MaxKeys      int
	Delimiter    string `xml:",omitempty"`
	EncodingType string `xml:",omitempty"`
	IsTruncated  bool
}

func (l *listing) head() listHead {
	ask := l.ask
	return listHead{
		XMLNS: xmlns, Name: ask.bucket, Prefix: ask.encode(ask.prefix), MaxKeys: ask.max,
		Delimiter: ask.encode(ask.delimiter), EncodingType: ask.encoding, IsTruncated: l.more,
	}
}

type listV1 struct {
	XMLName xml.Name `xml:"ListBucketResult"`
	listHead
	Marker     string
	NextMarker string `xml:",omitempty"`
	listEntries
}

type listV2 struct {
	XMLName xml.Name `xml:"ListBucketResult"`
	listHead
	StartAfter            string `xml:",omitempty"`
	ContinuationToken     string `xml:",omitempty"`
	NextContinuationToken string `xml:",omitempty"`
	KeyCount              int
	listEntries
}

type listEntries struct {
	Contents       []listObject
	CommonPrefixes []listPrefix
}

type listObject struct {
	Key          string
	LastModified string
	ETag         string
	listChecksums
	Size         int64
	StorageClass string
	Owner        *owner
}

type listPrefix struct{ Prefix string }

// listObjects answers the first version. S3 names the next marker only where there is a delimiter, and lets clients take the last key elsewhere;
// here it is always named, for some take nothing else.
func (s *Store) listObjects(w http.ResponseWriter, r *http.Request, bucket string, q url.Values) error {
	ask, err := parseList(bucket, q, q.Get("marker"))
	if err != nil {
		return err
	}
	found, err := s.list(r.Context(), ask)
	if err != nil {
		return err
	}
	who := callerOf(r).owner()
	result := listV1{listHead: found.head(), Marker: ask.encode(ask.after), listEntries: found.entries(&who)}
	if found.more {
		result.NextMarker = ask.encode(found.last())
	}
	writeXML(w, r, http.StatusOK, result)
	return nil
}

func (s *Store) listObjectsV2(w http.ResponseWriter, r *http.Request, bucket string, q url.Values) error {
	if v := q.Get("list-type"); v != "2" {
		return invalidParameter("list-type", v, "Invalid List Type specified in Request")
	}
	after, token := q.Get("start-after"), q.Get("continuation-token")
	if _, ok := q["continuation-token"]; ok {
		last, err := readContinuation(token)
		if err != nil {
			return err
		}
		after = max(after, last)
	}
	ask, err := parseList(bucket, q, after)
	if err != nil {
		return err
	}
	found, err := s.list(r.Context(), ask)
	if err != nil {
		return err
	}
	var who *owner
	if q.Get("fetch-owner") == "true" {
		o := callerOf(r).owner()
		who = &o
	}
	result := listV2{
		listHead: found.head(), StartAfter: ask.encode(q.Get("start-after")), ContinuationToken: token,
		KeyCount: len(found.items), listEntries: found.entries(who),
	}
	if found.more {
		result.NextContinuationToken = continuation(found.last())
	}
	writeXML(w, r, http.StatusOK, result)
	return nil
}

const encodedToken = "base64:"

// continuation makes a token of the last entry of an answer. It is the entry itself, where no parser of XML can change that.
func continuation(last string) string {
	odd := func(c rune) bool { return !unicode.IsGraphic(c) || c == utf8.RuneError }
	if strings.HasPrefix(last, encodedToken) || strings.TrimSpace(last) != last || strings.ContainsFunc(last, odd) {
		return encodedToken + base64.RawURLEncoding.EncodeToString([]byte(last))
	}
	return last
}

func readContinuation(token string) (string, error) {
	after := token
	if code, ok := strings.CutPrefix(token, encodedToken); ok {
		text, err := base64.RawURLEncoding.DecodeString(code)
		if err != nil {
			text = nil
		}
		after = string(text)
	}
	if after == "" {
		return "", invalidParameter("continuation-token", token, "The continuation token provided is incorrect")
	}
	return after, nil
}

// entries are what was found, as the answer has it. who is the owner of all of it, nil if the answer does not name one.
func (l *listing) entries(who *owner) (e listEntries) {
	for _, it := range l.items {
		if it.meta == nil {
			e.CommonPrefixes = append(e.CommonPrefixes, listPrefix{l.ask.encode(it.name)})
			continue
		}
		e.Contents = append(e.Contents, listObject{
			Key: l.ask.encode(it.name), LastModified: it.meta.modified().UTC().Truncate(time.Second).Format(xmlTime),
			ETag: it.meta.quotedETag(), listChecksums: it.meta.listChecksums(), Size: it.meta.size, StorageClass: "STANDARD", Owner: who,
		})
	}
	return e
}

type listChecksums struct {
	ChecksumAlgorithm string `xml:",omitempty"`
	ChecksumType      string `xml:",omitempty"`
}

func (m *meta) listChecksums() listChecksums {
	s := m.sum()
	if s.name == "" {
		return listChecksums{}
	}
	return listChecksums{s.name, s.kind()}
}
