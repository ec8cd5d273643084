// The program minio does what a job does with a bucket, by minio-go in its default settings: all of it with token 34, none of it
// with token 33. Arguments: the address, http or https, the bucket. At the end it says how often it must have been refused.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// connect makes the client as docs/clients.md does.
func connect(endpoint, token string, tracer http.RoundTripper, trailers bool) (*minio.Client, error) {
	key, secret := os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY")
	client, err := minio.New(endpoint, &minio.Options{
		Creds: credentials.NewStaticV4(key, secret, "fence="+token), Region: "us-east-1", Transport: tracer, TrailingHeaders: trailers,
	})
	return client, err
}

// A tracer notes in what form bodies are sent. Parts are sent at the same time.
type tracer struct {
	mu    sync.Mutex
	forms map[string]bool // guarded by mu
}

func (t *tracer) RoundTrip(r *http.Request) (*http.Response, error) {
	if payload := r.Header.Get("X-Amz-Content-Sha256"); r.Method == http.MethodPut && r.ContentLength > 0 {
		t.mu.Lock()
		t.forms[payload] = true
		t.mu.Unlock()
	}
	return http.DefaultTransport.RoundTrip(r)
}

type job struct {
	context.Context
	bucket        string
	holder, stale *minio.Client
	refusals      int
}

func main() {
	log.SetFlags(log.Lshortfile)
	endpoint, bucket, trailers := os.Args[1], os.Args[2], os.Args[3] == "trailers"
	t := &tracer{forms: map[string]bool{}}
	holder, err := connect(endpoint, "34", t, trailers)
	check("connect", err)
	stale, err := connect(endpoint, "33", http.DefaultTransport, trailers)
	check("connect", err)
	j := &job{Context: context.Background(), bucket: bucket, holder: holder, stale: stale}
	big, err := os.ReadFile("big")
	check("read big", err)
	j.write(big)
	j.change(big)
	info, _ := debug.ReadBuildInfo()
	for _, dep := range info.Deps {
		if strings.Contains(dep.Path, "minio-go") {
			fmt.Println("version:", dep.Path, dep.Version, "sends", slices.Sorted(maps.Keys(t.forms)))
		}
	}
	fmt.Println("refused", j.refusals)
}

func (j *job) put(c *minio.Client, key string, content []byte) error {
	_, err := c.PutObject(j, j.bucket, key, bytes.NewReader(content), int64(len(content)), minio.PutObjectOptions{})
	return err
}

func (j *job) write(big []byte) {
	check("make the bucket", j.holder.MakeBucket(j, j.bucket, minio.MakeBucketOptions{}))
	check("put", j.put(j.holder, "jobs/7/a b+c", []byte("of 34")))
	j.refused("put", j.put(j.stale, "jobs/7/a b+c", []byte("of 33")))
	j.holds("jobs/7/a b+c", []byte("of 34"))
	check("put in parts", j.put(j.holder, "jobs/7/big", big))
	j.refused("put in parts", j.put(j.stale, "jobs/7/big2", big))
	j.holds("jobs/7/big", big)
}

func (j *job) change(big []byte) {
	copyBy := func(c *minio.Client) error {
		_, err := c.CopyObject(j, minio.CopyDestOptions{Bucket: j.bucket, Object: "jobs/7/copy"}, minio.CopySrcOptions{Bucket: j.bucket, Object: "jobs/7/big"})
		return err
	}
	check("copy", copyBy(j.holder))
	j.refused("copy", copyBy(j.stale))
	var keys []string
	for o := range j.stale.ListObjects(j, j.bucket, minio.ListObjectsOptions{Prefix: "jobs/7/", Recursive: true}) {
		check("list", o.Err)
		keys = append(keys, o.Key)
	}
	if !slices.Equal(keys, []string{"jobs/7/a b+c", "jobs/7/big", "jobs/7/copy"}) {
		log.Fatalf("listed %q", keys)
	}
	j.refused("remove", j.stale.RemoveObject(j, j.bucket, "jobs/7/copy", minio.RemoveObjectOptions{}))
	j.holds("jobs/7/copy", big)
	check("remove", j.holder.RemoveObject(j, j.bucket, "jobs/7/copy", minio.RemoveObjectOptions{}))
}

func (j *job) holds(key string, content []byte) {
	object, err := j.holder.GetObject(j, j.bucket, key, minio.GetObjectOptions{})
	check("get "+key, err)
	got, err := io.ReadAll(object)
	if check("read "+key, err); !bytes.Equal(got, content) {
		log.Fatalf("%s has %d bytes", key, len(got))
	}
}

func (j *job) refused(what string, err error) {
	j.refusals++
	if response := minio.ToErrorResponse(err); response.Code != "PreconditionFailed" || !strings.Contains(response.Message, "token 33 is below 34") {
		log.Fatalf("%s: %v; want the refusal of token 33", what, err)
	}
}

func check(what string, err error) {
	if err != nil {
		log.Fatalf("%s: %v", what, err)
	}
}
