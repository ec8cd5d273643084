package lockstest

import (
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const flawIs = "FENCEPROXY_LOCKSTEST_FLAW"

// TestDouble: the suite lets a service pass that is right. With a flaw in the environment it is what [TestFlaws] runs.
func TestDouble(t *testing.T) {
	d := newDouble(t, os.Getenv(flawIs))
	Run(t, Engine{
		TTL: 500 * time.Millisecond, TellsTakeover: true,
		New: func(t testing.TB) Lock {
			name := Name(t)
			return Lock{
				Open: func(t testing.TB, via func(string) string) locks.Service {
					u, err := url.Parse(d.http.URL)
					if err != nil {
						t.Fatal(err)
					}
					return &doubleClient{d: d, base: "http://" + via(u.Host), name: name, http: &http.Client{Transport: &http.Transport{}}}
				},
				Delete: func(testing.TB) {
					if d.flaw == "counter can be deleted" {
						d.forget(name)
					}
				},
			}
		},
		Restart: func(testing.TB) {
			if d.flaw == "counter does not survive" {
				d.forget("")
			}
		},
	})
}

// TestFlaws: the suite fails where a service has a flaw, each in the case that is for it.
func TestFlaws(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for flaw, test := range map[string]string{
		"token repeats":              "Cases/HandOvers",
		"renewal changes the token":  "Cases/Tokens",
		"let in twice":               "Cases/OneClient",
		"two at once":                "Cases/Storm",
		"counter goes with the lock": "Cases/HandOvers",
		"release of another's":       "Cases/PausedHolder$",
		"loss not told":              "Cases/PausedHolder$",
		"free too early":             "Cases/PausedHolder$",
		"takeover not told":          "Cases/Crash",
		"renewal takes back":         "Cases/PausedWhileRenewing",
		"renewal does nothing":       "Cases/Renewed",
		"release does nothing":       "Cases/Released",
		"not twice":                  "Cases/Released",
		"stays in the queue":         "Cases/GivenUp$",
		"cause not told":             "Cases/GivenUp$",
		"deaf":                       "Cases/Stalled",
		"wrong one told":             "Cases/Waiting",
		"counter can be deleted":     "Cases/Deleted",
		"counter does not survive":   "Restart",
	} {
		t.Run(flaw, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(program, "-test.v", "-test.run", "^TestDouble$/"+test)
			cmd.Env = append(os.Environ(), flawIs+"="+flaw)
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Fatal("the suite does not see it")
			}
			if !strings.Contains(string(out), "--- FAIL: TestDouble/"+strings.TrimSuffix(test, "$")) {
				t.Fatalf("it fails elsewhere: %s", out)
			}
			for line := range strings.Lines(string(out)) {
				if line = strings.TrimSpace(line); strings.HasPrefix(line, "cases.go:") || strings.HasPrefix(line, "handovers.go:") {
					t.Log(line)
				}
			}
		})
	}
}
