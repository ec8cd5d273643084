package localname

import "testing"

func TestIs(t *testing.T) {
	for host, want := range map[string]bool{
		"127.0.0.1": true, "127.0.0.1:9000": true, "[::1]:9000": true, "[::1]": true, "::1": true, "localhost": true, "LOCALHOST:80": true,
		"localhost.": true, "bucket.localhost:9000": true, "": false, "10.1.2.3": true,
		"evil.example": false, "evil.example:9000": false, "127.0.0.1.evil.example": false, "localhost.evil.example": false, "notlocalhost": false,
		"[evil]": false,
	} {
		if Is(host) != want {
			t.Errorf("%q: %v", host, !want)
		}
	}
}
