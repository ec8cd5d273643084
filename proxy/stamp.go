package proxy

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/fenceproxy/fenceproxy/tokens"
)

// headerStamp is the user metadata in which an object keeps its stamp. Clients neither see nor write it.
const headerStamp = "X-Amz-Meta-Fenceproxy"

// A Stamp says who has written an object. It is kept with the object:
//
//	1.REGISTRY.RESOURCE.GENERATION.TOKEN.WRITE
//
// Its parts are a version, the id of the registry that has let the write through, a hash of the resource, its generation (a reset begins a
// new one, in which tokens of the old ones say nothing), the token, and an id of the write. An object that was copied keeps the stamp of its
// source: it counts only beside the resource it names, and proves a write only by the id, which is never used twice.
type Stamp struct {
	Registry   string
	Resource   string // its hash, by ResourceHash
	Generation int64
	Token      tokens.Token
	WriteID    string
}

// String is the stamp as an object keeps it, at most 100 bytes.
func (s Stamp) String() string {
	return strings.Join([]string{"1", s.Registry, s.Resource, strconv.FormatInt(s.Generation, 10), strconv.FormatInt(int64(s.Token), 10), s.WriteID}, ".")
}

// ParseStamp reads a stamp. It says false of anything else.
func ParseStamp(text string) (s Stamp, ok bool) {
	parts := strings.Split(text, ".")
	if len(parts) != 6 || parts[0] != "1" || parts[1] == "" || parts[2] == "" || parts[5] == "" {
		return Stamp{}, false
	}
	generation, err := strconv.ParseInt(parts[3], 10, 64)
	token, err2 := strconv.ParseInt(parts[4], 10, 64)
	if err != nil || err2 != nil || generation < 0 || token < 0 {
		return Stamp{}, false
	}
	s = Stamp{Registry: parts[1], Resource: parts[2], Generation: generation, Token: tokens.Token(token), WriteID: parts[5]}
	return s, s.String() == text // +34 and 034 are nothing that we have written
}

// ResourceHash names a resource in a stamp: the first 64 bits of its SHA-256, in the URL's Base64.
func ResourceHash(resource string) string {
	sum := sha256.Sum256([]byte(resource))
	return base64.RawURLEncoding.EncodeToString(sum[:8])
}

func newWriteID() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // it never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// maxMetadata is how many bytes of user metadata S3 takes with an object, names and values together.
const maxMetadata = 2 << 10

// stamp puts our stamp on a write that may set metadata, and returns its write id; "" where there is none.
func (x *exchange) stamp(h http.Header) (writeID string) {
	if !x.stamps() {
		return ""
	}
	s := Stamp{Registry: x.h.RegistryID, Resource: ResourceHash(x.target.Resource), Generation: x.generation, Token: x.who.token, WriteID: newWriteID()}
	text := s.String()
	const prefix = "X-Amz-Meta-"
	size := len(headerStamp) - len(prefix) + len(text)
	for name, values := range h {
		if strings.HasPrefix(name, prefix) {
			size += len(name) - len(prefix) + len(strings.Join(values, ","))
		}
	}
	if size > maxMetadata {
		return "" // the client's metadata come first
	}
	h.Set(headerStamp, text)
	return s.WriteID
}

// stamps says whether the write takes a stamp: it makes an object, and its metadata are not another object's.
func (x *exchange) stamps() bool {
	if !x.target.Fenced || !x.backend().Stamp || x.h.RegistryID == "" {
		return false
	}
	switch x.op.name {
	case "PutObject", "CreateMultipartUpload":
		return true
	case "CopyObject":
		return strings.EqualFold(x.r.Header.Get("X-Amz-Metadata-Directive"), "REPLACE")
	}
	return false
}

// An unstamped writer keeps the stamp from the client.
type unstamped struct {
	http.ResponseWriter
	told bool
}

func (w *unstamped) WriteHeader(status int) {
	w.told = w.told || status >= 200
	w.Header().Del(headerStamp)
	w.ResponseWriter.WriteHeader(status)
}

func (w *unstamped) Write(p []byte) (int, error) {
	w.strip()
	return w.ResponseWriter.Write(p)
}

func (w *unstamped) strip() {
	if !w.told {
		w.WriteHeader(http.StatusOK)
	}
}

// ReadFrom lets the kernel send a file.
func (w *unstamped) ReadFrom(src io.Reader) (int64, error) {
	w.strip()
	return io.Copy(w.ResponseWriter, src)
}

// Unwrap is [http.ResponseController]'s.
func (w *unstamped) Unwrap() http.ResponseWriter { return w.ResponseWriter }
