package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"
)

// An answer is one that has been read whole.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// fresh opens a connection for every request, and asks for no compression and no redirects.
var fresh = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true},
	Timeout:       2 * time.Minute,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// send sends one request. The target goes out as it is written: no client is between the test and the wire that could tidy it up.
// headers are names and values in turn.
func send(client *http.Client, addr, method, target string, body io.Reader, headers ...string) (answer, error) {
	r, err := http.NewRequestWithContext(context.Background(), method, "http://"+addr+"/", body)
	if err != nil {
		return answer{}, err
	}
	path, query, _ := strings.Cut(target, "?")
	r.URL = &url.URL{Scheme: "http", Host: addr, Opaque: path, RawQuery: query}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
			continue
		}
		r.Header.Add(headers[i], headers[i+1])
	}
	resp, err := client.Do(r)
	if err != nil {
		return answer{}, err
	}
	return readAnswer(resp)
}

func readAnswer(resp *http.Response) (answer, error) {
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, body}, err
}

// try sends a request on a connection of its own.
func (p *proxy) try(method, target, body string, headers ...string) (answer, error) {
	return send(fresh, p.addr, method, target, strings.NewReader(body), headers...)
}

// do is try where an answer must come.
func (p *proxy) do(t *testing.T, method, target, body string, headers ...string) answer {
	t.Helper()
	a, err := p.try(method, target, body, headers...)
	if err != nil {
		t.Fatalf("%s %s: %v", method, target, err)
	}
	return a
}

func token(n int64) string { return strconv.FormatInt(n, 10) }

// put writes with a token in the header; 0 is none.
func (p *proxy) put(t *testing.T, path string, n int64, body string) answer {
	t.Helper()
	return p.do(t, "PUT", path, body, tokenHeader(n)...)
}

func tokenHeader(n int64) []string {
	if n == 0 {
		return nil
	}
	return []string{"X-Fence-Token", token(n)}
}

func (p *proxy) get(t *testing.T, path string) answer {
	t.Helper()
	return p.do(t, "GET", path, "")
}

// holds checks what a reader of the store finds.
func (p *proxy) holds(t *testing.T, path, content string) {
	t.Helper()
	if a := p.get(t, path); a.status != 200 || string(a.body) != content {
		t.Errorf("GET %s: %d %.200q, want 200 %.200q", path, a.status, a.body, content)
	}
}

func (p *proxy) absent(t *testing.T, path string) {
	t.Helper()
	if a := p.get(t, path); a.status != 404 {
		t.Errorf("GET %s: %d %.200q, want 404", path, a.status, a.body)
	}
}

// A fence is what ?fence answers.
type fence struct {
	Resource string
	Highest  int64
	Holder   string
}

func (p *proxy) fence(t *testing.T, path string) fence {
	t.Helper()
	a := p.get(t, path+"?fence")
	a.want(t, 200)
	return a.fence(t)
}

func (a answer) fence(t *testing.T) (f fence) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(a.body))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil || a.header.Get("Content-Type") != "application/json" {
		t.Fatalf("not what ?fence answers: %v: %v %q", err, a.header, a.body)
	}
	return f
}

// marked checks where the fence of a key stands.
func (p *proxy) marked(t *testing.T, path string, highest int64) {
	t.Helper()
	if f := p.fence(t, path); f.Highest != highest {
		t.Errorf("the fence of %s stands at %d, want %d", path, f.Highest, highest)
	}
}

func (a answer) want(t *testing.T, status int) answer {
	t.Helper()
	if a.status != status {
		t.Fatalf("%d %v %.300s, want %d", a.status, a.header, a.body, status)
	}
	return a
}

// refusedAs checks status, S3's code and the name of a refusal.
func (a answer) refusedAs(t *testing.T, status int, code, name string) answer {
	t.Helper()
	if a.status != status || a.code() != code || a.header.Get("X-Fence-Error") != name {
		t.Errorf("%d %q %q: %s\nwant %d %q %q", a.status, a.code(), a.header.Get("X-Fence-Error"), a.body, status, code, name)
	}
	return a
}

// stale checks the plain refusal of a stale token.
func (a answer) stale(t *testing.T, highest int64) {
	t.Helper()
	a.refusedAs(t, 412, "PreconditionFailed", "StaleToken")
	if got := a.header.Get("X-Fence-Highest"); got != token(highest) {
		t.Errorf("X-Fence-Highest is %q, want %d", got, highest)
	}
}

// An xmlError is S3's.
type xmlError struct {
	XMLName   xml.Name `xml:"Error"`
	Code      string
	Message   string
	Condition string
	Resource  string
	RequestID string `xml:"RequestId"`
}

func (a answer) xml() (e xmlError) {
	if xml.Unmarshal(a.body, &e) != nil {
		return xmlError{}
	}
	return e
}

func (a answer) code() string { return a.xml().Code }

// api reads a page of the admin API.
func (p *proxy) api(t *testing.T, path string, into any) {
	t.Helper()
	a, err := send(fresh, p.admin, "GET", path, nil)
	if err != nil {
		t.Fatal(err)
	}
	a.want(t, 200)
	if err := json.Unmarshal(a.body, into); err != nil {
		t.Fatalf("GET %s: %v in %s", path, err, a.body)
	}
}

// A record is one of the audit log.
type record struct {
	ID        int64
	Time      string
	Last      string
	Count     int64
	Kind      string
	Code      string
	Bucket    string
	Key       string
	Operation string
	Resource  string
	Token     int64
	Highest   int64
	Holder    string
	AccessKey string `json:"access_key"`
	Client    string
	UserAgent string `json:"user_agent"`
	RequestID string `json:"request_id"`
	Detail    string
}

// audit returns the records that a query finds, the newest first.
func (p *proxy) audit(t *testing.T, query string) []record {
	t.Helper()
	var page struct{ Records []record }
	p.api(t, "/api/v1/audit?limit=1000&"+query, &page)
	return page.Records
}

// audited returns how many events a query finds, repeats included. A repeat may take a second to be counted.
func (p *proxy) audited(t *testing.T, query string, want int64) {
	t.Helper()
	var n int64
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		n = 0
		for _, r := range p.audit(t, query) {
			n += r.Count
		}
		if n == want {
			return
		}
		if n > want || time.Now().After(deadline) {
			break
		}
	}
	t.Errorf("the audit log has %d events for %s, want %d", n, query, want)
}

// A conn is a connection on which a test says every byte itself.
type conn struct {
	net.Conn
	r *bufio.Reader
}

func (p *proxy) dial(t *testing.T) *conn {
	t.Helper()
	c, err := net.Dial("tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
	return &conn{c, bufio.NewReader(c)}
}

// say sends text; what the other side thinks of it is seen in the answer.
func (c *conn) say(format string, args ...any) {
	_, _ = fmt.Fprintf(c, format, args...)
}

// answer reads the final answer to a request, and the statuses of the interim ones before it.
func (c *conn) answer(method string) (a answer, interim []int, err error) {
	for {
		resp, err := http.ReadResponse(c.r, &http.Request{Method: method})
		if err != nil {
			return answer{}, interim, err
		}
		if resp.StatusCode >= 200 {
			a, err = readAnswer(resp)
			return a, interim, err
		}
		interim = append(interim, resp.StatusCode)
	}
}

// raw sends one request line with these header lines, and reads the answer.
func (p *proxy) raw(t *testing.T, method, target, body string, headers ...string) answer {
	t.Helper()
	c := p.dial(t)
	defer c.Close()
	host := "Host: " + p.addr + "\r\n"
	lines := ""
	for _, h := range headers {
		if strings.HasPrefix(h, "Host:") {
			host = ""
		}
		lines += h + "\r\n"
	}
	c.say("%s %s HTTP/1.1\r\n%s%sContent-Length: %d\r\nConnection: close\r\n\r\n%s", method, target, host, lines, len(body), body)
	a, _, err := c.answer(method)
	if err != nil {
		t.Fatalf("%s %s: %v", method, target, err)
	}
	return a
}

// cut says that the other side ended the connection, by whatever sign.
func cut(err error) bool {
	var timeout net.Error
	return err != nil && !(errors.As(err, &timeout) && timeout.Timeout())
}
