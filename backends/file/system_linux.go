package file

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"
)

// system is every system call that the store makes below its root while it serves. Tests put their own in to make one fail.
type system struct {
	openat    func(dir int, name string, flags int, mode uint32) (int, error)
	mkdirat   func(dir int, name string, mode uint32) error
	unlinkat  func(dir int, name string, flags int) error
	renameat  func(oldDir int, oldName string, newDir int, newName string) error
	fstat     func(fd int, st *unix.Stat_t) error
	fstatat   func(dir int, name string, st *unix.Stat_t) error
	write     func(fd int, p []byte) (int, error)
	read      func(fd int, p []byte) (int, error)
	pread     func(fd int, p []byte, off int64) (int, error)
	copyRange func(from int, off int64, to, n int) (int, error) // copy_file_range(2), to where the file to ends so far
	fsync     func(fd int) error
	syncfs    func(fd int) error
	fsetxattr func(fd int, name string, data []byte) error
	fgetxattr func(fd int, name string, p []byte) (int, error)
	getdents  func(fd int, p []byte) (int, error)

	fremovexattr func(fd int, name string) error
}

// kernel is the system that is not a test's.
var kernel = system{
	openat: func(dir int, name string, flags int, mode uint32) (fd int, err error) {
		err = again(func() error { fd, err = unix.Openat(dir, name, flags, mode); return err })
		return fd, err
	},
	mkdirat: unix.Mkdirat,
	unlinkat: func(dir int, name string, flags int) error {
		return again(func() error { return unix.Unlinkat(dir, name, flags) })
	},
	renameat: unix.Renameat,
	fstat: func(fd int, st *unix.Stat_t) error {
		return again(func() error { return unix.Fstat(fd, st) })
	},
	fstatat: func(dir int, name string, st *unix.Stat_t) error {
		return again(func() error { return unix.Fstatat(dir, name, st, unix.AT_SYMLINK_NOFOLLOW) })
	},
	write: func(fd int, p []byte) (n int, err error) {
		err = again(func() error { n, err = unix.Write(fd, p); return err })
		return n, err
	},
	read: func(fd int, p []byte) (n int, err error) {
		err = again(func() error { n, err = unix.Read(fd, p); return err })
		return n, err
	},
	pread: func(fd int, p []byte, off int64) (n int, err error) {
		err = again(func() error { n, err = unix.Pread(fd, p, off); return err })
		return n, err
	},
	copyRange: func(from int, off int64, to, n int) (done int, err error) {
		err = again(func() error { done, err = unix.CopyFileRange(from, &off, to, nil, n, 0); return err })
		return done, err
	},
	fsync:  func(fd int) error { return again(func() error { return unix.Fsync(fd) }) },
	syncfs: func(fd int) error { return again(func() error { return unix.Syncfs(fd) }) },
	fsetxattr: func(fd int, name string, data []byte) error {
		return unix.Fsetxattr(fd, name, data, 0)
	},
	fgetxattr: unix.Fgetxattr,
	getdents:  unix.Getdents,

	fremovexattr: unix.Fremovexattr,
}

// again repeats a call that a signal interrupted: the Go runtime sends itself signals.
func again(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

const (
	openDir  = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	openFile = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC // O_NONBLOCK: opening a FIFO would wait for its writer
	openNew  = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
)

// writeAll writes the whole of p.
func (sys *system) writeAll(fd int, p []byte) error {
	for len(p) > 0 {
		n, err := sys.write(fd, p)
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// readAll reads a small file of the store's own, at most limit bytes of it.
func (sys *system) readAll(fd, limit int) ([]byte, error) {
	p := make([]byte, limit)
	n := 0
	for n < limit {
		got, err := sys.read(fd, p[n:])
		if err != nil || got == 0 {
			return p[:n], err
		}
		n += got
	}
	return p, nil
}

// An entry is one name in a directory.
type entry struct {
	name string
	kind uint8 // DT_REG, DT_DIR or something that is no affair of ours
}

// entries hands every name of an open directory to each, in the kernel's order, and stops with each's first error. It asks before every
// block of names whether to go on.
func (sys *system) entries(dir int, goOn func() error, each func(entry) error) error {
	buf := make([]byte, 32<<10)
	for {
		if err := goOn(); err != nil {
			return err
		}
		n, err := sys.getdents(dir, buf)
		if err != nil || n == 0 {
			return err
		}
		for block := buf[:n]; len(block) > 0; {
			e, size := parseEntry(block)
			block = block[size:]
			if e.name == "." || e.name == ".." {
				continue
			}
			if e.kind == unix.DT_UNKNOWN {
				if e.kind, err = sys.kindOf(dir, e.name); err != nil {
					return err
				}
			}
			if err := each(e); err != nil {
				return err
			}
		}
	}
}

// parseEntry reads the first struct linux_dirent64 of block: inode and offset (8 bytes each), length (2), kind (1), name, NUL.
func parseEntry(block []byte) (entry, int) {
	size := int(binary.NativeEndian.Uint16(block[16:]))
	name, _, _ := bytes.Cut(block[19:size], []byte{0})
	return entry{name: string(name), kind: block[18]}, size
}

// kindOf asks for the kind of a name where the file system does not tell it with the name.
func (sys *system) kindOf(dir int, name string) (uint8, error) {
	var st unix.Stat_t
	switch err := sys.fstatat(dir, name, &st); {
	case errors.Is(err, fs.ErrNotExist):
		return unix.DT_UNKNOWN, nil // gone since
	case err != nil:
		return 0, err
	}
	return uint8(st.Mode & unix.S_IFMT >> 12), nil // the DT_ constants are the type bits of the mode
}

func regular(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFREG }

func directory(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

// missing says that an error means "there is no such file": the name is free, or something on the way to it is no directory.
// O_NOFOLLOW answers ELOOP for a symbolic link, O_DIRECTORY with it ENOTDIR.
func missing(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO)
}
