package proxy

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"regexp"
	"strconv"

	"github.com/fenceproxy/fenceproxy/tokens"
)

// A multipart upload is invisible until Complete, which crosses the gate as any write does. What comes before it is only kept from
// growing old: Create announces its token, a part of a stale holder is refused early or cut off, and the registry remembers the highest
// token that has touched an upload, so that nobody older clears it away.

// uploadName names an upload in the registry.
func (x *exchange) uploadName(id string) string {
	return fmt.Sprintf("%s/%s?uploadId=%s", x.op.bucket, x.op.key, id)
}

// createUpload begins an upload. Its token is announced where any other write has its gate, and is on record before the client knows the
// upload's id.
func (x *exchange) createUpload() error {
	rec, err := x.through(func(w *tokens.Write) passage { return &creation{part{Write: w, x: x}} })
	if err == nil && x.target.Fenced && outcomeOf(rec.status) == done {
		var created struct{ UploadId string }
		if err := xml.Unmarshal(rec.body, &created); err != nil || created.UploadId == "" {
			return errors.New("the backend began an upload and did not say its id")
		}
		if err := x.touch(created.UploadId); err != nil {
			return err
		}
	}
	return x.tell(rec, err)
}

// A creation passes where its token could be announced.
type creation struct{ part }

func (c *creation) admit() error {
	if c.x.who.token == 0 { // there is nothing to announce, and something to refuse
		return context.Cause(c.Context())
	}
	_, err := c.x.h.Fence.Announce(c.x.detached(), c.x.claim())
	return err
}

func (x *exchange) touch(id string) error {
	if x.who.token == 0 {
		return nil
	}
	return x.h.Uploads.TouchUpload(x.detached(), x.uploadName(id), x.who.token)
}

// uploadPart lets a part through, unless its holder is stale when it begins or becomes so while it comes.
func (x *exchange) uploadPart() error {
	return x.tell(x.through(func(w *tokens.Write) passage { return &part{Write: w, x: x} }))
}

// A part passes where its holder is not known to be stale, and is on record first.
type part struct {
	*tokens.Write
	x *exchange
}

func (p *part) admit() error {
	if err := context.Cause(p.Context()); err != nil {
		return err
	}
	return p.x.touch(p.x.op.upload)
}

// A part was never admitted, so nothing of it has to settle.
func (p *part) Done()           {}
func (p *part) Failed()         {}
func (p *part) InDoubt() func() { return func() {} }

// abortUpload lets a stale holder clear away an upload that nobody newer has touched: it can harm nobody, and would cost money for
// ever. Otherwise an abort is a write as any other.
func (x *exchange) abortUpload() error {
	if !x.target.Fenced {
		return x.writeThrough()
	}
	w, err := x.h.Fence.Begin(x.detached(), x.claim())
	if err == nil {
		w.End()
		return x.writeThrough()
	}
	var stale *tokens.StaleError
	if errors.As(err, &stale) && x.who.meets(x.target.Policy) == nil {
		touched, lookErr := x.h.Uploads.UploadToken(x.detached(), x.uploadName(x.op.upload))
		if lookErr != nil {
			return lookErr
		}
		if touched <= x.who.token {
			return x.abortOwn()
		}
	}
	x.drain(drainTime)
	return err
}

func (x *exchange) abortOwn() error {
	d := new(draft)
	defer d.release()
	rec, err := x.attempt(x.detached(), d, ungated{})
	if err == nil && rec.outcome() == done {
		x.forgetUpload()
	}
	return x.tell(rec, err)
}

var location = regexp.MustCompile(`<Location>[^<]*</Location>`)

// locate puts the URL of the object as its client names it into the answer to a Complete: the store has put its own there, which is not the
// client's to use.
func (x *exchange) locate(rec *recorder) {
	if x.op.name != "CompleteMultipartUpload" || !location.Match(rec.body) {
		return
	}
	var url bytes.Buffer
	_ = xml.EscapeText(&url, []byte(x.scheme()+"://"+x.r.Host+x.r.URL.EscapedPath())) // into memory
	rec.body = location.ReplaceAllLiteral(rec.body, append(append([]byte("<Location>"), url.Bytes()...), "</Location>"...))
	if rec.header.Get("Content-Length") != "" {
		rec.header.Set("Content-Length", strconv.Itoa(len(rec.body)))
	}
}

// forgetUpload ends the record of an upload that is no more. One that stays, because the registry fails or we crash here, costs its
// space: ids are not used twice.
func (x *exchange) forgetUpload() {
	if err := x.h.Uploads.ForgetUpload(x.detached(), x.uploadName(x.op.upload)); err != nil {
		x.h.Log.Warn("the record of an upload that is over stays in the registry", "upload", x.uploadName(x.op.upload), "cause", err)
	}
}
