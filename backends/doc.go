// Package backends says what a backend is: an [net/http.Handler] that speaks the S3 REST API (path style: /bucket/key) for
// requests that have been authenticated and judged already. It never sees a fencing token.
//
// # The contract
//
// The fence is only as true as these sentences are of the backend behind it. backends/backendtest holds every driver to them.
//
//   - Nothing of a write is visible to any reader before its request Body has returned io.EOF. The proxy holds the end of the
//     body back until the fence lets the write pass: the Body's last Read is the gate.
//   - A Body that returns another error changes nothing: the old object, or its absence, stays as it was, also for a reader
//     that looks meanwhile.
//   - Every write has a Body, an empty one included, and nothing happens before its end was read.
//   - A Body may be whole: it is at hand and verified, X-Amz-Content-Sha256 and Content-Length say what it is, and it has a method
//     Pass() error. A backend that has to prepare a request, to sign it for example, calls Pass once, when all is prepared and before
//     the first byte of the request goes out: then that is the gate, and where Pass fails nothing goes out. A backend that does not
//     know Pass reads to the end as ever.
//   - An answer of 2xx to a write means that it is durable, as the store understands the word. For the file store: it survives
//     the loss of power.
//   - An answer of 3xx, 4xx, 501 or 503 to a write means that it changed nothing and never will.
//   - Any other answer, a panic, or none at all means that nobody knows. The proxy then answers OutcomeUnknown and keeps the
//     write open for its settle time.
//   - When ServeHTTP has returned, a write takes effect within the backend's settle time or never. For the file store that
//     is at once: nothing of it runs on.
//   - No write is retried, hedged or repeated by the backend.
//   - A condition that the request carries (If-Match, If-None-Match) is judged together with the commit, as one step.
//   - CopyObject, CompleteMultipartUpload and DeleteObjects take effect after the end of their Body like any write, however long they
//     copy. A copy is one version of its source, with that version's metadata if it is to have the source's.
//   - DeleteObjects removes the keys that its Body names and no others, and says of each what became of it. 2xx means that what it
//     says is so; if the outcome of one key is unknown, so is that of the whole.
//   - The parts of an upload change nothing that a reader of objects can see. A Complete makes its object as one step. After an Abort
//     that was answered with success, no Complete of that upload takes effect.
//   - The Context of a write's request is not cancelled once the gate is passed.
//
// Errors are S3's XML with S3's codes. Operations that a backend does not have are answered 501 NotImplemented, by name.
package backends
