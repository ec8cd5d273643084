package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"
	"unicode/utf8"
)

// A walker reads what a backend has, object by object, with the requests that any client of S3 could send.
type walker struct {
	backend http.Handler
	heads   int           // HEAD requests at the same time
	pause   time.Duration // before a read that the store could not answer is tried again; twice as long each time
}

// tries is how often a read is tried that ends in a 5xx. Stores ask their clients to slow down in the middle of a long walk.
const tries = 5

// A reply is a backend's answer, kept whole.
type reply struct {
	status int
	header http.Header
	body   bytes.Buffer
}

func (r *reply) Header() http.Header { return r.header }

func (r *reply) WriteHeader(status int) {
	if r.status == 0 && status >= 200 {
		r.status = status
	}
}

func (r *reply) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.body.Write(p)
}

// errUnreadable: the stamp of this object can never be read.
var errUnreadable = errors.New("no stamp can be read")

// ask sends a read, and again where the store fails to answer it. Its error says that the answer was not 200; the answer comes beside it.
func (w *walker) ask(ctx context.Context, method, path string, query url.Values) (*reply, error) {
	pause := w.pause
	for try := 1; ; try++ {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		r := (&http.Request{
			Method: method, URL: &url.URL{Path: path, RawQuery: query.Encode()}, Header: http.Header{}, Body: http.NoBody,
			Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		}).WithContext(ctx)
		out := &reply{header: http.Header{}}
		w.backend.ServeHTTP(out, r)
		switch {
		case out.status == http.StatusOK || out.status == 0:
			return out, nil
		case out.status < 500 || try == tries:
			return out, out.failure(method)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		pause *= 2
	}
}

func (r *reply) failure(method string) error {
	var e struct{ Code, Message string }
	if xml.Unmarshal(r.body.Bytes(), &e) != nil || e.Code == "" { // a HEAD has no body
		return fmt.Errorf("the store answers %s with status %d %s", method, r.status, http.StatusText(r.status))
	}
	return fmt.Errorf("the store answers %s with status %d %s: %s", method, r.status, e.Code, e.Message)
}

func (r *reply) read(document any) error {
	if err := xml.Unmarshal(r.body.Bytes(), document); err != nil {
		return fmt.Errorf("the store's list cannot be read: %w", err)
	}
	return nil
}

// buckets lists the names of all buckets.
func (w *walker) buckets(ctx context.Context) (names []string, err error) {
	query := url.Values{}
	for {
		out, err := w.ask(ctx, http.MethodGet, "/", query)
		if err != nil {
			return nil, err
		}
		var list struct {
			XMLName xml.Name `xml:"ListAllMyBucketsResult"`
			Buckets []struct {
				Name string
			} `xml:"Buckets>Bucket"`
			ContinuationToken string
		}
		if err := out.read(&list); err != nil {
			return nil, err
		}
		for _, b := range list.Buckets {
			names = append(names, b.Name)
		}
		if list.ContinuationToken == "" || list.ContinuationToken == query.Get("continuation-token") {
			return names, nil
		}
		query.Set("continuation-token", list.ContinuationToken)
	}
}

// keys gives the keys of a bucket, a page at a time, in the store's order.
func (w *walker) keys(ctx context.Context, bucket string, page func(keys []string) error) error {
	// Keys are asked for in the URL's encoding, for XML cannot carry every character.
	query := url.Values{"list-type": {"2"}, "encoding-type": {"url"}}
	for {
		out, err := w.ask(ctx, http.MethodGet, "/"+bucket, query)
		if err != nil {
			return err
		}
		var list struct {
			XMLName               xml.Name `xml:"ListBucketResult"`
			EncodingType          string
			IsTruncated           bool
			NextContinuationToken string
			Contents              []struct{ Key string }
		}
		if err := out.read(&list); err != nil {
			return err
		}
		keys := make([]string, len(list.Contents))
		for i, c := range list.Contents {
			if keys[i] = c.Key; list.EncodingType != "url" { // a store that does not know the parameter
				continue
			}
			if keys[i], err = url.QueryUnescape(c.Key); err != nil {
				return fmt.Errorf("the store lists the key %q: %w", c.Key, err)
			}
		}
		if err := page(keys); err != nil {
			return err
		}
		switch next := list.NextContinuationToken; {
		case !list.IsTruncated:
			return nil
		case next == "" || next == query.Get("continuation-token"):
			return errors.New("the store says that its list goes on, and not where")
		default:
			query.Set("continuation-token", next)
		}
	}
}

// stamps asks for the stamp of each of these objects, several at a time, and tells each answer. The calls of tell come one at a time.
func (w *walker) stamps(ctx context.Context, bucket string, keys []string, tell func(key, stamp string, err error)) {
	var mu sync.Mutex // serializes tell
	var all sync.WaitGroup
	next := make(chan string)
	for range min(w.heads, len(keys)) {
		all.Go(func() {
			for key := range next {
				stamp, err := w.stamp(ctx, bucket, key)
				mu.Lock()
				tell(key, stamp, err)
				mu.Unlock()
			}
		})
	}
	for _, key := range keys {
		next <- key
	}
	close(next)
	all.Wait()
}

// stamp is what an object carries in the place of a stamp, "" if nothing.
func (w *walker) stamp(ctx context.Context, bucket, key string) (string, error) {
	if !utf8.ValidString(key) {
		return "", fmt.Errorf("%w: its key is not UTF-8, and no rule leads it anywhere", errUnreadable)
	}
	out, err := w.ask(ctx, http.MethodHead, "/"+bucket+"/"+key, nil)
	switch {
	case out != nil && out.status == http.StatusNotFound:
		return "", nil // it was deleted since it was listed
	case out != nil && out.status == http.StatusBadRequest && w.answers(ctx, bucket): // else it is our credentials that have expired
		return "", fmt.Errorf("%w: it is encrypted with a key that only its writer has (SSE-C)", errUnreadable)
	case err != nil:
		return "", err
	}
	return out.header.Get("X-Amz-Meta-Fenceproxy"), nil
}

// answers says whether the store takes our requests at all.
func (w *walker) answers(ctx context.Context, bucket string) bool {
	_, err := w.ask(ctx, http.MethodHead, "/"+bucket, nil)
	return err == nil
}
