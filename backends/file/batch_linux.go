package file

import (
	"encoding/xml"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const maxBatch = 1000 // keys of one DeleteObjects: S3's limit

// deleteDocument is the body of DeleteObjects. What may be there once is a list: of two keys in one entry, the proxy could have judged
// the other one.
type deleteDocument struct {
	XMLName xml.Name `xml:"Delete"`
	Quiet   []string
	Objects []deleteEntry `xml:"Object"`
	Others  []anyElement  `xml:",any"`
}

type deleteEntry struct {
	Key       []string
	VersionID []string     `xml:"VersionId"`
	ETag      []string     `xml:"ETag"`
	Others    []anyElement `xml:",any"`
}

type anyElement struct{ XMLName xml.Name }

type deleteResult struct {
	XMLName xml.Name `xml:"DeleteResult"`
	XMLNS   string   `xml:"xmlns,attr"`
	Deleted []deletedKey
	Errors  []keyError `xml:"Error"`
}

type deletedKey struct {
	Key       string
	VersionID string `xml:"VersionId,omitempty"`
}

type keyError struct {
	Key       string
	VersionID string `xml:"VersionId,omitempty"`
	Code      string
	Message   string
}

// A doomed is one entry of a batch, and what became of it.
type doomed struct {
	key     string
	version string // as the entry has it
	at      name
	c       conditions
	err     *apiError // nil: it is gone
}

// deleteObjects removes many objects. Each is removed as deleteObject does it, but a directory is synced once, after the last key in it:
//
//	openat(…, COMPONENT, O_DIRECTORY|O_NOFOLLOW) …  = dir, for each key
//	newfstatat(dir, NAME, AT_SYMLINK_NOFOLLOW)      and openat, fstat, fgetxattr if there is a condition to judge
//	unlinkat(dir, NAME)                             the effect on this key
//	fstat(dir)                                      is it the directory of the key before?
//	fsync(dir)                                      once all keys in it are gone, and 200 after the last directory
//	unlinkat(meta, INODE-MTIME) …                   if there are side files
//	openat, fgetxattr(COMPONENT)                    is it a directory object?
//	unlinkat(…, COMPONENT, AT_REMOVEDIR) …          until one is, or is not empty
//
// Where a removal is known not to have happened, the answer says so of its key. Where the outcome of one is unknown, nothing is said of
// any: the answer is 500.
func (s *Store) deleteObjects(w http.ResponseWriter, r *http.Request, bucket string, _ url.Values) error {
	if c, err := conditionsOf(r.Header); err != nil {
		return err
	} else if !c.none() {
		return notImplemented("A condition on all of a DeleteObjects is not implemented: they are ETags of its entries.")
	}
	var ask deleteDocument
	if err := readDocument(r, &ask); err != nil {
		return err
	}
	batch, quiet, err := ask.entries(bucket)
	if err != nil {
		return err
	}
	if err := s.needBucket(bucket); err != nil {
		return unchanged("looking for the bucket", err)
	}
	if err := s.removeAll(batch); err != nil {
		return err
	}
	result := deleteResult{XMLNS: xmlns}
	for _, d := range batch {
		if d.err != nil {
			result.Errors = append(result.Errors, keyError{Key: d.key, VersionID: d.version, Code: d.err.code, Message: d.err.sentence()})
		} else if !quiet {
			result.Deleted = append(result.Deleted, deletedKey{d.key, d.version})
		}
	}
	writeXML(w, r, http.StatusOK, result)
	return nil
}

// entries reads the document. Only what makes all of it unreadable is an error; what is wrong with one entry is that entry's.
func (ask *deleteDocument) entries(bucket string) (batch []doomed, quiet bool, err error) {
	switch n := len(ask.Objects); {
	case n == 0 || n > maxBatch:
		return nil, false, malformedXML("there are %d keys, and there must be 1 to %d", n, maxBatch)
	case len(ask.Quiet) > 1:
		return nil, false, malformedXML("there is more than one Quiet")
	case len(ask.Others) > 0:
		return nil, false, malformedXML("%s is not known in Delete", ask.Others[0].XMLName.Local)
	}
	for _, e := range ask.Objects {
		if len(e.Key) != 1 || e.Key[0] == "" || len(e.ETag) > 1 || len(e.VersionID) > 1 {
			return nil, false, malformedXML("an Object must have one Key, and at most one ETag and one VersionId")
		}
		d := doomed{key: e.Key[0], version: strings.Join(e.VersionID, "")}
		d.at, d.c, err = e.parse(bucket)
		d.err, _ = errors.AsType[*apiError](err)
		batch = append(batch, d)
	}
	return batch, len(ask.Quiet) == 1 && strings.EqualFold(strings.TrimSpace(ask.Quiet[0]), "true"), nil
}

func (e deleteEntry) parse(bucket string) (n name, c conditions, err error) {
	switch {
	case len(e.VersionID) > 0 && e.VersionID[0] != nullVersion:
		return n, c, refuse(http.StatusNotFound, "NoSuchVersion", "The specified version does not exist.").
			because("The file store keeps no versions: the only one of an object is null.")
	case len(e.Others) > 0:
		return n, c, notImplemented("%s of an entry is not implemented by the file store.", e.Others[0].XMLName.Local)
	case len(e.ETag) > 0 && strings.TrimSpace(e.ETag[0]) == "":
		return n, c, invalidArgument("An ETag of an entry is empty.")
	case len(e.ETag) > 0:
		c.ifMatch = e.ETag[0]
	}
	n, err = parseName(bucket, e.Key[0])
	return n, c, err
}

// removeAll removes what of a batch can be removed, directory by directory. It returns an error where an outcome is unknown.
func (s *Store) removeAll(batch []doomed) error {
	order := make([]int, len(batch))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return slices.Compare(batch[a].at.dirs, batch[b].at.dirs) })
	g := &group{s: s, dir: -1}
	for _, i := range order {
		d := &batch[i]
		if d.err != nil {
			continue
		}
		if err := g.remove(d); err != nil {
			g.abandon()
			return err
		}
	}
	return g.finish()
}

// A group is the keys of a batch that were removed from one directory, which is not synced yet.
type group struct {
	s       *Store
	dir     int // -1: there is none
	st      unix.Stat_t
	removed []*unix.Stat_t
	last    name
}

// remove takes one more name away. It returns only what makes the outcome of the batch unknown.
func (g *group) remove(d *doomed) error {
	dir, removed, err := g.s.remove(d.at, d.c)
	if e, ok := errors.AsType[*apiError](err); ok && e.status != http.StatusInternalServerError {
		d.err = e
		return nil
	} else if err != nil {
		return err
	}
	if dir < 0 {
		return nil
	}
	if err := g.join(dir, d.at); err != nil {
		return err
	}
	if removed != nil {
		g.removed = append(g.removed, removed)
	}
	return nil
}

// join makes an open directory the group's. It may be another one than that of the key before also where both have the same path: it
// has been pruned and made again since.
func (g *group) join(dir int, n name) error {
	var st unix.Stat_t
	if err := g.s.sys.fstat(dir, &st); err != nil {
		_ = unix.Close(dir)
		return unknown("looking at the object's directory", err)
	}
	if g.dir >= 0 && st.Ino == g.st.Ino && st.Dev == g.st.Dev {
		_ = unix.Close(dir)
		return nil
	}
	err := g.finish()
	g.dir, g.st, g.last = dir, st, n
	return err
}

// finish makes the removals of the group durable.
func (g *group) finish() error {
	if g.dir < 0 {
		return nil
	}
	err := g.s.sys.fsync(g.dir)
	g.abandon()
	if err != nil { // also if nothing was there to remove: keys of other directories are gone
		return unknown("syncing the objects' directory", err)
	}
	for _, st := range g.removed {
		if st.Nlink == 1 {
			g.s.dropSide(st)
		}
	}
	if len(g.removed) > 0 {
		g.s.prune(g.last)
	}
	g.removed = nil
	return nil
}

func (g *group) abandon() {
	if g.dir >= 0 {
		_ = unix.Close(g.dir)
		g.dir = -1
	}
}
