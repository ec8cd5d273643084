package s3

import (
	"context"
	"encoding/xml"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
)

// clean removes what the probe wrote, however that ended, and says if it could not. Nothing of the probe is under way any more. What
// it knows to have written it removes without asking: it may not be allowed to list. Then it lists, for what it does not know, such as
// an upload whose answer was lost, and the versions that some buckets keep.
func (p *prober) clean(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	p.mu.Lock()
	keys, uploads := slices.Collect(maps.Keys(p.keys)), maps.Clone(p.uploads)
	p.mu.Unlock()
	var all []removal
	for id, key := range uploads {
		all = append(all, removal{key, "uploadId=" + escape(id, false)})
	}
	failed := map[string]bool{}
	p.remove(ctx, all, failed)
	all = nil
	for _, key := range keys {
		all = append(all, removal{key: key})
	}
	p.remove(ctx, all, failed)
	p.remove(ctx, p.listed(ctx), failed)
	if len(failed) > 0 {
		return fmt.Errorf("what the probe wrote to %d keys could not be removed: remove what begins with %s from bucket %s",
			len(failed), p.prefix, p.bucket)
	}
	return nil
}

// cleanWidth is how many removals are sent at once.
const cleanWidth = 16

// A removal is a DELETE: of an object, of one of its versions, or of an upload.
type removal struct{ key, query string }

// remove sends some removals at a time, and adds the keys of those that failed. What is gone already is no failure.
func (p *prober) remove(ctx context.Context, all []removal, failed map[string]bool) {
	var mu sync.Mutex // guards failed
	slots := make(chan struct{}, cleanWidth)
	var wait sync.WaitGroup
	for _, r := range all {
		wait.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if got, err := p.do(ctx, http.MethodDelete, r.key, r.query, nil); err != nil || !got.ok() && got.status != http.StatusNotFound {
				mu.Lock()
				failed[r.key] = true
				mu.Unlock()
			}
		})
	}
	wait.Wait()
}

// A listing is any of the three lists.
type listing struct {
	Contents     []struct{ Key string }
	Version      []version
	DeleteMarker []version
	Upload       []struct{ Key, UploadId string }
}

type version struct{ Key, VersionId string }

// listed is what is still there, as far as the store tells: one page of each list is more than a probe ever writes.
func (p *prober) listed(ctx context.Context) []removal {
	var all []removal
	for _, query := range []string{"list-type=2", "uploads=", "versions="} {
		var l listing
		r, err := p.do(ctx, http.MethodGet, "", query+"&prefix="+escape(p.prefix, false), nil)
		if err != nil || !r.ok() || xml.Unmarshal(r.body, &l) != nil {
			continue // not allowed, or not known here
		}
		for _, o := range l.Contents {
			all = append(all, removal{key: o.Key})
		}
		for _, u := range l.Upload {
			all = append(all, removal{u.Key, "uploadId=" + escape(u.UploadId, false)})
		}
		for _, v := range append(l.Version, l.DeleteMarker...) {
			all = append(all, removal{v.Key, "versionId=" + escape(v.VersionId, false)})
		}
	}
	return slices.DeleteFunc(all, func(r removal) bool { return !p.owns(r.key) })
}

// owns guards against stores that do not know prefix.
func (p *prober) owns(key string) bool {
	return len(key) > len(p.prefix) && key[:len(p.prefix)] == p.prefix
}
