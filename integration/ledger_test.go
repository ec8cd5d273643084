package integration

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
)

// longRun makes the tests of this package that can go on for long do so.
var longRun = flag.Bool("long", os.Getenv("FENCEPROXY_LONG") != "", "run the faults of every system call, for a long time")

// A ledger is what one client, that writes one thing after the other, knows of a store.
type ledger struct {
	contents map[string][]string // what each key may hold, "" for nothing
	marks    map[string]*mark    // by resource
}

type mark struct {
	answered int64 // the highest token answered with success
	begun    int64 // the highest token sent
}

func newLedger() *ledger {
	return &ledger{contents: map[string][]string{}, marks: map[string]*mark{}}
}

func (l *ledger) mark(resource string) *mark {
	if l.marks[resource] == nil {
		l.marks[resource] = &mark{}
	}
	return l.marks[resource]
}

func (l *ledger) content(key string) []string {
	if l.contents[key] == nil {
		l.contents[key] = []string{""}
	}
	return l.contents[key]
}

// An outcome is what an answer says of a write.
type outcome int

const (
	applied   outcome = iota // durably
	unapplied                // and never will be
	doubtful                 // nobody knows
)

// outcomeOf reads an answer as docs/file-store.md tells clients to.
func outcomeOf(a answer, err error) outcome {
	switch {
	case err != nil:
		return doubtful
	case a.status/100 == 2:
		return applied
	case a.status/100 == 3, a.status/100 == 4, a.status == http.StatusNotImplemented, a.status == http.StatusServiceUnavailable:
		return unapplied
	}
	return doubtful
}

// wrote notes what came of a write of content to a key, "" for a delete.
func (l *ledger) wrote(key, content string, o outcome) {
	switch o {
	case applied:
		l.contents[key] = []string{content}
	case doubtful:
		if !slices.Contains(l.content(key), content) {
			l.contents[key] = append(l.contents[key], content)
		}
	}
}

// check holds a running proxy to what the client knows.
func (l *ledger) check(t *testing.T, p *proxy) {
	t.Helper()
	for key, may := range l.contents {
		a := p.get(t, key)
		found := string(a.body)
		if a.status == 404 {
			found = ""
		} else {
			a.want(t, 200)
		}
		if !slices.Contains(may, found) {
			t.Errorf("%s holds %.60q (%d bytes), and may hold %.60q", key, found, len(found), may)
		}
		l.contents[key] = []string{found} // it has been read, and stays
	}
	for resource, m := range l.marks {
		f := p.fence(t, "/"+resource+"/probe")
		if f.Highest < m.answered || f.Highest > m.begun {
			t.Errorf("%s stands at %d; %d was answered and %d sent", resource, f.Highest, m.answered, m.begun)
		}
		m.answered = max(m.answered, f.Highest)
		if f.Highest > 1 {
			p.put(t, "/"+resource+"/probe", f.Highest-1, "stale").stale(t, f.Highest)
		}
	}
}

// A story is one client of a proxy that may be gone at any moment.
type story struct {
	t *testing.T
	p *proxy
	l *ledger

	// answered, if it is not nil, is told what came of each request.
	answered func(method, target string, o outcome)
}

// over says that there is nobody to talk to any more.
func (s *story) over() bool {
	select {
	case <-s.p.done:
		return true
	default:
		return false
	}
}

// send sends a request with a token of all of these keys' resources, unless it is 0, and notes how far it came.
func (s *story) send(method, target, body string, n int64, keys ...string) (answer, error) {
	if s.over() {
		return answer{status: 503}, nil // it was not sent
	}
	if n > 0 && len(keys) == 0 {
		path, _, _ := strings.Cut(target, "?")
		keys = []string{path}
	}
	for _, k := range keys {
		m := s.l.mark(resourceOf(k))
		m.begun = max(m.begun, n)
	}
	headers := tokenHeader(n)
	if strings.HasPrefix(body, copyMark) {
		headers, body = append(headers, "X-Amz-Copy-Source", strings.TrimPrefix(body, copyMark)), ""
	}
	a, err := s.p.try(method, target, body, headers...)
	if s.answered != nil {
		s.answered(method, target, outcomeOf(a, err))
	}
	for _, k := range keys {
		m := s.l.mark(resourceOf(k))
		if outcomeOf(a, err) == applied {
			m.answered = max(m.answered, n)
		}
		if a.header.Get("X-Fence-Error") == "StaleToken" && n >= m.begun {
			s.t.Errorf("%s %s with token %d, the highest there is, is refused as stale: %s", method, target, n, a.body)
		}
	}
	return a, err
}

// copyMark begins what stands for a body and names the source of a copy.
const copyMark = "copy of "

// write sends a write of which content is to come.
func (s *story) write(method, key, body, content string, n int64) {
	a, err := s.send(method, key, body, n)
	s.l.wrote(key, content, outcomeOf(a, err))
}

func (s *story) put(key string, n int64, content string) {
	s.write("PUT", key, content, content, n)
}

// copy copies where it is known what there is to copy.
func (s *story) copy(key, source string, n int64) {
	if may := s.l.content(source); len(may) == 1 && may[0] != "" {
		s.write("PUT", key, copyMark+source, may[0], n)
	}
}

// upload uploads one part, and completes the upload or aborts it.
func (s *story) upload(key string, n int64, content string, complete bool) {
	a, err := s.send("POST", key+"?uploads", "", n)
	if outcomeOf(a, err) != applied {
		return
	}
	id := a.uploadID()
	part, err := s.send("PUT", key+"?partNumber=1&uploadId="+id, content, n)
	if !complete {
		_, _ = s.send("DELETE", key+"?uploadId="+id, "", n) // whatever comes of it, no object changes
	} else if outcomeOf(part, err) == applied {
		a, err = s.send("POST", key+"?uploadId="+id, partList(part), n)
		s.l.wrote(key, content, outcomeOf(a, err))
	}
}

// batch deletes keys together. One that the answer does not name as deleted is still there.
func (s *story) batch(n int64, keys ...string) {
	var doc strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&doc, "<Object><Key>%s</Key></Object>", strings.TrimPrefix(k, "/bkt/"))
	}
	a, err := s.send("POST", "/bkt?delete", "<Delete>"+doc.String()+"</Delete>", n, keys...)
	for _, k := range keys {
		o := outcomeOf(a, err)
		if o == applied && !strings.Contains(string(a.body), "<Deleted><Key>"+strings.TrimPrefix(k, "/bkt/")+"</Key>") {
			o = unapplied
		}
		s.l.wrote(k, "", o)
	}
}

// fsck checks the disk of a proxy that does not run. Nothing that is found may be an error, --repair mends all that is no note, and
// then nothing else is left.
func (p *proxy) fsck(t *testing.T) (mended, notes int) {
	t.Helper()
	type line struct{ Level, What, Where string }
	run := func(want []int, flags ...string) (lines []line, code int) {
		stdout, stderr, code := cli(t, append([]string{"fsck", "--config", p.config, "--format", "json"}, flags...)...)
		if err := json.Unmarshal([]byte(stdout), &lines); err != nil || !slices.Contains(want, code) {
			t.Fatalf("fsck %q ended with code %d, want %v: %v\n%s%s", flags, code, want, err, stdout, stderr)
		}
		return lines, code
	}
	found, code := run([]int{0, 1})
	for _, f := range found {
		switch f.Level {
		case "mend":
			mended++
		case "note":
			notes++
		default:
			t.Errorf("fsck found %+v", f)
		}
	}
	if code == 0 {
		return mended, notes
	}
	run([]int{0}, "--repair")
	if left, _ := run([]int{0}); len(left) > notes {
		t.Errorf("after --repair there is still %+v", left)
	}
	return mended, notes
}

// uploadID reads the answer to a CreateMultipartUpload.
func (a answer) uploadID() string {
	_, rest, _ := strings.Cut(string(a.body), "<UploadId>")
	id, _, _ := strings.Cut(rest, "</UploadId>")
	return id
}

// partList is the document that completes an upload of one part.
func partList(part answer) string {
	return fmt.Sprintf("<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>%s</ETag></Part></CompleteMultipartUpload>", part.header.Get("ETag"))
}
