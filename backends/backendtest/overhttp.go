package backendtest

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
)

// testHTTPRoundTrip puts net/http between: what it makes of the handler's headers is what clients see.
func testHTTPRoundTrip(c *client) {
	server := httptest.NewServer(c.backend)
	defer server.Close()
	for _, content := range []string{"", "small", random(3 << 20)} {
		c.put("key", content, "Content-Encoding", "identity")
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			r, err := http.NewRequest(method, server.URL+c.key("key"), nil)
			if err != nil {
				c.Fatal(err)
			}
			r.Header.Set("Accept-Encoding", "identity")
			answer, err := server.Client().Do(r)
			if err != nil {
				c.Fatal(err)
			}
			body, err := io.ReadAll(answer.Body)
			_ = answer.Body.Close()
			if err != nil || answer.StatusCode != 200 || answer.ContentLength != int64(len(content)) || method == http.MethodGet && string(body) != content {
				c.Errorf("%s of %d bytes: %d, Content-Length %d, %d bytes, %v", method, len(content), answer.StatusCode, answer.ContentLength, len(body), err)
			}
		}
	}
	for method, want := range map[string]int{http.MethodGet: 404, http.MethodHead: 404, http.MethodDelete: 204} {
		r, _ := http.NewRequest(method, server.URL+c.key("none"), nil)
		answer, err := server.Client().Do(r)
		if err != nil {
			c.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != want {
			c.Errorf("%s of an absent key: %d, want %d", method, answer.StatusCode, want)
		}
	}
}

// testHTTPCutBody cuts the connection in the middle of a body, as a client does that is killed.
func testHTTPCutBody(c *client) {
	served := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.backend.ServeHTTP(w, r)
		served <- struct{}{}
	}))
	defer server.Close()
	c.put("key", "old")
	for _, sent := range []int{0, 10, 1 << 20} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			c.Fatal(err)
		}
		_, err = fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: s3\r\nContent-Length: %d\r\n\r\n%s", c.key("key"), sent+10, strings.Repeat("x", sent))
		if err != nil {
			c.Fatal(err)
		}
		_ = conn.Close()
		<-served
		c.holds("key", "old")
	}
}
