// Package kubetest is a double of the part of the Kubernetes API that locks are made of: reading, creating and updating Lease objects. It is
// written from the Kubernetes API reference, the page on API concepts (resource versions, conflicts), and what the API server is documented to
// check of a Lease. It is no Kubernetes: one process, in memory. What was shown against it was not shown of Kubernetes.
package kubetest

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// A Server is the double.
type Server struct {
	Token string // bearer token that requests must bring, "" for none
	CA    string // file with the certificate that its own is to be held against; "" where it has no TLS

	http *httptest.Server

	mu      sync.Mutex // guards the rest
	version int        // of the last write
	uids    int
	objects map[string]*Object // by namespace/name
	lose    func(*http.Request) bool
	after   func(*http.Request) func()
}

// An Object is a Lease, as it comes and goes.
type Object struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata"`
	Spec       map[string]any `json:"spec"`
}

// Start starts a double, which ends with the test, and says loudly what it is.
func Start(t testing.TB) *Server {
	t.Helper()
	s := start(t)
	s.http = httptest.NewServer(s)
	t.Cleanup(s.http.Close)
	return s
}

// StartTLS is Start with TLS.
func StartTLS(t testing.TB) *Server {
	t.Helper()
	s := start(t)
	s.http = httptest.NewTLSServer(s)
	t.Cleanup(s.http.Close)
	s.CA = filepath.Join(t.TempDir(), "ca.crt")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.http.Certificate().Raw})
	if err := os.WriteFile(s.CA, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

func start(t testing.TB) *Server {
	t.Helper()
	t.Log("AGAINST A DOUBLE: there is no Kubernetes here. Set FENCEPROXY_KUBERNETES to the host:port of a kubectl proxy.")
	return &Server{version: 100, objects: make(map[string]*Object)}
}

// Address is its host:port.
func (s *Server) Address() string { return s.http.Listener.Addr().String() }

// Restart cuts all connections. What it has was acknowledged, and stays.
func (s *Server) Restart() { s.http.CloseClientConnections() }

// Delete deletes a Lease, as kubectl would.
func (s *Server) Delete(namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, namespace+"/"+name)
	s.version++
}

// Get is a Lease, nil where there is none.
func (s *Server) Get(namespace, name string) *Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[namespace+"/"+name].clone()
}

// Change changes a Lease, or makes it, as another client would.
func (s *Server) Change(namespace, name string, change func(*Object)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.objects[namespace+"/"+name].clone()
	if o == nil {
		o = s.made(namespace, name, &Object{Spec: make(map[string]any)})
	}
	change(o)
	s.store(namespace+"/"+name, o)
}

// Lose cuts the connection of the next request for which it returns true, after it was done.
func (s *Server) Lose(lose func(*http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lose = lose
}

// After does something after the next request for which when returns true, before it is answered.
func (s *Server) After(when func(*http.Request) bool, do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.after = func(r *http.Request) func() {
		if !when(r) {
			return nil
		}
		return do
	}
}

func (o *Object) clone() *Object {
	if o == nil {
		return nil
	}
	text, _ := json.Marshal(o)
	n := new(Object)
	_ = json.Unmarshal(text, n)
	return n
}

// made gives a new object what the API server gives it.
func (s *Server) made(namespace, name string, o *Object) *Object {
	s.uids++
	o.APIVersion, o.Kind = "coordination.k8s.io/v1", "Lease"
	if o.Metadata == nil {
		o.Metadata = make(map[string]any)
	}
	o.Metadata["name"], o.Metadata["namespace"], o.Metadata["uid"] = name, namespace, fmt.Sprintf("6fa8f4c0-0000-4000-8000-%012d", s.uids)
	return o
}

func (s *Server) store(key string, o *Object) {
	s.version++
	o.Metadata["resourceVersion"] = strconv.Itoa(s.version)
	s.objects[key] = o
}

var path = regexp.MustCompile(`^/apis/coordination\.k8s\.io/v1/namespaces/([^/]+)/leases(?:/([^/]+))?$`)

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return
	}
	recorder := httptest.NewRecorder()
	s.mu.Lock()
	s.serve(recorder, r, body)
	lost := s.lose != nil && s.lose(r)
	if lost {
		s.lose = nil
	}
	var after func()
	if s.after != nil {
		if after = s.after(r); after != nil {
			s.after = nil
		}
	}
	s.mu.Unlock()
	if after != nil {
		after()
	}
	if lost {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(recorder.Code)
	_, _ = w.Write(recorder.Body.Bytes())
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request, body []byte) {
	found := path.FindStringSubmatch(r.URL.Path)
	if s.Token != "" && r.Header.Get("Authorization") != "Bearer "+s.Token {
		status(w, http.StatusUnauthorized, "Unauthorized", "Unauthorized")
		return
	}
	if found == nil || (found[2] == "") != (r.Method == http.MethodPost) {
		status(w, http.StatusNotFound, "NotFound", "the server could not find the requested resource")
		return
	}
	namespace, name := found[1], found[2]
	if namespace == "kube-system" {
		status(w, http.StatusForbidden, "Forbidden", "leases.coordination.k8s.io is forbidden: User \"system:serviceaccount:default:default\" cannot get resource")
		return
	}
	key := namespace + "/" + name
	switch r.Method {
	case http.MethodGet:
		if o := s.objects[key]; o != nil {
			answer(w, http.StatusOK, o)
			return
		}
		status(w, http.StatusNotFound, "NotFound", fmt.Sprintf("leases.coordination.k8s.io %q not found", name))
	case http.MethodPost, http.MethodPut:
		s.write(w, r.Method, namespace, name, body)
	default:
		status(w, http.StatusMethodNotAllowed, "MethodNotAllowed", "the double knows nothing of this")
	}
}

// write creates or updates. An update creates what is not there, for this kind, unless it names a uid.
func (s *Server) write(w http.ResponseWriter, method, namespace, name string, body []byte) {
	var o Object
	if err := json.Unmarshal(body, &o); err != nil || o.Kind != "Lease" || o.APIVersion != "coordination.k8s.io/v1" || o.Metadata == nil {
		status(w, http.StatusBadRequest, "BadRequest", fmt.Sprintf("the object provided is unrecognized: %v", err))
		return
	}
	if said := invalid(&o); said != "" {
		status(w, http.StatusUnprocessableEntity, "Invalid", said)
		return
	}
	if method == http.MethodPost {
		name, _ = o.Metadata["name"].(string)
	}
	now := s.objects[namespace+"/"+name]
	conflict := ""
	switch {
	case method == http.MethodPost && now != nil:
		status(w, http.StatusConflict, "AlreadyExists", fmt.Sprintf("leases.coordination.k8s.io %q already exists", name))
		return
	case method == http.MethodPut && o.Metadata["uid"] != nil && (now == nil || now.Metadata["uid"] != o.Metadata["uid"]):
		conflict = "Precondition failed: UID in precondition"
	case method == http.MethodPut && now != nil && o.Metadata["resourceVersion"] == nil:
		status(w, http.StatusUnprocessableEntity, "Invalid", "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update")
		return
	case method == http.MethodPut && now != nil && now.Metadata["resourceVersion"] != o.Metadata["resourceVersion"]:
		conflict = "the object has been modified; please apply your changes to the latest version and try again"
	}
	if conflict != "" {
		status(w, http.StatusConflict, "Conflict", fmt.Sprintf("Operation cannot be fulfilled on leases.coordination.k8s.io %q: %s", name, conflict))
		return
	}
	code := http.StatusOK
	if now == nil {
		s.made(namespace, name, &o)
		code = http.StatusCreated
	}
	s.store(namespace+"/"+name, &o)
	answer(w, code, &o)
}

var microTime = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[-+]\d\d:\d\d)$`)

// invalid says what the API server would not take of a spec.
func invalid(o *Object) string {
	if n, ok := o.Spec["leaseDurationSeconds"].(float64); ok && n <= 0 {
		return "spec.leaseDurationSeconds: Invalid value: must be greater than 0"
	}
	if n, ok := o.Spec["leaseTransitions"].(float64); ok && (n < 0 || n > 1<<31-1) {
		return "spec.leaseTransitions: Invalid value: must be greater than or equal to 0"
	}
	for _, name := range []string{"acquireTime", "renewTime"} {
		if at, ok := o.Spec[name].(string); ok && !microTime.MatchString(at) {
			return "spec." + name + ": Invalid value: no MicroTime"
		}
	}
	return ""
}

func answer(w http.ResponseWriter, code int, v any) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

func status(w http.ResponseWriter, code int, reason, message string) {
	answer(w, code, map[string]any{
		"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{}, "status": "Failure",
		"message": strings.TrimSpace(message), "reason": reason, "code": code,
	})
}
