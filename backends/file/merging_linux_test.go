package file

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// merging is a system over a file system that takes all names of one fold for one.
func merging(fold func(string) string) *system {
	sys := kernel
	sys.fstatat = func(dir int, name string, st *unix.Stat_t) error {
		err := kernel.fstatat(dir, name, st)
		if !errors.Is(err, unix.ENOENT) {
			return err
		}
		fd, err := kernel.openat(dir, ".", openDir, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		same := ""
		if err := kernel.entries(fd, always, func(e entry) error {
			if fold(e.name) == fold(name) {
				same = e.name
			}
			return nil
		}); err != nil {
			return err
		}
		if same == "" {
			return unix.ENOENT
		}
		return kernel.fstatat(dir, same, st)
	}
	return &sys
}

// openWith is Open over another system.
func openWith(t *testing.T, root string, sys *system) error {
	t.Helper()
	s := &Store{root: root, sys: sys, minPart: minPart, rootFD: -1, ownFD: -1, tempFD: -1, sideFD: -1, uploadsFD: -1}
	t.Cleanup(func() { _ = s.Close() })
	return s.open(Options{})
}

// left is what lies in the root's directory for temporary files.
func left(t *testing.T, root string) []os.DirEntry {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(root, ownDir, tempDir))
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// TestOpenRefusesMergedNames: a file system that takes two spellings for one name gives one object two keys, and so two fences.
func TestOpenRefusesMergedNames(t *testing.T) {
	t.Parallel()
	for what, fold := range map[string]func(string) string{
		"case":         strings.ToLower,
		"Unicode form": func(name string) string { return strings.ReplaceAll(name, "e\u0301", "\u00e9") },
		"dot":          func(name string) string { return strings.TrimRight(name, ".") },
		"blank":        func(name string) string { return strings.TrimRight(name, " ") },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			if err := openWith(t, root, merging(fold)); !errors.Is(err, ErrMergesNames) {
				t.Errorf("Open: %v, want ErrMergesNames", err)
			} else if !strings.Contains(err.Error(), "two fences") {
				t.Errorf("%v does not say why", err)
			}
			if entries := left(t, root); len(entries) != 0 {
				t.Errorf("it has left %v", entries)
			}
		})
	}
}

// TestOpenWhereNamesAreApart: such a file system, too, that cannot have some of them; and what a start that was killed here has left is removed.
func TestOpenWhereNamesAreApart(t *testing.T) {
	t.Parallel()
	exact := func(name string) string { return name }
	for what, sys := range map[string]*system{"exact": merging(exact), "EINVAL": refusing(unix.EINVAL), "EILSEQ": refusing(unix.EILSEQ)} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			mine := filepath.Join(root, ownDir, tempDir)
			if err := errors.Join(os.MkdirAll(mine, 0o700), os.WriteFile(filepath.Join(mine, "Spelling-\u00e9"), nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			if err := openWith(t, root, sys); err != nil {
				t.Error(err)
			}
			if entries := left(t, root); len(entries) != 0 {
				t.Errorf("it has left %v", entries)
			}
		})
	}
}

// refusing is a system that fails to look at a name that is not there, with an error of its own.
func refusing(refusal error) *system {
	sys := kernel
	sys.fstatat = func(dir int, name string, st *unix.Stat_t) error {
		err := kernel.fstatat(dir, name, st)
		if errors.Is(err, unix.ENOENT) {
			return refusal
		}
		return err
	}
	return &sys
}

// TestOpenWhereNamesCannotBeTold: whether they are merged has to be known.
func TestOpenWhereNamesCannotBeTold(t *testing.T) {
	t.Parallel()
	unmade := kernel
	unmade.openat = func(dir int, name string, flags int, mode uint32) (int, error) {
		if flags == openNew {
			return -1, unix.ENOSPC
		}
		return kernel.openat(dir, name, flags, mode)
	}
	for want, sys := range map[unix.Errno]*system{unix.EIO: refusing(unix.EIO), unix.ENOSPC: &unmade} {
		if err := openWith(t, t.TempDir(), sys); !errors.Is(err, want) {
			t.Errorf("Open: %v, want %v", err, want)
		}
	}
}
