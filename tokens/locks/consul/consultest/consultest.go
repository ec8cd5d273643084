// Package consultest is a double of the part of Consul that locks are made of, for tests where there is no Consul. It is written from
// Consul's pages on its HTTP API (KV store, sessions, blocking queries, status), and is no Consul: one process, nothing on disk, no Raft.
// What was shown against it was not shown of Consul.
package consultest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// A Server is the double.
type Server struct {
	Token string        // that requests must bring, "" for none
	Min   time.Duration // the shortest TTL of a session (session_ttl_min); 10 s if 0

	http *httptest.Server

	mu       sync.Mutex // guards the rest
	index    uint64     // of the last write
	keys     map[string]*key
	sessions map[string]*session
	delayed  map[string]time.Time // keys that nobody may acquire before
	changed  chan struct{}        // closed at the next write
	lose     func(*http.Request) bool
	before   func(*http.Request) func()
	ended    bool
}

type key struct {
	Key         string
	CreateIndex uint64
	ModifyIndex uint64
	LockIndex   uint64
	Flags       uint64
	Value       []byte
	Session     string `json:",omitempty"`
}

type session struct {
	ID         string
	Name       string
	TTL        string
	Behavior   string
	LockDelay  time.Duration
	NodeChecks []string
	ttl        time.Duration
	timer      *time.Timer // ends it
}

// Start starts a double, which ends with the test, and says loudly what it is.
func Start(t testing.TB) *Server {
	t.Helper()
	t.Log("AGAINST A DOUBLE: there is no Consul here. Set FENCEPROXY_CONSUL to the host:port of one.")
	s := &Server{index: 10}
	s.forget()
	s.http = httptest.NewServer(s)
	t.Cleanup(func() {
		s.mu.Lock()
		s.ended = true
		s.forget()
		s.mu.Unlock()
		s.http.Close()
	})
	return s
}

// Address is its host:port.
func (s *Server) Address() string { return strings.TrimPrefix(s.http.URL, "http://") }

// Restart cuts all connections and gives every session its time anew, as a new leader does. What it has was acknowledged, and stays.
func (s *Server) Restart() {
	s.http.CloseClientConnections()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, session := range s.sessions {
		s.start(session)
	}
}

// Replace puts a new cluster in its place, which knows nothing.
func (s *Server) Replace() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.index = 10
	s.forget()
}

// FailNode lets the agent's machine fail its health check (serfHealth), which ends the sessions that are bound to it.
func (s *Server) FailNode() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, session := range s.sessions {
		if len(session.NodeChecks) > 0 {
			s.end(session)
		}
	}
}

// Lose cuts the connection of the next request for which it returns true, after it was done.
func (s *Server) Lose(lose func(*http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lose = lose
}

// Before does something before the next request for which when returns true.
func (s *Server) Before(when func(*http.Request) bool, do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = func(r *http.Request) func() {
		if when(r) {
			return do
		}
		return nil
	}
}

// Sessions is how many there are.
func (s *Server) Sessions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sessions)
}

func (s *Server) forget() {
	for _, session := range s.sessions {
		session.timer.Stop()
	}
	s.keys, s.sessions, s.delayed = make(map[string]*key), make(map[string]*session), make(map[string]time.Time)
	s.wake()
}

func (s *Server) wake() {
	if s.changed != nil {
		close(s.changed)
	}
	s.changed = make(chan struct{})
}

// write numbers a write.
func (s *Server) write() uint64 {
	s.index++
	s.wake()
	return s.index
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 512<<10+1))
	if err != nil {
		return
	}
	s.first(r)
	recorder := httptest.NewRecorder()
	if s.Token != "" && r.Header.Get("X-Consul-Token") != s.Token {
		http.Error(recorder, "Permission denied", http.StatusForbidden)
	} else {
		s.serve(recorder, r, body)
	}
	s.mu.Lock()
	lost := s.lose != nil && s.lose(r)
	if lost {
		s.lose = nil
	}
	s.mu.Unlock()
	if lost {
		panic(http.ErrAbortHandler)
	}
	for name, values := range recorder.Header() {
		w.Header()[name] = values
	}
	w.WriteHeader(recorder.Code)
	_, _ = w.Write(recorder.Body.Bytes())
}

func (s *Server) first(r *http.Request) {
	s.mu.Lock()
	var do func()
	if s.before != nil {
		do = s.before(r)
	}
	if do != nil {
		s.before = nil
	}
	s.mu.Unlock()
	if do != nil {
		do()
	}
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request, body []byte) {
	const sessions, kv = "/v1/session/", "/v1/kv/"
	switch path := r.URL.Path; {
	case r.Method == http.MethodGet && path == "/v1/status/peers":
		answer(w, []string{"127.0.0.1:8300"})
	case r.Method == http.MethodPut && path == sessions+"create":
		s.create(w, body)
	case r.Method == http.MethodPut && strings.HasPrefix(path, sessions+"renew/"):
		s.renew(w, strings.TrimPrefix(path, sessions+"renew/"))
	case r.Method == http.MethodPut && strings.HasPrefix(path, sessions+"destroy/"):
		s.mu.Lock()
		if session := s.sessions[strings.TrimPrefix(path, sessions+"destroy/")]; session != nil {
			s.end(session)
		}
		s.mu.Unlock()
		answer(w, true)
	case r.Method == http.MethodGet && strings.HasPrefix(path, kv):
		s.get(w, r, strings.TrimPrefix(path, kv))
	case r.Method == http.MethodPut && strings.HasPrefix(path, kv):
		s.put(w, r, strings.TrimPrefix(path, kv), body)
	case r.Method == http.MethodDelete && strings.HasPrefix(path, kv):
		s.mu.Lock()
		delete(s.keys, strings.TrimPrefix(path, kv))
		s.write()
		s.mu.Unlock()
		answer(w, true)
	default:
		http.Error(w, "the double knows nothing of this", http.StatusMethodNotAllowed)
	}
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, name string) {
	q := r.URL.Query()
	since, _ := strconv.ParseUint(q.Get("index"), 10, 64)
	wait, err := time.ParseDuration(q.Get("wait"))
	if err != nil || wait == 0 {
		wait = 5 * time.Minute
	}
	timer := time.NewTimer(min(wait, 10*time.Minute))
	defer timer.Stop()
	for {
		s.mu.Lock()
		index, changed, ended := s.index, s.changed, s.ended
		var found []key
		if k := s.keys[name]; k != nil {
			found, index = []key{*k}, k.ModifyIndex
		}
		s.mu.Unlock()
		waiting := since > 0 && index <= since && !ended
		if waiting {
			select {
			case <-changed:
				continue
			case <-timer.C:
			case <-r.Context().Done():
				return
			}
		}
		w.Header().Set("X-Consul-Index", strconv.FormatUint(index, 10))
		if found == nil {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		answer(w, found)
		return
	}
}

func (s *Server) put(w http.ResponseWriter, r *http.Request, name string, body []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := r.URL.Query()
	flags, _ := strconv.ParseUint(q.Get("flags"), 10, 64)
	k := s.keys[name]
	if k == nil {
		k = &key{Key: name}
	}
	switch acquire, release := q.Get("acquire"), q.Get("release"); {
	case acquire != "":
		if s.sessions[acquire] == nil {
			http.Error(w, fmt.Sprintf("invalid session %q", acquire), http.StatusInternalServerError)
			return
		}
		if k.Session != "" && k.Session != acquire || time.Now().Before(s.delayed[name]) {
			answer(w, false)
			return
		}
		if k.Session == "" {
			k.LockIndex++
		}
		k.Session = acquire
	case release != "":
		if k.Session != release {
			answer(w, false)
			return
		}
		k.Session = ""
	case q.Has("cas"):
		if q.Get("cas") != strconv.FormatUint(k.ModifyIndex, 10) {
			answer(w, false)
			return
		}
	}
	k.Value, k.Flags, k.ModifyIndex = body, flags, s.write()
	if s.keys[name] == nil {
		s.keys[name], k.CreateIndex = k, k.ModifyIndex
	}
	answer(w, true)
}
