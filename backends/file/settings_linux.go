package file

import (
	"encoding/xml"
	"net/http"
	"net/url"
)

// settings are what S3 lets one read of a bucket's configuration, and what is true of every bucket here: it has none. Clients look before
// they write, and take 501 for a broken store. Setting any of it is 501.
var settings = []operation[string]{
	{name: "GetBucketLocation", method: http.MethodGet, must: []string{"location"}, serve: setting(locationOf)},
	{name: "GetBucketAcl", method: http.MethodGet, must: []string{"acl"}, serve: setting(ownersACL)},
	{name: "GetBucketVersioning", method: http.MethodGet, must: []string{"versioning"}, serve: emptySetting("VersioningConfiguration")},
	{name: "GetBucketLogging", method: http.MethodGet, must: []string{"logging"}, serve: emptySetting("BucketLoggingStatus")},
	{name: "GetBucketNotificationConfiguration", method: http.MethodGet, must: []string{"notification"}, serve: emptySetting("NotificationConfiguration")},
	{name: "GetBucketAccelerateConfiguration", method: http.MethodGet, must: []string{"accelerate"}, serve: emptySetting("AccelerateConfiguration")},
	{name: "GetBucketRequestPayment", method: http.MethodGet, must: []string{"requestPayment"}, serve: setting(requestPayment)},
	{name: "GetBucketOwnershipControls", method: http.MethodGet, must: []string{"ownershipControls"}, serve: setting(ownershipControls)},
	unset("GetBucketPolicy", "policy", "NoSuchBucketPolicy", "The bucket policy does not exist."),
	unset("GetBucketPolicyStatus", "policyStatus", "NoSuchBucketPolicy", "The bucket policy does not exist."),
	unset("GetBucketCors", "cors", "NoSuchCORSConfiguration", "The CORS configuration does not exist"),
	unset("GetBucketLifecycleConfiguration", "lifecycle", "NoSuchLifecycleConfiguration", "The lifecycle configuration does not exist"),
	unset("GetBucketEncryption", "encryption", "ServerSideEncryptionConfigurationNotFoundError", "The server side encryption configuration was not found"),
	unset("GetBucketReplication", "replication", "ReplicationConfigurationNotFoundError", "The replication configuration was not found"),
	unset("GetBucketWebsite", "website", "NoSuchWebsiteConfiguration", "The specified bucket does not have a website configuration"),
	unset("GetObjectLockConfiguration", "object-lock", "ObjectLockConfigurationNotFoundError", "Object Lock configuration does not exist for this bucket."),
	unset("GetPublicAccessBlock", "publicAccessBlock", "NoSuchPublicAccessBlockConfiguration", "The public access block configuration was not found"),
}

// setting answers with a document that is the same for every bucket.
func setting(document func(*http.Request) any) func(*Store, http.ResponseWriter, *http.Request, string, url.Values) error {
	return func(s *Store, w http.ResponseWriter, r *http.Request, bucket string, _ url.Values) error {
		if err := s.needBucket(bucket); err != nil {
			return err
		}
		writeXML(w, r, http.StatusOK, document(r))
		return nil
	}
}

// emptySetting answers as S3 does of what was never set.
func emptySetting(element string) func(*Store, http.ResponseWriter, *http.Request, string, url.Values) error {
	return setting(func(*http.Request) any { return emptyDocument{XMLName: xml.Name{Local: element}, XMLNS: xmlns} })
}

type emptyDocument struct {
	XMLName xml.Name
	XMLNS   string `xml:"xmlns,attr"`
}

// unset is the operation that reads what a bucket here never has.
func unset(name, parameter, code, message string) operation[string] {
	return operation[string]{
		name: name, method: http.MethodGet, must: []string{parameter},
		serve: func(s *Store, _ http.ResponseWriter, _ *http.Request, bucket string, _ url.Values) error {
			if err := s.needBucket(bucket); err != nil {
				return err
			}
			return refuse(http.StatusNotFound, code, "%s", message)
		},
	}
}

type locationResult struct {
	XMLName  xml.Name `xml:"LocationConstraint"`
	XMLNS    string   `xml:"xmlns,attr"`
	Location string   `xml:",chardata"` // empty: us-east-1
}

func locationOf(r *http.Request) any {
	l := locationResult{XMLNS: xmlns}
	if region := callerOf(r).region; region != defaultRegion {
		l.Location = region
	}
	return l
}

type payment struct {
	XMLName xml.Name `xml:"RequestPaymentConfiguration"`
	XMLNS   string   `xml:"xmlns,attr"`
	Payer   string
}

func requestPayment(*http.Request) any { return payment{XMLNS: xmlns, Payer: "BucketOwner"} }

// ownerEnforced is what S3 calls a bucket without access control lists.
const ownerEnforced = "BucketOwnerEnforced"

type ownership struct {
	XMLName xml.Name `xml:"OwnershipControls"`
	XMLNS   string   `xml:"xmlns,attr"`
	Object  string   `xml:"Rule>ObjectOwnership"`
}

func ownershipControls(*http.Request) any { return ownership{XMLNS: xmlns, Object: ownerEnforced} }

type acl struct {
	XMLName xml.Name `xml:"AccessControlPolicy"`
	XMLNS   string   `xml:"xmlns,attr"`
	Owner   owner
	Grants  []grant `xml:"AccessControlList>Grant"`
}

type grant struct {
	Grantee    grantee
	Permission string
}

type grantee struct {
	XSI  string `xml:"xmlns:xsi,attr"`
	Kind string `xml:"xsi:type,attr"`
	owner
}

// ownersACL is the list of a bucket that enforces its owner, and of every object in it.
func ownersACL(r *http.Request) any {
	o := callerOf(r).owner()
	who := grantee{XSI: "http://www.w3.org/2001/XMLSchema-instance", Kind: "CanonicalUser", owner: o}
	return acl{XMLNS: xmlns, Owner: o, Grants: []grant{{Grantee: who, Permission: "FULL_CONTROL"}}}
}

func (s *Store) getObjectACL(w http.ResponseWriter, r *http.Request, n name, _ url.Values) error {
	if err := s.needObject(n); err != nil {
		return err
	}
	writeXML(w, r, http.StatusOK, ownersACL(r))
	return nil
}

// noObjectLock answers the question for an object's retention or legal hold.
func (s *Store) noObjectLock(_ http.ResponseWriter, _ *http.Request, n name, _ url.Values) error {
	if err := s.needObject(n); err != nil {
		return err
	}
	return refuse(http.StatusBadRequest, "InvalidRequest", "Bucket is missing Object Lock Configuration")
}

func (s *Store) needObject(n name) error {
	f, _, err := s.openObject(n)
	if err != nil {
		return err
	}
	return f.Close()
}
