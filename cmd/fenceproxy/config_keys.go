package main

import (
	"go.yaml.in/yaml/v3"
)

// An accessKey lets its holder in. Its secret is never printed.
type accessKey struct {
	ID     string
	Secret string
}

var accessKeyKeys = []configKey[accessKey]{
	{"id", func(r *configReader, n *yaml.Node, k *accessKey) { r.text(n, &k.ID) }},
	{"secret", func(r *configReader, n *yaml.Node, k *accessKey) { r.text(n, &k.Secret) }},
	{"buckets", nil},
	{"prefixes", nil},
	{"read_only", nil},
}

// Bounds of access keys, in bytes: those of AWS, with room for other makers of keys.
const (
	minKeyID, maxKeyID = 3, 128
	minSecret          = 8
)

func readAccessKeys(r *configReader, n *yaml.Node, d *configDraft) {
	for _, item := range r.list(n) {
		var k accessKey
		values := readMapping(r, item, accessKeyKeys, &k)
		id, secret := values["id"], values["secret"]
		switch {
		case values == nil:
			continue
		case id == nil || secret == nil:
			r.fault(item, "an access key needs both: write {id: NAME, secret: \"${VARIABLE}\"}")
		case !r.bad[id] && !isKeyID(k.ID):
			r.fault(id, "%q cannot be the id of an access key; write %d to %d visible ASCII characters other than / and ,", k.ID, minKeyID, maxKeyID)
		case !r.bad[secret] && len(k.Secret) < minSecret:
			r.fault(secret, "is shorter than %d characters; write a longer one", minSecret)
		}
		for _, other := range d.AccessKeys {
			if other.ID == k.ID && k.ID != "" {
				r.fault(id, "%s stands above already; take one of them out", k.ID)
			}
		}
		d.AccessKeys = append(d.AccessKeys, k)
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

// secretOf looks an access key up for the verifier of signatures.
func (c *config) secretOf(id string) (secret string, ok bool) {
	for _, k := range c.AccessKeys {
		if k.ID == id {
			return k.Secret, true
		}
	}
	return "", false
}
