// Command writer adds lines to an object under a lock in etcd: writer LOCK PROXY BUCKET KEY <lines
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fenceproxy/fenceproxy/tokens/locks"
	"github.com/fenceproxy/fenceproxy/tokens/locks/etcd"
)

func main() {
	if err := run(context.Background(), os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, lock, proxy, bucket, key string) error {
	service, err := etcd.Open(lock) // etcd://host:2379/name
	if err != nil {
		return err
	}
	defer service.Close()
	grant, err := locks.New(service, locks.Options{TTL: 10 * time.Second}).Acquire(ctx)
	if err != nil {
		return err
	}
	defer grant.Release(ctx) // it is kept alive until then; who loses it need not know: the fence does
	fmt.Println("token", grant.Token())

	settings, err := config.LoadDefaultConfig(ctx, config.WithBaseEndpoint(fmt.Sprintf("%s/~fence/%d", proxy, grant.Token())))
	if err != nil {
		return err
	}
	client := s3.NewFromConfig(settings, func(o *s3.Options) { o.UsePathStyle = true })
	got, err := client.GetObject(ctx, &s3.GetObjectInput{Bucket: &bucket, Key: &key}) // raises the fence: no older holder changes it from here on
	if err != nil {
		return err
	}
	defer got.Body.Close()
	state, err := io.ReadAll(io.MultiReader(got.Body, os.Stdin)) // the work
	if err != nil {
		return err
	}
	_, err = client.PutObject(ctx, &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: bytes.NewReader(state)})
	return err
}
