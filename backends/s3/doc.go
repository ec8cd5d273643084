// Package s3 forwards requests to a real S3 store. It is a backend as package backends describes one.
//
// Requests are forwarded, not rebuilt: method, key, query, headers and body go to the store as they came, and its status, headers and
// XML come back as they are. What the store can do and this package has never heard of works. What is made anew is the signature, with
// the credentials that the AWS SDK finds, and the spelling of path and query, in the one form that signatures have: a key is judged by
// its meaning, and reaches the store with that meaning.
//
// # The life of a PUT
//
// A body of up to [Options].Buffer bytes is read whole before the store hears of it. Its io.EOF is the gate. Any other end, or a
// wrong length, is answered 400, and nothing was sent. Then the request goes out, its SHA-256 signed, on a connection that was used
// before if one is idle.
//
// A larger body streams. Head and Expect: 100-continue go out first, so that a store that does not want the body says so before
// anything of it is read. The body then goes to the store as it comes, but for its end:
//
//	with a SHA-256 from the client, the body as it is, the hash signed; its last byte is held back
//	without, in chunks of 64 KiB, each with a signature of its own (STREAMING-AWS4-HMAC-SHA256-PAYLOAD); the last chunk
//	with data, and the signed empty one that ends the body, are held back
//
// Both are released when Body has returned io.EOF, which is the gate, and after exactly the announced number of bytes. Until then the
// store has less than it could commit: it knows the length, and it refuses a body without its hash or its last signature. A body that
// fails, or a client that leaves, cuts the connection short of that. A bare UNSIGNED-PAYLOAD is never sent: some stores make a torn
// one the object.
//
// Signed chunks are used over https, too. They are the oldest form that S3 has, add no checksum to the object, and so contradict
// none that the client or an upload in parts has chosen.
//
// Past the gate nothing depends on the client any more: the request to the store is not cancelled, whoever leaves. It ends with the
// store's answer, or after AnswerTimeout without one. If we crash now, the kernel may still deliver what it has; the store has
// the whole and commits it, or has not and never will.
//
// # What the answers mean
//
//	400                the body had no good end; nothing was changed
//	503                nothing was changed and never will be: the store was not reached, the credentials were not, or the connection
//	                   broke before the store could have the whole request
//	502, 504           the store has the request, and hung up, or did not answer in time: nobody knows
//	any other          is the store's own
//
// How far a request came is known, not guessed. The end of a streamed body was released or it was not; and connections count the bytes
// that the kernel took, above TLS: if they are no more than the body alone has, the request is not whole.
//
// Two answers of the store are not taken at their word. 503 with another code than SlowDown is passed on as 502, for by the contract
// of backends 503 is a promise, and proxies on the way say it of requests that they lost after the store had them. And success
// before the end of the body was released is 502.
//
// # Nothing is sent twice
//
// There is no retry here. Go's transport repeats, on a connection that turns out to be closed, only requests without a body that are
// reads or carry an Idempotency-Key, which we strip; and those of which not a byte had been sent, which nobody has seen. HTTP/2 is
// not spoken, and HTTP_PROXY is not looked at, for a proxy may repeat.
//
// A store that closes an idle connection in the very moment in which a DELETE goes out on it leaves the outcome unknown. So we close idle
// ones after 20 s, which is sooner than stores do.
//
// # What the store has to do
//
// Check hash and chunk signatures before it commits, judge conditions with the commit, and be strongly consistent, as AWS S3 is. Whether
// a store does is not found out here.
package s3
