//go:build !linux

package file

import (
	"errors"
	"net/http"
)

var errLinux = errors.New("serving a file store needs Linux")

// A Store serves the files below a root. It needs Linux; on this system [Open] returns none.
type Store struct{}

// Open fails: serving a file store needs Linux.
func Open(string, Options) (*Store, error) { return nil, errLinux }

// ServeHTTP answers 501.
func (*Store) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, errLinux.Error(), http.StatusNotImplemented)
}

// RegistryID fails: serving a file store needs Linux.
func (*Store) RegistryID() (string, error) { return "", errLinux }

// BindRegistry fails: serving a file store needs Linux.
func (*Store) BindRegistry(string) error { return errLinux }

// Close does nothing.
func (*Store) Close() error { return nil }

// RefuseNetworkFS fails: it asks the kernel as Linux has it.
func RefuseNetworkFS(string) error { return errLinux }
