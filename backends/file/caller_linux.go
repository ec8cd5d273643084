package file

import (
	"net/http"
	"strings"
)

const (
	ownerName     = "fenceproxy"
	defaultRegion = "us-east-1" // what S3 calls no region
)

type owner struct {
	ID          string
	DisplayName string
}

var theOwner = owner{ID: ownerName, DisplayName: ownerName}

// A caller is who signed a request, and for which region. The proxy has verified both. The store has one account and no region of its own:
// it calls everything the caller's own, and says that it is where the caller takes it to be, for a client that hears of another region goes
// there.
type caller struct{ accessKey, region string }

// callerOf reads the scope of the signature: ACCESSKEY/DATE/REGION/SERVICE/aws4_request. What is not signed in its header has the defaults.
func callerOf(r *http.Request) caller {
	c := caller{accessKey: ownerName, region: defaultRegion}
	_, rest, ok := strings.Cut(r.Header.Get("Authorization"), "Credential=")
	if !ok {
		return c
	}
	scope, _, _ := strings.Cut(rest, ",")
	parts := strings.Split(strings.TrimSpace(scope), "/")
	if n := len(parts); n >= 5 && parts[n-3] != "" {
		c.accessKey, c.region = strings.Join(parts[:n-4], "/"), parts[n-3]
	}
	return c
}

func (c caller) owner() owner { return owner{ID: c.accessKey, DisplayName: c.accessKey} }
