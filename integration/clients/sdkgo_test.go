package clients

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
)

// authority is the file with the certificate of a proxy that speaks TLS.
func (c *client) authority() string { return filepath.Join(filepath.Dir(c.server.dir), "tls.crt") }

// trusting is the SDK's own HTTP client, but that it trusts the proxy.
func (c *client) trusting() *awshttp.BuildableClient {
	c.Helper()
	client := awshttp.NewBuildableClient()
	if c.server.scheme == "http" {
		return client
	}
	pem, err := os.ReadFile(c.authority())
	must(c.T, "read the certificate", err)
	return client.WithTransportOptions(func(t *http.Transport) {
		t.TLSClientConfig.RootCAs = x509.NewCertPool()
		t.TLSClientConfig.RootCAs.AppendCertsFromPEM(pem)
	})
}

// TestGoSDK: by HTTPS, and then by HTTP/2, this SDK sends checksums in trailers.
func TestGoSDK(t *testing.T) {
	t.Parallel()
	readRecipe(t, "aws-sdk-go-v2").within(t, "go", "sdkgo_test.go")
	run := func(name string, start func(*testing.T, string) *client, channel func(o *s3.Options, endpoint, token string), payload string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := start(t, "aws-sdk-go")
			w := &goWork{client: c, sent: &payloads{doer: c.trusting()}}
			w.holder, w.stale = w.connect("34", channel), w.connect("33", channel)
			w.story(t.Context())
			if !slices.Contains(w.sent.kinds, payload) {
				t.Errorf("bodies were sent with %q, none with %s", w.sent.kinds, payload)
			}
		})
	}
	run("path", overPlain, byPath, "hex")
	run("session token, S3", overS3, bySession, "hex")
	run("path, HTTPS", overTLS, byPath, "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
	run("session token, HTTPS", func(t *testing.T, bucket string) *client { return overTLS(t, bucket+"2") }, bySession, "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
}

func byPath(o *s3.Options, endpoint, token string) {
	o.BaseEndpoint = aws.String(endpoint + "/~fence/" + token)
}

func bySession(o *s3.Options, endpoint, token string) {
	o.BaseEndpoint = aws.String(endpoint)
	o.Credentials = credentials.NewStaticCredentialsProvider(clientKey, clientSecret, "fence="+token)
}

// payloads notes in what form the bodies of writes are sent.
type payloads struct {
	doer  aws.HTTPClient
	mu    sync.Mutex
	kinds []string
}

func (p *payloads) Do(r *http.Request) (*http.Response, error) {
	if kind := r.Header.Get("X-Amz-Content-Sha256"); r.Method == http.MethodPut && r.ContentLength != 0 {
		if len(kind) == 64 {
			kind = "hex"
		}
		p.mu.Lock()
		p.kinds = append(p.kinds, kind)
		p.mu.Unlock()
	}
	return p.doer.Do(r)
}

// goWork is what a job does with a bucket: all of it with token 34, none of it with token 33.
type goWork struct {
	*client
	sent          *payloads
	holder, stale *s3.Client
	expected      int64 // how often it must have been refused
}

func (w *goWork) connect(token string, channel func(o *s3.Options, endpoint, token string)) *s3.Client {
	o := s3.Options{
		Region: "us-east-1", UsePathStyle: true, Credentials: credentials.NewStaticCredentialsProvider(clientKey, clientSecret, ""), HTTPClient: w.sent,
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenSupported, // as config.LoadDefaultConfig has it
	}
	channel(&o, w.server.scheme+"://"+w.server.addr, token)
	return s3.New(o)
}

func (w *goWork) story(ctx context.Context) {
	_, err := w.holder.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: &w.bucket})
	must(w.T, "create the bucket", err)
	w.objects(ctx)
	w.multipart(ctx)
	if n := w.refusals(); n != w.expected {
		w.Errorf("%d requests were refused, want %d", n, w.expected)
	}
}

// refused wants the refusal as the SDK tells it.
func (w *goWork) refused(what string, err error) {
	w.Helper()
	w.expected++
	var api smithy.APIError
	if !errors.As(err, &api) || api.ErrorCode() != "PreconditionFailed" || !strings.Contains(api.ErrorMessage(), refusal) {
		w.Errorf("%s: %v; want the refusal of token 33", what, err)
	}
}

func (w *goWork) put(ctx context.Context, c *s3.Client, key, content string) error {
	_, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: &w.bucket, Key: &key, Body: strings.NewReader(content)})
	return err
}

func (w *goWork) has(ctx context.Context, key string, content []byte) {
	w.Helper()
	got, err := w.holder.GetObject(ctx, &s3.GetObjectInput{Bucket: &w.bucket, Key: &key})
	must(w.T, "get "+key, err)
	defer got.Body.Close()
	body, err := io.ReadAll(got.Body)
	if err != nil || !bytes.Equal(body, content) {
		w.Errorf("%s holds %d bytes (%v), want %d", key, len(body), err, len(content))
	}
}

func (w *goWork) objects(ctx context.Context) {
	must(w.T, "put", w.put(ctx, w.holder, "jobs/7/a b+c", "of 34"))
	w.refused("put", w.put(ctx, w.stale, "jobs/7/a b+c", "of 33"))
	w.has(ctx, "jobs/7/a b+c", []byte("of 34"))

	source := w.bucket + "/jobs/7/a%20b%2Bc"
	copyBy := func(c *s3.Client) error {
		_, err := c.CopyObject(ctx, &s3.CopyObjectInput{Bucket: &w.bucket, Key: aws.String("jobs/7/copy"), CopySource: &source})
		return err
	}
	must(w.T, "copy", copyBy(w.holder))
	w.refused("copy", copyBy(w.stale))
	w.has(ctx, "jobs/7/copy", []byte("of 34"))

	list, err := w.stale.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: &w.bucket, Prefix: aws.String("jobs/7/")})
	must(w.T, "list", err) // a stale holder may read
	if len(list.Contents) != 2 || *list.Contents[0].Key != "jobs/7/a b+c" {
		w.Errorf("listed %d objects", len(list.Contents))
	}
	remove := func(c *s3.Client) error {
		_, err := c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &w.bucket, Key: aws.String("jobs/7/copy")})
		return err
	}
	w.refused("delete", remove(w.stale))
	w.has(ctx, "jobs/7/copy", []byte("of 34"))
	must(w.T, "delete", remove(w.holder))
}

func (w *goWork) multipart(ctx context.Context) {
	content, err := os.ReadFile(theStage.big)
	must(w.T, "read big", err)
	create := &s3.CreateMultipartUploadInput{Bucket: &w.bucket, Key: aws.String("jobs/7/big"), ChecksumAlgorithm: types.ChecksumAlgorithmCrc32}
	upload, err := w.holder.CreateMultipartUpload(ctx, create)
	must(w.T, "create the upload", err)
	_, err = w.stale.CreateMultipartUpload(ctx, create)
	w.refused("creating an upload", err)
	var parts []types.CompletedPart
	for i, chunk := range slices.Collect(slices.Chunk(content, 9<<20)) {
		part := &s3.UploadPartInput{Bucket: &w.bucket, Key: create.Key, UploadId: upload.UploadId, PartNumber: aws.Int32(int32(i + 1)), Body: bytes.NewReader(chunk)}
		out, err := w.holder.UploadPart(ctx, part)
		must(w.T, "a part", err)
		parts = append(parts, types.CompletedPart{ETag: out.ETag, PartNumber: part.PartNumber, ChecksumCRC32: out.ChecksumCRC32})
	}
	complete := &s3.CompleteMultipartUploadInput{
		Bucket: &w.bucket, Key: create.Key, UploadId: upload.UploadId, MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
	}
	_, err = w.stale.CompleteMultipartUpload(ctx, complete)
	w.refused("completing", err)
	_, err = w.holder.CompleteMultipartUpload(ctx, complete)
	must(w.T, "complete", err)
	w.has(ctx, "jobs/7/big", content)

	_, err = w.stale.PutObject(ctx, &s3.PutObjectInput{Bucket: &w.bucket, Key: create.Key, Body: bytes.NewReader(content)})
	w.refused("a large put", err)
}
