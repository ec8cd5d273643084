package s3

import (
	"context"
	"fmt"
	"html"
	"net/http"
	"slices"
	"strings"
)

// notOurs are the codes of a 403 that say nothing about what we may do: with other credentials, or a clock that is right, the answer
// is another one.
var notOurs = []string{
	"SignatureDoesNotMatch", "InvalidAccessKeyId", "ExpiredToken", "InvalidToken", "TokenRefreshRequired", "RequestTimeTooSkewed",
	"RequestExpired", "AuthFailure",
}

// barred says why the store must not be asked: for it may do harm, or for it would show nothing. It writes the first object, which stays
// until the end, so that stores over directories keep the one that the others are in.
func (p *prober) barred(ctx context.Context) (harm, why string, err error) {
	lock, err := p.do(ctx, http.MethodGet, "", "object-lock", nil)
	if err != nil {
		return "", "", err
	}
	if lock.ok() && strings.Contains(string(lock.body), "<DefaultRetention>") {
		return "the bucket has an object lock with default retention, which would keep what the probe writes", "", nil
	}
	first, err := p.do(ctx, http.MethodPut, p.prefix+"first", "", []byte("first"))
	if err != nil {
		return "", "", err
	}
	forbidden, err := forbids(first)
	switch {
	case err != nil:
		return "", "", err
	case first.ok() && lock.status == http.StatusForbidden && first.header.Get("X-Amz-Version-Id") != "":
		return "the bucket keeps versions, and whether it has an object lock may not be read (s3:GetBucketObjectLockConfiguration)", "", nil
	case first.ok():
		why, err = p.barredFrom(ctx)
		return "", why, err
	case forbidden:
		return fmt.Sprintf("the store does not let us write to %s (%s)", p.prefix, first), "", nil
	case first.status >= 400 && first.status < 500:
		return "", "", &RefusedError{first.status, first.code(), html.UnescapeString(first.element("Message"))}
	}
	return "", "", fmt.Errorf("the store answered %s to the first PUT", first)
}

// barredFrom says whether the store lets us write, and not read, so that nothing can be seen; or not remove, so that all that the probe
// writes would stay, at every start. Many have such roles for backups, and what the store does for them is known well enough: they get
// the cautious findings, and need not configure anything.
func (p *prober) barredFrom(ctx context.Context) (why string, err error) {
	for _, method := range []string{http.MethodGet, http.MethodHead} { // GET first: a HEAD has no code
		read, err := p.do(ctx, method, p.prefix+"first", "", nil)
		if err != nil {
			return "", err
		}
		if forbidden, err := forbids(read); forbidden || err != nil {
			return fmt.Sprintf("it does not let us read what we write to %s (%s), so that nothing can be seen", p.prefix, read), err
		}
	}
	second := p.prefix + "second"
	if r, err := p.do(ctx, http.MethodPut, second, "", []byte("second")); err != nil || !r.ok() {
		return "", err
	}
	removed, err := p.do(ctx, http.MethodDelete, second, "", nil)
	if err != nil {
		return "", err
	}
	if forbidden, err := forbids(removed); forbidden || err != nil {
		return fmt.Sprintf("it does not let us remove what we write to %s (%s)", p.prefix, removed), err
	}
	return "", nil
}

// forbids says whether an answer is a 403 by the store's rules. One that is not is an error: the next Probe may get another answer.
func forbids(r reply) (bool, error) {
	if r.status != http.StatusForbidden {
		return false, nil
	}
	if slices.Contains(notOurs, r.code()) {
		return false, fmt.Errorf("the store answered %s", r)
	}
	return true, nil
}
