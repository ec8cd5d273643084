package clients

import (
	"os"
	"strings"
	"testing"
)

// TestRestic: a backup, its check and its restore; a stale one stops at once where the rule refuses with 403.
func TestRestic(t *testing.T) {
	t.Parallel()
	program := longTool(t, "restic")
	if program == "" {
		return
	}
	for name, start := range map[string]func(*testing.T, string) *client{"file": overPlain, "HTTPS": overTLS} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, c := resticWork(t, start(t, "restic"), program)
			r.told(c, c.stale(1, r["sh"][0]+"restic backup tree"))
			c.stale(1, r["sh"][0]+"restic forget latest")
			c.lists(c.works(r["sh"][0]+"restic --no-lock snapshots"), "1 snapshots")
		})
	}
}

// TestResticOfDebian: version 0.14 tries each write 11 times, with longer and longer pauses, whatever the answer is. It says what it
// was told each time; this test ends it there.
func TestResticOfDebian(t *testing.T) {
	t.Parallel()
	need(t, "restic")
	r, c := resticWork(t, overPlain(t, "restic-of-debian"), "restic")
	said, ok := c.sh("33", r["sh"][0]+"timeout --signal=KILL 3 restic backup tree")
	if c.lists(said, refusal, "retrying after"); ok {
		t.Errorf("it was not refused:\n%s", said)
	}
	c.lists(c.works(r["sh"][0]+"restic --no-lock snapshots"), "1 snapshots")
}

// resticWork makes a backup and looks at it.
func resticWork(t *testing.T, c *client, program string) (recipe, *client) {
	t.Helper()
	r := readRecipe(t, "restic")
	if program != "restic" {
		c.env = append(c.env, "PATH="+strings.TrimSuffix(program, "/restic")+":"+os.Getenv("PATH"))
	}
	c.env = append(c.env, "RESTIC_PASSWORD=of the tests")
	if c.server.scheme == "https" {
		c.env = append(c.env, "RESTIC_CACERT="+c.authority())
	}
	c.version("restic version")
	c.works(r["sh"][0] + r["sh"][1])
	c.works(r["sh"][0] + "restic backup big")
	c.works(r["sh"][0] + "restic check --read-data; restic forget --keep-last 1 --group-by host --prune")
	c.works(r["sh"][0] + "restic restore latest --target back; find back -name big | xargs -I% mv % restored; cmp restored big")
	return r, c
}
