package integration

import (
	"net"
	"os"
	"os/exec"
	"testing"
	"time"
)

// What versitygw, a real S3 server, is started with: the credentials are the proxy's, and no client of ours knows them.
const (
	gatewayKey    = "GATEWAYKEY"
	gatewaySecret = "gateway-secret-of-the-tests"
	gatewayRegion = "eu-west-1"
)

// startGateway runs versitygw on a directory of its own and returns its address.
func startGateway(t *testing.T) string {
	t.Helper()
	binary := os.Getenv("FENCEPROXY_VERSITYGW")
	if binary == "" {
		var err error
		if binary, err = exec.LookPath("versitygw"); err != nil {
			skip(t, "versitygw is not here, so nothing of this on a real S3 server (integration/test brings it)")
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	cmd := exec.Command(binary, "--port", address, "--access", gatewayKey, "--secret", gatewaySecret, "--region", gatewayRegion,
		"--keep-alive", "--quiet", "posix", t.TempDir())
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	said := newLogs()
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Logf("versitygw said:\n%s", said)
		}
	})
	eventually(t, "versitygw listens", func() bool {
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err != nil {
			return false
		}
		c.Close()
		return true
	})
	return address
}
