package file

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	maxKey       = 1024 // bytes: S3's limit
	maxComponent = 255  // bytes: NAME_MAX
)

// A name is where an object lies: the components of bucket/key, each one a file name.
type name struct {
	bucket string
	dirs   []string // the directories between bucket and file, outermost first
	base   string   // the file; "" if the object is the last of dirs
}

// key is the object's key.
func (n name) key() string { return strings.Join(append(slices.Clone(n.dirs), n.base), "/") }

// same says whether two names are one object.
func (n name) same(o name) bool { return n.bucket == o.bucket && n.key() == o.key() }

// splitPath takes the decoded path of a request apart. Both are empty at the service level.
func splitPath(path string) (bucket, key string) {
	bucket, key, _ = strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return bucket, key
}

// checkBucket holds a name to S3's rules for buckets. They also keep a bucket from being called ".." or .fenceproxy.
func checkBucket(b string) error {
	if !validBucket(b) {
		return refuse(http.StatusBadRequest, "InvalidBucketName", "The specified bucket is not valid.").because(
			"%q is not a bucket name: 3 to 63 of a-z, 0-9, . and -, with a letter or digit at both ends, no two dots in a row, not an IP address.", b)
	}
	return nil
}

func validBucket(b string) bool {
	if len(b) < 3 || len(b) > 63 || strings.Contains(b, "..") || !alphanumeric(b[0]) || !alphanumeric(b[len(b)-1]) {
		return false
	}
	for i := range len(b) {
		if c := b[i]; !alphanumeric(c) && c != '.' && c != '-' {
			return false
		}
	}
	return !ipv4(b)
}

func alphanumeric(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }

// ipv4 also takes 192.168.05.4 for an address, as S3 does: only the form counts.
func ipv4(b string) bool {
	if _, err := netip.ParseAddr(b); err == nil {
		return true
	}
	parts := strings.Split(b, ".")
	for _, p := range parts {
		if len(p) > 3 || strings.Trim(p, "0123456789") != "" {
			return false
		}
	}
	return len(parts) == 4
}

// parseName finds the place of an object, or says what of its key a file system cannot hold.
func parseName(bucket, key string) (name, error) {
	if len(key) > maxKey {
		return name{}, keyTooLong("It has %d bytes; at most %d are allowed.", len(key), maxKey)
	}
	if !utf8.ValidString(key) {
		return name{}, invalidArgument("The key is not valid UTF-8.")
	}
	parts := strings.Split(key, "/")
	last := len(parts) - 1
	for i, p := range parts {
		if p == "" && i == last && i > 0 { // a directory object
			continue
		}
		if err := checkComponent(p); err != nil {
			if namesNothing(parts) {
				return name{}, refuse(http.StatusBadRequest, "400", "Bad Request").because("The key leads out of its bucket, or to the bucket itself.")
			}
			return name{}, err
		}
	}
	return name{bucket: bucket, dirs: parts[:last], base: parts[last]}, nil
}

// namesNothing says that a key, taken for a path, leads out of its bucket or to the bucket itself. S3's answer to it has a code of its own, odd as
// it is.
func namesNothing(parts []string) bool {
	depth := 0
	for _, p := range parts {
		switch p {
		case "", ".":
		case "..":
			if depth--; depth < 0 {
				return true
			}
		default:
			depth++
		}
	}
	return depth == 0
}

func checkComponent(p string) error {
	switch {
	case p == "":
		return invalidArgument(`The file store cannot hold a key that begins with "/" or has "//" in it: a file system takes a/b and a//b for one name.`)
	case p == "." || p == "..":
		return invalidArgument("The file store cannot hold a key with a component %q: a file system gives it another meaning.", p)
	case len(p) > maxComponent:
		return keyTooLong(`The file store cannot hold more than %d bytes between two "/": this one has %d.`, maxComponent, len(p))
	case strings.IndexByte(p, 0) >= 0:
		return invalidArgument("The file store cannot hold a key with a NUL byte.")
	}
	return nil
}
