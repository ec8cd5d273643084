package file

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/fenceproxy/fenceproxy/internal/checksum"
)

// checksumsOfUpload reads which checksums the parts and the object of an upload are to have, "" for both if its client does not say. Only CRCs of
// a whole follow from those of its parts ("Checking object integrity in Amazon S3", table of the checksum types).
func checksumsOfUpload(h http.Header) (algorithm, kind string, err error) {
	if algorithm, err = namedAlgorithm(h, checksumAlgorithm); err != nil {
		return "", "", err
	}
	if kind, err = checksumTypeOf(h); err != nil {
		return "", "", err
	}
	_, crc := crcs[algorithm]
	switch {
	case algorithm == "" && kind != "":
		return "", "", invalidRequest("The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header.")
	case algorithm == "":
		return "", "", nil
	case kind == fullObject && !crc, kind == composite && algorithm == defaultSum:
		return "", "", invalidRequest("The %s checksum type cannot be used with the %s checksum algorithm.", kind, strings.ToLower(algorithm))
	case kind == "" && algorithm == defaultSum:
		kind = fullObject
	}
	return algorithm, cmp.Or(kind, composite), nil
}

func checksumTypeOf(h http.Header) (string, error) {
	kind := strings.ToUpper(h.Get(checksumType))
	if !slices.Contains([]string{"", fullObject, composite}, kind) {
		return "", invalidHeader(checksumType)
	}
	return kind, nil
}

// shown is what S3's documents say of the checksums of an upload.
func (u *upload) shown() (algorithm, kind string) {
	return cmp.Or(u.algorithm, "null"), cmp.Or(u.kind, "null")
}

// sumsOfPart says which checksums are taken of a part whose request claims one. Where the client of the upload has named none, the object
// gets S3's default one, and that is put together of those of its parts.
func (u *upload) sumsOfPart(claimed string) ([]string, error) {
	switch {
	case u.algorithm == "":
		return []string{cmp.Or(claimed, defaultSum), defaultSum}, nil
	case claimed == "" && u.kind == composite:
		return nil, typeMismatch(u.algorithm, "null")
	case claimed != "" && claimed != u.algorithm:
		return nil, typeMismatch(u.algorithm, claimed)
	}
	return []string{u.algorithm}, nil
}

// A final is what a Complete says of the checksum of the whole object.
type final struct {
	kind string // "" if it says nothing
	sum  sum    // without a name if it says nothing
}

func finalOf(h http.Header) (f final, err error) {
	if f.kind, err = checksumTypeOf(h); err != nil {
		return f, err
	}
	found, err := sumsIn(h)
	if err != nil || len(found) == 0 {
		return f, err
	} else if len(found) > 1 {
		return f, severalSums()
	}
	a := found[0]
	f.sum = sum{name: a.Name, value: h.Get(a.Header())}
	value, count, dash := strings.Cut(f.sum.value, "-")
	if _, ok := a.Decode(value); !ok {
		return f, invalidHeader(a.Header())
	}
	if _, err := strconv.ParseUint(count, 10, 16); dash && (err != nil || a.Name == defaultSum) {
		return f, invalidHeader(a.Header())
	}
	return f, nil
}

// agrees holds what a Complete says against what its upload was created with.
func (f final) agrees(u *upload) error {
	if f.kind != "" && f.kind != cmp.Or(u.kind, fullObject) {
		_, kind := u.shown()
		return invalidRequest("The upload was created using the %s checksum mode. The complete request must use the same checksum mode.", kind)
	}
	if f.sum.name != "" && u.algorithm != "" && f.sum.name != u.algorithm {
		return typeMismatch(u.algorithm, f.sum.name)
	}
	return nil
}

// judge holds it against the object's checksum. S3 takes no notice of it where the upload has no algorithm.
func (f final) judge(u *upload, whole sum, parts int) error {
	want := f.sum.value
	if f.sum.name == "" || u.algorithm == "" {
		return nil
	}
	if whole.kind() == composite && !strings.Contains(want, "-") {
		want += fmt.Sprintf("-%d", parts)
	}
	if want != whole.value {
		return badDigest(whole.name)
	}
	return nil
}

// checkSums holds the checksums with which a Complete names a part against those of the part that is there.
func (u *upload) checkSums(p chosen) error {
	if len(p.sums) > 1 {
		return invalidPartSum(p.sums)
	}
	if len(p.sums) == 0 {
		if u.kind != composite {
			return nil
		}
		return invalidRequest("The upload was created using a %s checksum. The complete request must include the checksum for each part. "+
			"It was missing for part %d in the request.", strings.ToLower(u.algorithm), p.number)
	}
	said := p.sums[0]
	a, _ := checksum.ByName(said.name)
	if _, ok := a.Decode(said.value); !ok {
		return invalidPartSum(p.sums)
	}
	switch is, _ := sumOf(p.meta.sums, said.name); {
	case is.value == said.value:
		return nil
	case u.algorithm != "" && u.algorithm != said.name:
		return refuse(http.StatusBadRequest, "BadDigest", "The %s you specified for part %d did not match what we received.", strings.ToLower(said.name), p.number)
	}
	return invalidPart(p).because("Part %d has another %s.", p.number, said.name)
}

func invalidPartSum(sums []sum) *apiError {
	var all []string
	for _, s := range sums {
		all = append(all, s.name+":"+s.value)
	}
	return refuse(http.StatusBadRequest, "InvalidArgument", "Invalid Base64 or multiple checksums present in request").because("They are %s.", strings.Join(all, ";"))
}

// whole is the checksum of the object that these parts make, without a name if one of them does not have what it takes: then the content
// has to be read. Parts that an earlier version of this program has written have none.
func (u *upload) whole(list []chosen) sum {
	name := cmp.Or(u.algorithm, defaultSum)
	var sums []sum
	for _, p := range list {
		s, ok := sumOf(p.meta.sums, name)
		if !ok {
			return sum{}
		}
		sums = append(sums, s)
	}
	if u.kind == composite {
		return compositeOf(sums)
	}
	return joined(list, sums)
}

// compositeOf is the checksum of the checksums, with their number.
func compositeOf(sums []sum) sum {
	a, _ := checksum.ByName(sums[0].name)
	h := a.New()
	for _, s := range sums {
		b, _ := a.Decode(s.value)
		h.Write(b)
	}
	return sum{name: a.Name, value: fmt.Sprintf("%s-%d", base64.StdEncoding.EncodeToString(h.Sum(nil)), len(sums))}
}

// joined is the CRC of the whole.
func joined(list []chosen, sums []sum) sum {
	p, crc := crcs[sums[0].name], uint64(0)
	for i, s := range sums {
		next, ok := p.crcOf(s.value)
		if !ok {
			return sum{}
		}
		crc = p.join(crc, next, list[i].meta.size)
	}
	return sum{name: sums[0].name, value: p.value(crc)}
}

// partsRecord is what is kept of the parts in the object.
func (u *upload) partsRecord(list []chosen) parts {
	var sizes []int64
	var sums []byte
	for _, p := range list {
		sizes = append(sizes, p.meta.size)
		if s, ok := sumOf(p.meta.sums, u.algorithm); ok && u.kind == composite {
			b, _ := base64.StdEncoding.DecodeString(s.value)
			sums = append(sums, b...)
		}
	}
	return parts{sizes: encodeSizes(sizes), sums: base64.RawURLEncoding.EncodeToString(sums)}
}
