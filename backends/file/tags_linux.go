package file

import (
	"encoding/xml"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// S3's limits ("Categorizing your objects using tags" in its user guide). It counts characters as UTF-16 does.
const (
	maxTags     = 10
	maxTagKey   = 128
	maxTagValue = 256

	headerTagging = "X-Amz-Tagging"
)

// A tag is one that an object has.
type tag struct {
	Key   string
	Value string
}

// encodeTags writes tags as x-amz-tagging has them.
func encodeTags(tags []tag) string {
	pairs := make([]string, 0, len(tags))
	for _, t := range tags {
		pairs = append(pairs, url.QueryEscape(t.Key)+"="+url.QueryEscape(t.Value))
	}
	return strings.Join(pairs, "&")
}

func decodeTags(text string) (tags []tag, ok bool) {
	for pair := range strings.SplitSeq(text, "&") {
		if pair == "" {
			continue
		}
		key, value, _ := strings.Cut(pair, "=")
		k, keyErr := url.QueryUnescape(key)
		v, valueErr := url.QueryUnescape(value)
		if keyErr != nil || valueErr != nil {
			return nil, false
		}
		tags = append(tags, tag{Key: k, Value: v})
	}
	return tags, true
}

func hasTag(tags []tag, key string) bool {
	return slices.ContainsFunc(tags, func(t tag) bool { return t.Key == key })
}

// tagsOf reads the tags that a write gives its object.
func tagsOf(h http.Header) ([]tag, error) {
	tags, ok := decodeTags(h.Get(headerTagging))
	for i, t := range tags {
		ok = ok && t.Key != "" && !hasTag(tags[:i], t.Key)
	}
	if !ok || len(h.Values(headerTagging)) > 1 {
		return nil, refuse(http.StatusBadRequest, "InvalidArgument",
			"The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query parameters without tag name duplicates.")
	}
	return tags, checkTags(tags)
}

func checkTags(tags []tag) error {
	if len(tags) > maxTags {
		return refuse(http.StatusBadRequest, "BadRequest", "Object tags cannot be greater than 10")
	}
	return checkTagTexts(tags)
}

func checkTagTexts(tags []tag) error {
	for i, t := range tags {
		switch {
		case t.Key == "" || !tagText(t.Key, maxTagKey):
			return invalidTag("The TagKey you have provided is invalid")
		case !tagText(t.Value, maxTagValue):
			return invalidTag("The TagValue you have provided is invalid")
		case strings.HasPrefix(strings.ToLower(t.Key), "aws:"):
			return invalidTag("System tags cannot be added/updated by requester")
		case hasTag(tags[:i], t.Key):
			return invalidTag("Cannot provide multiple Tags with the same key")
		}
	}
	return nil
}

func invalidTag(message string) *apiError {
	return refuse(http.StatusBadRequest, "InvalidTag", "%s", message)
}

// tagText says whether a tag may have this key or value: letters, digits, blanks and a few signs (page "Tag" of the API of S3 Control).
func tagText(text string, most int) bool {
	units := 0
	for _, r := range text {
		if !unicode.In(r, unicode.L, unicode.Z, unicode.N) && !strings.ContainsRune("_.:/=+-@", r) {
			return false
		}
		units += utf16.RuneLen(r)
	}
	return utf8.ValidString(text) && units <= most
}

// A taggingDocument is what PutObjectTagging takes and GetObjectTagging answers.
type taggingDocument struct {
	XMLName xml.Name `xml:"Tagging"`
	XMLNS   string   `xml:"xmlns,attr"`
	Tags    []tag    `xml:"TagSet>Tag"`
}

// readTagging reads the document. It takes nothing that is not there once: the tags that a client has meant must not get lost.
func readTagging(r *http.Request) ([]tag, error) {
	tags, err := readTagSet(r)
	if err != nil {
		return nil, err
	}
	return tags, checkTags(tags)
}

func readTagSet(r *http.Request) ([]tag, error) {
	var ask struct {
		XMLName xml.Name `xml:"Tagging"`
		TagSet  []struct {
			Tag []struct {
				Key   []string
				Value []string
			}
		}
	}
	if err := readDocument(r, &ask); err != nil {
		return nil, err
	}
	if len(ask.TagSet) != 1 {
		return nil, malformedXML("there must be one TagSet")
	}
	var tags []tag
	for _, t := range ask.TagSet[0].Tag {
		if len(t.Key) != 1 || len(t.Value) != 1 {
			return nil, malformedXML("a Tag must have one Key and one Value")
		}
		tags = append(tags, tag{Key: t.Key[0], Value: t.Value[0]})
	}
	return tags, nil
}
