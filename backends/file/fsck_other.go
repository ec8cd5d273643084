//go:build !linux

package file

import "context"

// A Checker looks through a root that no process serves. It needs Linux; on this system [OpenCheck] returns none.
type Checker struct{}

// OpenCheck fails: checking a file store needs Linux.
func OpenCheck(string, Options) (*Checker, error) { return nil, errLinux }

// RegistryID fails: checking a file store needs Linux.
func (*Checker) RegistryID() (string, error) { return "", errLinux }

// HasUpload says no: checking a file store needs Linux.
func (*Checker) HasUpload(_, _, _ string) bool { return false }

// Run fails: checking a file store needs Linux.
func (*Checker) Run(context.Context, func(Finding), func(Object)) error { return errLinux }

// Close does nothing.
func (*Checker) Close() error { return nil }
