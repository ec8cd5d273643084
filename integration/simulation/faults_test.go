package simulation

import (
	"context"
	"hash/fnv"
	"strings"
	"time"

	"github.com/fenceproxy/fenceproxy/backends/s3"
	"github.com/fenceproxy/fenceproxy/integration/misbehave"
	"github.com/fenceproxy/fenceproxy/proxy"
)

// quirks are what a store is like in one simulation.
type quirks struct {
	conditional proxy.Conditional
	honoured    []string // operations on which conditions are judged
	probed      bool     // the product finds that out by itself, and that expired signatures are refused
}

var operations = []string{"PutObject", "CopyObject", "CompleteMultipartUpload", "DeleteObject", "DeleteObjects"}

func quirksOf(k kind, seed uint64) quirks {
	q := quirks{conditional: proxy.ConditionalAuto, honoured: operations, probed: k != fileKind && seed%11 == 1}
	if k != s3Kind {
		return q
	}
	switch seed % 5 {
	case 2:
		q.honoured = nil
	case 3:
		q.honoured = operations[:2]
	case 4:
		q.conditional = proxy.ConditionalOff
	}
	return q
}

func (q quirks) honours(operation string) bool {
	for _, o := range q.honoured {
		if o == operation {
			return true
		}
	}
	return false
}

// lateMost is how late the store of TestLate is at most.
const lateMost = 8 * time.Minute

// fault is what the store does with a request. It depends on the request alone, and not on when it comes.
func (w *world) fault(op misbehave.Operation) misbehave.Fault {
	id := op.Header.Get(idHeader)
	if strings.HasPrefix(op.Key, ".fenceproxy-probe-") || op.Key == "" && id == "" {
		return misbehave.Fault{IgnoreConditions: !w.quirks.honours(op.Name)}
	}
	h := hashOf(op.Name + " " + id + " " + op.Header.Get("If-Match"))
	l := newLuck(w.seed, h)
	f := misbehave.Fault{}
	switch {
	case w.calm:
	case op.Name == "HeadObject" || op.Name == "GetObject":
		l = newLuck(w.seed, h+uint64(op.Came.UnixNano()))
		f = readFault(l)
	case l.oneIn(4):
		f = w.writeFault(l, op.Name)
	}
	f.IgnoreConditions = !w.quirks.honours(op.Name)
	w.tellFault(op, id, f)
	return f
}

func (w *world) tellFault(op misbehave.Operation, id string, f misbehave.Fault) {
	f.IgnoreConditions = false
	if f != (misbehave.Fault{}) {
		w.note("    store: %s %s: stall %v unread %v late %v lose %v hold %v drop %v answer %d %s", op.Name, id, f.Stall, f.Unread, f.Late, f.Lose, f.Hold, f.Drop, f.Status, f.Code)
	}
}

func hashOf(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s))
	return h.Sum64()
}

func readFault(l luck) misbehave.Fault {
	switch l.IntN(20) {
	case 0:
		return misbehave.Fault{Status: 503, Code: "SlowDown"}
	case 1:
		return misbehave.Fault{Drop: true}
	case 2, 3, 4:
		return misbehave.Fault{Stall: l.upTo(5 * time.Second)}
	}
	return misbehave.Fault{}
}

// writeFault stays within the settle time: together with a pause before the request goes out, it takes effect in time or never. In TestLate
// it does not.
func (w *world) writeFault(l luck, name string) misbehave.Fault {
	bound := settle
	if name == "CopyObject" || name == "CompleteMultipartUpload" || name == "DeleteObjects" {
		bound = settleLong
	}
	most := bound - settle/4 - 2*time.Second // a pause comes before
	anyTime := func() time.Duration {
		if w.k == lateKind {
			return l.upTo(lateMost)
		}
		return l.upTo(most)
	}
	switch l.IntN(14) {
	case 0, 1:
		return misbehave.Fault{Hold: l.upTo(5 * time.Second)}
	case 2, 3: // slow, and true
		return misbehave.Fault{Late: anyTime()}
	case 4: // the answer is lost
		return misbehave.Fault{Drop: true}
	case 5: // the answer is lost, and the effect comes late
		return misbehave.Fault{Drop: true, Late: anyTime(), Hold: l.upTo(10 * time.Second)}
	case 6: // nothing happens, and nothing is told
		return misbehave.Fault{Drop: true, Lose: true, Hold: l.upTo(10 * time.Second)}
	case 7: // on its way for long
		return misbehave.Fault{Stall: l.upTo(most)}
	case 8: // never answered, for all that a client can wait
		return misbehave.Fault{Drop: true, Late: anyTime(), Hold: 20 * time.Minute}
	case 9:
		return misbehave.Fault{Status: 503, Code: "SlowDown", Lose: true}
	case 10: // from something on the way, which knows nothing
		return misbehave.Fault{Status: 503, Code: "ServiceUnavailable", Late: anyTime()}
	case 11:
		return misbehave.Fault{Status: 500, Code: "InternalError", Lose: l.oneIn(2), Late: anyTime()}
	case 12:
		if name == "CopyObject" || name == "CompleteMultipartUpload" {
			return misbehave.Fault{Status: 200, Code: "InternalError", Lose: l.oneIn(2), Late: anyTime()}
		}
		return misbehave.Fault{Drop: true, Unread: true}
	}
	return misbehave.Fault{Unread: true, Status: 403, Code: "AccessDenied"}
}

// probeStore asks the store as cmd/fenceproxy does.
func probeStore(ctx context.Context, store *s3.Store, bucket string) (proxy.Findings, error) {
	found, err := store.Probe(ctx, bucket)
	if err != nil {
		return proxy.Findings{}, err
	}
	f := proxy.Findings{Spool: found.Torn, Merges: found.Merged, Skipped: found.Skipped, Detail: found.Detail}
	for i, honoured := range []bool{found.Put, found.Copy, found.Complete, found.Delete, found.Batch} {
		if honoured {
			f.Conditions = append(f.Conditions, operations[i])
		}
	}
	return f, nil
}
