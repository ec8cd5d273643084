package file

import (
	"encoding/base64"
	"encoding/xml"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const maxList = 1000 // entries of one answer: S3's limit

// listParameters are those of ListObjectsV2, or of the first version where the query does not ask for the second.
func listParameters(q url.Values) []string {
	both := []string{"prefix", "delimiter", "max-keys", "encoding-type"}
	if q.Get("list-type") == "2" {
		return append(both, "list-type", "continuation-token", "start-after", "fetch-owner")
	}
	return append(both, "marker")
}

// listResult is the answer of both versions; pointers are elements that one of them, or some answers, do not have.
type listResult struct {
	XMLName               xml.Name `xml:"ListBucketResult"`
	XMLNS                 string   `xml:"xmlns,attr"`
	Name                  string
	Prefix                string
	Marker                *string
	NextMarker            string `xml:",omitempty"`
	StartAfter            string `xml:",omitempty"`
	ContinuationToken     string `xml:",omitempty"`
	NextContinuationToken string `xml:",omitempty"`
	KeyCount              *int
	MaxKeys               int
	Delimiter             string `xml:",omitempty"`
	EncodingType          string `xml:",omitempty"`
	IsTruncated           bool
	Contents              []listObject
	CommonPrefixes        []listPrefix
}

type listObject struct {
	Key          string
	LastModified string
	ETag         string
	Size         int64
	StorageClass string
	Owner        *owner
}

type listPrefix struct{ Prefix string }

// A listRequest is what both versions ask for.
type listRequest struct {
	bucket, prefix, delimiter string
	after                     string // list what comes after this key or common prefix
	max                       int
}

func (s *Store) listObjects(w http.ResponseWriter, r *http.Request, bucket string, q url.Values) error {
	v2 := q.Get("list-type") == "2"
	ask, err := parseList(bucket, q, v2)
	if err != nil {
		return err
	}
	encode, err := keyEncoding(q.Get("encoding-type"))
	if err != nil {
		return err
	}
	found, err := s.list(r.Context(), ask)
	if err != nil {
		return err
	}
	result := &listResult{
		XMLNS: xmlns, Name: bucket, Prefix: encode(ask.prefix), MaxKeys: ask.max, Delimiter: encode(ask.delimiter),
		EncodingType: q.Get("encoding-type"), IsTruncated: found.more,
	}
	found.fill(result, encode, !v2 || q.Get("fetch-owner") == "true")
	if v2 {
		n := len(found.items)
		result.KeyCount = &n
		result.StartAfter, result.ContinuationToken = encode(q.Get("start-after")), q.Get("continuation-token")
		if found.more {
			result.NextContinuationToken = continuation(found.last())
		}
	} else {
		marker := encode(q.Get("marker"))
		result.Marker = &marker
		if found.more && ask.delimiter != "" { // without a delimiter S3 expects the client to take the last key
			result.NextMarker = encode(found.last())
		}
	}
	writeXML(w, r, http.StatusOK, result)
	return nil
}

func parseList(bucket string, q url.Values, v2 bool) (listRequest, error) {
	ask := listRequest{bucket: bucket, prefix: q.Get("prefix"), delimiter: q.Get("delimiter"), after: q.Get("marker"), max: maxList}
	if v, ok := q["max-keys"]; ok && v[0] != "" {
		n, err := strconv.ParseInt(v[0], 10, 32)
		if err != nil || n < 0 {
			return ask, invalidArgument("max-keys must be a whole number from 0 to 2147483647, not %q.", v[0])
		}
		ask.max = int(min(n, maxList))
	}
	if !v2 {
		return ask, nil
	}
	ask.after = q.Get("start-after")
	if token, ok := q["continuation-token"]; ok {
		after, err := readContinuation(token[0])
		if err != nil {
			return ask, err
		}
		ask.after = after
	}
	return ask, nil
}

// continuation makes a token of the last entry of an answer. It is encoded so that nobody makes one up.
func continuation(last string) string {
	return base64.RawURLEncoding.EncodeToString([]byte("1" + last))
}

func readContinuation(token string) (string, error) {
	text, err := base64.RawURLEncoding.DecodeString(token)
	if after, ok := strings.CutPrefix(string(text), "1"); ok && err == nil {
		return after, nil
	}
	return "", invalidArgument("The continuation token is not one that this store gave.")
}

func keyEncoding(kind string) (func(string) string, error) {
	switch kind {
	case "":
		return func(s string) string { return s }, nil
	case "url":
		return encodeKey, nil
	}
	return nil, invalidArgument("encoding-type must be url, not %q.", kind)
}

// encodeKey leaves only what every decoder leaves alone: some take + for a blank, so a blank is %20.
func encodeKey(key string) string {
	return strings.NewReplacer("+", "%20", "%2F", "/").Replace(url.QueryEscape(key))
}

// fill puts what was found into the answer.
func (l *listing) fill(result *listResult, encode func(string) string, withOwner bool) {
	for _, it := range l.items {
		if it.meta == nil {
			result.CommonPrefixes = append(result.CommonPrefixes, listPrefix{encode(it.name)})
			continue
		}
		o := listObject{
			Key: encode(it.name), LastModified: it.meta.modified().UTC().Truncate(time.Second).Format(xmlTime),
			ETag: it.meta.quotedETag(), Size: it.meta.size, StorageClass: "STANDARD",
		}
		if withOwner {
			o.Owner = &theOwner
		}
		result.Contents = append(result.Contents, o)
	}
}
