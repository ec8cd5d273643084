package file

import (
	"errors"
	"net/http"
	"net/url"

	"golang.org/x/sys/unix"
)

// tagsAttribute is that of a bucket's directory which has its tags, as x-amz-tagging would have them.
const tagsAttribute = attribute + ".tags"

const maxBucketTags = 50 // S3's limit

func (s *Store) getBucketTagging(w http.ResponseWriter, r *http.Request, bucket string, _ url.Values) error {
	fd, err := s.openBucket(bucket)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	text, err := s.readAttributeOf(fd, tagsAttribute)
	if err != nil {
		return err
	}
	tags, ok := decodeTags(string(text))
	if !ok || len(tags) == 0 {
		return refuse(http.StatusNotFound, "NoSuchTagSet", "The TagSet does not exist.")
	}
	writeXML(w, r, http.StatusOK, taggingDocument{XMLNS: xmlns, Tags: tags})
	return nil
}

// putBucketTagging replaces the tags of a bucket. As strace shows it, with fd the bucket:
//
//	                                                   the gate: Body, the tags, returned io.EOF
//	openat(root, BUCKET, O_DIRECTORY|O_NOFOLLOW)       = fd
//	fsetxattr(fd, "user.fenceproxy.tags", …)           the effect
//	fsync(fd)                                          then 204
func (s *Store) putBucketTagging(w http.ResponseWriter, r *http.Request, bucket string, _ url.Values) error {
	tags, err := readTagSet(r)
	if err != nil {
		return err
	}
	if err := checkBucketTags(tags); err != nil {
		return err
	}
	return s.changeBucketTags(w, bucket, func(fd int) error {
		text := []byte(encodeTags(tags))
		err := s.setAttributeOf(fd, tagsAttribute, text)
		switch {
		case errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM):
			return unimplemented("The file system of this store keeps no extended attributes: PutBucketTagging is not implemented here.")
		case tooSmall(err) && len(text) <= usualAttribute:
			return unchanged("setting the attribute of the bucket's directory", err)
		case tooSmall(err):
			return refuse(http.StatusBadRequest, "InvalidTag", "The file system has no room for so many or so long tags with a directory.")
		case err != nil:
			return unknown("setting the attribute of the bucket's directory", err)
		}
		return nil
	})
}

func checkBucketTags(tags []tag) error {
	if len(tags) > maxBucketTags {
		return badRequest("Bucket tag count cannot be greater than %d", maxBucketTags)
	}
	return checkTagTexts(tags)
}

// deleteBucketTagging takes the tags away, as putBucketTagging sets them.
func (s *Store) deleteBucketTagging(w http.ResponseWriter, r *http.Request, bucket string, _ url.Values) error {
	if err := drain(r); err != nil {
		return err
	}
	return s.changeBucketTags(w, bucket, func(fd int) error {
		err := s.sys.fremovexattr(fd, tagsAttribute)
		if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
			return nil
		} else if err != nil {
			return unknown("removing the attribute of the bucket's directory", err)
		}
		return nil
	})
}

// changeBucketTags makes a change of the open directory of a bucket durable, while nobody takes the bucket away.
func (s *Store) changeBucketTags(w http.ResponseWriter, bucket string, change func(fd int) error) error {
	s.tree.RLock()
	defer s.tree.RUnlock()
	fd, err := s.openBucket(bucket)
	if err != nil {
		return unchanged("opening the bucket", err)
	}
	defer unix.Close(fd)
	if err := change(fd); err != nil {
		return err
	}
	if err := s.sys.fsync(fd); err != nil {
		return unknown("syncing the bucket's directory", err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// openBucket opens the directory of a bucket, or fails with NoSuchBucket.
func (s *Store) openBucket(bucket string) (int, error) {
	fd, err := s.walk(bucket, nil)
	if err == errNoBucket {
		return -1, noSuchBucket(bucket)
	}
	return fd, err
}
