package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/fenceproxy/fenceproxy/backends/file"
	"github.com/fenceproxy/fenceproxy/backends/s3"
	"github.com/fenceproxy/fenceproxy/proxy"
)

// longSettle is how much longer a store may take for copies, completed uploads and batches than for other writes.
const longSettle = 10

func (s *state) openBackend(ctx context.Context, b backendConfig, f serveFlags, log *slog.Logger) error {
	if b.Type == "s3" {
		return s.openS3(ctx, b, log)
	}
	store, err := file.Open(b.Root, file.Options{UnsafeNetworkFS: f.unsafeNetworkFS})
	if err != nil {
		return err
	}
	s.stores[b.Name] = store
	s.backends[b.Name] = proxy.Backend{Handler: store, Stamp: b.Stamp}
	return nil
}

func (s *state) openS3(ctx context.Context, b backendConfig, log *slog.Logger) error {
	o := b.S3
	o.Log = log.With("backend", b.Name)
	o.Settle, o.SettleLong = b.Settle, longSettle*b.Settle
	store, err := s3.Open(ctx, o)
	if err != nil {
		return err
	}
	s.remote = append(s.remote, store)
	s.backends[b.Name] = proxy.Backend{
		Handler: store, Settle: o.Settle, SettleLong: o.SettleLong, Stamp: b.Stamp,
		Conditional: proxy.Conditional(b.Conditional), Probe: prober(store),
	}
	return nil
}

// prober tells the proxy what a store was found to do, in S3's names for operations.
func prober(store *s3.Store) func(context.Context, string) (proxy.Findings, error) {
	return func(ctx context.Context, bucket string) (proxy.Findings, error) {
		found, err := store.Probe(ctx, bucket)
		var refused *s3.RefusedError
		if errors.As(err, &refused) {
			return proxy.Findings{}, &proxy.StoreRefusal{Status: refused.Status, Code: refused.Code, Message: refused.Message}
		}
		if err != nil {
			return proxy.Findings{}, err
		}
		f := proxy.Findings{Spool: found.Torn, Unhashed: found.Unhashed, Trailers: found.Trailers, Merges: found.Merged, Skipped: found.Skipped, Blind: found.Blind, Detail: found.Detail}
		for operation, honoured := range map[string]bool{
			"PutObject": found.Put, "CompleteMultipartUpload": found.Complete, "CopyObject": found.Copy, "DeleteObject": found.Delete, "DeleteObjects": found.Batch,
		} {
			if honoured {
				f.Conditions = append(f.Conditions, operation)
			}
		}
		return f, nil
	}
}

// openSpool makes the directory of large bodies that a store must not see in pieces, and empties it of what a crash has left: files have
// a name only for a moment.
func openSpool(data string) (string, error) {
	dir := filepath.Join(data, "spool")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("the spool of large bodies cannot be made: %w", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("the spool of large bodies: %w", err)
	}
	for _, e := range left {
		if !strings.HasPrefix(e.Name(), "body-") {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return "", fmt.Errorf("the spool of large bodies: %w", err)
		}
	}
	return dir, nil
}
