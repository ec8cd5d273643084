package integration

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
)

// What a proxy can give instead of a fence, as docs/choosing.md has it: the configurations are read from there, and so is what a client says
// that is refused.

// A choice is a section of docs/choosing.md.
type choice struct {
	config string   // its block of yaml
	said   []string // its blocks of text: what clients print
}

var fencedBlock = regexp.MustCompile("(?ms)^```(yaml|text)\n(.*?)^```$")

func readChoice(t *testing.T, section string) (c choice) {
	t.Helper()
	_, after, ok := strings.Cut(mustRead(t, "../docs/choosing.md"), "\n## "+section+"\n")
	if !ok {
		t.Fatalf("docs/choosing.md has no section %q", section)
	}
	after, _, _ = strings.Cut(after, "\n## ")
	for _, block := range fencedBlock.FindAllStringSubmatch(after, -1) {
		if block[1] == "yaml" {
			c.config += block[2]
		} else {
			c.said = append(c.said, strings.TrimSpace(block[2]))
		}
	}
	return c
}

// secrets puts those of the tests in the place of the variables of a page.
func (c choice) secrets() string {
	return regexp.MustCompile(`"\$\{(\w+)_SECRET\}"`).ReplaceAllString(c.config, `"`+secretOf("$1")+`"`)
}

// over runs a proxy with the configuration of the page, over each store, and makes the bucket demo.
func (c choice) over(t *testing.T, owner string, run func(t *testing.T, p *proxy)) {
	stores := map[string]func(t *testing.T) string{
		"file": func(*testing.T) string { return "{type: file, root: DIR/objects}" },
		"s3": func(t *testing.T) string {
			return fmt.Sprintf("{type: s3, region: %s, endpoint: \"http://%s\", path_style: true, access_key: %s, secret_key: %s}",
				gatewayRegion, startGateway(t), gatewayKey, gatewaySecret)
		},
	}
	for name, store := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t, "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\ndata: DIR/data\nbackends:\n  store: "+store(t)+"\n"+c.secrets())
			p.start(t)
			_, err := p.signer(t, owner).sdk(patient).CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String("demo")})
			must(t, "create the bucket", err)
			run(t, p)
		})
	}
}

// patient is for a loaded machine: a store that is asked by the probe makes first writes wait.
func patient(o *s3.Options) { o.RetryMaxAttempts = 10 }

// tells checks that a client was refused in the words of the page.
func (c choice) tells(t *testing.T, which int, err error) {
	t.Helper()
	if err == nil || !strings.HasSuffix(err.Error(), c.said[which]) {
		t.Errorf("the client said\n%v\ndocs/choosing.md has\n%s", err, c.said[which])
	}
}

// codeOf is the code of a refusal as the SDK tells it, "" for none.
func codeOf(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

// TestWrittenOnce: of two who write one key at once one wins, the other is told, and the winner's object stays, for whoever comes late, too.
func TestWrittenOnce(t *testing.T) {
	t.Parallel()
	page := readChoice(t, "Written once")
	page.over(t, "ANY", func(t *testing.T, p *proxy) {
		clients := [2]*s3.Client{p.signer(t, "ANY").sdk(patient), p.signer(t, "ANY").sdk(patient)}
		for round := range 20 {
			key := fmt.Sprintf("reports/%d.csv", round)
			var errs [2]error
			var race sync.WaitGroup
			for i, c := range clients {
				race.Go(func() { _, errs[i] = c.PutObject(t.Context(), putInput("demo", key, strconv.Itoa(i))) })
			}
			race.Wait()
			winner := 0
			if errs[0] != nil {
				winner = 1
			}
			if errs[winner] != nil || errs[1-winner] == nil {
				t.Fatalf("%s: %v, and %v: not one winner", key, errs[0], errs[1])
			}
			page.tells(t, 0, errs[1-winner])
			_, late := clients[winner].PutObject(t.Context(), putInput("demo", key, "late"))
			page.tells(t, 0, late)
			p.read(t, "ANY", key, strconv.Itoa(winner))
		}
	})
}

// read checks what a reader of the bucket demo finds, and returns its ETag.
func (p *proxy) read(t *testing.T, who, key string, want ...string) (content, etag string) {
	t.Helper()
	got, err := p.signer(t, who).sdk().GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String("demo"), Key: &key})
	must(t, "get "+key, err)
	defer got.Body.Close()
	body, err := io.ReadAll(got.Body)
	must(t, "read "+key, err)
	if len(want) > 0 && string(body) != want[0] {
		t.Errorf("%s holds %q, want %q", key, body, want[0])
	}
	return string(body), *got.ETag
}

// TestComparedAndSwapped: two who count in one object lose nothing, a late one is told, and one who does not compare is not let in.
func TestComparedAndSwapped(t *testing.T) {
	t.Parallel()
	page := readChoice(t, "Compared and swapped")
	page.over(t, "ANY", func(t *testing.T, p *proxy) {
		const each = 10
		put := func(content, etag string) error {
			in := putInput("demo", "state/counter", content)
			if in.IfMatch = &etag; etag == "" {
				in.IfMatch, in.IfNoneMatch = nil, aws.String("*")
			}
			_, err := p.signer(t, "ANY").sdk(patient).PutObject(t.Context(), in)
			return err
		}
		must(t, "make the counter", put("0", ""))
		_, first := p.read(t, "ANY", "state/counter")
		var race sync.WaitGroup
		for range 2 {
			race.Go(func() {
				for done := 0; done < each; {
					content, etag := p.read(t, "ANY", "state/counter")
					n, _ := strconv.Atoi(content)
					switch err := put(strconv.Itoa(n+1), etag); {
					case err == nil:
						done++
					case codeOf(err) != "PreconditionFailed" && codeOf(err) != "ConditionalRequestConflict":
						t.Errorf("to count: %v", err)
						return
					}
				}
			})
		}
		race.Wait()
		p.read(t, "ANY", "state/counter", strconv.Itoa(2*each))

		_, err := p.signer(t, "ANY").sdk().PutObject(t.Context(), putInput("demo", "state/counter", "0"))
		page.tells(t, 0, err)
		page.tells(t, 1, put("1", first))
		p.read(t, "ANY", "state/counter", strconv.Itoa(2*each))
	})
}

// TestPartitioned: each key reaches its own part, and nothing of the other's.
func TestPartitioned(t *testing.T) {
	t.Parallel()
	page := readChoice(t, "Partitioned")
	page.config = strings.Replace(page.config, "access_keys:\n", "access_keys:\n  - {id: OWNER, secret: \""+secretOf("OWNER")+"\"}\n", 1)
	page.over(t, "OWNER", func(t *testing.T, p *proxy) {
		for key, part := range map[string]string{"NODE1": "1", "NODE2": "2"} {
			_, err := p.signer(t, key).sdk(patient).PutObject(t.Context(), putInput("demo", "nodes/"+part+"/state", "of "+key))
			must(t, "write one's own part", err)
		}
		client := p.signer(t, "NODE1").sdk()
		_, err := client.PutObject(t.Context(), putInput("demo", "nodes/2/state", "of NODE1"))
		page.tells(t, 0, err)
		_, err = client.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: aws.String("demo"), Key: aws.String("nodes/2/state")})
		page.tells(t, 0, err)
		p.read(t, "OWNER", "nodes/2/state", "of NODE2")
	})
}

// TestOwnedByRouting: a consumer that has lost its partition writes with the generation that it had.
func TestOwnedByRouting(t *testing.T) {
	t.Parallel()
	readChoice(t, "One owner by routing").over(t, "ANY", func(t *testing.T, p *proxy) {
		member := func(generation, id string) *s3.Client {
			return p.signer(t, "ANY").sdk(patient, func(o *s3.Options) {
				o.BaseEndpoint = aws.String(*o.BaseEndpoint + "/~fence/" + generation + ";holder=" + id)
			})
		}
		put := func(c *s3.Client, content string) error {
			_, err := c.PutObject(t.Context(), putInput("demo", "topic/3/segment", content))
			return err
		}
		must(t, "write in generation 33", put(member("33", "consumer-1"), "of 33"))
		must(t, "write in generation 34", put(member("34", "consumer-2"), "of 34"))
		refusedBy(t, "the consumer of generation 33", put(member("33", "consumer-1"), "late"))
		if err := put(member("34", "consumer-1"), "late"); codeOf(err) != "AccessDenied" {
			t.Errorf("a second member of generation 34: %v", err)
		}
		p.read(t, "ANY", "topic/3/segment", "of 34")
	})
}

// TestChoosing: the tests that the page names are there.
func TestChoosing(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	for _, dir := range []string{".", "../proxy"} {
		entries, err := os.ReadDir(dir)
		must(t, "list the tests", err)
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), "_test.go") {
				files[dir] += mustRead(t, dir+"/"+e.Name())
			}
		}
	}
	names := regexp.MustCompile("(`proxy` )?`?(Test[A-Z]\\w+)").FindAllStringSubmatch(mustRead(t, "../docs/choosing.md"), -1)
	if len(names) < 5 {
		t.Errorf("the page names %q", names)
	}
	for _, name := range names {
		dir := "."
		if name[1] != "" {
			dir = "../proxy"
		}
		if !strings.Contains(files[dir], "func "+name[2]+"(t *testing.T)") {
			t.Errorf("docs/choosing.md names %s, which is not in %s", name[2], dir)
		}
	}
}
