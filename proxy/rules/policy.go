package rules

import (
	"fmt"
	"strings"
)

// A TokenPolicy says which writes need a token. The zero value is Optional.
type TokenPolicy int

const (
	Optional TokenPolicy = iota // a write without one is let in until the resource was fenced
	Required                    // every write needs one
	Off                         // the resource is not fenced
)

// A ReadPolicy says what a token on a read does. The zero value is Announce.
type ReadPolicy int

const (
	Announce ReadPolicy = iota // it is raised before the store is asked
	Plain                      // nothing
)

// BucketWrites says what becomes of writes to a bucket itself: creating it, deleting it, its settings. The zero value is
// Allow.
type BucketWrites int

const (
	Allow BucketWrites = iota // they pass without a token
	Deny                      // they are refused
	Fence                     // they are fenced, by the resource "bucket/"
)

// What the configuration writes for each value, in the order of the constants.
var (
	tokenPolicies = []string{"optional", "required", "off"}
	readPolicies  = []string{"announce", "plain"}
	bucketWrites  = []string{"allow", "deny", "fence"}
)

func (p TokenPolicy) String() string  { return name(tokenPolicies, int(p)) }
func (p ReadPolicy) String() string   { return name(readPolicies, int(p)) }
func (w BucketWrites) String() string { return name(bucketWrites, int(w)) }

// ParseTokenPolicy reads optional, required or off. The error says what there is.
func ParseTokenPolicy(s string) (TokenPolicy, error) { return parse[TokenPolicy](tokenPolicies, s) }

// ParseReadPolicy reads announce or plain. The error says what there is.
func ParseReadPolicy(s string) (ReadPolicy, error) { return parse[ReadPolicy](readPolicies, s) }

// ParseBucketWrites reads allow, deny or fence. The error says what there is.
func ParseBucketWrites(s string) (BucketWrites, error) { return parse[BucketWrites](bucketWrites, s) }

func name(names []string, i int) string {
	if i < 0 || i >= len(names) {
		return fmt.Sprintf("(%d)", i)
	}
	return names[i]
}

func parse[T ~int](names []string, s string) (T, error) {
	for i, n := range names {
		if n == s {
			return T(i), nil
		}
	}
	last := len(names) - 1
	return 0, fmt.Errorf("%q must be %s or %s", s, strings.Join(names[:last], ", "), names[last])
}
