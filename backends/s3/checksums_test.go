package s3

import (
	"encoding/base64"
	"encoding/hex"
	"maps"
	"net/http"
	"slices"
	"testing"
)

// allChecksums are the kinds that a probe asks about.
var allChecksums = []string{"Crc32", "Crc32c", "Crc64nvme", "Sha1", "Sha256"}

// TestChecksums: what "123456789" has; for CRCs that is the check value of their catalogues.
func TestChecksums(t *testing.T) {
	want := map[string]string{
		"Crc32":     "cbf43926",
		"Crc32c":    "e3069283",
		"Crc64nvme": "ae8b14860a799888",
		"Sha1":      "f7c3bc1d808e04732adf679965ccc34ca7ae3441",
		"Sha256":    "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
	}
	for kind, want := range want {
		sum, err := base64.StdEncoding.DecodeString(checksum(kind, []byte("123456789")))
		if err != nil || hex.EncodeToString(sum) != want {
			t.Errorf("%s is %x, %v, want %s", kind, sum, err, want)
		}
	}
	if kinds := slices.Sorted(maps.Keys(digests)); !slices.Equal(kinds, allChecksums) {
		t.Errorf("there are %q", kinds)
	}
}

func TestChecksumsOf(t *testing.T) {
	h := http.Header{}
	for _, name := range []string{"x-amz-checksum-crc64nvme", "x-amz-checksum-type", "x-amz-checksum-mode", "x-amz-checksum-algorithm", "content-md5"} {
		h.Set(name, "v")
	}
	if got := checksumsOf(h); !slices.Equal(got, []string{"Crc64nvme"}) {
		t.Errorf("got %q", got)
	}
}
