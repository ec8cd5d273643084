package file

import (
	"bytes"
	"encoding/xml"
	"io"
	"net/http"
	"strings"
)

const (
	maxIdleBody = 64 << 10 // bytes of a body that nobody asked for
	maxDocument = 4 << 20  // bytes: 10,000 parts with their checksums have two and a half million
)

// drain reads a body that an operation has no use for: its end is the gate also then.
func drain(r *http.Request) error {
	_, err := readBody(r, maxIdleBody)
	return err
}

// readBody reads a body whole. When it has returned, the write is past the gate.
func readBody(r *http.Request, limit int64) ([]byte, error) {
	if r.Body == nil {
		return nil, nil
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	if err != nil {
		return nil, badBody(err)
	}
	if int64(len(body)) > limit {
		return nil, refuse(http.StatusBadRequest, "MaxMessageLengthExceeded", "The body is longer than the %d bytes that this operation allows.", limit)
	}
	if r.ContentLength >= 0 && int64(len(body)) != r.ContentLength {
		return nil, refuse(http.StatusBadRequest, "IncompleteBody", "The body has %d bytes; Content-Length says %d.", len(body), r.ContentLength)
	}
	return body, nil
}

// readDocument reads a body that is one XML document.
func readDocument(r *http.Request, document any) error {
	body, err := readBody(r, maxDocument)
	if err != nil {
		return err
	}
	return decodeDocument(body, document)
}

func decodeDocument(body []byte, document any) error {
	d := xml.NewDecoder(bytes.NewReader(body))
	if err := d.Decode(document); err != nil {
		return malformedXML("%s", err)
	}
	for {
		switch token, err := d.Token(); t := token.(type) {
		case nil:
			if err != io.EOF {
				return malformedXML("%s", err)
			}
			return nil
		case xml.CharData:
			if strings.TrimSpace(string(t)) != "" {
				return malformedXML("there is text after the document")
			}
		case xml.StartElement:
			return malformedXML("there is a second document after the first")
		}
	}
}

func malformedXML(format string, args ...any) *apiError {
	return refuse(http.StatusBadRequest, "MalformedXML", "The XML you provided was not well-formed or did not validate against our published schema.").
		because(format+".", args...)
}
