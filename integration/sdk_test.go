package integration

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
)

const (
	clientKey    = "AKIDCLIENT"
	clientSecret = "client-secret-of-the-tests"
)

// signedConfig lets signed clients in, to a file store and to a real S3 server.
func signedConfig(gateway string) string {
	backends, buckets := "", ""
	if gateway != "" {
		backends = fmt.Sprintf("  gateway: {type: s3, region: %s, endpoint: \"http://%s\", path_style: true, access_key: %s, secret_key: %s}\n",
			gatewayRegion, gateway, gatewayKey, gatewaySecret)
		buckets = "  - {name: \"s3-*\", backend: gateway, rules: [{match: \"jobs/{job}/**\", resource: \"jobs/{job}\"}]}\n"
	}
	return `
listen: 127.0.0.1:0
admin: 127.0.0.1:0
data: DIR/data
backends:
  local: {type: file, root: DIR/objects}
` + backends + `buckets:
` + buckets + `  - {name: "*", backend: local, rules: [{match: "jobs/{job}/**", resource: "jobs/{job}"}]}
access_keys: [{id: ` + clientKey + `, secret: ` + clientSecret + `}]
limits: {raise_wait: 1m}
`
}

// sdkChannels are the ways in which the token travels with a client that nobody has changed: its URL, and its credentials.
var sdkChannels = map[string]func(p *proxy, token string, o *s3.Options){
	"path": func(p *proxy, token string, o *s3.Options) {
		o.BaseEndpoint = aws.String("http://" + p.addr + "/~fence/" + token)
	},
	"session": func(p *proxy, token string, o *s3.Options) {
		o.BaseEndpoint = aws.String("http://" + p.addr)
		o.Credentials = credentials.NewStaticCredentialsProvider(clientKey, clientSecret, "fence="+token)
	},
}

// client is the AWS SDK for Go in its default settings, but for the endpoint and the credentials.
func (p *proxy) client(channel, token string) *s3.Client {
	o := s3.Options{
		Region: "us-east-1", UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(clientKey, clientSecret, ""),
		HTTPClient:  &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	}
	sdkChannels[channel](p, token, &o)
	return s3.New(o)
}

// refusedBy fails the test unless the client was told, in its own words, that its token is stale.
func refusedBy(t *testing.T, what string, err error) {
	t.Helper()
	var api smithy.APIError
	if !errors.As(err, &api) || (api.ErrorCode() != "PreconditionFailed" && api.ErrorCode() != "AccessDenied") ||
		!strings.Contains(api.ErrorMessage(), "token 33 is below 34") {
		t.Errorf("%s: %v; want the refusal of token 33", what, err)
	}
}

func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// TestTheSDK: the AWS SDK for Go, signed, does all its work with token 34, and nothing with token 33.
func TestTheSDK(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"local", "s3"} {
		for channel := range sdkChannels {
			t.Run(backend+"/"+channel, func(t *testing.T) {
				t.Parallel()
				gateway := ""
				if backend == "s3" {
					gateway = startGateway(t)
				}
				p := newProxy(t, signedConfig(gateway))
				p.start(t)
				w := &sdkWork{T: t, bucket: backend + "-bucket", stale: p.client(channel, "33"), holder: p.client(channel, "34")}
				w.run(t.Context())
			})
		}
	}
}

// sdkWork is what a job does with a bucket.
type sdkWork struct {
	*testing.T
	bucket        string
	holder, stale *s3.Client
}

func (w *sdkWork) run(ctx context.Context) {
	_, err := w.holder.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: &w.bucket})
	must(w.T, "create the bucket", err)
	w.objects(ctx)
	w.multipart(ctx)
	w.batch(ctx)
}

func (w *sdkWork) put(ctx context.Context, c *s3.Client, key, content string) error {
	_, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: &w.bucket, Key: &key, Body: strings.NewReader(content)})
	return err
}

func (w *sdkWork) holds(ctx context.Context, key string, content []byte) {
	w.Helper()
	got, err := w.holder.GetObject(ctx, &s3.GetObjectInput{Bucket: &w.bucket, Key: &key})
	must(w.T, "get "+key, err)
	defer got.Body.Close()
	body, err := io.ReadAll(got.Body)
	if err != nil || !bytes.Equal(body, content) {
		w.Errorf("%s holds %d bytes (%v), want %d", key, len(body), err, len(content))
	}
}

func (w *sdkWork) objects(ctx context.Context) {
	must(w.T, "put", w.put(ctx, w.holder, "jobs/7/a b+c", "of 34"))
	refusedBy(w.T, "put", w.put(ctx, w.stale, "jobs/7/a b+c", "of 33"))
	w.holds(ctx, "jobs/7/a b+c", []byte("of 34"))

	source := w.bucket + "/jobs/7/a%20b%2Bc"
	copyTo := func(c *s3.Client) error {
		_, err := c.CopyObject(ctx, &s3.CopyObjectInput{Bucket: &w.bucket, Key: aws.String("jobs/7/copy"), CopySource: &source})
		return err
	}
	must(w.T, "copy", copyTo(w.holder))
	refusedBy(w.T, "copy", copyTo(w.stale))
	w.holds(ctx, "jobs/7/copy", []byte("of 34"))

	list, err := w.stale.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: &w.bucket, Prefix: aws.String("jobs/7/")})
	must(w.T, "list", err) // a stale holder may read
	if len(list.Contents) != 2 || *list.Contents[0].Key != "jobs/7/a b+c" {
		w.Errorf("listed %d objects", len(list.Contents))
	}
	remove := func(c *s3.Client) error {
		_, err := c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &w.bucket, Key: aws.String("jobs/7/copy")})
		return err
	}
	refusedBy(w.T, "delete", remove(w.stale))
	w.holds(ctx, "jobs/7/copy", []byte("of 34"))
	must(w.T, "delete", remove(w.holder))
	must(w.T, "put elsewhere", w.put(ctx, w.stale, "jobs/8/x", "of 33"))
}

// multipart uploads 64 MiB in parts; and 33 has begun an upload of its own before 34 came.
func (w *sdkWork) multipart(ctx context.Context) {
	old, err := w.stale.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: &w.bucket, Key: aws.String("jobs/9/big")})
	must(w.T, "create the upload of 33", err)
	oldPart, err := w.part(ctx, w.stale, old.UploadId, 1, []byte("of 33"))
	must(w.T, "a part of 33", err)

	content := make([]byte, 64<<20)
	_, _ = rand.Read(content)
	upload, err := w.holder.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: &w.bucket, Key: aws.String("jobs/9/big")})
	must(w.T, "create the upload", err)
	var parts []types.CompletedPart
	for i, chunk := range slices.Collect(slices.Chunk(content, 16<<20)) {
		part, err := w.part(ctx, w.holder, upload.UploadId, int32(i+1), chunk)
		must(w.T, "a part", err)
		parts = append(parts, part)
	}
	_, err = w.part(ctx, w.stale, old.UploadId, 2, []byte("of 33"))
	refusedBy(w.T, "a part, after 34 came", err)
	refusedBy(w.T, "completing late", w.complete(ctx, w.stale, old.UploadId, []types.CompletedPart{oldPart}))

	refusedBy(w.T, "aborting an upload of 34", w.abort(ctx, w.stale, upload.UploadId))
	must(w.T, "aborting its own upload", w.abort(ctx, w.stale, old.UploadId))
	must(w.T, "complete", w.complete(ctx, w.holder, upload.UploadId, parts))
	w.holds(ctx, "jobs/9/big", content)
}

func (w *sdkWork) part(ctx context.Context, c *s3.Client, upload *string, number int32, content []byte) (types.CompletedPart, error) {
	out, err := c.UploadPart(ctx, &s3.UploadPartInput{
		Bucket: &w.bucket, Key: aws.String("jobs/9/big"), UploadId: upload, PartNumber: &number, Body: bytes.NewReader(content),
	})
	if err != nil {
		return types.CompletedPart{}, err
	}
	return types.CompletedPart{ETag: out.ETag, PartNumber: &number, ChecksumCRC32: out.ChecksumCRC32}, nil
}

func (w *sdkWork) complete(ctx context.Context, c *s3.Client, upload *string, parts []types.CompletedPart) error {
	_, err := c.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
		Bucket: &w.bucket, Key: aws.String("jobs/9/big"), UploadId: upload, MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
	})
	return err
}

func (w *sdkWork) abort(ctx context.Context, c *s3.Client, upload *string) error {
	_, err := c.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &w.bucket, Key: aws.String("jobs/9/big"), UploadId: upload})
	return err
}

// batch deletes over three resources, one of them stale for the sender.
func (w *sdkWork) batch(ctx context.Context) {
	keys := []string{"jobs/1/a", "jobs/2/a", "jobs/3/a", "jobs/2/b"}
	for _, key := range keys {
		c := w.stale
		if strings.HasPrefix(key, "jobs/2/") {
			c = w.holder
		}
		must(w.T, "put "+key, w.put(ctx, c, key, key))
	}
	var objects []types.ObjectIdentifier
	for _, key := range keys {
		objects = append(objects, types.ObjectIdentifier{Key: aws.String(key)})
	}
	out, err := w.stale.DeleteObjects(ctx, &s3.DeleteObjectsInput{Bucket: &w.bucket, Delete: &types.Delete{Objects: objects}})
	must(w.T, "delete objects", err)
	var refused []string
	for _, e := range out.Errors {
		if !strings.Contains(*e.Message, "token 33 is below 34") {
			w.Errorf("%s: %s", *e.Key, *e.Message)
		}
		refused = append(refused, *e.Key)
	}
	slices.Sort(refused)
	if !slices.Equal(refused, []string{"jobs/2/a", "jobs/2/b"}) || len(out.Deleted) != 2 {
		w.Errorf("refused %q, deleted %d", refused, len(out.Deleted))
	}
	w.holds(ctx, "jobs/2/a", []byte("jobs/2/a"))
	w.holds(ctx, "jobs/2/b", []byte("jobs/2/b"))
}

// TestTheSDKReadsItsRefusal: trap 3, an early refusal is lost as a reset (seaweedfs #11332). 60 MB with a stale token, 50 times. The SDK
// looks at the answer only when it has sent everything, and must not find the connection cut.
func TestTheSDKReadsItsRefusal(t *testing.T) {
	t.Parallel()
	p := newProxy(t, signedConfig(""))
	p.start(t)
	bucket := "bucket"
	_, err := p.client("path", "34").CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &bucket})
	must(t, "create the bucket", err)
	w := &sdkWork{T: t, bucket: bucket}
	must(t, "put", w.put(t.Context(), p.client("path", "34"), "jobs/7/a", "of 34"))
	content := make([]byte, 60_000_000)
	for i := range 50 {
		stale := p.client("path", "33")
		_, err := stale.PutObject(t.Context(), &s3.PutObjectInput{Bucket: &bucket, Key: aws.String("jobs/7/a"), Body: bytes.NewReader(content)}, func(o *s3.Options) {
			if i%2 == 1 {
				o.ContinueHeaderThresholdBytes = -1 // without Expect: 100-continue
			}
		})
		refusedBy(t, "60 MB", err)
	}
	if got := p.audit(t, "code=StaleToken"); len(got) == 0 {
		t.Error("no refusal on record")
	}
}

// TestStrangersAreKeptOut: who cannot sign moves nothing, whatever token he brings.
func TestStrangersAreKeptOut(t *testing.T) {
	t.Parallel()
	p := newProxy(t, signedConfig(""))
	p.start(t)
	bucket, key := "bucket", "jobs/7/a"
	good := p.client("path", "34")
	_, err := good.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &bucket})
	must(t, "create the bucket", err)
	w := &sdkWork{T: t, bucket: bucket, holder: good}
	must(t, "put", w.put(t.Context(), good, key, "of 34"))

	for name, credential := range map[string]aws.CredentialsProvider{
		"SignatureDoesNotMatch": credentials.NewStaticCredentialsProvider(clientKey, "another secret", ""),
		"InvalidAccessKeyId":    credentials.NewStaticCredentialsProvider("AKIDSTRANGER", clientSecret, ""),
	} {
		stranger := s3.New(s3.Options{
			Region: "us-east-1", UsePathStyle: true, BaseEndpoint: aws.String("http://" + p.addr + "/~fence/99"), Credentials: credential,
		})
		var api smithy.APIError
		if err := w.put(t.Context(), stranger, key, "of a stranger"); !errors.As(err, &api) || api.ErrorCode() != name {
			t.Errorf("%v; want %s", err, name)
		}
	}
	p.do(t, "PUT", "/"+bucket+"/"+key, "unsigned", "X-Fence-Token", "99").refusedAs(t, 403, "AccessDenied", "")
	p.do(t, "GET", "/"+bucket+"/"+key, "").refusedAs(t, 403, "AccessDenied", "")
	w.holds(t.Context(), key, []byte("of 34"))
	must(t, "put", w.put(t.Context(), good, key, "of 34 again")) // the mark has not moved to 99
}
