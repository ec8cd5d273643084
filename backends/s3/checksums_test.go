package s3

import (
	"encoding/base64"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
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
		sum, err := base64.StdEncoding.DecodeString(digest(kind, []byte("123456789")))
		if err != nil || hex.EncodeToString(sum) != want {
			t.Errorf("%s is %x, %v, want %s", kind, sum, err, want)
		}
	}
	if !slices.Equal(askedKinds, allChecksums) {
		t.Errorf("there are %q", askedKinds)
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

// TestOurChecksum: an object that its client sent without a checksum gets the one that S3 would give it, where the store compares that one; and none
// beside a name of a checksum that the client did not send, which is for the store to refuse, or on an append, which goes by the object's.
func TestOurChecksum(t *testing.T) {
	crc := digest("Crc64nvme", []byte("content"))
	for name, test := range map[string]struct {
		ask, header string // of the client
		proven      []string
		content     string
		want        map[string]string
		queried     bool
	}{
		"S3's own":        {"PUT /bucket/key", "", allChecksums, "content", map[string]string{"Crc64nvme": crc}, true},
		"another":         {"PUT /bucket/key", "", []string{"Crc32", "Sha256"}, "content", map[string]string{"Sha256": sumOf("content")}, true},
		"a document":      {"PUT /bucket/key?tagging", "", allChecksums, "content", map[string]string{"Sha256": sumOf("content")}, true},
		"nothing":         {"PUT /bucket/key", "", allChecksums, "", nil, true},
		"named":           {"PUT /bucket/key", "X-Amz-Sdk-Checksum-Algorithm: CRC32", allChecksums, "content", nil, false},
		"named otherwise": {"PUT /bucket/key", "X-Amz-Checksum-Algorithm: CRC32", allChecksums, "content", nil, false},
		"an append":       {"PUT /bucket/key", "X-Amz-Write-Offset-Bytes: 5", allChecksums, "content", nil, false},
	} {
		bubble(t, name, func(t *testing.T) {
			f := newMemory(t, dated(0))
			s := expiring(t, f)
			s.found.Store(&Findings{Query: true, Checksums: test.proven})
			method, target, _ := strings.Cut(test.ask, " ")
			r := mode{whole: true}.request(t.Context(), target, []byte(test.content), len(test.content), passes)
			r.Method = method
			r.Body = seekableBody{r.Body.(wholeBody), strings.NewReader(test.content)}
			if header, value, ok := strings.Cut(test.header, ": "); ok {
				r.Header.Set(header, value)
			}
			w := httptest.NewRecorder()
			if s.ServeHTTP(w, r); w.Code != 200 {
				t.Fatal(w.Code, w.Body)
			}
			g := f.requests()[1]
			if test.queried {
				checkPresigned(t, g)
			} else {
				checkSignature(t, g)
			}
			kinds := checksumsOf(g.Header)
			for _, kind := range kinds {
				if v := g.Header.Get(checksumPrefix + kind); v != test.want[kind] {
					t.Errorf("%s is %q, want %q", kind, v, test.want[kind])
				}
			}
			if len(kinds) != len(test.want) || string(g.body) != test.content {
				t.Errorf("%q came with %q", g.body, kinds)
			}
		})
	}
}

// A seekableBody is a whole one that can be read beside its gate.
type seekableBody struct {
	wholeBody
	io.ReaderAt
}
