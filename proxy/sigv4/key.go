package sigv4

import (
	"crypto/hmac"
	"crypto/sha256"
	"strings"
	"sync"
)

// A signingKey is made of a secret for one day, region and service, and signs every request of that scope.
type signingKey [sha256.Size]byte

// deriveKey is "Signature Calculations …: Task 3: Calculate Signature".
func deriveKey(secret, date, region string) signingKey {
	k := sign([]byte("AWS4"+secret), []byte(date))
	k = sign(k[:], []byte(region))
	k = sign(k[:], []byte(service))
	return sign(k[:], []byte(terminator))
}

// sign is HMAC-SHA256.
func sign(key, message []byte) (mac signingKey) {
	h := hmac.New(sha256.New, key)
	h.Write(message)
	h.Sum(mac[:0])
	return mac
}

// keyOf finds the signing key of an authorization. The function that it returns must be told whether the key has verified a
// signature, and says whether the access key exists: for one that does not, the key is another one, which verifies nothing.
func (v *Verifier) keyOf(auth authorization) (key signingKey, settle func(verified bool) (exists bool)) {
	secret, known := v.lookup(auth.accessKey)
	if !known {
		secret = v.decoy
	}
	key, cached := v.keys.get(auth, secret)
	if !cached {
		key = deriveKey(secret, auth.date, auth.region)
	}
	return key, func(verified bool) bool {
		if verified && known && !cached {
			v.keys.put(auth, secret, key)
		}
		return known
	}
}

// maxCachedKeys bounds the cache. It is far above the keys and regions that one proxy serves.
const maxCachedKeys = 1024

// A keyCache keeps signing keys, so that a request costs one HMAC and not five. Only keys that have verified a signature are
// put in: who has no secret cannot push others out. The zero value is empty.
type keyCache struct {
	mu   sync.RWMutex
	keys map[keyName]cachedKey // guarded by mu
}

type keyName struct{ accessKey, date, region string }

type cachedKey struct {
	secret string // the one that key was made of: another one makes another key
	key    signingKey
}

func (c *keyCache) get(auth authorization, secret string) (signingKey, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	k, ok := c.keys[keyName{auth.accessKey, auth.date, auth.region}]
	return k.key, ok && k.secret == secret
}

func (c *keyCache) put(auth authorization, secret string, key signingKey) {
	// The names are parts of a request's header, which the cache must not keep alive.
	name := keyName{strings.Clone(auth.accessKey), strings.Clone(auth.date), strings.Clone(auth.region)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.keys == nil {
		c.keys = make(map[keyName]cachedKey)
	}
	if len(c.keys) >= maxCachedKeys {
		clear(c.keys) // yesterday's, for the most part; those in use are back with their next request
	}
	c.keys[name] = cachedKey{secret, key}
}
