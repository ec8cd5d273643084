package s3

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

const (
	// largeBody is larger than what any layer between keeps, in bytes: a body that is cut has reached the store's disk in part.
	largeBody = 2 << 20

	// hangUp is how long a request may still do something after the store hung up on it.
	hangUp = 350 * time.Millisecond

	// heldBody is larger than a connection's buffers on our side, in bytes.
	heldBody = 256 << 10
)

// putOvertaken is a PUT whose condition holds when its head comes in, and no longer when its end does.
func (p *prober) putOvertaken(ctx context.Context, key string) (bool, string, error) {
	etag, err := p.put(ctx, key, older)
	if err != nil {
		return false, "", err
	}
	body := p.large[:heldBody]
	out := p.request(ctx, http.MethodPut, key, "", []string{ifMatch, etag})
	attachBytes(out, body)
	if _, err := p.signHeader(out, hexHash(body)); err != nil {
		return false, "", err
	}
	l, err := p.begin(ctx, out, 1)
	if err != nil {
		return false, "", err
	}
	defer l.close()
	if _, err := p.put(ctx, key, newer); err != nil {
		return false, "", err
	}
	const what = "A PUT whose If-Match turned false before the end of its body"
	r, err := l.finish()
	if err == nil {
		return p.refused(ctx, what, r, key, newer)
	}
	if l.late() {
		return false, "", err
	}
	time.Sleep(hangUp)
	got, _, err := p.content(ctx, key)
	if err != nil || got != newer {
		return false, what + " was carried out (without an answer): the condition is ignored.", err
	}
	return true, what + " was cut off by the store, and changed nothing.", nil
}

// hashed is a PUT of a large body in the form in which one streams whose SHA-256 is known.
func (p *prober) hashed(ctx context.Context, key, hash string) (*http.Request, error) {
	out := p.request(ctx, http.MethodPut, key, "", nil)
	attachBytes(out, p.large)
	_, err := p.signHeader(out, hash)
	return out, err
}

// chunked is a PUT of a large body in signed chunks, with a trailer perhaps, in which forge may change something.
func (p *prober) chunked(ctx context.Context, key string, t trailer, forge func(body []byte)) (*http.Request, error) {
	out := p.request(ctx, http.MethodPut, key, "", nil)
	out.Header.Set("X-Amz-Decoded-Content-Length", strconv.Itoa(len(p.large)))
	out.ContentLength = framedLength(int64(len(p.large))) + t.length() // is signed
	hash := signedChunks
	if t.names != nil {
		hash = signedTrailer
		out.Header.Set("X-Amz-Trailer", t.announced())
	}
	links, err := p.signHeader(out, hash)
	if err != nil {
		return nil, err
	}
	lines, err := t.lines()
	if err != nil {
		return nil, err
	}
	f := newFramer(links, t)
	f.frame = make([]byte, 0, out.ContentLength)
	for rest := p.large; len(rest) > 0; {
		n := min(chunkSize, len(rest))
		f.add(rest[:n])
		rest = rest[n:]
	}
	f.finish(lines)
	forge(f.frame)
	attachBytes(out, f.frame)
	return out, nil
}

func honest([]byte) {}

// wholeChunks: that a cut body does not become the object says nothing of a store that does not take this form at all.
func (p *prober) wholeChunks(ctx context.Context, key string) (bool, string, error) {
	return p.whole(ctx, "A body in signed chunks", key, trailer{})
}

// whole sends all of a large body in chunks, and looks for it.
func (p *prober) whole(ctx context.Context, what, key string, t trailer) (bool, string, error) {
	out, err := p.chunked(ctx, key, t, honest)
	if err != nil {
		return false, "", err
	}
	r, failed := p.roundTrip(ctx, out)
	got, _, err := p.content(ctx, key)
	switch {
	case err != nil:
		return false, "", err
	case failed != nil: // of a store that answers other questions
		return false, fmt.Sprintf("%s is not taken by the store (%v).", what, failed), nil
	case !r.ok():
		return false, fmt.Sprintf("%s is not taken by the store (%s).", what, r), nil
	case got != string(p.large):
		return false, fmt.Sprintf("%s did not become the object that it is: %d bytes of %d.", what, len(got), len(p.large)), nil
	}
	return true, what + " became the object.", nil
}

// lastHeld is how many bytes of a body in chunks are held back until the gate: the last chunk with data, and the end of the body.
func lastHeld(t trailer) int { return int(frameLength((largeBody-1)%chunkSize+1) + endLength(t)) }

func (p *prober) tornChunks(ctx context.Context, key string) (bool, string, error) {
	return p.torn(ctx, "A body of 2 MiB in signed chunks, cut off before its last chunk,", key, lastHeld(trailer{}), func() (*http.Request, error) {
		return p.chunked(ctx, key, trailer{}, honest)
	})
}

// tornLastChunk is cut off on its way, after the gate. (A body that has all of its data and misses only the empty chunk behind it may
// become the object: versitygw makes it that, and it is whole.)
func (p *prober) tornLastChunk(ctx context.Context, key string) (bool, string, error) {
	const what = "A body of 2 MiB in signed chunks, cut off before the last byte of its last chunk,"
	return p.torn(ctx, what, key, 1+len(crlf)+int(frameLength(0)), func() (*http.Request, error) {
		return p.chunked(ctx, key, trailer{}, honest)
	})
}

func (p *prober) tornHashed(ctx context.Context, key string) (bool, string, error) {
	return p.torn(ctx, "A body of 2 MiB with a signed SHA-256, cut off before its last byte,", key, 1, func() (*http.Request, error) {
		return p.hashed(ctx, key, hexHash(p.large))
	})
}

// torn sends all but the last bytes, and looks for the object.
func (p *prober) torn(ctx context.Context, what, key string, missing int, request func() (*http.Request, error)) (bool, string, error) {
	out, err := request()
	if err != nil {
		return false, "", err
	}
	l, err := p.begin(ctx, out, missing)
	if err == nil {
		l.cut()
	} else if ctx.Err() != nil {
		return false, "", err
	} // else the store hung up by itself, or is out of reach, which staysAbsent will see
	return p.staysAbsent(ctx, what, key)
}

// forgedChunk is whole, but for one digit of the signature of a chunk in its middle.
func (p *prober) forgedChunk(ctx context.Context, key string) (bool, string, error) {
	out, err := p.chunked(ctx, key, trailer{}, func(body []byte) {
		middle := body[len(body)/2:]
		digit := &middle[bytes.Index(middle, []byte(signatureIs))+len(signatureIs)]
		*digit = map[bool]byte{true: '1', false: '0'}[*digit == '0']
	})
	if err != nil {
		return false, "", err
	}
	return p.mustRefuse(ctx, "A body of 2 MiB in chunks, one with a wrong signature,", key, out)
}

func (p *prober) wrongHash(ctx context.Context, key string) (bool, string, error) {
	out, err := p.hashed(ctx, key, hexHash([]byte(ours)))
	if err != nil {
		return false, "", err
	}
	return p.mustRefuse(ctx, "A body of 2 MiB with the SHA-256 of another", key, out)
}

// mustRefuse sends a request that no store may carry out.
func (p *prober) mustRefuse(ctx context.Context, what, key string, out *http.Request) (bool, string, error) {
	l, err := p.begin(ctx, out, 0) // not by the transport, for the store may hang up while the body is under way
	if err == nil {
		_, _ = l.finish() // no answer is one, too, if there is no object
	} else if ctx.Err() != nil {
		return false, "", err
	}
	return p.staysAbsent(ctx, what, key)
}

// staysAbsent looks for an object that must not be there, for a while.
func (p *prober) staysAbsent(ctx context.Context, what, key string) (bool, string, error) {
	for _, wait := range []time.Duration{0, 50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond} {
		time.Sleep(wait)
		r, err := p.do(ctx, http.MethodHead, key, "", nil)
		if err != nil {
			return false, "", err
		}
		if r.ok() {
			return false, fmt.Sprintf("%s became the object (HEAD: %s, %s bytes).", what, r, r.header.Get("Content-Length")), nil
		}
		if !r.absent() {
			return false, "", &unasked{"a HEAD was answered " + r.String()}
		}
	}
	return true, what + " did not become the object.", nil
}
