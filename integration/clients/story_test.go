package clients

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

// program copies a file of testdata into the client's directory.
func (c *client) program(name string) {
	c.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	must(c.T, "read the program", err)
	c.write(filepath.Base(name), string(text))
}

var toldRefusals = regexp.MustCompile(`(?m)^refused (\d+)$`)

// story runs a program that does all the work with both tokens and says at its end how often it was refused: as often as the proxy
// has seen it come.
func (c *client) story(script string) (said string) {
	c.Helper()
	said, ok := c.sh("", script)
	if !ok {
		c.Fatal(said)
	}
	c.Log(said)
	found := toldRefusals.FindStringSubmatch(said)
	if found == nil || found[1] != fmt.Sprint(c.refusals()) || found[1] == "0" {
		c.Errorf("it was refused %d times, and says\n%s", c.refusals(), said)
	}
	return said
}
