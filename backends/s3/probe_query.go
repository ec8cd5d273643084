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

// queryExpired is dated an hour back, which nobody has to wait for.
func (p *prober) queryExpired(ctx context.Context, key string) (bool, string, error) {
	if _, err := p.doByQuery(ctx, p.soon().Add(-time.Hour), http.MethodPut, key, "", []byte(ours)); err != nil {
		return false, "", err
	}
	return p.staysAbsent(ctx, "A PUT whose signature in the query had expired", key)
}

func (p *prober) queryWrongChecksum(ctx context.Context, key string) (bool, string, error) {
	out, err := p.queried(ctx, key, []byte(ours), []byte(newer))
	if err != nil {
		return false, "", err
	}
	return p.mustRefuse(ctx, "A PUT signed in the query, with the checksum of another body,", key, out)
}

func (p *prober) queryTorn(ctx context.Context, key string) (bool, string, error) {
	const what = "A body of 2 MiB with a checksum, signed in the query and cut off before its last byte,"
	return p.torn(ctx, what, key, 1, func() (*http.Request, error) {
		return p.queried(ctx, key, p.large, p.large)
	})
}

// queried is a PUT signed in the query, with the checksum of what is said to be its body.
func (p *prober) queried(ctx context.Context, key string, body, said []byte) (*http.Request, error) {
	out := p.request(ctx, http.MethodPut, key, "", nil)
	attachBytes(out, body)
	return out, p.signQuery(out, hexHash(said), p.soon())
}
