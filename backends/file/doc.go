// Package file keeps S3 objects as plain files: the object bucket/key is the file root/bucket/key, which other programs may
// read. It is a backend as package backends describes one.
//
// # The life of a PUT
//
// The body is copied into a new file in root/.fenceproxy/tmp, a directory that no bucket name can reach and no other user can
// read, and its MD5 is taken on the way. Nothing can be seen of the write yet, however long the body takes. The Body's io.EOF is
// the gate. Any other end removes the temporary file, and the store is as it was.
//
// Past the gate the file gets one extended attribute, user.fenceproxy, with its ETag, checksum, tags, content type and user metadata. It is
// set on the open file, so content and attribute share one inode and change together. Then fsync: from here on the new version
// is whole on the disk and only lacks its name. If we crash now, the next [Open] removes it.
//
// Under a lock of the key, the condition that the request carries is judged against what has the name now, and renameat gives
// the name to the new file. That one system call is the effect: a reader that opened the old file goes on reading the old
// one, and a reader that comes later gets the new one, with its metadata. If we crash now, either version may be there after
// the restart, and the client has no answer. An fsync of the directory makes the new name durable, and 200 says so.
//
// Directories that the key needs are made on the way, and each one's parent is synced before anything is put in it. A DELETE
// takes empty directories away again, for S3 has no directories. Both happen while no other write is in the tree, so a commit
// relies neither on a directory that is about to go nor on one that a loss of power could take.
//
// A write of tags has no new file: under the key's lock fsetxattr replaces the attribute of the object, which is one step, and fsync makes
// it durable. If we crash between the two, either tags may be there after the restart. Content, ETag and time of modification stay.
//
// # Copies, batches and uploads in parts
//
// A copy reads one open file of the source, so that a write which replaces the source meanwhile does not show, into a temporary
// file, and goes on as a PUT does past its gate. A source that another program changes in place meanwhile is answered 503. The
// kernel copies where it can (copy_file_range). A copy of an object that was uploaded in parts has the MD5 of its content as ETag.
//
// DeleteObjects removes key by key and syncs each directory once. A key that was not removed is an Error in the answer; one whose outcome
// is unknown makes the whole answer 500.
//
// An upload in parts is a directory, root/.fenceproxy/uploads/ID, with a file for each part and a record of bucket, key and metadata.
// While the record is there, the upload is. A part is written as a PUT is, with its MD5 in its attribute, and renamed to its number, so
// that a part is replaced as one step and is durable when it was answered. Nothing of it can be seen in the bucket.
//
// A part has a checksum, too: of the algorithm that the upload was created with, or CRC-64/NVME, from which that of the object follows.
//
// CompleteMultipartUpload reads its list, whose end is the gate, copies the parts into one temporary file, and goes on as a PUT does;
// until the object is there that needs the space twice. Then it removes the record, durably, and the parts. The object's attribute
// keeps the upload's id: a Complete that is repeated, because its answer was lost, gets the same answer while the object is still that
// upload's, whatever conditions it carries. If we crash between rename and removal, the next [Open] removes the upload, for it finds its
// object. It also removes what is left of uploads without a record, and of those whose bucket is gone. A bucket that is
// deleted takes its uploads with it, and a new one with its name does not get them back.
//
// # What the answers mean
//
// A failure before the rename, such as a full disk, is answered 503: the old version is in its place and nothing of the write will
// ever be seen. After a failed rename or unlink the store looks whether it took place, and answers 503 only if it did not. When the
// sync of the directory fails, the answer is 500: the new version can be seen, and nobody knows whether it will
// survive the loss of power. For parts and uploads, "seen" is what a list of them shows.
//
// # Keys and names
//
// Paths are never handed to the kernel. Every directory is opened by its parent's descriptor, one component at a time, and
// no symbolic link is followed below the root: a linked directory would give one object two keys, and so two fences. For the same
// reason [Open] refuses a file system that takes two spellings for one name. A bind mount inside the root, or a directory
// that is made case-insensitive by hand, is beyond what the store can see; do not make them.
//
// A file system holds less than S3 does. A key with an empty component, with "." or "..", with a component of more than 255
// bytes, or with a slash at its end is answered 400 InvalidArgument, and so is a PUT of a/b where a is an object, or of a where
// objects lie under a/. Symbolic links, FIFOs, sockets and devices are not objects: they are not listed, read, replaced
// or deleted.
//
// # Other programs
//
// They may read everything, and they may write. Metadata is believed only while the size and the time of modification recorded
// with it are the file's. After that the object has no metadata, and an ETag that ends in "-1", like that of an upload
// in parts, so that nobody takes it for an MD5. A program that changes a file in place, keeps its size and sets its time
// back is not noticed.
//
// Where extended attributes are missing or too small, their content goes into a side file, root/.fenceproxy/meta/INODE-MTIME,
// which is durable before the rename and removed after the object is replaced or deleted. Where only other tags make the record too large, the
// side file is durable before the attribute is removed, which counts as long as it is there. A copy of the tree needs cp -a or rsync
// -aX to keep the attributes, and cannot keep side files, which are bound to inodes.
//
// One process serves a root, held by flock on the root directory itself. Serving needs Linux.
package file
