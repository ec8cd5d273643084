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
//   - A request with an empty Body, and a request that has none, is let through the gate before the backend is called.
//   - An answer of 2xx to a write means that it is durable, as the store understands the word. For the file store: it survives
//     the loss of power.
//   - An answer of 3xx, 4xx, 501 or 503 to a write means that it changed nothing and never will.
//   - Any other answer, a panic, or none at all means that nobody knows. The proxy then answers OutcomeUnknown and keeps the
//     write open for its settle time.
//   - When ServeHTTP has returned, a write takes effect within the backend's settle time or never. For the file store that
//     is at once: nothing of it runs on.
//   - No write is retried, hedged or repeated by the backend.
//   - A condition that the request carries (If-Match, If-None-Match) is judged together with the commit, as one step.
//   - The Context of a write's request is not cancelled once the gate is passed.
//
// Errors are S3's XML with S3's codes. Operations that a backend does not have are answered 501 NotImplemented, by name.
package backends
