package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestAPausedWriterComesBack: story celld #193, the owner of a lease is stopped (docker pause) for longer than its lease, and goes on where it was. Its
// write is refused, before and after the proxy is started anew.
func TestAPausedWriterComesBack(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		skip(t, "there is no curl here")
	}
	p := startProxy(t)
	content, address := filepath.Join(p.dir, "content"), filepath.Join(p.dir, "address")
	mustWrite(t, content, "of 33")
	mustWrite(t, address, p.addr)
	const key = "/bkt/jobs/1/state"
	// Each writer writes once, stops itself, and writes again when it goes on.
	write := "curl -q -sS -m 30 -o /dev/null -w '%{http_code} ' -H 'X-Fence-Token: 33' -T " + content + " http://$(cat " + address + ")" + key
	paused := func() (*exec.Cmd, *strings.Builder) {
		said := &strings.Builder{}
		cmd := exec.Command("sh", "-c", write+"; kill -STOP $$; "+write)
		cmd.Stdout, cmd.Stderr = said, os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() }) // it may have ended well
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
			t.Fatalf("the writer did not stop itself: %v, %v", status, err)
		}
		return cmd, said
	}
	goesOn := func(cmd *exec.Cmd, said *strings.Builder) {
		t.Helper()
		if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil || said.String() != "200 412 " {
			t.Errorf("the writer ended with %v and was told %q, want 200 412", err, said)
		}
		p.holds(t, key, "of 34")
		p.marked(t, key, 34)
	}
	one, toldOne := paused()
	other, toldOther := paused()
	p.put(t, key, 34, "of 34").want(t, 200) // the lease is over, and somebody else has it
	goesOn(one, toldOne)
	p.restart(t)
	mustWrite(t, address, p.addr)
	goesOn(other, toldOther)
}
