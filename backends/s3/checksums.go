package s3

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"net/http"
	"slices"
	"strings"
)

const checksumPrefix = "X-Amz-Checksum-"

// digests are the checksums that AWS's SDKs send of a body, by kind: what follows checksumPrefix ("Checking object integrity" in S3's
// user guide).
var digests = map[string]func() hash.Hash{
	"Crc32":     func() hash.Hash { return crc32.NewIEEE() },
	"Crc32c":    func() hash.Hash { return crc32.New(castagnoli) },
	"Crc64nvme": func() hash.Hash { return crc64.New(nvme) },
	"Sha1":      sha1.New,
	"Sha256":    sha256.New,
}

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	nvme       = crc64.MakeTable(0x9a6c9329ac4bc9b5) // the NVM Express polynomial, its bits reversed
)

// checksum is the header's value for a body.
func checksum(kind string, body []byte) string {
	h := digests[kind]()
	h.Write(body)
	return base64.StdEncoding.EncodeToString(h.Sum(nil))
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
