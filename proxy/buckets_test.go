package proxy

import "testing"

// TestBucketsThatAreSteps: a bucket called "." would be the name of a bucket in its key, to whoever takes a path for a path.
func TestBucketsThatAreSteps(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/./b/k", "/../b/k", "/..", "/."} {
		if op, err := splitPath(path); err == nil {
			t.Errorf("%s is bucket %q, key %q", path, op.bucket, op.key)
		}
	}
}
