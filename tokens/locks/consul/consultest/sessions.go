package consultest

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// create makes a session. LockDelay may be a number of nanoseconds or a duration's text; without Checks and NodeChecks it is bound to the
// health of the agent's machine.
func (s *Server) create(w http.ResponseWriter, body []byte) {
	ask := struct {
		Name, TTL, Behavior string
		LockDelay           any
		Checks, NodeChecks  *[]string
	}{Behavior: "release", LockDelay: "15s"}
	if err := json.Unmarshal(body, &ask); err != nil {
		http.Error(w, "Request decode failed: "+err.Error(), http.StatusBadRequest)
		return
	}
	made := &session{ID: id(), Name: ask.Name, TTL: ask.TTL, Behavior: ask.Behavior, NodeChecks: []string{"serfHealth"}}
	for _, checks := range []*[]string{ask.Checks, ask.NodeChecks} {
		if checks != nil {
			made.NodeChecks = *checks
		}
	}
	var err error
	switch delay := ask.LockDelay.(type) {
	case string:
		made.LockDelay, err = time.ParseDuration(delay)
	case float64:
		made.LockDelay = time.Duration(delay)
	}
	if err == nil && ask.TTL != "" {
		made.ttl, err = time.ParseDuration(ask.TTL)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	shortest := s.Min
	if shortest == 0 {
		shortest = 10 * time.Second
	}
	if made.ttl != 0 && (made.ttl < shortest || made.ttl > 24*time.Hour) {
		http.Error(w, fmt.Sprintf("Invalid Session TTL '%d', must be between [%s=24h0m0s]", made.ttl, shortest), http.StatusInternalServerError)
		return
	}
	s.mu.Lock()
	s.sessions[made.ID] = made
	s.start(made)
	s.write()
	s.mu.Unlock()
	answer(w, map[string]string{"ID": made.ID})
}

func id() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// start gives a session its time: two TTLs, as Consul does.
func (s *Server) start(session *session) {
	if session.timer != nil {
		session.timer.Stop()
	}
	after := 2 * session.ttl
	if after == 0 {
		after = 1000 * time.Hour
	}
	session.timer = time.AfterFunc(after, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.sessions[session.ID] == session {
			s.end(session)
		}
	})
}

func (s *Server) renew(w http.ResponseWriter, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	session := s.sessions[id]
	if session == nil {
		http.Error(w, fmt.Sprintf("Session id '%s' not found", id), http.StatusNotFound)
		return
	}
	s.start(session)
	answer(w, []any{session})
}

// end ends a session, with what it holds.
func (s *Server) end(session *session) {
	session.timer.Stop()
	delete(s.sessions, session.ID)
	index := s.write()
	for name, k := range s.keys {
		if k.Session != session.ID {
			continue
		}
		if session.LockDelay > 0 {
			s.delayed[name] = time.Now().Add(session.LockDelay)
		}
		if session.Behavior == "delete" {
			delete(s.keys, name)
			continue
		}
		k.Session, k.ModifyIndex = "", index
	}
}
