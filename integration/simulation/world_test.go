package simulation

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fenceproxy/fenceproxy/integration/misbehave"
)

// A kind is a simulation's store.
type kind int

const (
	s3Kind kind = iota
	lateKind
	fileKind
)

const (
	bucketName = "bucket"
	secret     = "a secret of the simulation"
	idHeader   = "Amz-Sdk-Invocation-Id" // travels with a request to the store

	settle     = 30 * time.Second
	settleLong = 90 * time.Second
	lifetime   = 5 * time.Minute // of a simulation
)

// keys are those that are written to. The first two belong to one resource.
var keys = []string{"jobs/a/1", "jobs/a/2", "jobs/b/1", "solo"}

// resource is what the rules make of a key.
func resource(key string) string {
	if job, ok := strings.CutPrefix(key, "jobs/"); ok {
		job, _, _ = strings.Cut(job, "/")
		return bucketName + "/jobs/" + job
	}
	return bucketName + "/" + key
}

// A world is one simulation.
type world struct {
	*checker
	seed  uint64
	until time.Time

	store  *misbehave.Store // nil in TestFile
	net    *misbehave.Network
	server *http.Server
	served chan error
	root   string // of the file store
	quirks quirks
	calm   bool // the store and the clients do nothing amiss

	runs  atomic.Int64 // counts the proxies that were started
	token atomic.Int64 // the last that the lock service gave out

	mu sync.Mutex
	up *proxyRun // that answers, nil between two; guarded by mu
}

func newWorld(t *testing.T, k kind, seed uint64) *world {
	return &world{
		checker: &checker{t: t, k: k, acked: map[string]int64{}, writes: map[string]*aWrite{}, last: map[string]*aWrite{}},
		seed:    seed, until: time.Now().Add(lifetime), quirks: quirksOf(k, seed),
	}
}

// simulate runs one seed.
func simulate(t *testing.T, k kind, seed uint64, dir string) counts {
	w := newWorld(t, k, seed)
	w.openStore(t, dir)
	var actors sync.WaitGroup
	p := w.start(t, dir+"/data-1")
	for i := range uint64(6) {
		actors.Go(func() { w.writer(i+1, newLuck(seed, i+1)) })
	}
	p = w.operate(t, newLuck(seed, 0), dir, p)
	actors.Wait()
	w.stop(p)
	time.Sleep(2*settleLong + lateMost) // the last effects
	w.closeStore()
	synctest.Wait()
	w.checker.mu.Lock()
	defer w.checker.mu.Unlock()
	if t.Failed() || *trace {
		t.Logf("seed %d, %+v:\n%s", seed, w.quirks, strings.Join(w.told, "\n"))
	}
	return w.counts
}

func (w *world) openStore(t *testing.T, dir string) {
	if w.k == fileKind {
		w.root = dir + "/objects"
		return
	}
	w.net = misbehave.NewNetwork()
	w.store = misbehave.New(misbehave.Options{Secret: secret, Fault: w.fault, Applied: w.applied}, bucketName)
	w.server = &http.Server{Handler: w.counting(w.store)}
	w.served = make(chan error, 1)
	go func() { w.served <- w.server.Serve(w.net) }()
}

func (w *world) closeStore() {
	if w.store == nil {
		return
	}
	_ = w.server.Close()
	<-w.served
	w.store.Close()
}

// applied is an effect in the S3 store.
func (w *world) applied(a misbehave.Application) {
	if strings.HasPrefix(a.Target, ".fenceproxy-probe-") {
		return
	}
	conditional := a.Header.Get("If-Match") != "" || a.Header.Get("If-None-Match") != ""
	w.effect(a.Header.Get(idHeader), a.Target, conditional || a.Name == "PutObject", a.Late, int(w.runs.Load()))
}

// counting counts what the store refuses for a condition.
func (w *world) counting(h http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rec := &statusWriter{ResponseWriter: rw}
		h.ServeHTTP(rec, r)
		id := r.Header.Get(idHeader)
		if rec.status == http.StatusPreconditionFailed && id != "" {
			w.count(unmet)
		}
		w.note("    store: %s %s %s -> %d", r.Method, r.URL.Path, id, rec.status)
	})
}

type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// operate restarts the proxy now and then, and returns the last run.
func (w *world) operate(t *testing.T, l luck, dir string, p *proxyRun) *proxyRun {
	for {
		time.Sleep(10*time.Second + l.upTo(90*time.Second))
		if time.Now().After(w.until) {
			return p
		}
		w.count(restarted)
		data := p.dir
		if l.oneIn(2) {
			data = w.kill(t, p, dir)
		} else {
			w.stop(p)
		}
		l.sleep(3 * time.Second)
		p = w.start(t, data)
	}
}

func (w *world) setUp(p *proxyRun) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.up = p
}

// proxy is the run that answers now.
func (w *world) proxy() *proxyRun {
	for {
		w.mu.Lock()
		p := w.up
		w.mu.Unlock()
		if p != nil {
			return p
		}
		time.Sleep(time.Second)
	}
}
