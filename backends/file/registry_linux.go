package file

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"
)

const maxRegistryID = 256

var errClosed = errors.New("the file store is closed")

// RegistryID returns the id of the token registry that this root is bound to, "" if none. Objects that are fenced by a registry
// must not be served without it: what it knows of their tokens is nowhere else.
func (s *Store) RegistryID() (string, error) {
	if !s.enter() {
		return "", errClosed
	}
	defer s.running.Done()
	s.registry.Lock()
	defer s.registry.Unlock()
	id, err := s.readRegistry()
	if err != nil {
		return "", fmt.Errorf("file store %s: reading the id of its registry: %w", s.root, err)
	}
	return id, nil
}

func (s *Store) readRegistry() (string, error) {
	fd, err := s.sys.openat(s.ownFD, registryFile, openFile, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	text, err := s.sys.readAll(fd, maxRegistryID+2)
	if err != nil {
		return "", err
	}
	id := strings.TrimSuffix(string(text), "\n")
	if err := checkRegistryID(id); err != nil { // damaged: as good as lost, and not the same as never bound
		return "", err
	}
	return id, nil
}

// BindRegistry binds this root to the token registry with this id, in place of any other. When it has returned, that is durable.
func (s *Store) BindRegistry(id string) error {
	if err := checkRegistryID(id); err != nil {
		return fmt.Errorf("file store %s: %w", s.root, err)
	}
	if !s.enter() {
		return errClosed
	}
	defer s.running.Done()
	s.registry.Lock()
	defer s.registry.Unlock()
	if err := s.writeRegistry(id); err != nil {
		return fmt.Errorf("file store %s: binding it to registry %s: %w", s.root, id, err)
	}
	return nil
}

func (s *Store) writeRegistry(id string) error {
	t, err := s.newTemp()
	if err != nil {
		return err
	}
	defer t.discard()
	if err := s.sys.writeAll(t.fd, []byte(id+"\n")); err != nil {
		return err
	}
	if err := s.sys.fsync(t.fd); err != nil {
		return err
	}
	if err := s.sys.renameat(s.tempFD, t.name, s.ownFD, registryFile); err != nil {
		return err
	}
	t.gone = true
	return s.sys.fsync(s.ownFD)
}

func checkRegistryID(id string) error {
	if id == "" || len(id) > maxRegistryID {
		return fmt.Errorf("a registry's id has 1 to %d characters, this one has %d", maxRegistryID, len(id))
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return fmt.Errorf("registry id %q: it is made of visible ASCII characters", id)
		}
	}
	return nil
}
