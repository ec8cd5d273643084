// Package misbehave is an S3 server in memory that goes by AWS's rules, and that misbehaves when it is told to: it carries requests out
// late, twice or not at all, cuts connections, lies, keeps half a body. It is for tests of what must stay true in front of such a store.
//
// What it does by itself is what AWS documents, as far as fencing leans on it: conditions are judged together with the commit, a body
// that does not come whole changes nothing, query signatures expire. Signatures are not verified, only whether there is one and what it
// covers. Every effect that a reader could see is kept in a journal and told to [Options.Applied] at the moment when it happens.
//
// All of it is deterministic but for the order of goroutines, waits with time.Sleep and channels, and so runs in virtual time
// (testing/synctest), over a [Network] in memory, too.
package misbehave
