package checksum

import "testing"

// TestSums: the check values that each algorithm's own description gives for "123456789", or for nothing.
func TestSums(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ content, want string }{
		"CRC32":     {"123456789", "y/Q5Jg=="},
		"CRC32C":    {"123456789", "4waSgw=="},
		"CRC64NVME": {"123456789", "rosUhgp5mIg="},
		"SHA1":      {"123456789", "98O8HYCOBHMq32eZZczDTKeuNEE="},
		"SHA256":    {"123456789", "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU="},
		"SHA512":    {"", "z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DGNKHfuwvY7kxvUdBeoGlODJ6+SfaPg=="},
		"MD5":       {"123456789", "JfnnlDI7RTiF9RgfG2JNCw=="},
		"XXHASH64":  {"", "70bbN1HY6Zk="},
		"XXHASH3":   {"", "LQaABTjTlMI="},
		"XXHASH128": {"", "maoG0wFHmNhgAcMkRo1Jfw=="},
	} {
		a, ok := ByName(name)
		if !ok {
			t.Fatalf("there is no %s", name)
		}
		if got := a.Of([]byte(c.content)); got != c.want {
			t.Errorf("%s of %q: %s, want %s", name, c.content, got, c.want)
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	for _, a := range All {
		sum := a.Of([]byte("x"))
		if got, ok := a.Decode(sum); !ok || len(got) != a.Size {
			t.Errorf("%s: its own sum %s is none", a.Name, sum)
		}
		if _, ok := a.Decode(sum[1:]); ok {
			t.Errorf("%s takes a sum that is too short", a.Name)
		}
		if back, ok := ByHeader(a.Header()); !ok || back.Name != a.Name {
			t.Errorf("%s has the header %s, and that leads to %q", a.Name, a.Header(), back.Name)
		}
	}
}
