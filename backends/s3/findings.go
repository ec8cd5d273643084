package s3

// Findings are what a store was seen to do with writes.
type Findings struct {
	Put, Complete, Copy, Delete, Batch bool // conditions are honoured: stale ones refused, and of racing ones one wins

	// Torn is set where a body that is cut off in the form in which we stream it becomes the object, or where chunk signatures
	// are not checked: large bodies need a spool.
	Torn bool

	// Unhashed is set, beside Torn, where the SHA-256 in the signature of a request is not compared with the body before it becomes the object.
	Unhashed bool

	// Query is set where signatures in the query do what they are for: they are accepted with x-amz-checksum-sha256 as a signed
	// header, refused when expired, and refused when the body has another checksum.
	Query bool

	// Checksums are the kinds, sorted and spelt as in the header behind "X-Amz-Checksum-" ("Crc32", "Sha256"), that are compared with
	// the body of a PUT signed in the query: one with the right checksum is accepted, one with the wrong one refused. Query is not
	// set without Sha256.
	Checksums []string

	// Trailers is set where a checksum that comes behind a body in signed chunks does what it is for: the right one is taken, and a body with a wrong
	// one, or cut off, is refused. Elsewhere a body with such a checksum has to come whole.
	Trailers bool

	Merged []string // which spellings of a name lead to one object: "slashes" (p//q), "dots" (p/./q, p/z/../q), "case" (P/q)
	// Blind is set where the store could not be asked because of what the credentials may not do in the bucket: the findings are cautious, and may be
	// other ones in another bucket.
	Blind bool

	Skipped string   // why the store was not asked (object lock retention, no permission to write), "" if it was
	Detail  []string // one line of plain English for each question: what was asked, what the store did; or why none was asked
}
