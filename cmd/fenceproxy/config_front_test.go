package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func mustWriteFile(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // whatever the umask
		t.Fatal(err)
	}
}

func TestSecretFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	text := "access_keys: [{id: AKID, secret_file: " + path + "}]"
	for _, test := range []struct {
		content string
		mode    os.FileMode
		secret  secret // "" for a fault
		says    string // the end of the fault or of the warning
	}{
		{"long enough", 0o600, "long enough", ""},
		{"long enough\n", 0o400, "long enough", ""},
		{"long enough\r\n", 0o640, "long enough", ""},
		{" $long enough ${X} \n", 0o600, " $long enough ${X} ", ""},
		{"long enough\n", 0o644, "long enough", path + " can be read by every user of this machine (mode 0644): chmod 600 it"},
		{"long enough\n", 0o602, "", path + " can be written by every user of this machine (mode 0602); chmod 600 it, and put another secret in"},
		{"long enough\n\n", 0o600, "", path + " has several lines, or is no text; write the secret alone into it"},
		{"sensitive\nlong enough", 0o600, "", path + " has several lines, or is no text; write the secret alone into it"},
		{"1234567\n", 0o600, "", "the secret is shorter than 8 characters; write a longer one"},
		{"", 0o600, "", "the secret is shorter than 8 characters; write a longer one"},
		{strings.Repeat("x", 1025), 0o600, "", "the secret is longer than 1024 bytes"},
		{strings.Repeat("x", maxPrivate+1), 0o600, "", path + " is no file of up to 64KiB; name the file itself"},
	} {
		_ = os.Remove(path)
		mustWriteFile(t, path, test.content, test.mode)
		c, err := parseConfig("c", []byte(text), noEnvironment)
		if test.secret == "" {
			if err == nil || err.Error() != "c:1: secret_file: "+test.says {
				t.Errorf("%.20q %o: %v", test.content, test.mode, err)
			}
			continue
		}
		if err != nil || c.AccessKeys[0].Secret != test.secret {
			t.Errorf("%.20q %o: %v", test.content, test.mode, err)
			continue
		}
		want := ""
		if test.says != "" {
			want = "c:1: secret_file: " + test.says
		}
		if got := strings.Join(c.Warnings, "\n"); got != want {
			t.Errorf("%.20q %o: warned %q, want %q", test.content, test.mode, got, want)
		}
	}
	_, err := parseConfig("c", []byte("access_keys: [{id: AKID, secret: long enough, secret_file: "+path+"}]"), noEnvironment)
	if err == nil || !strings.Contains(err.Error(), "stands in secret, too") {
		t.Errorf("secret and secret_file: %v", err)
	}
}

// TestSecretsAreNotPrinted: whatever is wrong with a configuration, and however it is printed, its secrets are not in it.
func TestSecretsAreNotPrinted(t *testing.T) {
	const word = "sesame"
	dir := t.TempDir()
	mustWriteFile(t, filepath.Join(dir, "lines"), word+"\n"+word, 0o600)
	mustWriteFile(t, filepath.Join(dir, "short"), word, 0o600)
	for _, text := range []string{
		"access_keys: [{id: AKID, secret: " + word + "}]",
		"access_keys: [{id: AKID, secret: '" + word + " $$ $" + word + "'}]",
		"access_keys: [{id: AKID, secret:" + word + "}]",
		"access_keys: [{id: AKID, secret: *" + word + "}]",
		"access_keys: [{id: AKID, secret: &" + word + " x}]",
		"access_keys: [{id: AKID, secret: !" + word + " x}]",
		"access_keys: [{id: AKID, secret: !!" + word + " x}]",
		"access_keys: [{id: AKID, secret: [" + word + "]}]",
		"access_keys: [{id: AKID, secret: {" + word + ": }}]",
		"access_keys: [{id: AKID, secret: @" + word + "}]",
		"access_keys: [{id: AKID, secret: %" + word + "}]",
		"access_keys: [{id: AKID, secret: \"" + word + "}]",
		"access_keys: [{id: AKID, secret: a: " + word + "}]",
		"access_keys:\n  - id: AKID\n    secret: a: " + word,
		"access_keys: [{id: " + word + "/" + word + ", secret: AKID}]",
		"access_keys: [{id: AKID, secret_file: " + dir + "/lines}]",
		"access_keys: [{id: AKID, secret_file: " + dir + "/short}]",
		"backends: {a: {type: s3, access_key: AKID, secret_key: &" + word + " x}}",
		"backends: {a: {type: s3, access_key: AKID, secret_key: *" + word + "}}",
	} {
		_, err := parseConfig("c", []byte(text), noEnvironment)
		if err == nil || strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", text, err)
		}
	}

	c := mustParseConfig(t, "access_keys: [{id: AKID, secret: open "+word+", buckets: [b]}]")
	var out bytes.Buffer
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "secret", c.AccessKeys[0].Secret, "key", c.AccessKeys[0], "keys", c.AccessKeys)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "secret", c.AccessKeys[0].Secret, "key", c.AccessKeys[0])
	fmt.Fprintf(&out, "%v %+v %#v %q %x", c, c, c.AccessKeys, c.AccessKeys[0].Secret, c.AccessKeys[0].Secret)
	summarize(&out, c)
	if text := out.String(); strings.Contains(text, word) || strings.Contains(text, fmt.Sprintf("%x", word)) {
		t.Error(text)
	}
	if got, ok := c.secretOf("AKID"); got != "open "+word || !ok {
		t.Errorf("the verifier is told %q", got)
	}
}

func TestAccessOf(t *testing.T) {
	c := mustParseConfig(t, "access_keys: [{id: ALL, secret: long enough}, {id: FEW, secret: long enough, buckets: [b], prefixes: [p], read_only: true}]")
	if a := c.accessOf("ALL"); !a.Key("x", "y") || a.ReadOnly {
		t.Errorf("%+v", a)
	}
	if a := c.accessOf("FEW"); a.Key("x", "p") || a.Key("b", "y") || !a.Key("b", "p") || !a.ReadOnly {
		t.Errorf("%+v", a)
	}
	if a := c.accessOf("NONE"); a == nil || a.Bucket("b") || a.Key("b", "p") || !a.ReadOnly {
		t.Errorf("a key that there is not may do something: %+v", a)
	}
}

func TestListenToEverybody(t *testing.T) {
	for text, good := range map[string]bool{
		"listen: :9000": false, "listen: :9000\nanonymous: false": false, "listen: :9000\nanonymous: true": true, "anonymous: true": true,
		"listen: :9000\naccess_keys: [{id: AKID, secret: long enough}]":                   true,
		"listen: :9000\naccess_keys: [{id: AKID, secret: long enough}]\nanonymous: false": true,
		"listen: :9000\naccess_keys: [{id: AKID, secret: long enough}]\nanonymous: true":  false,
	} {
		if _, err := parseConfig("c", []byte(text), noEnvironment); (err == nil) != good {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestSummary: what config check says is all that there is.
func TestSummary(t *testing.T) {
	var out strings.Builder
	summarize(&out, mustParseConfig(t, ""))
	for _, want := range []string{"is good: 1 backends, 1 bucket entries, 0 rules", "Anybody on this machine", "plain HTTP"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("there is no %q in\n%s", want, out.String())
		}
	}
	out.Reset()
	c := mustParseConfig(t, `
listen: 0.0.0.0:9000
domain: s3.example
access_keys:
  - {id: ALL, secret: long enough}
  - {id: FEW, secret: long enough, buckets: [b, "c*"], prefixes: [p/, "q r"], read_only: true}
`)
	summarize(&out, c)
	for _, want := range []string{
		`(?m)^Access key ALL: everything\.$`,
		`(?m)^Access key FEW: reads only, buckets "b" "c\*", keys that begin with "p/" "q r"\.$`,
		`(?m)^Buckets have names of their own below s3\.example\.$`,
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("there is no %q in\n%s", want, out.String())
		}
	}
}
