package s3

import (
	"context"
	"net/http"
)

// checksumBehind is a trailer with the checksum of what is said to be the body. It is of the kind that AWS's SDKs send unless they are told otherwise.
func checksumBehind(said []byte) trailer {
	const kind = "Crc32"
	name := checksumPrefix + kind
	return trailer{names: []string{name}, values: http.Header{name: {digest(kind, said)}}}
}

// wholeTrailer: a store that does not know trailers may take the end of the body for its content.
func (p *prober) wholeTrailer(ctx context.Context, key string) (bool, string, error) {
	return p.whole(ctx, "A body in signed chunks with its checksum behind it", key, checksumBehind(p.large))
}

// wrongTrailer is whole, and its signatures are right: only the checksum is of another body.
func (p *prober) wrongTrailer(ctx context.Context, key string) (bool, string, error) {
	out, err := p.chunked(ctx, key, checksumBehind([]byte(ours)), honest)
	if err != nil {
		return false, "", err
	}
	return p.mustRefuse(ctx, "A body of 2 MiB in signed chunks with the checksum of another behind it", key, out)
}

func (p *prober) tornTrailer(ctx context.Context, key string) (bool, string, error) {
	const what = "A body of 2 MiB in signed chunks that is to have a checksum behind it, cut off before its last chunk,"
	t := checksumBehind(p.large)
	return p.torn(ctx, what, key, lastHeld(t), func() (*http.Request, error) { return p.chunked(ctx, key, t, honest) })
}
