package file

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/fenceproxy/fenceproxy/internal/checksum"
)

// A parts is what is recorded of the parts of an object that was uploaded in parts. They are numbered from 1, without gaps. It stays as it is
// written until somebody asks: a list reads thousands of records.
type parts struct {
	sizes string // "3x5242880.17" of three parts of 5 MiB and one of 17 bytes
	sums  string // their checksums one behind the other, in Base64 for URLs, where the object's is composite; else ""
}

func (p parts) encode(q url.Values) {
	if p.sizes != "" {
		q.Set("parts", p.sizes)
	}
	if p.sums != "" {
		q.Set("part-sums", p.sums)
	}
}

func decodeParts(q url.Values) parts { return parts{sizes: q.Get("parts"), sums: q.Get("part-sums")} }

func encodeSizes(sizes []int64) string {
	var b strings.Builder
	for i := 0; i < len(sizes); {
		run := 1
		for i+run < len(sizes) && sizes[i+run] == sizes[i] {
			run++
		}
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		if run > 1 {
			fmt.Fprintf(&b, "%dx", run)
		}
		fmt.Fprint(&b, sizes[i])
		i += run
	}
	return b.String()
}

// sizesOf are the sizes of the parts of an object, nil if there are none, or none that make the object.
func (m *meta) sizesOf() (sizes []int64) {
	total := int64(0)
	for text := range strings.SplitSeq(m.parts.sizes, ".") {
		times, size, runs := strings.Cut(text, "x")
		if !runs {
			times, size = "1", text
		}
		n, err := strconv.Atoi(times)
		each, sizeErr := strconv.ParseInt(size, 10, 64)
		if err != nil || sizeErr != nil || n < 1 || n > maxParts-len(sizes) || each < 0 || each > maxObject {
			return nil
		}
		for range n {
			sizes = append(sizes, each)
			total += each
		}
	}
	if total != m.size {
		return nil
	}
	return sizes
}

// partSum is the checksum of part number i, counted from 0, if it is recorded.
func (m *meta) partSum(i int) sum {
	a, ok := checksum.ByName(m.sum().name)
	all, err := base64.RawURLEncoding.DecodeString(m.parts.sums)
	if !ok || err != nil || len(all) < (i+1)*a.Size {
		return sum{}
	}
	return sum{name: a.Name, value: base64.StdEncoding.EncodeToString(all[i*a.Size : (i+1)*a.Size])}
}
