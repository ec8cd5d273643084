package s3

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// The longest times: for one request of a probe; for the asking, in which the last requests may have begun at its end; and for
// cleaning up behind it. A probe is over after their sum, one minute.
const (
	askTimeout   = 10 * time.Second
	probeTimeout = 40 * time.Second
	cleanTimeout = 10 * time.Second
)

// probeWidth is how many questions are asked at once, so that the round trips to a far store overlap.
const probeWidth = 8

// errSlow ends a probe of a store that answers, but too slowly.
var errSlow = fmt.Errorf("the store took more than %v to answer the questions of the probe", probeTimeout)

// What a question is about. Names are asked about by how they are spelt, see [Findings].Merged; checksums by their kind, see
// [Findings].Checksums.
const (
	aboutPut      = "Put"
	aboutComplete = "Complete"
	aboutCopy     = "Copy"
	aboutDelete   = "Delete"
	aboutBatch    = "Batch"
	aboutTorn     = "Torn"
	aboutHash     = "Hash"
	aboutTrailer  = "Trailer"
	aboutQuery    = "Query"
	aboutSlashes  = "slashes"
	aboutDots     = "dots"
	aboutCase     = "case"
)

// A question is one thing that a store is asked. ask has key, and every key that begins with it, for itself. It says whether the
// store did what it should, and in a sentence what it did. Its error is an [unasked], or ends the probe.
type question struct {
	about string
	ask   func(p *prober, ctx context.Context, key string) (good bool, detail string, err error)
}

// questions are all that a probe asks. A finding is good if each of its questions was asked and had a good answer.
var questions = []question{
	{aboutPut, (*prober).putStale},
	{aboutPut, (*prober).putCurrent},
	{aboutPut, (*prober).putOverExisting},
	{aboutPut, (*prober).putAbsent},
	{aboutPut, (*prober).putStaleByQuery},
	{aboutPut, (*prober).putOvertaken},
	{aboutPut, (*prober).putRaceToCreate},
	{aboutPut, (*prober).putRaceToReplace},
	{aboutComplete, (*prober).completeStale},
	{aboutComplete, (*prober).completeCurrent},
	{aboutComplete, (*prober).completeOverExisting},
	{aboutComplete, (*prober).completeRace},
	{aboutCopy, (*prober).copyStale},
	{aboutCopy, (*prober).copyCurrent},
	{aboutCopy, (*prober).copyOverExisting},
	{aboutCopy, (*prober).copyRace},
	{aboutDelete, (*prober).deleteStale},
	{aboutDelete, (*prober).deleteCurrent},
	{aboutDelete, (*prober).deleteRace},
	{aboutBatch, (*prober).batchStale},
	{aboutBatch, (*prober).batchCurrent},
	{aboutBatch, (*prober).batchRace},
	{aboutTorn, (*prober).wholeChunks},
	{aboutTorn, (*prober).tornChunks},
	{aboutTorn, (*prober).tornLastChunk},
	{aboutTorn, (*prober).forgedChunk},
	{aboutHash, (*prober).tornHashed},
	{aboutHash, (*prober).wrongHash},
	{aboutTrailer, (*prober).wholeTrailer},
	{aboutTrailer, (*prober).wrongTrailer},
	{aboutTrailer, (*prober).tornTrailer},
	{aboutQuery, (*prober).querySigned},
	{aboutQuery, (*prober).queryCopy},
	{aboutQuery, (*prober).queryDelete},
	{aboutQuery, (*prober).queryBatch},
	{aboutQuery, (*prober).queryExpired},
	{aboutQuery, (*prober).queryTorn},
	{"Crc32", comparing("Crc32")},
	{"Crc32c", comparing("Crc32c")},
	{"Crc64nvme", comparing("Crc64nvme")},
	{"Sha1", comparing("Sha1")},
	{"Sha256", comparing("Sha256")},
	{aboutSlashes, spelling("p//q")},
	{aboutDots, spelling("p/./q")},
	{aboutDots, spelling("p/z/../q")},
	{aboutCase, spelling("P/Q")},
}

// unasked is why a question could not be asked: the store forbids something that it takes, or does not know it. The finding is then
// the cautious one.
type unasked struct{ why string }

func (u *unasked) Error() string { return "could not be asked: " + u.why }

// Probe finds out what the store does with writes to a bucket, and remembers it: from then on the store is written to accordingly. It
// writes objects under .fenceproxy-probe-…/ and removes them again, also when ctx ends. Nothing is believed that was only
// answered: what became of each write is read back.
//
// An error says that the store could not be asked, for it was out of reach, or failed (5xx), or has no such bucket (a [*RefusedError]); nothing is
// remembered, and a later Probe may succeed. What a store refuses by its own rules is no error but a cautious finding. So is a store
// that does not let us read what we write, so that nothing can be seen, or not remove it: none of the questions is asked. In the second
// case two small objects stay, at every Probe.
//
// A probe lasts a minute at most. It goes on for up to 20 s after ctx has ended: for the answers to what was sent, since what may
// still take effect cannot be cleaned up, and for the clean-up. It finds no race that it does not lose.
func (s *Store) Probe(ctx context.Context, bucket string) (Findings, error) {
	p := &prober{
		s: s, bucket: bucket, prefix: ".fenceproxy-probe-" + strings.ToLower(rand.Text()[:16]) + "/",
		transport: s.transport.Clone(), // with connections of its own: those of s belong to exchanges
		keys:      map[string]bool{}, uploads: map[string]string{},
		large: make([]byte, largeBody),
	}
	defer p.transport.CloseIdleConnections()
	_, _ = rand.Read(p.large) // never fails
	asking, cancel := context.WithTimeoutCause(ctx, probeTimeout, errSlow)
	defer cancel()
	found, err := p.run(asking)
	if errors.As(err, new(*RefusedError)) {
		return Findings{}, err // nothing was written
	}
	left := p.clean(ctx)
	if err != nil {
		return Findings{}, errors.Join(fmt.Errorf("the store could not be probed: %w", err), left)
	}
	if left != nil {
		found.Detail = append(found.Detail, left.Error())
	}
	s.found.Store(&found)
	return found, nil
}

// A prober asks one bucket.
type prober struct {
	s              *Store
	bucket, prefix string
	transport      *http.Transport
	large          []byte // a body that streams

	mu      sync.Mutex
	keys    map[string]bool   // all that may be there; guarded by mu
	uploads map[string]string // keys of uploads that may be open, by id; guarded by mu
}

func (p *prober) run(ctx context.Context) (Findings, error) {
	harm, why, err := p.barred(ctx)
	switch {
	case err != nil:
		return Findings{}, err
	case harm != "":
		found := cautious(harm)
		found.Skipped = harm
		return found, nil
	case why != "":
		return cautious(why), nil
	}
	return p.askAll(ctx)
}

// cautious are the findings of a store that was not asked. Of names nothing is known; none is refused for that.
func cautious(why string) Findings {
	return Findings{Torn: true, Blind: true, Detail: []string{"The store was not asked what it does with writes: " + why + "."}}
}

// An opinion is the answer to a question.
type opinion struct {
	asked  bool
	good   bool
	detail string
	err    error
}

// askAll asks all questions. The first error ends it; what is under way then is waited for.
func (p *prober) askAll(ctx context.Context) (Findings, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	opinions := make([]opinion, len(questions))
	slots := make(chan struct{}, probeWidth)
	var all sync.WaitGroup
	for i, q := range questions {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			o := &opinions[i]
			o.good, o.detail, o.err = q.ask(p, ctx, fmt.Sprintf("%s%02d", p.prefix, i))
			var u *unasked
			if o.asked = !errors.As(o.err, &u); !o.asked {
				o.good, o.detail, o.err = false, "A question "+u.Error()+".", nil
			}
			if o.err != nil {
				cancel(o.err)
			}
		})
	}
	all.Wait()
	if err := context.Cause(ctx); err != nil {
		return Findings{}, err
	}
	return conclude(opinions), nil
}

func conclude(opinions []opinion) Findings {
	bad := map[string]bool{}
	var f Findings
	for i, o := range opinions {
		about := questions[i].about
		bad[about] = bad[about] || !o.good
		f.Detail = append(f.Detail, about+": "+o.detail)
	}
	f.Put, f.Complete, f.Copy = !bad[aboutPut], !bad[aboutComplete], !bad[aboutCopy]
	f.Delete, f.Batch = !bad[aboutDelete], !bad[aboutBatch]
	f.Torn, f.Unhashed, f.Trailers = bad[aboutTorn] || bad[aboutHash], bad[aboutHash], !bad[aboutTrailer]
	for _, kind := range askedKinds {
		if !bad[kind] {
			f.Checksums = append(f.Checksums, kind)
		}
	}
	f.Query = !bad[aboutQuery] && slices.Contains(f.Checksums, "Sha256")
	f.Merged = merged(opinions)
	return f
}

// merged are the spellings that were seen to lead to one object. Where it could not be asked, no name is refused for that.
func merged(opinions []opinion) (how []string) {
	for i, o := range opinions {
		about := questions[i].about
		if (about == aboutSlashes || about == aboutDots || about == aboutCase) && o.asked && !o.good && !slices.Contains(how, about) {
			how = append(how, about)
		}
	}
	return how
}

// A RefusedError says that the store takes no writes to this bucket at all: there is none of that name, for example.
type RefusedError struct {
	Status  int    // 4xx
	Code    string // S3's, "" if the store gave none
	Message string // the store's, as it stood in its XML
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the store refuses every write to the bucket (%d %s)", e.Status, e.Code)
}
