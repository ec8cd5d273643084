package file

import (
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"golang.org/x/sys/unix"
)

// An apiError is an answer that is not success, in S3's words.
type apiError struct {
	status  int
	code    string
	message string
	detail  string // what S3's own sentence does not say, "" if it says all

	argument, value string // what InvalidArgument is about, "" if it does not say
}

func (e *apiError) Error() string { return e.code + ": " + e.sentence() }

// sentence is all that there is to say.
func (e *apiError) sentence() string {
	if e.detail == "" {
		return e.message
	}
	return e.message + " " + e.detail
}

// because adds to S3's own sentence what it leaves out.
func (e *apiError) because(format string, args ...any) *apiError {
	e.detail = fmt.Sprintf(format, args...)
	return e
}

func refuse(status int, code, format string, args ...any) *apiError {
	return &apiError{status: status, code: code, message: fmt.Sprintf(format, args...)}
}

func notImplemented(format string, args ...any) *apiError {
	return refuse(http.StatusNotImplemented, "NotImplemented", format, args...)
}

// unimplemented answers in S3's words, with the name of what is not there.
func unimplemented(format string, args ...any) *apiError {
	return notImplemented("A header you provided implies functionality that is not implemented.").because(format, args...)
}

func invalidArgument(format string, args ...any) *apiError {
	return refuse(http.StatusBadRequest, "InvalidArgument", format, args...)
}

// invalidParameter refuses a parameter of the query in S3's words.
func invalidParameter(name, value, format string, args ...any) *apiError {
	e := invalidArgument(format, args...)
	e.argument, e.value = name, value
	return e
}

func noSuchBucket(bucket string) *apiError {
	return refuse(http.StatusNotFound, "NoSuchBucket", "The specified bucket does not exist.").because("It is %s.", bucket)
}

func noSuchKey() *apiError {
	return refuse(http.StatusNotFound, "NoSuchKey", "The specified key does not exist.")
}

func preconditionFailed(condition string) *apiError {
	return refuse(http.StatusPreconditionFailed, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold.").
		because("This one does not: %s.", condition)
}

// The codes of a key that a file system cannot hold beside another one are no S3 codes, and their status is not 409: some clients
// repeat what was answered 409.

func isDirectory(base string) *apiError {
	return refuse(http.StatusBadRequest, "ExistingObjectIsDirectory",
		"The file store cannot hold this key: there are objects whose keys begin with %q, and a directory cannot be a file too.", base+"/")
}

func parentIsFile(dir string) *apiError {
	return refuse(http.StatusBadRequest, "ObjectParentIsFile",
		"The file store cannot hold this key: %q, a part of it, is an object, and a file cannot be a directory too.", dir)
}

func keyTooLong(format string, args ...any) *apiError {
	return refuse(http.StatusBadRequest, "KeyTooLongError", "Your key is too long.").because(format, args...)
}

// unchanged answers a write that failed before it could take effect: 503 promises that it never will.
func unchanged(step string, err error) error {
	if _, ok := errors.AsType[*apiError](err); ok {
		return err
	}
	if errors.Is(err, unix.ENAMETOOLONG) {
		return keyTooLong("The file system cannot hold this name.")
	} else if errors.Is(err, unix.EILSEQ) {
		return invalidArgument("The file system cannot hold this name: %s.", reason(err))
	}
	return refuse(http.StatusServiceUnavailable, "ServiceUnavailable", "Nothing was changed: %s failed: %s.", step, reason(err))
}

// unknown answers a write of which nobody knows whether it took effect, or whether it will survive the loss of power.
func unknown(step string, err error) error {
	return refuse(http.StatusInternalServerError, "InternalError",
		"The outcome is unknown: %s failed: %s. The change may be visible, and may or may not be durable.", step, reason(err))
}

// reason says in an operator's words what an error of the system is. It never names a path.
func reason(err error) string {
	errno, ok := errors.AsType[unix.Errno](err)
	if !ok {
		return err.Error()
	}
	switch errno {
	case unix.ENOSPC:
		return "the disk is full"
	case unix.EDQUOT:
		return "the disk quota is used up"
	case unix.EROFS:
		return "the file system is read-only"
	case unix.EXDEV:
		return "the bucket lies on another file system than the root"
	}
	return errno.Error()
}

// errorBody is S3's error document.
type errorBody struct {
	XMLName   xml.Name `xml:"Error"`
	Code      string
	Message   string
	Detail    string `xml:",omitempty"`
	Argument  string `xml:"ArgumentName,omitempty"`
	Value     string `xml:"ArgumentValue,omitempty"`
	Resource  string
	RequestID string `xml:"RequestId"`
}

// writeError answers err. It is the only place that does.
func writeError(w http.ResponseWriter, r *http.Request, err error) {
	e, ok := errors.AsType[*apiError](err)
	if !ok { // a read that failed: writes go through unchanged and unknown
		e = refuse(http.StatusInternalServerError, "InternalError", "%s.", reason(err))
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			e = refuse(http.StatusServiceUnavailable, "SlowDown", "%s.", reason(err))
		} else if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
			e = refuse(http.StatusForbidden, "AccessDenied", "The server may not read this: %s.", reason(err))
		}
	}
	writeXML(w, r, e.status, errorBody{
		Code: e.code, Message: e.message, Detail: e.detail, Argument: e.argument, Value: e.value, Resource: r.URL.Path, RequestID: w.Header().Get("x-amz-request-id"),
	})
}

// writeXML answers with an S3 document, or with its headers alone to a HEAD.
func writeXML(w http.ResponseWriter, r *http.Request, status int, document any) {
	body, err := xml.Marshal(document)
	if err != nil {
		panic(err) // our own types always marshal
	}
	body = append([]byte(xml.Header), body...)
	w.Header().Set("Content-Type", "application/xml")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // a client that has gone needs no answer
	}
}
