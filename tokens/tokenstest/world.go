package tokenstest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
)

// settle is the settle time of the store in these tests.
const settle = time.Minute

// A world is one data directory, the runs over it, and a store that applies what was sent to it late: at any moment within its
// settle time, whether the process that sent it still lives or not. It checks the promise at every effect.
type world struct {
	t   *testing.T
	h   Harness
	dir string

	reg     tokens.Registry
	fence   *tokens.Fence
	options tokens.Options

	generation int64 // that claims straight to the registry are made for

	mu      sync.Mutex
	acked   map[string]tokens.Token // the highest token whose client was told yes, by resource; guarded by mu
	resets  map[string]int64        // how often each resource was reset; guarded by mu
	late    int                     // effects after the end of the run that sent them; guarded by mu
	answers chan struct{}           // where it is set, answers of Raise wait for it; guarded by mu
	run     int                     // counts the beginnings and ends of runs; guarded by mu
}

// start begins a run.
func (w *world) start() {
	w.t.Helper()
	w.reg = w.h.Open(w.t, w.dir)
	w.fence = tokens.NewFence(slowRegistry{w.reg, w}, w.options)
	w.turn()
}

// A slowRegistry records at once, and answers when the test lets it.
type slowRegistry struct {
	tokens.Registry
	w *world
}

func (r slowRegistry) Raise(ctx context.Context, c tokens.Claim) (tokens.Grant, error) {
	g, err := r.Registry.Raise(ctx, c)
	r.w.mu.Lock()
	hold := r.w.answers
	r.w.mu.Unlock()
	if hold != nil {
		<-hold
	}
	return g, err
}

// holdAnswers holds the answers of Raise back until release is called.
func (w *world) holdAnswers() (release func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	hold := make(chan struct{})
	w.answers = hold
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.answers = nil
		close(hold)
	}
}

// turn marks the beginning or the end of a run: what was sent before it is late from here on.
func (w *world) turn() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.run++
}

func (w *world) now() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.run
}

// kill ends the run as kill -9 does. The fence is only put to rest, so that no goroutine of it is left; the registry it
// would give its grants back to is gone by then.
func (w *world) kill() {
	w.t.Helper()
	w.turn()
	w.h.Kill(w.t, w.reg)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = w.fence.Close(ctx)
	w.reg, w.fence = nil, nil
}

// stop ends the run as SIGTERM does, with so much time for the writes under way.
func (w *world) stop(patience time.Duration) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = w.fence.Close(ctx) // that writes are left open is what some tests are about
	w.turn()
	if err := w.reg.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.reg, w.fence = nil, nil
}

// land is the effect of a write in the store: what no reader may see after a higher token's client was told yes.
func (w *world) land(resource string, t tokens.Token, sentBy int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t < w.acked[resource] {
		w.t.Errorf("broken promise: a write with token %d took effect on %s after token %d was answered", t, resource, w.acked[resource])
	}
	if sentBy != w.run {
		w.late++
	}
}

// ack is a client that is told yes.
func (w *world) ack(resource string, t tokens.Token) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acked[resource] = max(w.acked[resource], t)
}

// send hands the store a write that takes effect after a while, come what may.
func (w *world) send(resource string, t tokens.Token, after time.Duration) {
	run := w.now()
	time.AfterFunc(after, func() { w.land(resource, t, run) })
}

// finish is a store that takes its time with a write past the gate, and tells.
func (w *world) finish(wr *tokens.Write, after time.Duration) {
	run := w.now()
	time.AfterFunc(after, func() {
		w.land(wr.Claim().Resource, wr.Claim().Token, run)
		wr.Done()
		wr.End()
	})
}

func claim(t tokens.Token) tokens.Claim {
	return tokens.Claim{Resource: res, Token: t, Settle: settle}
}

// begin is a write up to the gate.
func (w *world) begin(t tokens.Token) *tokens.Write {
	w.t.Helper()
	wr, err := w.fence.Begin(context.Background(), claim(t))
	if err != nil {
		w.t.Fatalf("begin with token %d: %v", t, err)
	}
	return wr
}

// admit is a write past the gate. Clients come back when they are told to wait.
func (w *world) admit(t tokens.Token) *tokens.Write {
	w.t.Helper()
	wr := w.begin(t)
	if err := admitPatiently(wr); err != nil {
		w.t.Fatalf("token %d at the gate: %v", t, err)
	}
	return wr
}

// admitPatiently comes back as long as it is told to.
func admitPatiently(wr *tokens.Write) error {
	for {
		err := wr.Admit(context.Background())
		if !isWaiting(err) {
			return err
		}
	}
}

// write is a whole write whose client is told yes: the store applies it at once.
func (w *world) write(t tokens.Token) {
	w.t.Helper()
	wr := w.admit(t)
	w.land(res, t, w.now())
	wr.Done()
	wr.End()
	w.ack(res, t)
}
