package s3

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestProbeOnVersitygw asks a real store, of which is known what it does (what it does in races depends on who is first).
func TestProbeOnVersitygw(t *testing.T) {
	s := open(t, versitygw(t))
	if w := do(s, "PUT", "/probed", nil); w.Code != 200 {
		t.Fatal(w.Code, w.Body)
	}
	began := time.Now()
	f, err := s.Probe(t.Context(), "probed")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("in %v:\n%s", time.Since(began), strings.Join(f.Detail, "\n"))
	if !f.Put || !f.Complete || f.Copy || f.Batch || f.Torn || !f.Query || f.Skipped != "" {
		f.Detail = nil
		t.Errorf("got %+v", f)
	}
	if !slices.Equal(f.Merged, []string{"slashes", "dots"}) {
		t.Errorf("merged are %q", f.Merged)
	}
	if !slices.Equal(f.Checksums, allChecksums) {
		t.Errorf("compared are %q", f.Checksums)
	}
	if s.found.Load() == nil {
		t.Error("nothing is remembered")
	}
	for _, query := range []string{"list-type=2", "uploads=", "versions="} {
		if w := do(s, "GET", "/probed?"+query, nil); strings.Contains(w.Body.String(), ".fenceproxy-probe") {
			t.Errorf("left behind, %s: %s", query, w.Body)
		}
	}
}
