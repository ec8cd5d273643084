package s3

import (
	"context"
	"crypto/md5"
	"encoding/base64"
	"fmt"
	"net/http"
)

const (
	ifMatch     = "If-Match"
	ifNoneMatch = "If-None-Match"
	copySource  = "X-Amz-Copy-Source"

	// staleETag is the ETag of an object that no probe writes: the MD5 of "stale".
	staleETag = `"36f34fd8319cf30f8e132ef294c616af"`

	older, newer, ours = "older", "newer, and longer", "ours"
)

func (p *prober) putStale(ctx context.Context, key string) (bool, string, error) {
	const what = "A PUT with a stale If-Match"
	etag, err := p.put(ctx, key, older) // a real ETag that the object had: some stores only look whether it is well formed
	if err != nil {
		return false, "", err
	}
	if _, err := p.put(ctx, key, newer); err != nil {
		return false, "", err
	}
	r, err := p.do(ctx, http.MethodPut, key, "", []byte(ours), ifMatch, etag)
	if err != nil {
		return false, "", err
	}
	return p.refused(ctx, what, r, key, newer)
}

func (p *prober) putCurrent(ctx context.Context, key string) (bool, string, error) {
	etag, err := p.put(ctx, key, older)
	if err != nil {
		return false, "", err
	}
	r, err := p.do(ctx, http.MethodPut, key, "", []byte(ours), ifMatch, etag)
	if err != nil {
		return false, "", err
	}
	return p.accepted(ctx, "A PUT with the right If-Match", r, key, ours)
}

func (p *prober) putOverExisting(ctx context.Context, key string) (bool, string, error) {
	if _, err := p.put(ctx, key, older); err != nil {
		return false, "", err
	}
	r, err := p.do(ctx, http.MethodPut, key, "", []byte(ours), ifNoneMatch, "*")
	if err != nil {
		return false, "", err
	}
	return p.refused(ctx, "A PUT with If-None-Match: * over an object", r, key, older)
}

// putAbsent: AWS answers 404 to it.
func (p *prober) putAbsent(ctx context.Context, key string) (bool, string, error) {
	const what = "A PUT with If-Match where there is no object"
	r, err := p.do(ctx, http.MethodPut, key, "", []byte(ours), ifMatch, staleETag)
	if err != nil {
		return false, "", err
	}
	if _, exists, err := p.content(ctx, key); err != nil || r.status != http.StatusNotFound || exists {
		if err != nil {
			return false, "", err
		}
		return p.refused(ctx, what, r, key, "")
	}
	return true, fmt.Sprintf("%s was refused (%s).", what, r), nil
}

// putStaleByQuery: whatever the store thinks of signatures in the query, such a PUT must not take effect. If it does not know them, it
// may say that instead.
func (p *prober) putStaleByQuery(ctx context.Context, key string) (bool, string, error) {
	const what = "A PUT with a stale If-Match, signed in the query,"
	if _, err := p.put(ctx, key, older); err != nil {
		return false, "", err
	}
	r, err := p.doByQuery(ctx, p.soon(), http.MethodPut, key, "", []byte(ours), ifMatch, staleETag)
	if err != nil {
		return false, "", err
	}
	good, detail, err := p.refused(ctx, what, r, key, older)
	if err == nil && !good && !r.ok() {
		good, detail = true, fmt.Sprintf("%s was refused, not for its condition (%s).", what, r)
	}
	return good, detail, err
}

// completed makes an upload of one part and completes it under a condition.
func (p *prober) completed(ctx context.Context, key, content string, condition ...string) (reply, error) {
	id, parts, err := p.upload(ctx, key, content)
	if err != nil {
		return reply{}, err
	}
	return p.complete(ctx, key, id, parts, condition...)
}

// upload makes an upload of one part, and the document that completes it.
func (p *prober) upload(ctx context.Context, key, content string) (id string, parts []byte, err error) {
	created, err := p.do(ctx, http.MethodPost, key, "uploads=", nil)
	if err != nil {
		return "", nil, err
	}
	if id = created.element("UploadId"); !created.ok() || id == "" {
		return "", nil, &unasked{"the creation of an upload was answered " + created.String()}
	}
	p.mu.Lock()
	p.uploads[id] = key
	p.mu.Unlock()
	part, err := p.do(ctx, http.MethodPut, key, "partNumber=1&uploadId="+escape(id, false), []byte(content))
	if err != nil {
		return "", nil, err
	}
	if !part.ok() {
		return "", nil, &unasked{"a part of an upload was answered " + part.String()}
	}
	const document = "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>%s</ETag></Part></CompleteMultipartUpload>"
	return id, fmt.Appendf(nil, document, part.etag()), nil
}

func (p *prober) complete(ctx context.Context, key, id string, parts []byte, condition ...string) (reply, error) {
	r, err := p.do(ctx, http.MethodPost, key, "uploadId="+escape(id, false), parts, condition...)
	if err == nil && r.ok() {
		p.mu.Lock()
		delete(p.uploads, id)
		p.mu.Unlock()
	}
	return r, err
}

func (p *prober) completeStale(ctx context.Context, key string) (bool, string, error) {
	if _, err := p.put(ctx, key, older); err != nil {
		return false, "", err
	}
	r, err := p.completed(ctx, key, ours, ifMatch, staleETag)
	if err != nil {
		return false, "", err
	}
	return p.refused(ctx, "A Complete with a stale If-Match", r, key, older)
}

func (p *prober) completeCurrent(ctx context.Context, key string) (bool, string, error) {
	etag, err := p.put(ctx, key, older)
	if err != nil {
		return false, "", err
	}
	r, err := p.completed(ctx, key, ours, ifMatch, etag)
	if err != nil {
		return false, "", err
	}
	return p.accepted(ctx, "A Complete with the right If-Match", r, key, ours)
}

func (p *prober) completeOverExisting(ctx context.Context, key string) (bool, string, error) {
	if _, err := p.put(ctx, key, older); err != nil {
		return false, "", err
	}
	r, err := p.completed(ctx, key, ours, ifNoneMatch, "*")
	if err != nil {
		return false, "", err
	}
	return p.refused(ctx, "A Complete with If-None-Match: * over an object", r, key, older)
}

// copied copies an object of its own over key, under a condition.
func (p *prober) copied(ctx context.Context, key, content string, condition ...string) (reply, error) {
	source := key + "-source"
	if _, err := p.put(ctx, source, content); err != nil {
		return reply{}, err
	}
	return p.copyFrom(ctx, source, key, condition...)
}

func (p *prober) copyFrom(ctx context.Context, source, key string, condition ...string) (reply, error) {
	return p.do(ctx, http.MethodPut, key, "", nil, append([]string{copySource, p.sourceOf(source)}, condition...)...)
}

func (p *prober) sourceOf(key string) string { return escape(p.bucket+"/"+key, true) }

func (p *prober) copyStale(ctx context.Context, key string) (bool, string, error) {
	if _, err := p.put(ctx, key, older); err != nil {
		return false, "", err
	}
	r, err := p.copied(ctx, key, ours, ifMatch, staleETag)
	if err != nil {
		return false, "", err
	}
	return p.refused(ctx, "A Copy with a stale If-Match", r, key, older)
}

func (p *prober) copyCurrent(ctx context.Context, key string) (bool, string, error) {
	etag, err := p.put(ctx, key, older)
	if err != nil {
		return false, "", err
	}
	r, err := p.copied(ctx, key, ours, ifMatch, etag)
	if err != nil {
		return false, "", err
	}
	return p.accepted(ctx, "A Copy with the right If-Match", r, key, ours)
}

func (p *prober) copyOverExisting(ctx context.Context, key string) (bool, string, error) {
	if _, err := p.put(ctx, key, older); err != nil {
		return false, "", err
	}
	r, err := p.copied(ctx, key, ours, ifNoneMatch, "*")
	if err != nil {
		return false, "", err
	}
	return p.refused(ctx, "A Copy with If-None-Match: * over an object", r, key, older)
}

// A remover deletes an object that has this ETag.
type remover func(ctx context.Context, key, etag string) (reply, error)

func (p *prober) deleteIf(ctx context.Context, key, etag string) (reply, error) {
	return p.do(ctx, http.MethodDelete, key, "", nil, ifMatch, etag)
}

// batchIf deletes one object with DeleteObjects.
func (p *prober) batchIf(ctx context.Context, key, etag string) (reply, error) {
	body := fmt.Appendf(nil, "<Delete><Object><Key>%s</Key><ETag>%s</ETag></Object></Delete>", key, etag)
	return p.do(ctx, http.MethodPost, "", "delete=", body, "Content-Md5", base64MD5(body))
}

// base64MD5 is what S3 wants of a batch.
func base64MD5(b []byte) string {
	sum := md5.Sum(b)
	return base64.StdEncoding.EncodeToString(sum[:])
}

func (p *prober) deleteStale(ctx context.Context, key string) (bool, string, error) {
	return p.removeStale(ctx, "A DELETE with a stale If-Match", key, p.deleteIf)
}

func (p *prober) deleteCurrent(ctx context.Context, key string) (bool, string, error) {
	return p.removeCurrent(ctx, "A DELETE with the right If-Match", key, p.deleteIf)
}

func (p *prober) batchStale(ctx context.Context, key string) (bool, string, error) {
	return p.removeStale(ctx, "A DeleteObjects with a wrong ETag", key, p.batchIf)
}

func (p *prober) batchCurrent(ctx context.Context, key string) (bool, string, error) {
	return p.removeCurrent(ctx, "A DeleteObjects with the right ETag", key, p.batchIf)
}

func (p *prober) removeStale(ctx context.Context, what, key string, remove remover) (bool, string, error) {
	if _, err := p.put(ctx, key, older); err != nil {
		return false, "", err
	}
	r, err := remove(ctx, key, staleETag)
	if err != nil {
		return false, "", err
	}
	return p.refused(ctx, what, r, key, older)
}

func (p *prober) removeCurrent(ctx context.Context, what, key string, remove remover) (bool, string, error) {
	etag, err := p.put(ctx, key, older)
	if err != nil {
		return false, "", err
	}
	r, err := remove(ctx, key, etag)
	if err != nil {
		return false, "", err
	}
	return p.accepted(ctx, what, r, key, "")
}
