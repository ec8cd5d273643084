package s3

import (
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// TestBundleAndCredentials: trap 13, the SDK refuses to load its configuration where AWS_CA_BUNDLE is set and the HTTP client is not its own. The chain of
// credentials goes on with it, up to a role that a server of that bundle gives, and so does the store itself.
func TestBundleAndCredentials(t *testing.T) {
	dir := alone(t)
	var asked, told atomic.Int32
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			asked.Add(1)
			w.Header().Set("Content-Type", "text/xml")
			_, _ = io.WriteString(w, `<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials><AccessKeyId>assumed</AccessKeyId>`+
				`<SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>`)
			return
		}
		if strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential=assumed/") {
			told.Add(1)
		}
	}))
	defer server.Close()
	bundle := filepath.Join(dir, "ca.pem")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(bundle, certificate, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"AWS_CA_BUNDLE": bundle, "AWS_ACCESS_KEY_ID": "env", "AWS_SECRET_ACCESS_KEY": "s", "AWS_ENDPOINT_URL_STS": server.URL,
	} {
		t.Setenv(name, value)
	}
	s, err := Open(t.Context(), Options{Endpoint: server.URL, Region: testRegion, PathStyle: true, RoleARN: "arn:aws:iam::123456789012:role/r"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 2 {
		if w := do(s, "DELETE", "/bucket/key", nil); w.Code != 200 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	if asked.Load() != 1 || told.Load() != 2 {
		t.Errorf("the role was asked for %d times, want once; %d requests were signed as it, want 2", asked.Load(), told.Load())
	}
}
