package file

import (
	"encoding/xml"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

type attributesResult struct {
	XMLName      xml.Name `xml:"GetObjectAttributesResponse"`
	XMLNS        string   `xml:"xmlns,attr"`
	ETag         string   `xml:",omitempty"` // without quotes, here alone
	Checksum     *attributeSum
	ObjectParts  *attributeParts
	StorageClass string `xml:",omitempty"`
	ObjectSize   *int64
}

type attributeSum struct {
	Sums         []sumElement
	ChecksumType string
}

type attributeParts struct {
	PartsCount           int
	PartNumberMarker     int
	NextPartNumberMarker int
	MaxParts             int
	IsTruncated          bool
	Parts                []attributePart `xml:"Part"`
}

type attributePart struct {
	PartNumber int
	Size       int64
	Sums       []sumElement
}

// getAttributes tells of an object what the header x-amz-object-attributes names.
func (s *Store) getAttributes(w http.ResponseWriter, r *http.Request, n name, _ url.Values) error {
	if err := s.needBucket(n.bucket); err != nil {
		return err
	}
	asked, err := askedAttributes(r.Header)
	if err != nil {
		return err
	}
	most, err := count("x-amz-max-parts", r.Header.Get("X-Amz-Max-Parts"), maxList)
	if err != nil {
		return err
	}
	after, err := count("x-amz-part-number-marker", r.Header.Get("X-Amz-Part-Number-Marker"), 0)
	if err != nil {
		return err
	}
	f, m, err := s.openObject(n)
	if err != nil {
		return err
	}
	_ = f.Close() // of a file that was only looked at
	w.Header().Set("Last-Modified", m.modified().UTC().Format(http.TimeFormat))
	writeXML(w, r, http.StatusOK, m.attributes(asked, after, min(most, maxList)))
	return nil
}

// attributes are those that were asked for. after and most are of the page of the parts.
func (m *meta) attributes(asked []string, after, most int) *attributesResult {
	result := &attributesResult{XMLNS: xmlns}
	for _, a := range asked {
		switch a {
		case "ETag":
			result.ETag = m.etag
		case "StorageClass":
			result.StorageClass = standard
		case "ObjectSize":
			result.ObjectSize = &m.size
		case "Checksum":
			if sum := m.sum(); sum.name != "" {
				result.Checksum = &attributeSum{Sums: sum.elements(), ChecksumType: sum.kind()}
			}
		case "ObjectParts":
			result.ObjectParts = m.partsAfter(after, most)
		}
	}
	return result
}

// askedAttributes reads x-amz-object-attributes, which may be there more than once.
func askedAttributes(h http.Header) (asked []string, err error) {
	for a := range strings.SplitSeq(strings.Join(h.Values("X-Amz-Object-Attributes"), ","), ",") {
		if a = strings.TrimSpace(a); a == "" {
			continue
		}
		if !slices.Contains([]string{"ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"}, a) {
			return nil, refuse(http.StatusBadRequest, "InvalidArgument", "Invalid attribute name specified.").because("It is %q.", a)
		}
		asked = append(asked, a)
	}
	if len(asked) == 0 {
		return nil, invalidRequest("The x-amz-object-attributes header specifying the attributes to be retrieved is either missing or empty")
	}
	return asked, nil
}

// partsAfter is a page of the parts of an object, nil if it was not uploaded in parts.
func (m *meta) partsAfter(after, most int) *attributeParts {
	sizes := m.sizesOf()
	if len(sizes) == 0 {
		return nil
	}
	p := &attributeParts{PartsCount: len(sizes), PartNumberMarker: after, MaxParts: most}
	for i := after; i < len(sizes); i++ {
		if len(p.Parts) == most {
			p.IsTruncated = most > 0
			break
		}
		p.Parts = append(p.Parts, attributePart{PartNumber: i + 1, Size: sizes[i], Sums: m.partSum(i).elements()})
		p.NextPartNumberMarker = i + 1
	}
	return p
}
