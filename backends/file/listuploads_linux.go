package file

import (
	"cmp"
	"context"
	"encoding/xml"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

type uploadsResult struct {
	XMLName            xml.Name `xml:"ListMultipartUploadsResult"`
	XMLNS              string   `xml:"xmlns,attr"`
	Bucket             string
	KeyMarker          string
	UploadIDMarker     string `xml:"UploadIdMarker"`
	NextKeyMarker      string `xml:",omitempty"`
	NextUploadIDMarker string `xml:"NextUploadIdMarker,omitempty"`
	Prefix             string
	Delimiter          string `xml:",omitempty"`
	EncodingType       string `xml:",omitempty"`
	MaxUploads         int
	IsTruncated        bool
	Uploads            []uploadEntry `xml:"Upload"`
	CommonPrefixes     []listPrefix
}

type uploadEntry struct {
	Key          string
	UploadID     string `xml:"UploadId"`
	Initiator    owner
	Owner        owner
	StorageClass string
	Initiated    string

	ChecksumAlgorithm string `xml:",omitempty"`
	ChecksumType      string `xml:",omitempty"`
}

// An uploadsRequest is what a list of uploads asks for.
type uploadsRequest struct {
	bucket, prefix, delimiter string
	afterKey, afterID         string // list what comes after this upload, or after all of the key without an id
	max                       int
}

// listUploads lists the uploads of a bucket that are open, by key, and by time among those of one key.
func (s *Store) listUploads(w http.ResponseWriter, r *http.Request, bucket string, q url.Values) error {
	most, err := count("max-uploads", q.Get("max-uploads"), maxList)
	if err != nil {
		return err
	}
	encode, err := keyEncoding(q.Get("encoding-type"))
	if err != nil {
		return err
	}
	ask := uploadsRequest{
		bucket: bucket, prefix: q.Get("prefix"), delimiter: q.Get("delimiter"), afterKey: q.Get("key-marker"), max: min(most, maxList),
	}
	if ask.afterKey != "" { // S3 ignores an id without its key
		ask.afterID = q.Get("upload-id-marker")
	}
	if ask.afterID != "" && !validUploadID(ask.afterID) {
		return invalidMarker()
	}
	if err := s.needBucket(bucket); err != nil {
		return err
	}
	all, err := s.uploadsOf(r.Context(), ask)
	if err != nil {
		return err
	}
	result := &uploadsResult{
		XMLNS: xmlns, Bucket: bucket, KeyMarker: encode(ask.afterKey), UploadIDMarker: ask.afterID, Prefix: encode(ask.prefix),
		Delimiter: encode(ask.delimiter), EncodingType: q.Get("encoding-type"), MaxUploads: ask.max,
	}
	ask.fill(result, all, encode)
	writeXML(w, r, http.StatusOK, result)
	return nil
}

// uploadsOf returns the uploads that a list is made of, in its order.
func (s *Store) uploadsOf(ctx context.Context, ask uploadsRequest) (all []*upload, err error) {
	err = s.eachUpload(ctx, func(u *upload) error {
		if u.bucket == ask.bucket {
			u.given = given{} // nobody lists it, and there may be many
			all = append(all, u)
		}
		return nil
	})
	if err == nil {
		err = ask.placeMarker(all)
	}
	all = slices.DeleteFunc(all, func(u *upload) bool { return !strings.HasPrefix(u.key, ask.prefix) || !ask.after(u) })
	slices.SortFunc(all, func(a, b *upload) int { return cmp.Or(strings.Compare(a.key, b.key), strings.Compare(a.id, b.id)) })
	return all, err
}

// placeMarker refuses the id of another key's upload. Where the key has none, the id alone says where to go on. That of an upload which has ended
// since is as good as any: ids have an order.
func (ask *uploadsRequest) placeMarker(all []*upload) error {
	i := slices.IndexFunc(all, func(u *upload) bool { return u.id == ask.afterID })
	if i < 0 || all[i].key == ask.afterKey {
		return nil
	}
	if slices.ContainsFunc(all, func(u *upload) bool { return u.key == ask.afterKey }) {
		return invalidMarker()
	}
	ask.afterKey = max(ask.afterKey, all[i].key)
	return nil
}

func invalidMarker() *apiError {
	return refuse(http.StatusBadRequest, "InvalidArgument", "Invalid uploadId marker")
}

func (ask uploadsRequest) after(u *upload) bool {
	return u.key > ask.afterKey || ask.afterID != "" && u.key == ask.afterKey && u.id > ask.afterID
}

// fill puts a page of the uploads into the answer, rolled up into common prefixes.
func (ask uploadsRequest) fill(result *uploadsResult, all []*upload, encode func(string) string) {
	last := "" // the common prefix before
	for n, i := 0, 0; i < len(all) && ask.max > 0; i++ {
		u := all[i]
		head, _, rolled := strings.Cut(strings.TrimPrefix(u.key, ask.prefix), ask.delimiter)
		cp := ask.prefix + head + ask.delimiter
		if rolled = rolled && ask.delimiter != ""; rolled && (cp == last || cp <= ask.afterKey) {
			continue
		}
		if n == ask.max {
			result.IsTruncated = true
			return
		}
		n++
		if rolled {
			last = cp
			result.CommonPrefixes = append(result.CommonPrefixes, listPrefix{encode(cp)})
			result.NextKeyMarker, result.NextUploadIDMarker = encode(cp), ""
			continue
		}
		result.Uploads = append(result.Uploads, uploadEntry{
			Key: encode(u.key), UploadID: u.id, Initiator: theOwner, Owner: theOwner, StorageClass: "STANDARD",
			Initiated: u.initiated.UTC().Truncate(time.Second).Format(xmlTime), ChecksumAlgorithm: u.algorithm, ChecksumType: u.kind,
		})
		result.NextKeyMarker, result.NextUploadIDMarker = encode(u.key), u.id
	}
	result.NextKeyMarker, result.NextUploadIDMarker = "", "" // there is nothing after the last
}
