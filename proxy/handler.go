// Package proxy is the front: it takes S3 requests, finds the resource and the token of each, and lets writes through the
// fence to a backend. DESIGN in one line each:
//
//	ServeHTTP  who sends it, what it asks for, where it leads   (wire.go, channel.go, op.go, rules, access.go)
//	write      demand → begin → body → observe → gate → store → settle    (write.go; body.go, observe.go, condition.go, gate.go, doubt.go)
//	read       announce → store                                 (read.go)
//	finish     audit → answer → metrics                         (handler.go, answers.go)
package proxy

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5/middleware"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fenceproxy/fenceproxy/proxy/audit"
	"github.com/fenceproxy/fenceproxy/proxy/rules"
	"github.com/fenceproxy/fenceproxy/proxy/sigv4"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// Uploads remembers who works on a multipart upload; [tokens.Registry] does.
type Uploads interface {
	TouchUpload(ctx context.Context, upload string, t tokens.Token) error
	UploadToken(ctx context.Context, upload string) (tokens.Token, error)
	ForgetUpload(ctx context.Context, upload string) error
}

// Config of a [Handler]. Fence, Uploads, Rules, Backends, Audit and Log are needed.
type Config struct {
	Fence    *tokens.Fence
	Locks    *tokens.Locks // the proxy's own, over the registry that the fence is over; nil: there are none
	Uploads  Uploads
	Rules    *rules.Table
	Backends map[string]Backend // by the names that Rules uses
	Audit    *audit.Log
	Log      *slog.Logger
	Metrics  prometheus.Registerer

	// RegistryID names the registry that the fence is over; "" writes no stamps. Stamps of the Adopted ones count as its own.
	RegistryID string
	Adopted    []string

	// Buffer is the largest object that is read whole before a store elsewhere hears of it, in bytes, and Memory what all such bodies
	// may take together: where it is spent they stream. Where a store must not see a body in pieces, a larger one is kept in
	// a file without a name in the directory Spool.
	Buffer, Memory int64
	Spool          string

	// Signatures verifies who sends a request. Where it is nil, everybody may come in who reaches this machine by a name of its own, or by any
	// name if Anonymous says so.
	Signatures *sigv4.Verifier
	Anonymous  bool

	// Access says what an access key may do; nil, also as an answer: everything.
	Access func(accessKey string) *rules.Access

	// Domain is the name below which each bucket has a host name of its own (virtual-host style), in lower case; "" for none.
	Domain string

	// BodyIdle is the longest wait for the next bytes of a body; 60 s if 0.
	BodyIdle time.Duration
}

// A Handler is the data plane.
type Handler struct {
	Config
	metrics *metrics

	memory      budget
	etags       remembered
	unversioned unversioned
	guarantees  guarantees
	doubts      *doubts
}

// New returns the handler of the data listener.
func New(c Config) *Handler {
	if c.BodyIdle == 0 {
		c.BodyIdle = time.Minute
	}
	h := &Handler{Config: c, metrics: newMetrics(c.Metrics, c.Fence, c.Audit), doubts: newDoubts()}
	h.memory.give(c.Memory)
	return h
}

// Close ends what runs behind answered requests: the search for writes in doubt. Close it before the fence.
func (h *Handler) Close() { h.doubts.close() }

func (h *Handler) adopted(registry string) bool { return slices.Contains(h.Adopted, registry) }

// An exchange is one request on its way through the proxy, and what has been found out about it so far. One goroutine has it.
type exchange struct {
	h       *Handler
	w       middleware.WrapResponseWriter
	r       *http.Request
	control *http.ResponseController
	id      string
	start   time.Time

	wire       io.Reader // the body as it comes from the client, whatever r.Body makes of it
	wireLength int64     // of wire, in bytes; -1 if it is not known
	chunks     *sigv4.ChunkReader
	trailer    http.Header // the checksums behind the body: announced, and with values once the body is verified

	accessKey string        // of the verified signature; "" for anonymous requests
	access    *rules.Access // of the access key; nil: everything
	who       identity
	path      string // decoded, without the fence
	op        operation
	target    rules.Target // of an object; the zero Target elsewhere, but for Backend
	highest   tokens.Token // the highest token that the client was told of
	// of the resource, when the fence let the write begin; for its stamp
	generation int64

	bodyTouched bool // a Read of the body has been tried
	waiting     bool // the client has had a status of 200 and some blanks of its answer
}

// ServeHTTP answers one S3 request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength == 0 && r.ProtoMajor == 1 && r.ProtoAtLeast(1, 1) && expectsContinue(r) {
		// net/http sends none where there is no body, and botocore then takes the status of this answer for that of a later one.
		w.WriteHeader(http.StatusContinue)
	}
	x := &exchange{
		h: h, w: middleware.NewWrapResponseWriter(w, r.ProtoMajor), r: r,
		control: http.NewResponseController(w), id: requestID(), start: time.Now(), wire: r.Body, wireLength: r.ContentLength,
	}
	defer x.release()
	x.w.Header().Set("X-Amz-Request-Id", x.id)
	if len(r.TransferEncoding) > 0 {
		// RFC 9112, 6.3: it may have had a Content-Length, too, by which another proxy before us takes what follows for its body.
		x.w.Header().Set("Connection", "close")
	}
	x.finish(x.serve())
}

func requestID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return strings.ToUpper(hex.EncodeToString(b[:]))
}

// serve finds the way of a request and goes it. An error that it returns has not been answered.
func (x *exchange) serve() error {
	if err := x.find(); err != nil {
		x.drain(drainTime)
		return err
	}
	if isRead(x.r.Method) || x.op.way == preflight {
		x.drain(drainTime) // a read has no use for a body, and the server would wait for it before it answers
	}
	switch x.op.way {
	case preflight:
		return x.preflight()
	case listBuckets:
		return x.listBuckets()
	case postsForm:
		return x.postForm()
	case renames:
		return x.rename()
	case reads, lists:
		return x.read()
	case fenceShow:
		return x.showFence()
	case fenceRaise:
		return x.raiseFence()
	case takesLock:
		return x.takeLock()
	case renewsLock:
		return x.renewLock()
	case releasesLock:
		return x.releaseLock()
	case deletesMany:
		return x.deleteMany()
	case createsUpload:
		return x.createUpload()
	case uploadsPart:
		return x.uploadPart()
	case abortsUpload:
		return x.abortUpload()
	default:
		return x.writeThrough()
	}
}

// find learns who sends the request, what it asks for and where that leads. What it learns stays beside an error, for the record.
func (x *exchange) find() error {
	var badToken, badForm, badOperation error
	signed := x.r // as the client has signed it
	x.who, x.path, badToken = identify(x.r)
	x.path = x.h.bucketOf(x.r.Host) + x.path
	x.r, badForm = withoutSignature(x.r)
	x.op, badOperation = parseOperation(x.r, x.path)
	if bad, ok := errors.AsType[*badTokenError](badToken); ok && bad.holderAlone && x.op.way.locks() {
		badToken = nil
	}
	if err := checkHeaders(signed); err != nil {
		return err
	}
	if err := x.authenticate(signed); err != nil {
		if errors.Is(err, sigv4.ErrAnonymous) && badOperation != nil {
			return badOperation // as S3 has it: what is no operation for anybody
		}
		return err // who may not come in is told nothing else
	}
	if err := checkConnection(x.r.Header); err != nil {
		return err
	}
	if badForm != nil {
		return badForm
	}
	if badOperation == nil {
		if err := x.permit(); err != nil {
			return err // who may not go there hears nothing of it, and no fence does of the request
		}
		badOperation = x.findTarget()
	}
	if badToken != nil {
		return badToken
	}
	return badOperation
}

// authenticate verifies the signature, headers only: the body verifies itself while it is read. Without access keys everybody may
// come in, and signatures are not looked at. A form has its signature inside, and a browser sends a preflight without any.
func (x *exchange) authenticate(signed *http.Request) error {
	if x.h.Signatures == nil {
		if err := x.h.refuseBrowser(signed, x.who.token > 0); err != nil {
			return err
		}
		return x.unchunkUnverified()
	}
	if x.op.way == preflight || x.op.way == postsForm {
		return nil
	}
	id, err := x.h.Signatures.Verify(signed)
	if err != nil {
		x.accessKey = id.AccessKey
		return err
	}
	x.identified(id)
	if err := checkCovered(id, signed.Header); err != nil {
		return err
	}
	return x.unchunk(id.Payload, id.Chunks)
}

// identified takes over who a signature is of.
func (x *exchange) identified(id sigv4.Identity) {
	x.accessKey = id.AccessKey
	if x.h.Access != nil {
		x.access = x.h.Access(id.AccessKey)
	}
}

// findTarget asks the rules where the request leads.
func (x *exchange) findTarget() error {
	if x.op.level == service {
		return nil
	}
	b, ok := x.h.Rules.Bucket(x.op.bucket)
	if !ok {
		return &s3Error{http.StatusNotFound, noSuchBucket, "no entry of the configuration matches bucket " + strconv.Quote(x.op.bucket)}
	}
	x.target.Backend = b.Backend
	if err := x.checkOwner(); err != nil {
		return err
	}
	switch {
	case x.op.level == object:
		x.target, _ = x.h.Rules.Object(x.op.bucket, x.op.key)
		if _, copying := x.r.Header[headerCopySource]; copying && !isRead(x.r.Method) {
			return x.findSource()
		}
	case x.op.way == lists:
		if t, ok := x.h.Rules.Prefix(x.op.bucket, x.op.prefix); ok {
			x.target = t
		}
	case x.op.way == bucketWrites && b.BucketWrites == rules.Deny:
		return &ruleError{bucketWritesDenied, x.op.name + " on bucket " + strconv.Quote(x.op.bucket) + " is refused: bucket_writes is deny"}
	case x.op.way == bucketWrites && b.BucketWrites == rules.Fence:
		x.target.Resource, x.target.Fenced = b.Resource, true
		x.target.Rule = "bucket_writes: fence"
	}
	return nil
}

// findSource refuses a copy that no one store can make. A source that cannot be read is for the store to refuse, in its order and its words.
func (x *exchange) findSource() error {
	name, err := copySource(x.r.Header)
	if err != nil && x.wireLength != 0 {
		return err // a copy has no body, and nobody is to wait for this one
	}
	if err != nil {
		return nil // an access key with bounds was refused by permitSource
	}
	switch source, ok := x.h.Rules.Bucket(name); {
	case !ok:
		return &s3Error{http.StatusNotFound, noSuchBucket, "no entry of the configuration matches the source bucket " + strconv.Quote(name)}
	case source.Backend != x.target.Backend:
		return notImplemented("bucket %q and bucket %q are in different backends: copy by reading and writing", name, x.op.bucket)
	}
	return nil
}

// backend is where the request leads.
func (x *exchange) backend() Backend { return x.h.Backends[x.target.Backend] }

// claim is what the request says of itself to the fence.
func (x *exchange) claim() tokens.Claim {
	return tokens.Claim{
		Resource: x.target.Resource, Token: x.who.token, Holder: x.who.holder, AccessKey: x.accessKey,
		MaxAdvance: tokens.Token(x.target.MaxAdvance), Settle: x.backend().settle(x.op.name),
	}
}

// toBackend is the request as the backend sees it: no fence in path or headers. Its headers are a copy.
func (x *exchange) toBackend() *http.Request {
	out := *x.r
	u := *x.r.URL
	u.Path, u.RawPath = x.path, ""
	out.URL = &u
	out.Header = withoutFence(x.r.Header)
	out.Trailer = x.trailer
	if isRead(x.r.Method) {
		out.Body, out.ContentLength = http.NoBody, 0
	}
	return &out
}

// release gives back what the request has held.
func (x *exchange) release() {
	if x.chunks != nil {
		x.h.memory.give(x.chunks.Release())
	}
}

// finish is where every request ends: a refusal is on disk before it is answered, an unknown outcome is on record, and both
// are counted.
func (x *exchange) finish(err error) {
	if err != nil {
		a := x.answerTo(err)
		x.tellFence(err)
		x.record(a, err)
		x.h.metrics.refusal(a.name)
		x.write(a)
	}
	x.h.metrics.request(x.op.name, x.w.Status(), time.Since(x.start))
}

// tellFence sets the answer's headers from what a refusal knows.
func (x *exchange) tellFence(err error) {
	var stale *tokens.StaleError
	if errors.As(err, &stale) {
		x.sayFence(tokens.Entry{Resource: stale.Resource, Token: stale.Highest, Holder: stale.Holder})
	} else if x.target.Fenced && x.highest == 0 {
		x.lookFence()
	}
}

// lookFence tells the client where the fence stands, if it can be had: the headers are for people, and no answer depends on them.
func (x *exchange) lookFence() {
	if e, err := x.h.Fence.Highest(x.detached(), x.target.Resource); err == nil {
		x.sayFence(e)
	}
}

// record puts refusals and unknown outcomes into the audit log, and says loudly what an operator has to look at.
func (x *exchange) record(a answer, err error) {
	rec := audit.Record{
		Kind: audit.KindRefusal, Code: a.name, Detail: err.Error(), Operation: x.op.name,
		Bucket: x.op.bucket, Key: x.op.key, Resource: x.target.Resource,
		Token: int64(x.who.token), Highest: int64(x.highest), Holder: x.who.holder, AccessKey: x.accessKey,
		Client: x.r.RemoteAddr, UserAgent: x.r.UserAgent(), RequestID: x.id,
	}
	attrs := []any{
		"error", a.name, "operation", rec.Operation, "bucket", rec.Bucket, "key", rec.Key, "resource", rec.Resource,
		"token", rec.Token, "highest", rec.Highest, "holder", rec.Holder, "client", rec.Client, "request", rec.RequestID,
	}
	switch {
	case a.name == outcomeUnknown:
		rec.Kind = audit.KindInDoubt
		x.h.Audit.Add(x.detached(), rec)
		x.h.Log.Error("the outcome of a write is unknown", attrs...)
	case a.refusal():
		x.h.Audit.Add(x.detached(), rec)
		x.h.Log.Warn("refused", attrs...)
	case a.status >= 500 && a.status != http.StatusNotImplemented:
		x.h.Log.Error("failed", append(attrs, "status", a.status, "cause", err)...)
	}
}
