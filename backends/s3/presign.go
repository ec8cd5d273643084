package s3

import (
	"encoding/base64"
	"encoding/hex"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/fenceproxy/fenceproxy/internal/checksum"
)

// A signature in the query says how long it lives, and the store refuses what comes later: that refusal proves that nothing was
// changed.
const (
	minExpires = 3 * time.Second    // for less, seconds are too coarse: it might be over before it is sent
	maxExpires = 7 * 24 * time.Hour // by S3's rules

	sha256Header = checksumPrefix + "Sha256"
	defaultKind  = "Crc64nvme"
)

// expiring says whether a request with these headers is signed in the query, and if so, from when on and for how long by the store's clock: half the
// settle time, less up to two seconds for the fractions that Date and X-Amz-Date do not have. ok is false
//
//   - for reads, which change nothing, and for what streams, whose chunk signatures need one in the headers
//   - where the probe has not seen the store refuse expired signatures, or the store's time is not known yet
//   - for CompleteMultipartUpload: UNSIGNED-PAYLOAD is no check of the body, and there the checksum headers are the object's, not
//     the body's. So its SHA-256 is signed in the headers
//   - for UploadPart: S3 takes no checksum of another kind than the one that the upload was created with, and a late part changes nothing
//   - for what changes buckets, and is not fenced by object
//   - where the client's own checksum is of a kind that the probe has not seen the store compare: nothing else covers the body. So it is where a
//     checksum of ours would contradict the client, see contradicts
//   - where the settle time is less than 6 s
func (x *exchange) expiring(h http.Header) (at time.Time, expires time.Duration, ok bool) {
	found := x.s.found.Load()
	if found == nil || !found.Query || !x.write || x.body.streams() || !expirable(x.r) || !x.covers(found, h) {
		return at, 0, false
	}
	life := min(x.s.settle(x.r)/2, maxExpires)
	now, known := x.s.clock.now()
	if !known || life < minExpires {
		return at, 0, false
	}
	at = now.Truncate(time.Second)
	return at, now.Add(life).Truncate(time.Second).Sub(at), true
}

func expirable(r *http.Request) bool {
	names := parameters(r.URL.RawQuery)
	switch {
	case !hasKey(r):
		return r.Method == http.MethodPost && names["delete"]
	case r.Method == http.MethodPut:
		return !names["partNumber"]
	case r.Method == http.MethodPost:
		return !names["uploadId"] && !names["select"] // which reads
	}
	return r.Method == http.MethodDelete
}

// covers says whether a checksum in a header can stand for the SHA-256 of the body.
func (x *exchange) covers(found *Findings, h http.Header) bool {
	kinds := checksumsOf(h)
	if len(kinds) == 0 && x.body.length > 0 {
		return !contradicts(h)
	}
	return found.compares(kinds)
}

// contradicts says whether a checksum of ours would change what the client has asked for. One that it has named and not sent is an error that
// S3 wants to tell. An append has to be of the kind that the object has.
func contradicts(h http.Header) bool {
	for _, name := range []string{"X-Amz-Sdk-Checksum-Algorithm", "X-Amz-Checksum-Algorithm", "X-Amz-Write-Offset-Bytes"} {
		if _, ok := h[name]; ok {
			return true
		}
	}
	return false
}

// addChecksum puts a checksum on an object that has none, where the store compares CRC-64/NVME: by it S3 keeps such an object anyway ("Checking
// object integrity"), so that the object is the same as without us. Elsewhere signQuery takes the SHA-256.
func (x *exchange) addChecksum(h http.Header) {
	at, ok := x.r.Body.(io.ReaderAt)
	if !ok || !isObject(x.r) || x.body.length == 0 || len(checksumsOf(h)) > 0 || !x.s.found.Load().compares([]string{defaultKind}) {
		return
	}
	algorithm, _ := checksum.ByHeader(checksumPrefix + defaultKind)
	sum := algorithm.New()
	if n, err := io.Copy(sum, io.NewSectionReader(at, 0, x.body.length)); err == nil && n == x.body.length { // else it will be noticed when it is sent
		h.Set(checksumPrefix+defaultKind, base64.StdEncoding.EncodeToString(sum.Sum(nil)))
	}
}

// signQuery signs in the query. The headers stay where they are, and are signed. S3 takes the body for UNSIGNED-PAYLOAD then, so
// its SHA-256 travels as a checksum, which S3 compares before it commits; one checksum is all that it takes, so the client's goes
// before.
func (s *Store) signQuery(out *http.Request, who aws.Credentials, hash string, at time.Time, expires time.Duration) error {
	if out.ContentLength > 0 && len(checksumsOf(out.Header)) == 0 {
		sum, err := hex.DecodeString(hash)
		if err != nil {
			return err
		}
		out.Header.Set(sha256Header, base64.StdEncoding.EncodeToString(sum))
	}
	part := signed(out)
	expiry := "X-Amz-Expires=" + strconv.FormatInt(int64(expires/time.Second), 10)
	part.URL.RawQuery = strings.TrimPrefix(part.URL.RawQuery+"&"+expiry, "&")
	presigned, _, err := s.signer.PresignHTTP(out.Context(), who, part, unsigned, service, s.o.Region, at, func(o *v4.SignerOptions) {
		o.DisableHeaderHoisting = true
	})
	if err != nil {
		return err
	}
	u, err := url.Parse(presigned)
	if err != nil {
		return err
	}
	out.URL.RawQuery = u.RawQuery
	return nil
}
