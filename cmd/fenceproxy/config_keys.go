package main

import (
	"bytes"

	"go.yaml.in/yaml/v3"

	"github.com/fenceproxy/fenceproxy/proxy/rules"
)

// An accessKey lets its holder in.
type accessKey struct {
	ID     string
	Secret secret
	rules.Access
}

// A secret is never printed.
type secret string

const hiddenSecret = "(secret)"

// String, GoString and MarshalText keep a secret out of messages, logs and JSON.
func (secret) String() string               { return hiddenSecret }
func (secret) GoString() string             { return hiddenSecret }
func (secret) MarshalText() ([]byte, error) { return []byte(hiddenSecret), nil }

// A keyDraft is an access key and where it stands.
type keyDraft struct {
	accessKey
	node   *yaml.Node
	values map[string]*yaml.Node
}

var accessKeyKeys = []configKey[accessKey]{
	{"id", func(r *configReader, n *yaml.Node, k *accessKey) { r.text(n, &k.ID) }},
	{"secret", func(r *configReader, n *yaml.Node, k *accessKey) { r.text(n, (*string)(&k.Secret)) }},
	{"secret_file", readSecretFile},
	{"buckets", func(r *configReader, n *yaml.Node, k *accessKey) { r.texts(n, &k.Buckets) }},
	{"prefixes", func(r *configReader, n *yaml.Node, k *accessKey) { r.texts(n, &k.Prefixes) }},
	{"read_only", func(r *configReader, n *yaml.Node, k *accessKey) { r.boolean(n, &k.ReadOnly) }},
}

// Bounds of access keys, in bytes: those of AWS, with room for other makers of keys.
const (
	minKeyID, maxKeyID = 3, 128
	minSecret          = 8
	maxSecret          = 1024
)

func readAccessKeys(r *configReader, n *yaml.Node, d *configDraft) {
	for _, item := range r.list(n) {
		k := keyDraft{node: item}
		k.values = readMapping(r, item, accessKeyKeys, &k.accessKey)
		if k.values == nil {
			continue
		}
		k.check(r)
		for _, other := range d.keys {
			if other.ID == k.ID && k.ID != "" {
				r.fault(k.values["id"], "%s stands above already; take one of them out", k.ID)
			}
		}
		d.keys = append(d.keys, k)
	}
}

// check looks at id and secret. An id is not printed before it is seen to be one: it may be the secret, in the wrong place.
func (k *keyDraft) check(r *configReader) {
	id, inline, file := k.values["id"], k.values["secret"], k.values["secret_file"]
	where := inline
	if inline == nil {
		where = file
	}
	switch {
	case inline != nil && file != nil:
		r.fault(file, "the secret stands in secret, too; take one of them out")
	case id == nil || where == nil:
		r.fault(k.node, "an access key needs both: write {id: NAME, secret: \"${VARIABLE}\"}, or {id: NAME, secret_file: FILE}")
	case !r.bad[id] && !isKeyID(k.ID):
		r.fault(id, "cannot be the id of an access key; write %d to %d visible ASCII characters other than / and ,", minKeyID, maxKeyID)
	case r.bad[where]:
	case len(k.Secret) < minSecret:
		r.fault(where, "the secret is shorter than %d characters; write a longer one", minSecret)
	case len(k.Secret) > maxSecret:
		r.fault(where, "the secret is longer than %d bytes", maxSecret)
	}
}

// isKeyID says whether a signature can name the key: a slash ends it in a credential, a comma the credential itself.
func isKeyID(s string) bool {
	if len(s) < minKeyID || len(s) > maxKeyID {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c > '~' || c == '/' || c == ',' {
			return false
		}
	}
	return true
}

// readSecretFile takes a file's only line for the secret, without the end of the line.
func readSecretFile(r *configReader, n *yaml.Node, k *accessKey) {
	var path string
	if r.file(n, &path); path == "" {
		return
	}
	text, ok := r.private(n, path)
	if !ok {
		return
	}
	text = bytes.TrimSuffix(bytes.TrimSuffix(text, []byte("\n")), []byte("\r"))
	if bytes.ContainsAny(text, "\n\r\x00") {
		r.fault(n, "%s has several lines, or is no text; write the secret alone into it", path)
		return
	}
	k.Secret = secret(text)
}

// finishAccessKeys compares what keys may reach with what there is.
func (d *configDraft) finishAccessKeys(r *configReader) {
	for _, k := range d.keys {
		for _, f := range d.Rules.CheckAccess(&k.Access) {
			if list := k.values[f.Field]; !r.bad[list] && !r.bad[list.Content[f.Index]] {
				r.fault(list.Content[f.Index], "%s", f.Problem)
			}
		}
		d.AccessKeys = append(d.AccessKeys, k.accessKey)
	}
}

func (c *config) key(id string) *accessKey {
	for i := range c.AccessKeys {
		if c.AccessKeys[i].ID == id {
			return &c.AccessKeys[i]
		}
	}
	return nil
}

// secretOf looks an access key up for the verifier of signatures.
func (c *config) secretOf(id string) (secret string, ok bool) {
	if k := c.key(id); k != nil {
		return string(k.Secret), true
	}
	return "", false
}

// accessOf looks up what an access key may do: nothing, if there is no such key.
func (c *config) accessOf(id string) *rules.Access {
	if k := c.key(id); k != nil {
		return &k.Access
	}
	return &rules.Access{Buckets: []string{""}, ReadOnly: true}
}
