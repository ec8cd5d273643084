package s3

import (
	"net/http"
	"slices"
	"strings"

	"github.com/fenceproxy/fenceproxy/internal/checksum"
)

const checksumPrefix = checksum.HeaderPrefix

// askedKinds are the checksums that a probe asks about, by kind: what follows checksumPrefix. They are those that AWS's SDKs send unless they are told
// otherwise, and those that clients have been told for years.
var askedKinds = []string{"Crc32", "Crc32c", "Crc64nvme", "Sha1", "Sha256"}

// digest is the header's value for a body, of a kind that S3 has.
func digest(kind string, body []byte) string {
	a, _ := checksum.ByHeader(checksumPrefix + kind)
	return a.Of(body)
}

// checksumsOf are the kinds of the checksums that a request has of its body. S3 takes one.
func checksumsOf(h http.Header) (kinds []string) {
	for name := range h {
		kind, ok := strings.CutPrefix(name, checksumPrefix)
		if ok && kind != "Type" && kind != "Algorithm" && kind != "Mode" {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// compares says whether the store was seen to compare all of these with the body, so that each can stand for the body's hash.
func (f *Findings) compares(kinds []string) bool {
	for _, kind := range kinds {
		if !slices.Contains(f.Checksums, kind) {
			return false
		}
	}
	return true
}
