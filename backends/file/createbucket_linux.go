package file

import (
	"bytes"
	"encoding/xml"
	"net/http"
	"slices"
)

// cannedACLs are the values that x-amz-acl has for a bucket. Only the first can be had.
var cannedACLs = []string{"private", "public-read", "public-read-write", "authenticated-read"}

var ownerships = []string{ownerEnforced, "BucketOwnerPreferred", "ObjectWriter"}

// refuseBucketHeaders refuses what would make the bucket another one than the store's are. Some clients always say what they do not want.
func refuseBucketHeaders(h http.Header) error {
	ownership, canned, lock := h.Get("X-Amz-Object-Ownership"), h.Get("X-Amz-Acl"), h.Get("X-Amz-Bucket-Object-Lock-Enabled")
	switch {
	case ownership != "" && !slices.Contains(ownerships, ownership):
		return invalidParameter("x-amz-object-ownership", "", "Invalid x-amz-object-ownership header: %s", ownership)
	case canned != "" && !slices.Contains(cannedACLs, canned):
		return invalidParameter("x-amz-acl", canned, "Invalid canned ACL: %s", canned)
	case ownership == ownerEnforced && canned != "" && canned != "private":
		return refuse(http.StatusBadRequest, "InvalidBucketAclWithObjectOwnership",
			"Bucket cannot have ACLs set with ObjectOwnership's BucketOwnerEnforced setting")
	case ownership != "" && ownership != ownerEnforced:
		return unimplemented("x-amz-object-ownership: %s is not implemented by the file store: its buckets have no access control lists.", ownership)
	case lock == "false":
		h = h.Clone()
		h.Del("X-Amz-Bucket-Object-Lock-Enabled")
	}
	return refuseHeaders(h)
}

// bucketConfiguration is the body of CreateBucket.
type bucketConfiguration struct {
	XMLName            xml.Name `xml:"CreateBucketConfiguration"`
	LocationConstraint string
	Tags               []tag       `xml:"Tags>Tag"`
	Location, Bucket   *anyElement // of directory buckets
}

// readBucketConfiguration reads the body, which may be empty, to its end: that is the gate. A location has to be where the caller takes the
// store to be; S3 has no name for us-east-1 there.
func readBucketConfiguration(r *http.Request) error {
	body, err := readBody(r, maxIdleBody)
	if err != nil || len(bytes.TrimSpace(body)) == 0 {
		return err
	}
	var c bucketConfiguration
	if err := decodeDocument(body, &c); err != nil {
		return err
	}
	at, signed := callerOf(r).region, r.Header.Get("Authorization") != ""
	switch l := c.LocationConstraint; {
	case l == defaultRegion || l != "" && signed && l != at && (l != "EU" || at != "eu-west-1"):
		return refuse(http.StatusBadRequest, "InvalidLocationConstraint", "The specified location-constraint is not valid").
			because("The request is signed for %s.", at)
	case len(c.Tags) > 0:
		if err := checkBucketTags(c.Tags); err != nil {
			return err
		}
		return unimplemented("Tags in CreateBucket are not implemented by the file store: use PutBucketTagging.")
	case c.Location != nil || c.Bucket != nil:
		return unimplemented("Directory buckets are not implemented by the file store.")
	}
	return nil
}
