package backendtest

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// A bucketsPage is an answer of ListBuckets.
type bucketsPage struct {
	XMLName           xml.Name `xml:"ListAllMyBucketsResult"`
	Owner             struct{ ID string }
	Names             []string `xml:"Buckets>Bucket>Name"`
	Created           []string `xml:"Buckets>Bucket>CreationDate"`
	ContinuationToken string
	Prefix            string
}

func (c *client) bucketsPage(query string) bucketsPage {
	c.Helper()
	a := c.do(http.MethodGet, "/"+query, nil)
	c.want(a, http.StatusOK, "")
	var p bucketsPage
	if err := xml.Unmarshal(a.body, &p); err != nil {
		c.Fatalf("ListBuckets: %v in %s", err, a.body)
	}
	return p
}

// testListBuckets pages through buckets of one prefix, among others.
func testListBuckets(c *client) {
	prefix := c.newBucket() + "-"
	var want []string
	for _, end := range []string{"a", "b", "c", "d", "e"} {
		b := prefix + end
		c.want(c.do(http.MethodPut, "/"+b, nil), http.StatusOK, "")
		c.Cleanup(func() { c.removeBucket(b) })
		want = append(want, b)
	}
	for _, size := range []string{"1", "2", "5", "10000"} {
		var got []string
		q := url.Values{"max-buckets": {size}, "prefix": {prefix}}
		for {
			p := c.bucketsPage("?" + q.Encode())
			got = append(got, p.Names...)
			if p.Prefix != prefix || len(p.Created) != len(p.Names) || p.Owner.ID == "" {
				c.Errorf("%+v", p)
			}
			if p.ContinuationToken == "" || len(got) > len(want) {
				break
			}
			q.Set("continuation-token", p.ContinuationToken)
		}
		if !slices.Equal(got, want) {
			c.Errorf("in pages of %s: %q, want %q", size, got, want)
		}
	}
	for _, q := range []string{"max-buckets=0", "max-buckets=-3", "max-buckets=10001", "max-buckets=x"} {
		c.want(c.do(http.MethodGet, "/?"+q, nil), http.StatusBadRequest, "InvalidArgument")
	}
}

// testCreateBucket asks for buckets that cannot be had, and for some that can in other words.
func testCreateBucket(c *client) {
	b := c.bucket + "-new"
	configuration := func(inner string) string {
		return `<CreateBucketConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/">` + inner + `</CreateBucketConfiguration>`
	}
	for _, test := range []struct {
		body, header, value string
		status              int
		code                string
	}{
		{"", "X-Amz-Object-Ownership", "BucketOwnerPreferred", 501, "NotImplemented"},
		{"", "X-Amz-Object-Ownership", "nobody", 400, "InvalidArgument"},
		{"", "X-Amz-Acl", "public-read", 501, "NotImplemented"},
		{"", "X-Amz-Acl", "everybody", 400, "InvalidArgument"},
		{"", "X-Amz-Grant-Read", "id=1", 501, "NotImplemented"},
		{"", "X-Amz-Bucket-Object-Lock-Enabled", "true", 501, "NotImplemented"},
		{"<CreateBucketConfiguration>", "", "", 400, "MalformedXML"},
		{"<Other/>", "", "", 400, "MalformedXML"},
		{configuration("<LocationConstraint>us-east-1</LocationConstraint>"), "", "", 400, "InvalidLocationConstraint"},
		{
			configuration("<LocationConstraint>eu-west-1</LocationConstraint>"),
			"Authorization", "AWS4-HMAC-SHA256 Credential=KEY/20261130/eu-central-1/s3/aws4_request, SignedHeaders=host, Signature=0", 400, "InvalidLocationConstraint",
		},
		{configuration("<Tags><Tag><Key>k</Key><Value>v</Value></Tag></Tags>"), "", "", 501, "NotImplemented"},
		{configuration("<Location><Name>use1-az4</Name><Type>AvailabilityZone</Type></Location>"), "", "", 501, "NotImplemented"},
	} {
		a := c.do(http.MethodPut, "/"+b, strings.NewReader(test.body), header(test.header, test.value)...)
		c.want(a, test.status, test.code)
		c.want(c.do(http.MethodHead, "/"+b, nil), http.StatusNotFound, "")
	}
	for _, h := range [][]string{
		nil, {"X-Amz-Object-Ownership", "BucketOwnerEnforced"}, {"X-Amz-Acl", "private"}, {"X-Amz-Bucket-Object-Lock-Enabled", "false"},
	} {
		a := c.do(http.MethodPut, "/"+b, strings.NewReader(configuration("")), h...)
		c.want(a, http.StatusOK, "")
		if a.header.Get("Location") != "/"+b {
			c.Errorf("Location is %q", a.header.Get("Location"))
		}
		c.want(c.do(http.MethodDelete, "/"+b, nil), http.StatusNoContent, "")
	}
}

func header(name, value string) []string {
	if name == "" {
		return nil
	}
	return []string{name, value}
}

// testBucketTags sets, replaces and removes the tags of a bucket.
func testBucketTags(c *client) {
	ask := func(method, body string) answer {
		return c.do(method, "/"+c.bucket+"?tagging", strings.NewReader(body))
	}
	tagging := func(tags string) string { return "<Tagging><TagSet>" + tags + "</TagSet></Tagging>" }
	one, two := "<Tag><Key>k</Key><Value>v &amp; w</Value></Tag>", "<Tag><Key>\u00fc</Key><Value></Value></Tag>"
	c.want(ask(http.MethodGet, ""), http.StatusNotFound, "NoSuchTagSet")
	for _, tags := range []string{strings.ReplaceAll(one, "&amp; ", ""), two} {
		if a := ask(http.MethodPut, tagging(tags)); a.status != http.StatusNoContent && a.status != http.StatusOK {
			c.Fatalf("PutBucketTagging: %d %s", a.status, a.body)
		}
		if a := ask(http.MethodGet, ""); a.status != http.StatusOK || !strings.Contains(string(a.body), tags) {
			c.Errorf("the tags are %s, want %s", a.body, tags)
		}
	}
	c.want(ask(http.MethodPut, tagging(one)), http.StatusBadRequest, "InvalidTag") // & is none of its characters
	c.want(ask(http.MethodPut, tagging(two+two)), http.StatusBadRequest, "InvalidTag")
	c.want(ask(http.MethodPut, "<Tagging>"), http.StatusBadRequest, "MalformedXML")
	var many strings.Builder
	for i := range 51 {
		fmt.Fprintf(&many, "<Tag><Key>k%d</Key><Value>v</Value></Tag>", i)
	}
	c.want(ask(http.MethodPut, tagging(many.String())), http.StatusBadRequest, "")
	if a := ask(http.MethodGet, ""); !strings.Contains(string(a.body), two) {
		c.Errorf("what was refused has changed the tags: %s", a.body)
	}
	c.want(ask(http.MethodDelete, ""), http.StatusNoContent, "")
	c.want(ask(http.MethodDelete, ""), http.StatusNoContent, "")
	c.want(ask(http.MethodGet, ""), http.StatusNotFound, "NoSuchTagSet")
	c.want(c.do(http.MethodPut, "/"+c.bucket+"-none?tagging", strings.NewReader(tagging(two))), http.StatusNotFound, "NoSuchBucket")
}

// testSettings reads the configuration of a bucket that has none. Clients look before they write.
func testSettings(c *client) {
	c.put("key", "content")
	for ask, has := range map[string]string{
		"?versioning": "<VersioningConfiguration", "?logging": "<BucketLoggingStatus", "?notification": "<NotificationConfiguration",
		"?accelerate": "<AccelerateConfiguration", "?requestPayment": "<Payer>BucketOwner</Payer>", "?ownershipControls": "<ObjectOwnership>BucketOwnerEnforced</",
		"?acl": "<Permission>FULL_CONTROL</Permission>", "?location": "<LocationConstraint", "/key?acl": "<Permission>FULL_CONTROL</Permission>",
	} {
		a := c.do(http.MethodGet, "/"+c.bucket+ask, nil)
		c.want(a, http.StatusOK, "")
		if !strings.Contains(string(a.body), has) || xml.Unmarshal(a.body, &struct{}{}) != nil {
			c.Errorf("GET %s: %s, want %s in it", ask, a.body, has)
		}
		if strings.Contains(string(a.body), "<Status>") {
			c.Errorf("GET %s says that something is set: %s", ask, a.body)
		}
	}
	for ask, code := range map[string]string{
		"?policy": "NoSuchBucketPolicy", "?policyStatus": "NoSuchBucketPolicy", "?cors": "NoSuchCORSConfiguration",
		"?lifecycle": "NoSuchLifecycleConfiguration", "?encryption": "ServerSideEncryptionConfigurationNotFoundError",
		"?replication": "ReplicationConfigurationNotFoundError", "?tagging": "NoSuchTagSet", "?website": "NoSuchWebsiteConfiguration",
		"?object-lock": "ObjectLockConfigurationNotFoundError", "?publicAccessBlock": "NoSuchPublicAccessBlockConfiguration",
		"/none?acl": "NoSuchKey", "/none?retention": "NoSuchKey",
	} {
		c.want(c.do(http.MethodGet, "/"+c.bucket+ask, nil), http.StatusNotFound, code)
		if strings.HasPrefix(ask, "?") {
			c.want(c.do(http.MethodGet, "/"+c.bucket+"-none"+ask, nil), http.StatusNotFound, "NoSuchBucket")
		}
	}
	for _, ask := range []string{"/key?retention", "/key?legal-hold"} {
		c.want(c.do(http.MethodGet, "/"+c.bucket+ask, nil), http.StatusBadRequest, "InvalidRequest")
	}
	c.testPreflight()
}

// testPreflight asks what a browser does before it lets a page of another origin in.
func (c *client) testPreflight() {
	for _, test := range []struct {
		path, origin, method, headers string
		status                        int
		code                          string
	}{
		{"/" + c.bucket + "/key", "https://example.com", "GET", "X-Amz-Date, Authorization", 403, "AccessForbidden"},
		{"/" + c.bucket, "https://example.com", "PUT", "", 403, "AccessForbidden"},
		{"/" + c.bucket + "-none/key", "https://example.com", "GET", "", 404, "NoSuchBucket"},
		{"/" + c.bucket + "/key", "", "GET", "", 400, "BadRequest"},
		{"/" + c.bucket + "/key", "https://example.com", "get", "", 400, "BadRequest"},
		{"/" + c.bucket + "/key", "https://example.com", "GET", "X-A, X B", 400, "BadRequest"},
	} {
		var headers []string
		for name, v := range map[string]string{
			"Origin": test.origin, "Access-Control-Request-Method": test.method, "Access-Control-Request-Headers": test.headers,
		} {
			if v != "" {
				headers = append(headers, name, v)
			}
		}
		c.want(c.do(http.MethodOptions, test.path, nil, headers...), test.status, test.code)
	}
}
