package fleet

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/integration/histories"
	"github.com/fenceproxy/fenceproxy/integration/misbehave"
)

// A store is what all proxies have behind them: versitygw, a real S3 server, or the one in memory that misbehaves.
type store struct {
	gateway *histories.Process
	root    string // of its files

	memory *misbehave.Store
	server *httptest.Server
	luck   *luck
	mu     sync.Mutex
	ledger []effect       // of the store in memory; guarded by mu
	faults map[string]int // guarded by mu
}

// An effect is a PUT that readers of the store can see from then on.
type effect struct {
	at     time.Time
	key    string
	token  int64
	serial int64
	late   bool
}

// luck is a source of chance for many goroutines.
type luck struct {
	mu   sync.Mutex
	rand *rand.Rand
}

func (l *luck) n(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rand.IntN(n)
}

func newStore(t *testing.T, o options) *store {
	t.Helper()
	s := &store{faults: map[string]int{}}
	if o.misbehaving {
		s.luck = &luck{rand: rand.New(rand.NewPCG(o.seed, 7))}
		options := misbehave.Options{Fault: s.fault(o.settle), Applied: s.applied}
		if o.calm {
			options = misbehave.Options{}
		}
		s.memory = misbehave.New(options)
		s.server = httptest.NewServer(s.memory)
		t.Cleanup(func() {
			s.memory.Close()
			s.server.CloseClientConnections()
			s.server.Close()
		})
		return s
	}
	s.root = filepath.Join(t.TempDir(), "objects")
	if err := os.Mkdir(s.root, 0o755); err != nil {
		t.Fatal(err)
	}
	program := histories.Gateway(t)
	var err error
	s.gateway, err = histories.NewGateway(program, s.root)
	t.Cleanup(s.gateway.Kill)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *store) address() string {
	if s.server != nil {
		return s.server.Listener.Addr().String()
	}
	return s.gateway.Address
}

// config is what a proxy's configuration says of the store, which it reaches at this address.
func (s *store) config(address string) string {
	return fmt.Sprintf("type: s3, endpoint: %q, region: %s, path_style: true, access_key: %s, secret_key: %s",
		"http://"+address, histories.GatewayRegion, histories.GatewayKey, histories.GatewaySecret)
}

// longestHold is how long a request may be kept back on its way: a proxy takes up to a third of the settle time to send it, and the store in
// memory is late by itself.
func (s *store) longestHold(settle time.Duration) time.Duration {
	if s.memory != nil {
		return settle / 4
	}
	return settle / 2
}

// open reads an object around the proxies.
func (s *store) open(key string) (io.ReadCloser, error) {
	if s.gateway != nil {
		return histories.Files(s.root)(key)
	}
	content, ok := s.memory.Content(histories.Bucket, key)
	if !ok {
		return nil, fs.ErrNotExist
	}
	return io.NopCloser(bytes.NewReader(content)), nil
}

// What the store in memory does now and then to a write.
const (
	storeLate    = "store late, answer lost"
	storeSlow    = "store slow"
	storeLost    = "write lost, answer too"
	storeTold500 = "carried out, answered 500"
)

// fault lets the store be late, but never so late that the settle time would be over, see longestHold.
func (s *store) fault(settle time.Duration) func(misbehave.Operation) misbehave.Fault {
	most := int(settle / 4)
	return func(op misbehave.Operation) misbehave.Fault {
		if op.Name != "PutObject" && op.Name != "DeleteObject" || strings.HasPrefix(op.Key, ".fenceproxy-probe-") || strings.HasSuffix(op.Key, "other") {
			return misbehave.Fault{}
		}
		late := time.Duration(s.luck.n(most))
		switch s.luck.n(100) {
		case 0:
			return s.met(storeLate, misbehave.Fault{Late: late, Drop: true})
		case 1:
			return s.met(storeSlow, misbehave.Fault{Late: late})
		case 2:
			return s.met(storeLost, misbehave.Fault{Lose: true, Drop: true})
		case 3:
			return s.met(storeTold500, misbehave.Fault{Status: 500, Code: "InternalError"})
		}
		return misbehave.Fault{}
	}
}

func (s *store) met(what string, f misbehave.Fault) misbehave.Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[what]++
	return f
}

// applied keeps the ledger.
func (s *store) applied(a misbehave.Application) {
	var e effect
	var client int
	if _, err := fmt.Fscanf(bytes.NewReader(a.Content), "serial %d of client %d with token %d,", &e.serial, &client, &e.token); err != nil {
		return // a DELETE, of which nothing tells the token, and what no client of a history wrote
	}
	e.at, e.key, e.late = a.At, a.Target, a.Late
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger = append(s.ledger, e)
}

// judge holds the ledger of the store against what clients were told: an effect with a token below one that was answered before is what must
// never be. It leans on no search, unlike the model.
func (s *store) judge(start time.Time, history []histories.Op) (violations []string, lateOnes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.ledger {
		if e.late {
			lateOnes++
		}
		at := e.at.Sub(start)
		for _, o := range history {
			if o.Resource == resourceOf(e.key) && o.Raises() && o.Token > e.token && o.Return < at {
				violations = append(violations,
					fmt.Sprintf("the write %d of %s, with token %d, took effect at %v, and %v was answered at %v", e.serial, e.key, e.token, at, o, o.Return))
			}
		}
	}
	return violations, lateOnes
}

// resourceOf is the rule of the fleet's configuration.
func resourceOf(key string) string {
	if parts := strings.SplitN(key, "/", 3); parts[0] == "jobs" && len(parts) == 3 {
		return parts[0] + "/" + parts[1]
	}
	return key
}
