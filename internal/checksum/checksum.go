// Package checksum has the algorithms with which S3 checks the content of objects, by S3's names for them. See "Checking object integrity in Amazon
// S3" in the user guide.
package checksum

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"hash"
	"hash/crc32"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/minio/crc64nvme"
	"github.com/zeebo/xxh3"
)

// An Algorithm is one way to sum content up.
type Algorithm struct {
	Name string // as x-amz-checksum-algorithm has it: CRC32C
	Size int    // of a sum, in bytes
	New  func() hash.Hash
}

// HeaderPrefix is how the name of every header begins that carries a checksum, in canonical form.
const HeaderPrefix = "X-Amz-Checksum-"

// Header is the header that carries a sum, in canonical form: X-Amz-Checksum-Crc32c.
func (a Algorithm) Header() string { return HeaderPrefix + a.Name[:1] + strings.ToLower(a.Name[1:]) }

// Decode reads a sum as headers have it, in Base64. It says false of what cannot be one of this algorithm.
func (a Algorithm) Decode(value string) (sum []byte, ok bool) {
	sum, err := base64.StdEncoding.DecodeString(value)
	return sum, err == nil && len(sum) == a.Size
}

// Of sums content up, in the form of a header.
func (a Algorithm) Of(content []byte) string {
	h := a.New()
	h.Write(content)
	return base64.StdEncoding.EncodeToString(h.Sum(nil))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// All are the algorithms that S3 has.
var All = []Algorithm{
	{"CRC32", crc32.Size, func() hash.Hash { return crc32.NewIEEE() }},
	{"CRC32C", crc32.Size, func() hash.Hash { return crc32.New(castagnoli) }},
	{"CRC64NVME", 8, func() hash.Hash { return crc64nvme.New() }},
	{"SHA1", sha1.Size, sha1.New},
	{"SHA256", sha256.Size, sha256.New},
	{"SHA512", sha512.Size, sha512.New},
	{"MD5", md5.Size, md5.New},
	{"XXHASH64", 8, func() hash.Hash { return xxhash.New() }},
	{"XXHASH3", 8, func() hash.Hash { return xxh3.New() }},
	{"XXHASH128", 16, func() hash.Hash { return xxh3.New128() }},
}

var byHeader, byName = map[string]Algorithm{}, map[string]Algorithm{}

func init() {
	for _, a := range All {
		byHeader[a.Header()], byName[a.Name] = a, a
	}
}

// ByHeader finds the algorithm of a header, whose name is in canonical form.
func ByHeader(name string) (Algorithm, bool) {
	a, ok := byHeader[name]
	return a, ok
}

// ByName finds an algorithm by its name, in capital letters.
func ByName(name string) (Algorithm, bool) {
	a, ok := byName[name]
	return a, ok
}
