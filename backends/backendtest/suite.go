// Package backendtest holds any backend to what package backends promises, and to how S3 behaves.
//
// A driver's test is a few lines: make a Harness that opens the driver, and Run it. A fault that is found in one driver becomes a
// test here for all of them.
package backendtest

import (
	"net/http"
	"testing"
)

// A Harness says how to get at the backend under test, and what it is known not to do.
type Harness struct {
	// Open returns the backend. It is called once in each test and closes the backend in t.Cleanup. What it returns may stand on a
	// server that others use too: the suite makes its own buckets, with names of their own, and removes them.
	Open func(t *testing.T) http.Handler

	// Whole gives the backend bodies that are whole, as far as a test has all of a body at hand: they have a Pass, and come with the
	// X-Amz-Content-Sha256 that the proxy says of them.
	Whole bool

	// NoConditionalPut and NoConditionalDelete are set where the store is known to ignore If-Match and If-None-Match there.
	NoConditionalPut    bool
	NoConditionalDelete bool

	// The same for the destination of CopyObject, for CompleteMultipartUpload, and for the entries of DeleteObjects.
	NoConditionalCopy     bool
	NoConditionalComplete bool
	NoConditionalBatch    bool

	// AllOperations is set where sub-resources that the contract does not ask for work, such as tagging. Where it is not, they must be answered 501, lest a
	// PUT of an object's tags become its content.
	AllOperations bool

	// NoDirectoryObjects is set where an object whose key ends with a slash cannot be had: 501.
	NoDirectoryObjects bool

	// TreeKeys is set where keys are paths of a file system: no key may be a directory of another, and what a path cannot be is
	// refused.
	TreeKeys bool
}

// Run runs the whole suite against a backend that does not have more operations than the contract asks for and keeps keys as paths of
// a file system.
func Run(t *testing.T, open func(t *testing.T) http.Handler) {
	Harness{Open: open, TreeKeys: true}.Run(t)
}

// Run runs the whole suite.
func (h Harness) Run(t *testing.T) {
	for _, test := range []struct {
		name string
		skip bool
		run  func(*client)
	}{
		{name: "Write/RoundTrip", run: testRoundTrip},
		{name: "Write/Metadata", run: testMetadata},
		{name: "Write/KeptHeaders", run: testKeptHeaders},
		{name: "Write/EmptyBody", run: testEmptyBody},
		{name: "Write/Overwrite", run: testOverwrite},
		{name: "Write/BodyFails", run: testBodyFails},
		{name: "Write/BodyFailsFirst", run: testBodyFailsFirst},
		{name: "Write/HeldEnd", run: testHeldEnd},
		{name: "Write/HeldEndOfMany", run: testHeldEndOfMany},
		{name: "Write/WrongLength", run: testWrongLength},
		{name: "Write/MissingBucket", run: testMissingBucket},
		{name: "Write/TooMuchMetadata", run: testTooMuchMetadata},
		{name: "Write/Delete", run: testDelete},
		{name: "Write/SharedPrefixes", run: testSharedPrefixes},
		{name: "Write/OtherOperations", skip: h.AllOperations, run: testOtherOperations},
		{name: "Conditions/Put", skip: h.NoConditionalPut, run: testConditionalPut},
		{name: "Conditions/PutAtCommit", skip: h.NoConditionalPut, run: testConditionAtCommit},
		{name: "Conditions/PutForms", skip: h.NoConditionalPut, run: testConditionForms},
		{name: "Conditions/RaceToBeFirst", skip: h.NoConditionalPut, run: testRaceToBeFirst},
		{name: "Conditions/RaceToReplace", skip: h.NoConditionalPut, run: testRaceToReplace},
		{name: "Conditions/Delete", skip: h.NoConditionalDelete, run: testConditionalDelete},
		{name: "Conditions/DeleteRace", skip: h.NoConditionalDelete || h.NoConditionalPut, run: testDeleteRace},
		{name: "Conditions/DeleteSize", skip: h.NoConditionalDelete, run: testDeleteConditions},
		{name: "Copy/RoundTrip", run: testCopy},
		{name: "Copy/Metadata", run: testCopyMetadata},
		{name: "Copy/Refused", run: testCopyRefused},
		{name: "Copy/SourceConditions", run: testCopySourceConditions},
		{name: "Copy/Conditions", skip: h.NoConditionalCopy, run: testCopyConditions},
		{name: "Copy/OneVersion", run: testCopyOneVersion},
		{name: "Batch/Delete", run: testBatch},
		{name: "Batch/Malformed", run: testBatchMalformed},
		{name: "Batch/BodyFails", run: testBatchBodyFails},
		{name: "Batch/Conditions", skip: h.NoConditionalBatch, run: testBatchConditions},
		{name: "Batch/KeysThatCannotBe", skip: !h.TreeKeys, run: testBatchTreeKeys},
		{name: "Multipart/RoundTrip", run: testMultipart},
		{name: "Multipart/RandomParts", run: testMultipartRandom},
		{name: "Multipart/Replaced", run: testPartReplaced},
		{name: "Multipart/BodyFails", run: testPartBodyFails},
		{name: "Multipart/HeldEnd", run: testCompleteHeldEnd},
		{name: "Multipart/Refused", run: testMultipartRefused},
		{name: "Multipart/NoSuchUpload", run: testNoSuchUpload},
		{name: "Multipart/Repeated", run: testCompleteRepeated},
		{name: "Multipart/Abort", run: testAbort},
		{name: "Multipart/Copy", run: testPartCopy},
		{name: "Multipart/ListParts", run: testListParts},
		{name: "Multipart/ListUploads", run: testListUploads},
		{name: "Multipart/Conditions", skip: h.NoConditionalComplete, run: testConditionalComplete},
		{name: "Multipart/RaceToComplete", run: testCompleteRace},
		{name: "Multipart/RaceWithAbort", run: testAbortRace},
		{name: "Multipart/Bucket", run: testUploadsOfBucket},
		{name: "Read/Missing", run: testReadMissing},
		{name: "Read/Head", run: testHead},
		{name: "Read/Ranges", run: testRanges},
		{name: "Read/Conditions", run: testConditionalReads},
		{name: "Read/Overrides", run: testOverrides},
		{name: "Read/OneVersion", run: testOneVersion},
		{name: "Read/Parts", run: testPartReads},
		{name: "Attributes/Object", run: testAttributes},
		{name: "Attributes/Parts", run: testAttributesOfParts},
		{name: "Checksums/Stored", run: testChecksums},
		{name: "Checksums/Refused", run: testChecksumsRefused},
		{name: "Checksums/Trailer", run: testChecksumTrailer},
		{name: "Checksums/Copied", run: testChecksumsCopied},
		{name: "Checksums/Parts", run: testChecksumsOfParts},
		{name: "Checksums/CompleteRefused", run: testCompleteChecksumsRefused},
		{name: "Tags/RoundTrip", run: testTags},
		{name: "Tags/Refused", run: testTagsRefused},
		{name: "Tags/HeldEnd", run: testTagsHeldEnd},
		{name: "Tags/Copied", run: testTagsCopied},
		{name: "Tags/Race", run: testTagsRace},
		{name: "Keys/Spellings", run: testSpellings},
		{name: "Keys/Refused", run: testRefusedKeys},
		{name: "Keys/Tree", skip: !h.TreeKeys, run: testTreeKeys},
		{name: "Keys/Directory", skip: h.NoDirectoryObjects, run: testDirectoryObject},
		{name: "Keys/DirectoryWithContent", skip: !h.TreeKeys || h.NoDirectoryObjects, run: testDirectoryWithContent},
		{name: "Buckets", run: testBuckets},
		{name: "Buckets/List", run: testListBuckets},
		{name: "Buckets/Create", skip: h.AllOperations, run: testCreateBucket},
		{name: "Buckets/Tags", skip: h.NoDirectoryObjects, run: testBucketTags},
		{name: "Buckets/Settings", skip: h.AllOperations, run: testSettings},
		{name: "List/Order", run: testListOrder},
		{name: "List/Parameters", run: testListParameters},
		{name: "List/FirstVersion", run: testListFirstVersion},
		{name: "List/Echo", run: testListEcho},
		{name: "List/Versions", run: testListVersions},
		{name: "List/Model", run: testListModel},
		{name: "HTTP/RoundTrip", run: testHTTPRoundTrip},
		{name: "HTTP/CutBody", run: testHTTPCutBody},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.skip {
				t.Skip("the harness says that this backend does not do this")
			}
			test.run(newClient(t, h.Open(t), h.Whole))
		})
	}
}
