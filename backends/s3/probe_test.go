package s3

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// A pipes listener gives each dialer one end of a pipe: in a bubble of virtual time sockets would hold the clock.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		return here, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// probing probes a store in virtual time.
func probing(t *testing.T, store http.Handler, probe func(t *testing.T, s *Store)) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		server := &http.Server{Handler: store}
		go func() { _ = server.Serve(l) }()
		defer func() {
			_ = server.Close()
			time.Sleep(2 * time.Hour) // handlers that are slow, and net/http, which lingers after a refusal
		}()
		began := time.Now()
		s := open(t, "http://store.test", func(o *Options) {
			o.DialContext, o.Boot = l.dial, func() time.Duration { return time.Since(began) }
		})
		defer s.Close()
		probe(t, s)
	})
}

func mustProbe(t *testing.T, s *Store) Findings {
	t.Helper()
	f, err := s.Probe(t.Context(), "bucket")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&f, s.found.Load()); diff != "" {
		t.Errorf("what is remembered is something else: %s", diff)
	}
	return f
}

// TestProbeOverTLS sends and cuts over TLS, and through real sockets.
func TestProbeOverTLS(t *testing.T) {
	store := newProbeStore("torn hash")
	server := httptest.NewUnstartedServer(store)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	bundle := filepath.Join(t.TempDir(), "ca.pem")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(bundle, certificate, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_CA_BUNDLE", bundle)
	f := mustProbe(t, open(t, server.URL))
	want := Findings{Put: true, Complete: true, Copy: true, Delete: true, Batch: true, Torn: true, Unhashed: true, Query: true, Trailers: true, Checksums: allChecksums}
	if diff := cmp.Diff(want, f, cmpopts.IgnoreFields(Findings{}, "Detail")); diff != "" {
		t.Errorf("%s\n%s", diff, strings.Join(f.Detail, "\n"))
	}
	if left := store.left(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestProbeFindsEachFlaw: each flaw of a store changes the finding that it is about, and no other. Each is a whole probe, which takes
// seconds with the race detector: a run takes sampledFlaws of them, other ones each time, and
// all of them where FENCEPROXY_LONG is set.
func TestProbeFindsEachFlaw(t *testing.T) {
	none := func(*Findings) {}
	put := func(f *Findings) { f.Put = false }
	complete := func(f *Findings) { f.Complete = false }
	copied := func(f *Findings) { f.Copy = false }
	deleted := func(f *Findings) { f.Delete = false }
	batch := func(f *Findings) { f.Batch = false }
	torn := func(f *Findings) { f.Torn = true }
	unhashed := func(f *Findings) { f.Torn, f.Unhashed = true, true }
	query := func(f *Findings) { f.Query = false }
	trailers := func(f *Findings) { f.Trailers = false }
	both := func(changes ...func(*Findings)) func(*Findings) {
		return func(f *Findings) {
			for _, change := range changes {
				change(f)
			}
		}
	}
	compares := func(kinds ...string) func(*Findings) { return func(f *Findings) { f.Checksums = kinds } }
	noHash := func(f *Findings) { f.Query, f.Checksums = false, []string{"Crc32", "Crc32c", "Crc64nvme", "Sha1"} }
	noPut := func(f *Findings) { f.Query, f.Checksums = false, nil }
	merged := func(how string) func(*Findings) { return func(f *Findings) { f.Merged = []string{how} } }
	said := make([]map[string]bool, len(questions)) // what each question was answered
	for i := range said {
		said[i] = map[string]bool{}
	}
	flaws := map[string]func(*Findings){
		"":                        none,
		"versions":                none,
		"no lists":                none,
		"odd names refused":       none,
		"complete refuses in 200": none,
		"put If-Match":            put,
		"put If-None-Match":       put,
		"put early":               put,
		"put races":               put,
		"put says yes":            put,
		"put absent":              put,
		"query conditions":        put,
		"put refuses all":         put,
		"put 501":                 put,
		"complete If-Match":       complete,
		"complete If-None-Match":  complete,
		"complete races":          complete,
		"complete says yes":       complete,
		"complete refuses all":    complete,
		"complete 501":            complete,
		"copy If-Match":           copied,
		"copy If-None-Match":      copied,
		"copy races":              copied,
		"copy says yes":           copied,
		"copy refuses all":        copied,
		"copy 501":                copied,
		"delete If-Match":         deleted,
		"delete races":            deleted,
		"delete refuses all":      deleted,
		"delete 501":              deleted,
		"batch If-Match":          batch,
		"batch races":             batch,
		"batch refuses all":       batch,
		"torn chunks":             torn,
		"chunk signatures":        torn,
		"no chunks":               torn,
		"torn hash":               unhashed,
		"hash":                    unhashed,
		"no trailers":             trailers,
		"trailer ignored":         trailers,
		"trailer as content":      trailers,
		"torn trailer":            trailers,
		"torn query":              query,
		"query expiry":            query,
		"skew only":               query,
		"Crc32 ignored":           both(compares("Crc32c", "Crc64nvme", "Sha1", "Sha256"), trailers),
		"Crc32c ignored":          compares("Crc32", "Crc64nvme", "Sha1", "Sha256"),
		"Crc64nvme ignored":       compares("Crc32", "Crc32c", "Sha1", "Sha256"),
		"Sha1 ignored":            compares("Crc32", "Crc32c", "Crc64nvme", "Sha256"),
		"Sha256 ignored":          noHash,
		"Crc64nvme unknown":       compares("Crc32", "Crc32c", "Sha1", "Sha256"),
		"no query":                noPut,
		"no query DELETE":         query,
		"no query POST":           query,
		"no query copy":           query,
		"slashes":                 merged("slashes"),
		"dots":                    merged("dots"),
		"case":                    merged("case"),
	}
	ran := 0
	for flaw, change := range flaws {
		t.Run(flaw, func(t *testing.T) {
			if ran == sampledFlaws && os.Getenv("FENCEPROXY_LONG") == "" {
				return
			}
			ran++
			store := newProbeStore(flaw)
			probing(t, store, func(t *testing.T, s *Store) {
				want := Findings{Put: true, Complete: true, Copy: true, Delete: true, Batch: true, Query: true, Trailers: true, Checksums: allChecksums}
				change(&want)
				got := mustProbe(t, s)
				if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Findings{}, "Detail")); diff != "" {
					t.Errorf("%s\n%s", diff, strings.Join(got.Detail, "\n"))
				}
				if len(got.Detail) != len(questions) {
					t.Fatalf("%d lines for %d questions", len(got.Detail), len(questions))
				}
				for i, line := range got.Detail {
					said[i][line] = true
				}
				if left := store.left(); len(left) > 0 {
					t.Errorf("left behind: %q", left)
				}
			})
		})
	}
	for _, lines := range said {
		if len(lines) < 2 && ran == len(flaws) { // not with -run for some
			t.Errorf("no flaw changes the answer to a question: %v", lines)
		}
	}
}

const sampledFlaws = 4

func TestProbeSaysWhatItSaw(t *testing.T) {
	probing(t, newProbeStore("copy If-Match", "delete races", "slashes"), func(t *testing.T, s *Store) {
		lines := mustProbe(t, s).Detail
		for _, want := range []string{
			"Put: A PUT with a stale If-Match was refused (412 PreconditionFailed).",
			"Copy: A Copy with a stale If-Match was carried out (200): the condition is ignored.",
			"slashes: p//q leads to the object p/q.",
		} {
			if !slices.Contains(lines, want) {
				t.Errorf("nobody says %q", want)
			}
		}
		if !strings.Contains(strings.Join(lines, "\n"), "races with a PUT, a DELETE with If-Match removed the newer object.") {
			t.Error("nobody says that a race was lost")
		}
	})
}

// A store in which nothing can be seen, or from which nothing can be removed, is not asked, and known to be such a one.
func TestProbeForbidden(t *testing.T) {
	for name, test := range map[string]struct {
		flaws []string
		why   string
		left  int // objects that may stay
	}{
		"reading":                    {[]string{"unreadable"}, "does not let us read", 0},
		"reading and listing":        {[]string{"unreadable", "no lists"}, "does not let us read", 0},
		"HEAD":                       {[]string{"no heads"}, "does not let us read", 0},
		"removing":                   {[]string{"irremovable"}, "does not let us remove", 2},
		"removing, and versions":     {[]string{"irremovable", "versions"}, "does not let us remove", 2},
		"reading and removing":       {[]string{"unreadable", "irremovable"}, "does not let us read", 1},
		"all but writing, and lists": {[]string{"unreadable", "irremovable", "no lists"}, "does not let us read", 1},
	} {
		t.Run(name, func(t *testing.T) {
			store := newProbeStore(test.flaws...)
			probing(t, store, func(t *testing.T, s *Store) {
				f := mustProbe(t, s)
				want := Findings{Torn: true, Blind: true}
				if diff := cmp.Diff(want, f, cmpopts.IgnoreFields(Findings{}, "Detail")); diff != "" {
					t.Error(diff)
				}
				said := strings.Join(f.Detail, " ")
				if !strings.Contains(said, test.why) || !strings.Contains(said, "403 AccessDenied") && name != "HEAD" {
					t.Errorf("nobody says why: %q", f.Detail)
				}
				left := store.left()
				if len(left) != test.left {
					t.Errorf("left behind: %q, want %d", left, test.left)
				}
				tells := fmt.Sprintf("%d keys could not be removed: remove what begins with .fenceproxy-probe-", test.left)
				if (test.left > 0) != strings.Contains(said, tells) {
					t.Errorf("left behind are %d, and it says %q", test.left, f.Detail)
				}
			})
		})
	}
}

// A store that must not be asked is taken for one that honours nothing.
func TestProbeSkips(t *testing.T) {
	for why, flaws := range map[string][]string{
		"object lock with default retention":  {"retention"},
		"does not let us write to":            {"forbidden"},
		"s3:GetBucketObjectLockConfiguration": {"lock unreadable", "versions"},
	} {
		t.Run(why, func(t *testing.T) {
			store := newProbeStore(flaws...)
			probing(t, store, func(t *testing.T, s *Store) {
				f := mustProbe(t, s)
				if !strings.Contains(f.Skipped, why) || len(f.Detail) != 1 || !strings.Contains(f.Detail[0], why) {
					t.Errorf("it was skipped for %q: %q", f.Skipped, f.Detail)
				}
				want := Findings{Torn: true, Blind: true}
				if diff := cmp.Diff(want, f, cmpopts.IgnoreFields(Findings{}, "Detail", "Skipped")); diff != "" {
					t.Error(diff)
				}
				if left := store.left(); len(left) > 0 {
					t.Errorf("left behind: %q", left)
				}
			})
		})
	}
	probing(t, newProbeStore("lock unreadable"), func(t *testing.T, s *Store) {
		if f := mustProbe(t, s); f.Skipped != "" || !f.Put {
			t.Errorf("a bucket that keeps no versions has no lock, and was skipped: %q", f.Skipped)
		}
	})
}

// A store that fails is no store that honours nothing: it is asked again later.
func TestProbeFails(t *testing.T) {
	for name, test := range map[string]struct {
		store http.Handler
		want  string
	}{
		"503 at once":   {newProbeStore("fails"), "503 ServiceUnavailable"},
		"no bucket":     {newProbeStore("no bucket"), "NoSuchBucket"},
		"503 later":     {after(100, func() error { return noLuck }), "503 ServiceUnavailable"},
		"hangs up":      {after(100, func() error { return errors.New("") }), "did not answer"},
		"silent":        {after(100, func() error { time.Sleep(time.Hour); return noLuck }), "did not answer"},
		"bad signature": {after(2, func() error { return &probeNo{403, "SignatureDoesNotMatch"} }), "SignatureDoesNotMatch"},
		"old token":     {after(3, func() error { return &probeNo{403, "ExpiredToken"} }), "403 ExpiredToken"}, // of the first GET
		"older token":   {after(6, func() error { return &probeNo{403, "ExpiredToken"} }), "403 ExpiredToken"}, // of the first DELETE
		"slow":          {slow{newProbeStore()}, errSlow.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			probing(t, test.store, func(t *testing.T, s *Store) {
				began := time.Now()
				f, err := s.Probe(t.Context(), "bucket")
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("got %+v, %v", f, err)
				}
				if took := time.Since(began); took > time.Minute {
					t.Errorf("it took %v", took)
				}
				if s.found.Load() != nil {
					t.Error("it is remembered")
				}
			})
		})
	}
}

// A failing store fails from its n-th request on.
type failing struct {
	*probeStore
	n    atomic.Int64
	fail func() error
}

func after(n int64, fail func() error) *failing {
	f := &failing{probeStore: newProbeStore(), fail: fail}
	f.n.Store(n)
	return f
}

func (f *failing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.n.Add(-1) > 0 {
		f.probeStore.ServeHTTP(w, r)
		return
	}
	err := f.fail()
	no, ok := err.(*probeNo)
	if !ok {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(no.status)
	_, _ = w.Write([]byte("<Error><Code>" + no.code + "</Code></Error>"))
}

// A slow store takes its time with every answer. It says quickly whether it wants a body: a pipe has no buffer for that.
type slow struct{ *probeStore }

func (s slow) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Expect") == "" {
		time.Sleep(2 * time.Second)
	}
	s.probeStore.ServeHTTP(w, r)
}

// However early or late it is given up, a probe leaves nothing behind, though answers come late.
func TestProbeGivenUp(t *testing.T) {
	for _, n := range []int64{1, 2, 3, 10, 30, 100, 200} {
		ctx, cancel := context.WithCancel(t.Context())
		store := &late{probeStore: newProbeStore(), cancel: cancel}
		store.n.Store(n)
		probing(t, store, func(t *testing.T, s *Store) {
			f, err := s.Probe(ctx, "bucket")
			if !errors.Is(err, context.Canceled) {
				t.Errorf("given up at request %d: %+v, %v", n, f, err)
			}
			if s.found.Load() != nil {
				t.Error("it is remembered")
			}
			if left := store.left(); len(left) > 0 {
				t.Errorf("given up at request %d, left behind: %q", n, left)
			}
		})
	}
}

// A late store cancels with its n-th request, and takes effect a moment later.
type late struct {
	*probeStore
	n      atomic.Int64
	cancel func()
}

func (l *late) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if l.n.Add(-1) == 0 {
		l.cancel()
	}
	time.Sleep(200 * time.Millisecond)
	l.probeStore.ServeHTTP(w, r)
}
