package sigv4

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Policy is what the signer of a POST form allows ("Browser-Based Uploads Using POST", "POST Policy").
type Policy struct {
	expiration time.Time
	conditions []condition
	min, max   int64 // of the file
	ranged     bool
}

// A condition is on one field. bucket and key are fields like others.
type condition struct {
	field, value string
	prefix       bool   // starts-with
	text         string // for refusals, as S3 prints it
}

// Check holds the fields of a form, their names in lower case, to every condition. bucket is the one that the form was sent to;
// a ${filename} in the key must have been replaced. A field that no condition is on is refused, but for policy,
// x-amz-signature, file and x-ignore-*. The length of the file is for the caller to check, see [Policy.Length].
func (p *Policy) Check(fields map[string]string, bucket string) error {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !p.covers(name) && !exempt(name) {
			return extraField(name)
		}
	}
	if !p.covers("bucket") { // which S3 demands, be it a field or not
		return extraField("bucket")
	}
	for _, c := range p.conditions {
		value, ok := fields[c.field]
		if c.field == "bucket" {
			value, ok = bucket, true
		}
		if !ok || !c.met(value) {
			return conditionFailed(c.text)
		}
	}
	return nil
}

// Length is what the policy says of the length of the file, in bytes: at least min and at most max. Where it says nothing, ok
// is false.
func (p *Policy) Length() (min, max int64, ok bool) { return p.min, p.max, p.ranged }

func (p *Policy) covers(field string) bool {
	return slices.ContainsFunc(p.conditions, func(c condition) bool { return c.field == field })
}

func exempt(field string) bool {
	return field == fieldPolicy || field == fieldSignature || field == "file" || strings.HasPrefix(field, "x-ignore-")
}

func (c condition) met(value string) bool {
	if !c.prefix {
		return value == c.value
	}
	if c.field != "content-type" {
		return strings.HasPrefix(value, c.value)
	}
	for one := range strings.SplitSeq(value, ",") { // of a list of types, each one ("POST Policy", "Condition Matching")
		if !strings.HasPrefix(strings.TrimSpace(one), c.value) && !strings.HasPrefix(one, c.value) {
			return false
		}
	}
	return true
}

func parsePolicy(encoded string) (*Policy, error) {
	if encoded == "" {
		return nil, badPolicy("Expecting '{' but found End-of-Input")
	}
	text, err := base64.StdEncoding.DecodeString(encoded) // which skips line ends, as some tools break their lines
	if err != nil {
		text, err = base64.RawStdEncoding.DecodeString(encoded)
	}
	if err != nil {
		return nil, badPolicy("invalid Base64 encoding.")
	}
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(text, &parts); err != nil {
		return nil, badJSON()
	}
	if _, ok := parts["expiration"]; !ok {
		return nil, badPolicy("Policy missing expiration.")
	}
	if _, ok := parts["conditions"]; !ok {
		return nil, badPolicy("Policy missing conditions.")
	}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		if name != "expiration" && name != "conditions" {
			return nil, badPolicy("Unexpected: %q", name)
		}
	}
	p := &Policy{}
	if err := p.parseExpiration(parts["expiration"]); err != nil {
		return nil, err
	}
	return p, p.parseConditions(parts["conditions"])
}

func (p *Policy) parseExpiration(raw json.RawMessage) error {
	var text string
	if json.Unmarshal(raw, &text) != nil {
		return badJSON()
	}
	at, err := time.Parse(time.RFC3339, text) // fractions of a second, too
	if err != nil {
		return badPolicy("Invalid 'expiration' value: '%s'", shorten(text))
	}
	p.expiration = at
	return nil
}

func (p *Policy) parseConditions(raw json.RawMessage) error {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil || list == nil {
		return badPolicy("Invalid 'conditions' value: must be a List.")
	}
	for _, raw := range list {
		var fields map[string]any
		var list []json.RawMessage
		var err error
		switch {
		case json.Unmarshal(raw, &fields) == nil && fields != nil:
			err = p.parseSimple(fields)
		case json.Unmarshal(raw, &list) == nil && list != nil:
			err = p.parseList(list, string(raw))
		default:
			err = badPolicy("Invalid condition test: must be a List or Object.")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// parseSimple reads {"acl": "public-read"}.
func (p *Policy) parseSimple(fields map[string]any) error {
	if len(fields) != 1 {
		return badPolicy("Invalid Simple-Condition: Simple-Conditions must have exactly one property specified.")
	}
	for name, v := range fields {
		value, ok := v.(string)
		if !ok {
			return badPolicy("Invalid Simple-Condition: value must be a string.")
		}
		p.conditions = append(p.conditions, condition{field: strings.ToLower(name), value: value, text: fmt.Sprintf(`["eq", "$%s", "%s"]`, name, value)})
	}
	return nil
}

// parseList reads ["starts-with", "$key", "user/"] and ["content-length-range", 1, 10].
func (p *Policy) parseList(list []json.RawMessage, text string) error {
	if len(list) == 0 {
		return badPolicy("Invalid Condition: missing operation identifier.")
	}
	var operation string
	if json.Unmarshal(list[0], &operation) != nil {
		return badJSON()
	}
	switch operation {
	case "eq", "starts-with", "content-length-range":
	default:
		return badPolicy("Invalid Condition: unknown operation '%s'.", shorten(operation))
	}
	if len(list) != 3 {
		return badPolicy("Invalid %s: wrong number of arguments.", operation)
	}
	if operation == "content-length-range" {
		return p.parseRange(list[1], list[2])
	}
	var field, value string
	if json.Unmarshal(list[1], &field) != nil {
		return badJSON()
	}
	if json.Unmarshal(list[2], &value) != nil || string(list[2]) == "null" {
		var number json.Number
		if json.Unmarshal(list[2], &number) != nil || number == "" {
			return badJSON()
		}
		value = number.String()
	}
	name, ok := strings.CutPrefix(field, "$")
	if !ok || name == "" {
		return conditionFailed(text)
	}
	p.conditions = append(p.conditions, condition{field: strings.ToLower(name), value: value, prefix: operation == "starts-with", text: text})
	return nil
}

// parseRange takes numbers, with and without quotes. Of several ranges, all count.
func (p *Policy) parseRange(low, high json.RawMessage) error {
	var bounds [2]int64
	for i, raw := range []json.RawMessage{low, high} {
		var number json.Number // takes both
		if json.Unmarshal(raw, &number) != nil {
			return badJSON()
		}
		n, err := strconv.ParseInt(number.String(), 10, 64)
		if err != nil {
			return badJSON()
		}
		bounds[i] = n
	}
	if !p.ranged {
		p.ranged, p.max = true, math.MaxInt64
	}
	p.min, p.max = max(p.min, bounds[0]), min(p.max, bounds[1])
	return nil
}

func badPolicy(format string, args ...any) error {
	return refuse(http.StatusBadRequest, "InvalidPolicyDocument", "Invalid Policy: "+format, args...)
}

func badJSON() error { return badPolicy("Invalid JSON.") }

func extraField(name string) error {
	return refuse(http.StatusForbidden, accessDenied, "Invalid according to Policy: Extra input fields: %s", shorten(name))
}

func conditionFailed(text string) error {
	return refuse(http.StatusForbidden, accessDenied, "Invalid according to Policy: Policy Condition failed: %s", shorten(text))
}
