package proxy

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fenceproxy/fenceproxy/tokens"
)

func TestChannels(t *testing.T) {
	for _, c := range []struct {
		target  string
		headers []string
		token   tokens.Token
		holder  string
		path    string
	}{
		{"/b/a", nil, 0, "", "/b/a"},
		{"/b/a", []string{"X-Fence-Token: 34"}, 34, "", "/b/a"},
		{"/b/a", []string{"x-fence-token: 0x22", "X-Fence-Holder: a"}, 34, "a", "/b/a"},
		{"/~fence/34/b/a", nil, 34, "", "/b/a"},
		{"/~fence/34;holder=a/b/a", nil, 34, "a", "/b/a"},
		{"/~fence/34%3Bholder=a%2Fb/b/a", nil, 34, "a/b", "/b/a"},
		{"/%7Efence/34/b/a%2Fb+c%2Bd", nil, 34, "", "/b/a/b+c+d"},
		{"/%7efe%6Ece/34//b", nil, 34, "", "//b"},
		{"/~fence/34", nil, 34, "", "/"},
		{"/~fence/34/", nil, 34, "", "/"},
		{"/~fence/34/b/~fence/35", nil, 34, "", "/b/~fence/35"},
		{"/b/~fence/35", nil, 0, "", "/b/~fence/35"},
		{"/b/a", []string{"X-Amz-Security-Token: fence=34"}, 34, "", "/b/a"},
		{"/b/a", []string{"X-Amz-Security-Token: fence=34;holder=a"}, 34, "a", "/b/a"},
		{"/b/a", []string{"X-Amz-Security-Token: FwoGZXIvYXdzEBY"}, 0, "", "/b/a"},
		{"/~fence/34/b/a", []string{"X-Fence-Token: 34", "X-Amz-Security-Token: fence=34;holder=a", "X-Fence-Holder: a"}, 34, "a", "/b/a"},
		{"/~fence/34/b/a", []string{"X-Fence-Holder: a"}, 34, "a", "/b/a"},
		{"/b/a?prefix=X-Fence-Token", nil, 0, "", "/b/a"},
	} {
		r := httptest.NewRequest("PUT", "http://host"+c.target, nil)
		for _, h := range c.headers {
			name, value, _ := strings.Cut(h, ": ")
			r.Header.Add(name, value)
		}
		id, path, err := identify(r)
		if err != nil || id.token != c.token || id.holder != c.holder || path != c.path {
			t.Errorf("%s %q: token %d, holder %q, path %q, %v", c.target, c.headers, id.token, id.holder, path, err)
		}
	}
}

// TestBadTokens: whatever is wrong with a token, it is never taken for none.
func TestBadTokens(t *testing.T) {
	for _, c := range []struct {
		target  string
		headers []string
	}{
		{"/b/a", []string{"X-Fence-Token: 34", "X-Fence-Token: 34"}},
		{"/b/a", []string{"X-Fence-Token: "}},
		{"/b/a", []string{"X-Fence-Token: -1"}},
		{"/b/a", []string{"X-Fence-Token: 0"}},
		{"/b/a", []string{"X-Fence-Token: 9223372036854775808"}},
		{"/b/a", []string{"X-Fence-Token: 34,35"}},
		{"/b/a", []string{"X-Fence-Token: 3 4"}},
		{"/b/a", []string{"X-Fence-Token: 34;holder=a"}},
		{"/b/a", []string{"X-Fence-Holder: a"}},
		{"/b/a", []string{"X-Fence-Token: 34", "X-Fence-Holder: "}},
		{"/b/a", []string{"X-Fence-Token: 34", "X-Fence-Holder: a", "X-Fence-Holder: a"}},
		{"/b/a", []string{"X-Fence-Token: 34", "X-Fence-Holder: a b"}},
		{"/~fence/34/b/a", []string{"X-Fence-Token: 35"}},
		{"/~fence/34;holder=a/b/a", []string{"X-Fence-Holder: b"}},
		{"/~fence//b/a", nil},
		{"/~fence", nil},
		{"/~fence/x/b/a", nil},
		{"/~fence/34;/b/a", nil},
		{"/~fence/34;holder=/b/a", nil},
		{"/~fence/34;holder=a;holder=b/b/a", nil},
		{"/~fence/34;owner=a/b/a", nil},
		{"/~fence/34/~fence/34/b/a", nil},
		{"/b/a", []string{"X-Amz-Security-Token: fence="}},
		{"/b/a", []string{"X-Amz-Security-Token: fence=34;holder=a b"}},
		{"/b/a", []string{"X-Amz-Security-Token: fence=34", "X-Amz-Security-Token: fence=34"}},
		{"/b/a", []string{"X-Amz-Security-Token: other", "X-Amz-Security-Token: fence=34"}},
		{"/b/a", []string{"X-Amz-Security-Token: fence=34", "X-Fence-Token: 35"}},
	} {
		r := httptest.NewRequest("PUT", "http://host"+c.target, nil)
		for _, h := range c.headers {
			name, value, _ := strings.Cut(h, ": ")
			r.Header.Add(name, value)
		}
		_, _, err := identify(r)
		var bad *badTokenError
		if !errors.As(err, &bad) {
			t.Errorf("%s %q: %v; want a bad token", c.target, c.headers, err)
		}
	}
}

// TestTokensInTheQueryAreNotLost: in whatever spelling, a token in the query counts, or is refused; it is never read past.
func TestTokensInTheQueryAreNotLost(t *testing.T) {
	for _, query := range []string{
		"X-Fence-Token=34", "x-fence-token=34", "X%2DFence-Token=34", "a=1&X-Amz-Security-Token=fence%3D34", "X-Fence-Token=0x22&b",
	} {
		for _, method := range []string{"GET", "PUT"} {
			id, _, err := identify(httptest.NewRequest(method, "http://host/b/a?"+query, nil))
			if err != nil || id.token != 34 {
				t.Errorf("%s ?%s: token %d, %v; want 34", method, query, id.token, err)
			}
		}
	}
	for _, query := range []string{"X-Fence-Holder=a", "X-Fence-Token", "X-Fence-Token=34&X-Fence-Token=34", "X-Fence-Token=34;holder=a", "X-Fence-Token=-1"} {
		var bad *badTokenError
		if id, _, err := identify(httptest.NewRequest("PUT", "http://host/b/a?"+query, nil)); !errors.As(err, &bad) {
			t.Errorf("?%s: %+v, %v; want a bad token", query, id, err)
		}
	}
}

func TestBackendsDoNotSeeTheFence(t *testing.T) {
	r := httptest.NewRequest("PUT", "http://host/~fence/34/b/a%2Bb", nil)
	r.Header.Set("X-Fence-Token", "34")
	r.Header.Set("X-Fence-Holder", "a")
	r.Header.Set("X-Amz-Security-Token", "fence=34")
	r.Header.Set("X-Amz-Meta-Kept", "yes")
	x := &exchange{r: r}
	var err error
	if x.who, x.path, err = identify(r); err != nil {
		t.Fatal(err)
	}
	out := x.toBackend()
	if out.URL.Path != "/b/a+b" || out.URL.RawPath != "" || out.Header.Get("X-Amz-Meta-Kept") != "yes" {
		t.Errorf("path %q (%q), headers %v", out.URL.Path, out.URL.RawPath, out.Header)
	}
	for name := range out.Header {
		if strings.HasPrefix(name, "X-Fence-") || name == "X-Amz-Security-Token" {
			t.Errorf("the backend sees %s", name)
		}
	}
	if r.Header.Get("X-Fence-Token") != "34" {
		t.Error("the client's own headers were changed")
	}
}
