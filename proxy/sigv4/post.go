package sigv4

import (
	"crypto/hmac"
	"encoding/hex"
	"net/http"
	"strings"
	"time"
)

// The fields of a form that sign it ("Browser-Based Uploads Using POST", "HTML Form Fields"), in the order in which S3 misses
// them.
const (
	fieldPolicy     = "policy"
	fieldAlgorithm  = "x-amz-algorithm"
	fieldCredential = "x-amz-credential"
	fieldDate       = "x-amz-date"
	fieldSignature  = "x-amz-signature"
)

var postFields = []string{fieldPolicy, fieldAlgorithm, fieldCredential, fieldDate, fieldSignature}

// maxFormAge is how old the signature of a form may be, whatever its policy says: as long as the key lives that it was made with ("Deriving
// the signing key": up to seven days). A younger one is for the policy to judge.
const maxFormAge = 7 * 24 * time.Hour

// VerifyPost tells who signed the policy of a POST form, and what the policy allows, from the fields of the form, whose names
// are in lower case. It is for the caller to have [Policy.Check] look at all fields, and to hold the file to [Policy.Length].
// Every error is an [*Error]; a form with no field of a signature gets [ErrAnonymous].
func (v *Verifier) VerifyPost(form map[string]string) (Identity, *Policy, error) {
	if err := missingFields(form); err != nil {
		return Identity{}, nil, err
	}
	if got := form[fieldAlgorithm]; got != algorithm {
		return Identity{}, nil, argument("X-Amz-Algorithm", got, "Only AWS4-HMAC-SHA256 is supported")
	}
	when, ok := parseTime([]string{form[fieldDate]})
	if !ok {
		return Identity{}, nil, argument("X-Amz-Date", form[fieldDate], "X-Amz-Date must be formated via ISO8601 Long format")
	}
	now := v.now()
	if now.Sub(when) > maxFormAge {
		return Identity{}, nil, policyExpired()
	}
	auth, err := v.verifyFields(form, when)
	if err != nil {
		return Identity{}, nil, err
	}
	policy, err := parsePolicy(form[fieldPolicy])
	if err != nil {
		return Identity{}, nil, err
	}
	if now.After(policy.expiration) {
		return Identity{}, nil, policyExpired()
	}
	return Identity{AccessKey: auth.accessKey, Region: auth.region, Time: when}, policy, nil
}

func missingFields(form map[string]string) error {
	var missing []string
	for _, name := range postFields {
		if _, ok := form[name]; !ok {
			missing = append(missing, name)
		}
	}
	_, signed := form["signature"]
	_, key := form["awsaccesskeyid"]
	switch {
	case len(missing) == 0:
		return nil
	case signed || key:
		return notV4("Signature Version 2, in the fields of a form")
	case len(missing) == len(postFields):
		return ErrAnonymous
	}
	return argument(missing[0], "", "Bucket POST must contain a field named '%s'.  If it is specified, please check the order of the fields.", missing[0])
}

// verifyFields verifies the signature: its string to sign is the policy, encoded as it came.
func (v *Verifier) verifyFields(form map[string]string, when time.Time) (auth authorization, err error) {
	credential, signature := form[fieldCredential], form[fieldSignature]
	complain := func(format string, args ...any) error { return argument(fieldCredential, credential, format, args...) }
	if err := auth.parseCredential(credential, complain); err != nil {
		return auth, err
	}
	if err := auth.checkScope(v.region, complain); err != nil {
		return auth, err
	}
	if !sameDay(when, auth.date) {
		return auth, complain("Invalid credential date %q. This date is not the same as X-Amz-Date: %q.", auth.date, when.Format(dateFormat))
	}
	key, settle := v.keyOf(auth)
	mac := sign(key[:], []byte(form[fieldPolicy]))
	if valid := hmac.Equal([]byte(hex.EncodeToString(mac[:])), []byte(signature)); !settle(valid) {
		return auth, unknownKey(auth.accessKey)
	} else if !valid {
		return auth, wrongSignature(auth.accessKey, form[fieldPolicy], signature)
	}
	// The caller must not keep a whole form alive with what is kept of an identity.
	auth.accessKey, auth.region = strings.Clone(auth.accessKey), strings.Clone(auth.region)
	return auth, nil
}

func policyExpired() error {
	return refuse(http.StatusForbidden, accessDenied, "Invalid according to Policy: Policy expired.")
}
