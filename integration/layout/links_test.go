package layout

import (
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	codeBlock = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	codeSpan  = regexp.MustCompile("`[^`\n]*`")
	link      = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	heading   = regexp.MustCompile(`(?m)^#{1,6} +(.*?) *$`)
	notInSlug = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

// TestLinks: every relative link of every page leads to a file, and to a heading where it names one.
func TestLinks(t *testing.T) {
	pages := map[string]string{} // path from the top: text
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == "testdata" || d.Name() == "data" || d.Name() == ".git") {
			return filepath.SkipDir
		}
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(path)
		pages[strings.TrimPrefix(path, "../../")] = string(text)
		return err
	})
	if err != nil || len(pages) < 10 {
		t.Fatalf("%d pages: %v", len(pages), err)
	}
	for page, text := range pages {
		prose := codeBlock.ReplaceAllString(text, "")
		for _, found := range link.FindAllStringSubmatch(codeSpan.ReplaceAllString(prose, ""), -1) {
			u, err := url.Parse(found[1])
			if err != nil || u.IsAbs() {
				continue
			}
			target := page
			if u.Path != "" {
				target = filepath.Join(filepath.Dir(page), u.Path)
			}
			if _, err := os.Stat("../../" + target); err != nil {
				t.Errorf("%s links to %s, which is not there", page, found[1])
			} else if u.Fragment != "" && !hasHeading(pages[target], u.Fragment) {
				t.Errorf("%s links to %s, and %s has no such heading", page, found[1], target)
			}
		}
	}
}

// hasHeading says whether a page has a heading with this anchor, as GitHub makes them.
func hasHeading(text, anchor string) bool {
	for _, found := range heading.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
		slug := notInSlug.ReplaceAllString(strings.ToLower(found[1]), "")
		if strings.ReplaceAll(slug, " ", "-") == anchor {
			return true
		}
	}
	return false
}
