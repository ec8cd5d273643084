package file

import (
	"encoding/xml"
	"net/http"
	"net/url"
)

type listVersionsResult struct {
	XMLName xml.Name `xml:"ListVersionsResult"`
	listHead
	KeyMarker           string
	VersionIDMarker     string          `xml:"VersionIdMarker"`
	NextKeyMarker       string          `xml:",omitempty"`
	NextVersionIDMarker string          `xml:"NextVersionIdMarker,omitempty"`
	Versions            []objectVersion `xml:"Version"`
	CommonPrefixes      []listPrefix
}

type objectVersion struct {
	VersionID string `xml:"VersionId"`
	IsLatest  bool
	listObject
}

// listVersions answers as S3 does for a bucket that never had versioning: every object has one version, null. Programs that empty a
// bucket go by this list.
func (s *Store) listVersions(w http.ResponseWriter, r *http.Request, bucket string, q url.Values) error {
	version := q.Get("version-id-marker")
	switch _, marked := q["key-marker"]; {
	case version != "" && !marked:
		return invalidParameter("version-id-marker", version, "A version-id marker cannot be specified without a key marker.")
	case version != "" && version != nullVersion:
		return invalidParameter("version-id-marker", version, "Invalid version id specified")
	}
	ask, err := parseList(bucket, q, q.Get("key-marker"))
	if err != nil {
		return err
	}
	found, err := s.list(r.Context(), ask)
	if err != nil {
		return err
	}
	who := callerOf(r).owner()
	entries := found.entries(&who)
	result := listVersionsResult{
		listHead: found.head(), KeyMarker: ask.encode(ask.after), VersionIDMarker: version, CommonPrefixes: entries.CommonPrefixes,
	}
	for _, o := range entries.Contents {
		result.Versions = append(result.Versions, objectVersion{VersionID: nullVersion, IsLatest: true, listObject: o})
	}
	if found.more {
		result.NextKeyMarker = ask.encode(found.last())
		if found.items[len(found.items)-1].meta != nil {
			result.NextVersionIDMarker = nullVersion
		}
	}
	writeXML(w, r, http.StatusOK, result)
	return nil
}
