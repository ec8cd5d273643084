// Package s3 forwards requests to a real S3 store. It is a backend as package backends describes one.
//
// Requests are forwarded, not rebuilt: method, key, query, headers and body go to the store as they came, and its status, headers
// and XML come back as they are. What the store can do and this package has never heard of works. What is made anew is the
// signature, with the credentials that the AWS SDK finds, and the spelling of path and query, in the one form that signatures
// have: a key is judged by its meaning, and reaches the store with that meaning.
//
// # The life of a PUT
//
// A body that comes whole has the method Pass, and the X-Amz-Content-Sha256 that the proxy has verified. Credentials are fetched
// and the request is signed first. Then Pass is called, which is the gate, and after it the request is sent, on a connection that
// was used before if one is idle; the body is read as it is sent, and kept nowhere. If Pass returns an error, 400 is answered and
// nothing was sent. Writes without a body go the same way.
//
// A body without Pass streams. Head and Expect: 100-continue go out first, so that a store that does not want the body says so
// before anything of it is read. The body then goes to the store as it comes, but for its end:
//
//	with a SHA-256 from the client, the body as it is, the hash signed; its last byte is held back
//	without, in chunks of 64 KiB, each with a signature of its own (STREAMING-AWS4-HMAC-SHA256-PAYLOAD); the last chunk
//	with data, and the signed empty one that ends the body, are held back
//	with a checksum behind it (Trailer), in the same chunks, and the checksum under a signature of its own behind the empty one
//	(STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER); it is held back with them
//
// Both are released when Body has returned io.EOF, which is the gate, and after exactly the announced number of bytes. Until then
// the store has less than it could commit: it knows the length, and it refuses a body without its hash or its last signature. A
// body that fails, or a client that leaves, cuts the connection short of that. A checksum behind the body is announced with a nil value in Trailer, and has
// its value when Body has returned io.EOF; how long it will be is known by its kind, and so is the length of the whole. A store that was seen not to know
// such bodies ([Findings].Trailers) is not sent them: 501, for the proxy is to give it that body whole. A bare UNSIGNED-PAYLOAD is never streamed: some
// stores make a torn one the object.
//
// Signed chunks are used over https, too. They are the oldest form that S3 has, add no checksum to the object, and so contradict
// none that the client or an upload in parts has chosen.
//
// Documents that come without Pass (completions, batches, tags, whatever is no object or part) are read to their end, which is
// the gate, then signed and sent. A checksum behind one goes ahead of it, as a header.
//
// # Past the gate
//
// From the gate on nothing depends on the client any more: the request to the store is not cancelled, whoever leaves. But a
// settle time is a promise to those with higher tokens, and so it is divided up:
//
//	a third, at most 20 s    from the gate until the kernel has taken the whole request. Before each Write the clock is asked, one
//	                         that goes on while the machine sleeps (CLOCK_BOOTTIME); and a timer cuts off what stands still
//	a third, at most 20 s    until the store's kernel has acknowledged it: TCP_USER_TIMEOUT, of the shorter settle time, for
//	                         connections are shared. It holds for the kernel of a process that is dead, too
//	the rest                 is the store's, from the last byte of a request to its effect
//
// The store's answer may take longer than that, up to AnswerTimeout. Then nobody knows what became of the write.
//
// A write that is cut off short of its end was not applied, and that is known, not guessed: the end of a streamed body was
// released or it was not; and connections count the bytes that the kernel took, above TLS, so a request is whole there or it is
// not. If we crash now, the kernel may still deliver what it has; the store has the whole and commits it, or has not and never
// will.
//
// # Signatures that expire
//
// A store that refuses expired signatures in the query ([Findings].Query) gets writes with one: object PUT without parts, DELETE,
// CopyObject, DeleteObjects, aborts, tags and other settings of objects. It says X-Amz-Expires, half of the settle time from the
// signing on, which was before the gate; so the store itself refuses what comes later, and that refusal proves that nothing was
// changed.
//
// For S3 such a body is UNSIGNED-PAYLOAD. What covers it is a checksum in a signed header, which the store compares before it
// commits: the client's own, for S3 takes one only; else, of an object, its CRC-64/NVME, by which S3 keeps an object that came
// without a checksum, so that it is the same as without us; else x-amz-checksum-sha256. The client's has to be of a kind that the probe
// has seen the store compare ([Findings].Checksums; it asks about CRC32, CRC32C, CRC64NVME, SHA-1 and SHA-256), and so has the
// CRC-64/NVME, which is made only of a body that is an [io.ReaderAt]. With any other the request is signed in the headers, with its
// SHA-256; and so is one that names a checksum and has none, which the store refuses, and an append, whose checksum has to be of the
// kind that the object has. Headers are signed, and stay headers.
//
// A CRC is no defence against somebody on the way who changes body and CRC together. Where that is to be feared, speak https to the store.
//
// CompleteMultipartUpload is signed in the headers, with the SHA-256 of its document: there x-amz-checksum-* are the object's,
// and S3 documents no other check of that body. So is UploadPart, for S3 refuses a checksum of another kind than that which the
// upload was created with, and a part that comes late changes nothing that a reader sees. So is what streams, and what changes
// buckets. Deadline and TCP_USER_TIMEOUT carry these alone.
//
// Expiry is judged by the store's clock, so it is the store's clock that dates the signature. Each answer's Date is the store's
// time of a moment ago, without its fraction: a lower bound. It is carried on by CLOCK_BOOTTIME, which nobody sets; the highest
// bound of the last minute counts. With s the store's true time at the signing, b that bound (s - 1 s - time on the way ≤ b ≤ s)
// and h half the settle time:
//
//	X-Amz-Date                    ⌊b⌋
//	X-Amz-Date + X-Amz-Expires    ⌊b + h⌋, which is ≤ s + h and > s + h - 2 s - time on the way
//
// So no signature lives longer than it was meant to, and little less. Below a settle time of 6 s there is not enough left to
// count on, and before the first answer there is no time to go by: then headers are signed.
//
// # What the answers mean
//
//	400                the body had no good end, or did not pass; nothing was changed
//	503                nothing was changed and never will be: the store was not reached, the credentials were not, or the connection
//	                   broke before the store could have the whole request
//	503 SlowDown       the same, and it took too long: the store did not take the request in its time after the gate, or had it when
//	                   its signature had expired, where S3 says 403 and a client would not come again
//	502, 504           the store has the request, and hung up, or did not answer in time: nobody knows
//	any other          is the store's own
//
// Two answers of the store are not taken at their word. 503 with another code than SlowDown is passed on as 502, for by the
// contract of backends 503 is a promise, and proxies on the way say it of requests that they lost after the store had them. And
// success before the end of the body was released is 502.
//
// And of a store that was seen to make torn bodies objects, a write that broke off within its body is never said to have changed
// nothing: not one in signed chunks ([Findings].Torn), and where the SHA-256 is not compared either ([Findings].Unhashed), none but
// those signed in the query. Large bodies should have a known SHA-256 there, or come whole.
//
// # Nothing is sent twice
//
// There is no retry here. Go's transport repeats, on a connection that turns out to be closed, only requests without a body that
// are reads or carry an Idempotency-Key, which we strip; and those of which not a byte had been sent, which nobody has seen.
// HTTP/2 is not spoken, and HTTP_PROXY is not looked at, for a proxy may repeat.
//
// A store that closes an idle connection in the very moment in which a DELETE goes out on it leaves the outcome unknown. So we
// close idle ones after 20 s, which is sooner than stores do.
//
// # What the store has to do
//
// Check hash and chunk signatures before it commits, judge conditions with the commit, and be strongly consistent, as AWS S3 is.
// [Store.Probe] finds out what a store does of that.
package s3
