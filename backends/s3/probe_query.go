package s3

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

func (p *prober) querySigned(ctx context.Context, key string) (bool, string, error) {
	r, err := p.doByQuery(ctx, p.soon(), http.MethodPut, key, "", []byte(ours))
	if err != nil {
		return false, "", err
	}
	return p.accepted(ctx, "A PUT signed in the query", r, key, ours)
}

func (p *prober) queryCopy(ctx context.Context, key string) (bool, string, error) {
	source := key + "-source"
	if _, err := p.put(ctx, source, ours); err != nil {
		return false, "", err
	}
	r, err := p.doByQuery(ctx, p.soon(), http.MethodPut, key, "", nil, copySource, p.sourceOf(source))
	if err != nil {
		return false, "", err
	}
	return p.accepted(ctx, "A Copy signed in the query", r, key, ours)
}

func (p *prober) queryDelete(ctx context.Context, key string) (bool, string, error) {
	if _, err := p.put(ctx, key, older); err != nil {
		return false, "", err
	}
	r, err := p.doByQuery(ctx, p.soon(), http.MethodDelete, key, "", nil)
	if err != nil {
		return false, "", err
	}
	return p.accepted(ctx, "A DELETE signed in the query", r, key, "")
}

func (p *prober) queryBatch(ctx context.Context, key string) (bool, string, error) {
	if _, err := p.put(ctx, key, older); err != nil {
		return false, "", err
	}
	body := fmt.Appendf(nil, "<Delete><Object><Key>%s</Key></Object></Delete>", key)
	r, err := p.doByQuery(ctx, p.soon(), http.MethodPost, "", "delete=", body, "Content-Md5", base64MD5(body))
	if err != nil {
		return false, "", err
	}
	return p.accepted(ctx, "A DeleteObjects signed in the query", r, key, "")
}

// expiredBy is how long ago the life of an expired signature was over: nobody has to wait for it. Its date is so young that it alone is
// no reason to refuse it: stores take what is dated up to 15 minutes back.
const expiredBy = 5 * time.Second

func (p *prober) queryExpired(ctx context.Context, key string) (bool, string, error) {
	if _, err := p.doByQuery(ctx, p.soon().Add(-queryLife-expiredBy), http.MethodPut, key, "", []byte(ours)); err != nil {
		return false, "", err
	}
	return p.staysAbsent(ctx, "A PUT whose signature in the query had expired", key)
}

func (p *prober) queryTorn(ctx context.Context, key string) (bool, string, error) {
	const what = "A body of 2 MiB with a checksum, signed in the query and cut off before its last byte,"
	return p.torn(ctx, what, key, 1, func() (*http.Request, error) {
		return p.queried(ctx, key, p.large, "Sha256", p.large)
	})
}

// comparing asks whether the store compares checksums of a kind with the body of a PUT that is signed in the query: it takes the right one,
// and refuses the wrong one.
func comparing(kind string) func(*prober, context.Context, string) (bool, string, error) {
	return func(p *prober, ctx context.Context, key string) (bool, string, error) {
		out, err := p.queried(ctx, key, []byte(ours), kind, []byte(ours))
		if err != nil {
			return false, "", err
		}
		r, err := p.roundTrip(ctx, out)
		if err != nil {
			return false, "", err
		}
		good, detail, err := p.accepted(ctx, "A PUT signed in the query with its "+kind, r, key, ours)
		if err != nil || !good {
			return false, detail, err
		}
		wrong := key + "-wrong"
		if out, err = p.queried(ctx, wrong, []byte(ours), kind, []byte(newer)); err != nil {
			return false, "", err
		}
		good, more, err := p.mustRefuse(ctx, "One with the "+kind+" of another body", wrong, out)
		return good, detail + " " + more, err
	}
}

// queried is a PUT signed in the query, with the checksum of what is said to be its body.
func (p *prober) queried(ctx context.Context, key string, body []byte, kind string, said []byte) (*http.Request, error) {
	out := p.request(ctx, http.MethodPut, key, "", []string{checksumPrefix + kind, digest(kind, said)})
	attachBytes(out, body)
	return out, p.signQuery(out, hexHash(said), p.soon())
}
