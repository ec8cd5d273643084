package file

import (
	"crypto/md5"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"hash"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/fenceproxy/fenceproxy/internal/checksum"
)

const (
	defaultSum = "CRC64NVME"   // S3's choice where the client has made none
	fullObject = "FULL_OBJECT" // a checksum of the content
	composite  = "COMPOSITE"   // a checksum of the checksums of parts

	checksumType      = "X-Amz-Checksum-Type"
	checksumAlgorithm = "X-Amz-Checksum-Algorithm"
	sdkAlgorithm      = "X-Amz-Sdk-Checksum-Algorithm"
)

// A sum is a checksum of the content of an object, or of a part.
type sum struct {
	name  string // of the algorithm
	value string // in Base64; a composite one has a dash and the number of parts behind it
}

func (s sum) kind() string {
	if strings.Contains(s.value, "-") {
		return composite
	}
	return fullObject
}

// tell puts a sum, if there is one, into the headers of an answer.
func (s sum) tell(h http.Header) {
	if a, ok := checksum.ByName(s.name); ok {
		h.Set(a.Header(), s.value)
		h.Set(checksumType, s.kind())
	}
}

// A sumElement is a sum in a document of S3: ChecksumCRC32, and so on.
type sumElement struct {
	XMLName xml.Name
	Value   string `xml:",chardata"`
}

const sumElementPrefix = "Checksum"

func (s sum) elements() []sumElement {
	if s.name == "" {
		return nil
	}
	return []sumElement{{XMLName: xml.Name{Local: sumElementPrefix + s.name}, Value: s.value}}
}

// sumOf finds the one of an algorithm.
func sumOf(sums []sum, name string) (sum, bool) {
	i := slices.IndexFunc(sums, func(s sum) bool { return s.name == name })
	if i < 0 {
		return sum{}, false
	}
	return sums[i], true
}

func encodeSums(q url.Values, sums []sum) {
	for _, s := range sums {
		q.Set("checksum-"+strings.ToLower(s.name), s.value)
	}
}

func decodeSums(q url.Values) (sums []sum) {
	for _, a := range checksum.All {
		if v := q.Get("checksum-" + strings.ToLower(a.Name)); v != "" {
			sums = append(sums, sum{name: a.Name, value: v})
		}
	}
	return sums
}

// A taker takes the MD5 and checksums of what is written to it.
type taker struct {
	md5    hash.Hash // nil if it is not wanted
	names  []string
	hashes []hash.Hash // of names
}

func newTaker(etag bool, names ...string) *taker {
	t := &taker{}
	if etag {
		t.md5 = md5.New()
	}
	for _, name := range names {
		a, ok := checksum.ByName(name)
		if ok && !slices.Contains(t.names, name) {
			t.names, t.hashes = append(t.names, name), append(t.hashes, a.New())
		}
	}
	return t
}

// idle says that nothing is wanted of the content.
func (t *taker) idle() bool { return t.md5 == nil && len(t.hashes) == 0 }

func (t *taker) Write(p []byte) (int, error) {
	if t.md5 != nil {
		t.md5.Write(p)
	}
	for _, h := range t.hashes {
		h.Write(p)
	}
	return len(p), nil
}

func (t *taker) etag() string { return hex.EncodeToString(t.md5.Sum(nil)) }

func (t *taker) sums() (sums []sum) {
	for i, h := range t.hashes {
		sums = append(sums, sum{name: t.names[i], value: base64.StdEncoding.EncodeToString(h.Sum(nil))})
	}
	return sums
}

func invalidRequest(format string, args ...any) *apiError {
	return refuse(http.StatusBadRequest, "InvalidRequest", format, args...)
}

func badDigest(algorithm string) *apiError {
	return refuse(http.StatusBadRequest, "BadDigest", "The %s you specified did not match the calculated checksum.", algorithm)
}

func invalidHeader(header string) *apiError {
	return invalidRequest("Value for %s header is invalid.", strings.ToLower(header))
}

func typeMismatch(want, got string) *apiError {
	return invalidRequest("Checksum Type mismatch occurred, expected checksum Type: %s, actual checksum Type: %s", want, got)
}

// namedAlgorithm reads a header that names an algorithm, "" if it is not there.
func namedAlgorithm(h http.Header, header string) (string, error) {
	v := strings.ToUpper(h.Get(header))
	if _, ok := checksum.ByName(v); v != "" && !ok {
		return "", invalidRequest("Checksum algorithm provided is unsupported. Please try again with any of the valid types: "+
			"[CRC32, CRC32C, CRC64NVME, MD5, SHA1, SHA256, SHA512, XXHASH128, XXHASH3, XXHASH64]").because("%s is %q.", strings.ToLower(header), v)
	}
	return v, nil
}

// sumsIn are the algorithms of the checksums in headers, or announced for a trailer.
func sumsIn(h http.Header) (found []checksum.Algorithm, err error) {
	for k, v := range h {
		if !strings.HasPrefix(k, checksum.HeaderPrefix) || slices.Contains([]string{checksumType, checksumAlgorithm, "X-Amz-Checksum-Mode"}, k) {
			continue
		}
		a, ok := checksum.ByHeader(k)
		if !ok {
			return nil, invalidRequest("The algorithm type you specified in x-amz-checksum- header is invalid.").because("There is no %s.", strings.ToLower(k))
		}
		for range max(1, len(v)) { // in a trailer that is to come there is none
			found = append(found, a)
		}
	}
	return found, nil
}

func severalSums() *apiError {
	return invalidRequest("Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.")
}

// A claim is the checksum that a request says its body has.
type claim struct {
	name   string // of the algorithm, "" if it says nothing
	r      *http.Request
	behind bool // it is in the trailer, and known when the body has ended
}

func claimOf(r *http.Request) (c claim, err error) {
	ahead, err := sumsIn(r.Header)
	if err != nil {
		return c, err
	}
	behind, err := sumsIn(r.Trailer)
	if err != nil {
		return c, err
	}
	all := append(ahead, behind...)
	if len(all) > 1 {
		return c, severalSums()
	}
	named, err := namedAlgorithm(r.Header, sdkAlgorithm)
	if err != nil || len(all) == 0 {
		return c, err
	}
	c = claim{name: all[0].Name, r: r, behind: len(behind) > 0}
	if _, ok := all[0].Decode(c.value()); !ok && !c.behind {
		return c, invalidHeader(all[0].Header())
	}
	if named != "" && named != c.name {
		return c, invalidHeader(sdkAlgorithm)
	}
	return c, nil
}

func (c claim) value() string {
	a, _ := checksum.ByName(c.name)
	if c.behind {
		return c.r.Trailer.Get(a.Header())
	}
	return c.r.Header.Get(a.Header())
}

// judge holds the claim against what was taken of the body, which has ended.
func (c claim) judge(taken []sum) error {
	if s, ok := sumOf(taken, c.name); ok && s.value != c.value() {
		return badDigest(c.name)
	}
	return nil
}
