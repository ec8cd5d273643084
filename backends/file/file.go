package file

import "errors"

// Options say how [Open] opens a root. The zero value is right for nearly everyone.
type Options struct {
	// UnsafeNetworkFS lets a root lie on a network file system or on FUSE. There, flock may not keep a second process on another
	// machine out, and fsync and rename may promise less than on a disk: the fence is then as good as that file system is.
	UnsafeNetworkFS bool

	// ForceSideFiles keeps metadata in side files even where extended attributes work, for trees that are backed up or copied
	// by programs that fail on attributes. Objects that have attributes keep them until they are written again.
	ForceSideFiles bool
}

var (
	// ErrLocked says that another process serves this root. The error that wraps it names the root.
	ErrLocked = errors.New("another process has this root open")

	// ErrNetworkFS says that the root lies on a file system that this machine does not have to itself. The error that wraps it
	// names the root and the file system.
	ErrNetworkFS = errors.New("network file systems are refused")

	// ErrMergesNames says that the root's file system takes two spellings for one name, so that one object would have two keys,
	// and two fences.
	ErrMergesNames = errors.New("the file system takes two spellings for one name")
)
