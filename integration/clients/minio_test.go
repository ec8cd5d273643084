package clients

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMinioGo builds testdata/minio, a module of its own, and runs it: by default it sends small bodies in signed chunks.
func TestMinioGo(t *testing.T) {
	t.Parallel()
	readRecipe(t, "minio-go").within(t, "go", "testdata/minio/main.go")
	program := filepath.Join(t.TempDir(), "minio")
	build := exec.Command("go", "build", "-race", "-o", program, ".")
	build.Dir = "testdata/minio"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	run := func(name, trailers string, start func(*testing.T, string) *client, payload string) {
		t.Run(name, func(t *testing.T) {
			c := start(t, "minio-go-"+trailers)
			if said := c.story(program + " 127.0.0.1:9000 demo " + trailers); !strings.Contains(said, payload) {
				t.Errorf("it sent no body with %s", payload)
			}
		})
	}
	run("default", "none", overPlain, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD")
	run("trailers", "trailers", overPlain, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER")
	run("trailers, S3", "trailers", overS3, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER")
}
