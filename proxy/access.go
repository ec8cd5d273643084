package proxy

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// permit holds a request to what its access key may do, before the rules and the fence hear of it. The keys inside a form or a batch are judged
// when they have been read.
func (x *exchange) permit() error {
	a := x.access
	switch {
	case a == nil, x.op.level == service, x.op.way == preflight:
		return nil
	case !a.Bucket(x.op.bucket):
		return x.denied("bucket %q", x.op.bucket)
	case a.ReadOnly && x.op.way.changes():
		return x.denied("writes: it is read_only")
	case x.op.level == object:
		return x.permitObject()
	case len(a.Prefixes) > 0:
		return x.permitBounded()
	}
	return nil
}

// ofWholeBuckets are the reads of a bucket that say nothing of its objects, and that clients make before they begin.
var ofWholeBuckets = []string{"HeadBucket", "GetBucketLocation", "GetBucketVersioning", "GetBucketEncryption", "GetBucketAccelerateConfiguration", "GetObjectLockConfiguration"}

// permitBounded is about what a key may do with a bucket in which it has some prefixes. Where one store could read a list out of the query that
// another does not, the answer is no.
func (x *exchange) permitBounded() error {
	switch {
	case x.op.way == deletesMany, x.op.way == postsForm: // judged key by key
		return nil
	case x.op.way == lists && x.plainQuery() && x.access.List(x.op.bucket, x.op.prefix) && !hasDots(x.op.prefix):
		return nil
	case x.op.way == lists:
		return x.denied("a list of %q in bucket %q: list below one of its prefixes", x.op.prefix, x.op.bucket)
	case slices.Contains(ofWholeBuckets, x.op.name) && x.plainQuery():
		return nil
	}
	return x.denied("%s: it has prefixes, and this is about the whole bucket", x.op.name)
}

// plainQuery says that a query has each parameter once, and names one operation at most.
func (x *exchange) plainQuery() bool {
	query, err := url.ParseQuery(x.r.URL.RawQuery)
	if err != nil {
		return false
	}
	for _, values := range query {
		if len(values) > 1 {
			return false
		}
	}
	subs, err := subResources(x.r.Method, x.op.level, query)
	return err == nil && len(subs) <= 1
}

func (x *exchange) permitObject() error {
	if !x.mayReach(x.op.bucket, x.op.key) {
		return x.deniedKey(x.op.key)
	}
	if x.op.way == renames {
		return x.permitRename()
	}
	if _, copying := x.r.Header[headerCopySource]; copying && x.op.way.changes() {
		return x.permitSource()
	}
	return nil
}

// permitRename judges every key that a store might take for the one that is to be renamed.
func (x *exchange) permitRename() error {
	keys, err := renameSources(x.r.Header, x.op.bucket)
	if err != nil {
		return err
	}
	for _, key := range keys {
		if !x.mayReach(x.op.bucket, key) {
			return x.denied("the source %q in bucket %q", key, x.op.bucket)
		}
	}
	return nil
}

// permitSource judges every name that a store might read in the source of a copy: some take a plus sign for a space.
func (x *exchange) permitSource() error {
	if len(x.access.Buckets)+len(x.access.Prefixes) == 0 {
		return nil
	}
	raw, _, _ := strings.Cut(strings.TrimPrefix(x.r.Header.Get(headerCopySource), "/"), "?versionId=")
	for _, unescape := range []func(string) (string, error){url.PathUnescape, url.QueryUnescape} {
		source, err := unescape(raw)
		if err != nil {
			return badRequest(invalidArgument, "x-amz-copy-source must be one bucket/key, percent-encoded")
		}
		if bucket, key, _ := strings.Cut(source, "/"); bucket == "" || key == "" || !x.mayReach(bucket, key) {
			return x.denied("the source %q in bucket %q", key, bucket)
		}
	}
	return nil
}

// mayReach says whether an object is within the reach of the access key. Where that has bounds, a key with dots for a segment is not: some
// stores take jobs/../x for x.
func (x *exchange) mayReach(bucket, key string) bool {
	if x.access == nil {
		return true
	}
	return x.access.Key(bucket, key) && (len(x.access.Prefixes)+len(x.access.Buckets) == 0 || !hasDots(key))
}

// fileOwner owns what is in a store of this process, as its lists say.
const fileOwner = "fenceproxy"

// checkOwner answers for a store in this process, which has no accounts, what S3 answers where a client names the owner that it expects: it
// may be the proxy, or the access key that asks.
func (x *exchange) checkOwner() error {
	if x.backend().remote() {
		return nil
	}
	for _, name := range []string{"X-Amz-Expected-Bucket-Owner", "X-Amz-Source-Expected-Bucket-Owner"} {
		if v := x.r.Header.Get(name); v != "" && v != fileOwner && v != x.accessKey {
			return &s3Error{http.StatusForbidden, accessDenied, "Access Denied."}
		}
	}
	return nil
}

// changes says whether operations of this way change something.
func (w way) changes() bool {
	switch w {
	case reads, lists, fenceShow, listBuckets, preflight:
		return false
	}
	return true
}

func (x *exchange) deniedKey(key string) error {
	return x.denied("object %q in bucket %q", key, x.op.bucket)
}

func (x *exchange) denied(format string, args ...any) error {
	return &s3Error{http.StatusForbidden, accessDenied, "access key " + x.accessKey + " may not do this: its entry in access_keys does not cover " + fmt.Sprintf(format, args...)}
}
