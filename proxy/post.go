package proxy

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"

	"github.com/fenceproxy/fenceproxy/proxy/sigv4"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// A browser's form (PostObject) is an object, and around it the fields that are headers elsewhere. It becomes the PutObject that it means, and goes
// that way: behind this file there are no forms. Fields and answers: https://docs.aws.amazon.com/AmazonS3/latest/API/RESTObjectPOST.html

// maxFields bounds what stands before the file, in bytes ("The maximum size of the form data and boundaries (excluding file)").
const maxFields = 20 << 10

// A form is what a browser has sent. Names of fields are in lower case.
type form struct {
	fields   map[string]string
	filename string
	content  io.ReaderAt
	size     int64
	release  func()
}

// postForm is PostObject.
func (x *exchange) postForm() error {
	f, err := x.readForm()
	if err != nil {
		x.drain(drainTime)
		return err
	}
	defer f.release()
	x.wireLength = 0 // nothing is left to drain
	if err := x.becomePut(f); err != nil {
		return err
	}
	rec, err := x.through(func(w *tokens.Write) passage { return &gated{Write: w, x: x} })
	if err == nil && rec.outcome() == done {
		err = x.answerForm(rec, f)
	}
	return x.tell(rec, err)
}

// readForm reads the form to its end. Who has sent it, and what its policy allows, is judged before its file is read.
func (x *exchange) readForm() (*form, error) {
	kind, parameters, err := mime.ParseMediaType(x.r.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" {
		return nil, &sigv4.Error{
			Status: http.StatusPreconditionFailed, Code: preconditionFailed, Message: "At least one of the pre-conditions you specified did not hold.",
			Details: []sigv4.Detail{{Name: "Condition", Value: "Bucket POST must be of the enclosure-type multipart/form-data"}},
		}
	}
	if x.wireLength < 0 {
		return nil, &s3Error{http.StatusLengthRequired, missingContentLength, "send Content-Length"}
	}
	x.bodyTouched = true
	body := x.clientBody(nil, func() error { return nil })
	ahead := &headRoom{body, maxFields + readAhead}
	parts := multipart.NewReader(ahead, parameters["boundary"])
	f := &form{fields: map[string]string{}, release: func() {}}
	file, err := f.readFields(parts)
	if err != nil {
		return nil, formError(body, err)
	}
	ahead.left = math.MaxInt64
	limit, err := x.judgeForm(f)
	if err != nil {
		return nil, err
	}
	if err := x.readFile(f, file, limit); err != nil {
		f.release()
		return nil, formError(body, err)
	}
	if err := readToEnd(parts, body); err != nil {
		f.release()
		return nil, formError(body, err)
	}
	return f, nil
}

// readAhead is what package multipart may have read of the file when it comes to it, and what the headers of fields may have, in bytes.
const readAhead = 16 << 10

// A headRoom bounds what may come before the file: until then nobody knows who sends it.
type headRoom struct {
	io.Reader
	left int64
}

func (b *headRoom) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, tooManyFields()
	}
	n, err := b.Reader.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

func tooManyFields() error {
	return badRequest("MaxPostPreDataLengthExceeded", "Your POST request fields preceding the upload file were too large: at most %d bytes are taken", maxFields)
}

// formError says what is wrong with the form, or with the body it came in.
func formError(body *gatedBody, err error) error {
	if failure := body.failure(); failure != nil {
		return failure
	}
	if errors.As(err, new(*s3Error)) || errors.As(err, new(*sigv4.Error)) {
		return err
	}
	return badRequest("MalformedPOSTRequest", "The body of your POST request is not well-formed multipart/form-data.")
}

// readFields reads up to the file, which S3 wants behind all fields that count.
func (f *form) readFields(parts *multipart.Reader) (file *multipart.Part, err error) {
	for left := int64(maxFields); ; {
		part, err := parts.NextRawPart()
		if err == io.EOF {
			return nil, badRequest(invalidArgument, "POST requires exactly one file upload per request.")
		}
		if err != nil {
			return nil, err
		}
		name := strings.ToLower(part.FormName())
		if name == "file" {
			f.filename = part.FileName()
			return part, nil
		}
		value, err := io.ReadAll(io.LimitReader(part, left+1))
		if err != nil {
			return nil, err
		}
		if left -= int64(len(name) + len(value)); left < 0 {
			return nil, tooManyFields()
		}
		if _, twice := f.fields[name]; twice {
			return nil, badRequest(invalidArgument, "the form has the field %q twice", name)
		}
		f.fields[name] = string(value)
	}
}

// A lengthRange is what a policy allows a file to have, in bytes.
type lengthRange struct{ least, most int64 }

// judgeForm verifies who has sent the form, and that its policy allows its fields.
func (x *exchange) judgeForm(f *form) (limit lengthRange, err error) {
	limit = lengthRange{0, maxObject}
	if _, ok := f.fields["key"]; !ok {
		return limit, badRequest(invalidArgument, "Bucket POST must contain a field named 'key'.  If it is specified, please check the order of the fields.")
	}
	f.fields["key"] = strings.ReplaceAll(f.fields["key"], "${filename}", f.filename)
	if x.h.Signatures == nil {
		return limit, nil
	}
	id, policy, err := x.h.Signatures.VerifyPost(f.fields)
	if err != nil {
		return limit, err
	}
	if err := policy.Check(f.fields, x.op.bucket); err != nil {
		return limit, err
	}
	if x.who.token != 0 {
		return limit, badToken("the token of a form has to stand in the form, where its policy covers it: the field %s", strings.ToLower(headerToken))
	}
	x.identified(id)
	if least, most, ok := policy.Length(); ok {
		limit = lengthRange{least, min(most, maxObject)}
	}
	return limit, nil
}

// maxObject is what S3 takes in one request, in bytes ("Uploading objects").
const maxObject = 5 << 30

// readFile keeps the file until it is known to have come whole: in memory where there is room, else in the spool.
func (x *exchange) readFile(f *form, file io.Reader, limit lengthRange) (err error) {
	whole := file
	file = io.LimitReader(file, limit.most+1)
	if size := x.wireLength; size <= x.h.Buffer && x.h.memory.take(size) {
		f.release = func() { x.h.memory.give(size) }
		b := bytes.NewBuffer(make([]byte, 0, size+bytes.MinRead))
		f.size, err = b.ReadFrom(file)
		f.content = bytes.NewReader(b.Bytes())
	} else {
		spool, err := x.h.spool()
		if err != nil {
			return err
		}
		f.release = func() { _ = spool.Close() }
		f.content = spool
		if f.size, err = io.Copy(spool, file); err != nil {
			return err
		}
	}
	switch {
	case err != nil:
		return err
	case f.size > limit.most:
		if rest, err := io.Copy(io.Discard, whole); err == nil {
			f.size += rest
		}
		return wrongSize("EntityTooLarge", "Your proposed upload exceeds the maximum allowed object size.", f.size, "MaxSizeAllowed", limit.most)
	case f.size < limit.least:
		return wrongSize("EntityTooSmall", "Your proposed upload is smaller than the minimum allowed size", f.size, "MinSizeAllowed", limit.least)
	}
	return nil
}

func wrongSize(code, message string, size int64, limit string, allowed int64) error {
	return &sigv4.Error{Status: http.StatusBadRequest, Code: code, Message: message, Details: []sigv4.Detail{
		{Name: "ProposedSize", Value: strconv.FormatInt(size, 10)}, {Name: limit, Value: strconv.FormatInt(allowed, 10)},
	}}
}

// readToEnd passes over the fields behind the file, as S3 does, up to the end of the body: a form that was cut off is none.
func readToEnd(parts *multipart.Reader, body io.Reader) error {
	for {
		switch _, err := parts.NextRawPart(); err {
		case nil:
		case io.EOF:
			_, err := io.Copy(io.Discard, body)
			return err
		default:
			return err
		}
	}
}

// becomePut makes the exchange that of the PutObject which the form means.
func (x *exchange) becomePut(f *form) (err error) {
	if x.who, err = x.who.with(f.fields); err != nil {
		return err
	}
	path := "/" + x.op.bucket + "/" + f.fields["key"]
	op, err := splitPath(path)
	if err != nil {
		return err
	}
	if op.level != object {
		return badRequest(invalidArgument, "User key must have a length greater than 0.")
	}
	op.name, op.way = "PutObject", writes
	h, err := f.headers()
	if err != nil {
		return err
	}
	x.op, x.path = op, path
	r := x.r.Clone(x.r.Context())
	r.Method, r.URL.RawQuery, r.Header = http.MethodPut, "", h
	r.Body, r.ContentLength = io.NopCloser(io.NewSectionReader(f.content, 0, f.size)), f.size
	x.r = r
	if err := x.permit(); err != nil {
		return err
	}
	return x.findTarget()
}

// with adds the token that stands in a form.
func (id identity) with(fields map[string]string) (identity, error) {
	said := []channel{{name: "the request", holder: &id.holder}}
	if id.token != 0 {
		text := strconv.FormatInt(int64(id.token), 10)
		said[0].text = &text
	}
	if id.holder == "" {
		said[0].holder = nil
	}
	inForm := channel{name: "the form"}
	if text, ok := fields[strings.ToLower(headerToken)]; ok {
		inForm.text = &text
	}
	if holder, ok := fields[strings.ToLower(headerHolder)]; ok {
		inForm.holder = &holder
	}
	inSession, err := sessionToken([]string{fields[strings.ToLower(headerSessionToken)]})
	if err != nil {
		return id, err
	}
	return agree(append(said, inForm, inSession))
}

// likeHeaders are the fields that are headers by another name or by their own, beside those that begin with likeHeaderPrefixes.
var likeHeaders = map[string]string{
	"acl": "X-Amz-Acl", "cache-control": "Cache-Control", "content-disposition": "Content-Disposition", "content-encoding": "Content-Encoding",
	"content-language": "Content-Language", "content-type": "Content-Type", "expires": "Expires",
	"x-amz-storage-class": "X-Amz-Storage-Class", "x-amz-website-redirect-location": "X-Amz-Website-Redirect-Location",
	"x-amz-sdk-checksum-algorithm": "X-Amz-Sdk-Checksum-Algorithm",
}

var likeHeaderPrefixes = []string{"x-amz-meta-", "x-amz-checksum-", "x-amz-server-side-encryption", "x-amz-object-lock-", "x-amz-grant-"}

// headers are the fields as a PutObject has them. What stands in neither list is of the form itself, or its policy has allowed it for no reason:
// it must not make another operation of the PutObject.
func (f *form) headers() (http.Header, error) {
	h := http.Header{"Content-Length": {strconv.FormatInt(f.size, 10)}}
	for field, value := range f.fields {
		name, ok := likeHeaders[field]
		for _, prefix := range likeHeaderPrefixes {
			if strings.HasPrefix(field, prefix) {
				name, ok = textproto.CanonicalMIMEHeaderKey(field), true
			}
		}
		if !ok {
			continue
		}
		if strings.ContainsFunc(value, isControl) || !isToken(name) {
			return nil, badRequest(invalidArgument, "the field %q cannot be a header: it has a character that none has", field)
		}
		if value != "" {
			h.Set(name, value)
		}
	}
	if document, ok := f.fields["tagging"]; ok {
		tags, err := tagsOf(document)
		if err != nil {
			return nil, err
		}
		h.Set("X-Amz-Tagging", tags)
	}
	return h, nil
}

// tagsOf makes of S3's XML for tags what a header has.
func tagsOf(document string) (string, error) {
	var tagging struct {
		XMLName xml.Name                      `xml:"Tagging"`
		Tags    []struct{ Key, Value string } `xml:"TagSet>Tag"`
	}
	if err := xml.Unmarshal([]byte(document), &tagging); err != nil {
		return "", malformedXML("The XML you provided was not well-formed or did not validate against our published schema.")
	}
	tags := url.Values{}
	for _, t := range tagging.Tags {
		tags.Add(t.Key, t.Value)
	}
	return tags.Encode(), nil
}

// answerForm makes of PutObject's answer that of a form: where its page is, or what its page has asked for.
func (x *exchange) answerForm(rec *recorder, f *form) error {
	etag := rec.header.Get("Etag")
	location := (&url.URL{Scheme: x.scheme(), Host: x.r.Host, Path: x.path}).String()
	if target := f.redirect(); target != nil {
		q := target.Query()
		q.Set("bucket", x.op.bucket)
		q.Set("key", x.op.key)
		q.Set("etag", etag)
		target.RawQuery = q.Encode()
		rec.become(http.StatusSeeOther, nil)
		rec.header.Set("Location", target.String())
		return nil
	}
	rec.header.Set("Location", location)
	switch f.fields["success_action_status"] {
	case "200":
		rec.become(http.StatusOK, nil)
	case "201":
		body, err := xml.Marshal(struct {
			XMLName                     xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ PostResponse"`
			Location, Bucket, Key, ETag string
		}{Location: location, Bucket: x.op.bucket, Key: x.op.key, ETag: etag})
		if err != nil {
			return err
		}
		rec.become(http.StatusCreated, append([]byte(xml.Header), body...))
	default:
		rec.become(http.StatusNoContent, nil)
	}
	return nil
}

func (x *exchange) scheme() string {
	if x.r.TLS != nil {
		return "https"
	}
	return "http"
}

// redirect is where the browser is to go, nil where the form does not say, or not well.
func (f *form) redirect() *url.URL {
	text := f.fields["success_action_redirect"]
	if text == "" {
		text = f.fields["redirect"]
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil
	}
	return u
}

// become makes another answer of a recorded one.
func (rec *recorder) become(status int, body []byte) {
	rec.status, rec.body = status, body
	rec.header.Del("Content-Type")
	rec.header.Del("Content-Length")
	if body != nil {
		rec.header.Set("Content-Type", xmlType)
	}
	if status != http.StatusNoContent {
		rec.header.Set("Content-Length", strconv.Itoa(len(body)))
	}
}
