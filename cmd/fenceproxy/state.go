package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fenceproxy/fenceproxy/backends/file"
	"github.com/fenceproxy/fenceproxy/backends/s3"
	"github.com/fenceproxy/fenceproxy/proxy"
	"github.com/fenceproxy/fenceproxy/proxy/audit"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/sqlite"
)

const auditFile = "audit.db"

// A state is everything of a running proxy that is on disk, and the fence over it.
type state struct {
	lock     *sqlite.DirLock
	stores   map[string]*file.Store
	remote   []*s3.Store
	registry tokens.Maintained
	audit    *audit.Log
	fence    *tokens.Fence
	backends map[string]proxy.Backend
	spool    string        // directory
	repair   tokens.Repair // of a registry that is made now
	mapping  int64         // version of the mappings on record that the configuration was held against
}

func newState() *state {
	return &state{stores: map[string]*file.Store{}, backends: map[string]proxy.Backend{}}
}

// openState locks the data directory, then opens the stores, the registry and the audit log: whether the registry may be a new one
// depends on what the stores remember. self describes this process to another that finds the lock, and instance is what the audit log calls it.
//
// If we crash between the making of a registry and the binding of the stores, the next start finds stores without a registry's
// name, and a registry: it binds them then.
func openState(ctx context.Context, c *config, f serveFlags, log *slog.Logger, self, instance string) (_ *state, err error) {
	s := newState()
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(log))
		}
	}()
	if err := s.open(ctx, c, f, log, self, instance); err != nil {
		return nil, err
	}
	if err := s.refuseHalfRebuilt(ctx); err != nil {
		return nil, err
	}
	if err := s.bind(c, f, log); err != nil {
		return nil, err
	}
	s.recordStart(ctx, c, log)
	if err := s.adopt(ctx, f.adopt, log); err != nil {
		return nil, err
	}
	if err := s.checkMapping(ctx, c, f.remap, log); err != nil {
		return nil, err
	}
	if err := s.holdForOthers(ctx, log); err != nil {
		return nil, err
	}
	if err := s.begin(ctx, c, log); err != nil {
		return nil, err
	}
	s.fence = tokens.NewFence(s.registry, tokens.Options{RaiseWait: c.RaiseWait, Raised: func(c tokens.Claim) {
		bucket, _, _ := strings.Cut(c.Resource, "/")
		s.audit.Note(audit.Record{
			Kind: audit.KindRaise, Bucket: bucket, Resource: c.Resource, Token: int64(c.Token), Highest: int64(c.Token), Holder: c.Holder, AccessKey: c.AccessKey,
		})
	}})
	return s, nil
}

// begin asks for the right to raise.
func (s *state) begin(ctx context.Context, c *config, log *slog.Logger) error {
	if err := s.registry.Begin(ctx, s.mapping); err != nil {
		return err
	}
	if c.Registry.shared() {
		log.Info("this proxy is one of those that share the token registry", "registry", s.registry.Start().ID, "in", c.Registry.place(),
			"instance", s.registry.Incarnation(), "lease", c.Registry.Lease)
	}
	return nil
}

// open is the part of openState up to the audit log. What it has opened when it fails is there for close.
func (s *state) open(ctx context.Context, c *config, f serveFlags, log *slog.Logger, self, instance string) (err error) {
	if err := makeDataDir(c.Data, f); err != nil {
		return err
	}
	if s.lock, err = sqlite.Lock(c.Data, self); err != nil {
		return err
	}
	if s.spool, err = openSpool(c.Data); err != nil {
		return err
	}
	for _, b := range c.Backends {
		if err := s.openBackend(ctx, b, f, log); err != nil {
			return fmt.Errorf("backend %s: %w", b.Name, err)
		}
	}
	if err := checkRealRoots(c); err != nil {
		return err
	}
	if err := s.openRegistry(ctx, c, f, log); err != nil {
		return err
	}
	return s.openAudit(ctx, c, instance, log)
}

// makeDataDir makes the data directory, and finds out now whether it can be written.
func makeDataDir(dir string, f serveFlags) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("the data directory cannot be made: %w", err)
	}
	probe, err := os.CreateTemp(dir, ".write-probe-*")
	if err != nil {
		return fmt.Errorf("the data directory %s cannot be written: %w: give it to the user that runs fenceproxy, or name another one with `data:`", dir, err)
	}
	err = errors.Join(probe.Close(), os.Remove(probe.Name()))
	if err != nil || f.unsafeNetworkFS {
		return err
	}
	return file.RefuseNetworkFS(dir)
}

// checkRealRoots asks again, with all symbolic links followed, what the configuration was asked by its words: that no store holds the
// registry's files as objects, and no two stores the same files under two fences.
func checkRealRoots(c *config) error {
	data, err := filepath.EvalSymlinks(c.Data)
	if err != nil {
		return err
	}
	var roots []string
	var files []backendConfig
	for _, b := range c.Backends {
		if b.Type != "file" {
			continue
		}
		root, err := filepath.EvalSymlinks(b.Root)
		if err != nil {
			return err
		}
		if pathHolds(root, data) {
			return fmt.Errorf("the root of backend %s, %s, is %s and holds the data directory, %s, whose files would be objects", b.Name, b.Root, root, data)
		}
		for i, other := range roots {
			if pathHolds(root, other) || pathHolds(other, root) {
				return fmt.Errorf("the roots of backends %s and %s, %s and %s, share files: one object would have two fences", b.Name, files[i].Name, root, other)
			}
		}
		roots, files = append(roots, root), append(files, b)
	}
	return nil
}

// bind writes the registry's name into the stores and the data directory, and refuses one that another registry fences: two fences over one object are
// none.
func (s *state) bind(c *config, f serveFlags, log *slog.Logger) error {
	if err := s.bindData(c, f, log); err != nil {
		return err
	}
	id := s.registry.Start().ID
	for name, store := range s.stores {
		bound, err := store.RegistryID()
		if err != nil {
			return err
		}
		switch {
		case bound == id:
			continue
		case bound != "" && !f.newRegistry:
			return fmt.Errorf("the objects of backend %s are fenced by registry %s, and this one, in the data directory, is %s: "+
				"name the directory of the right one with `data:`; if it is lost, `serve --new-registry` takes this one from now on, and forgets the tokens of the other", name, bound, id)
		case bound != "":
			log.Warn("the objects have another registry from now on, which does not know the tokens of theirs", "backend", name, "was", bound, "now", id)
		}
		if err := store.BindRegistry(id); err != nil {
			return err
		}
	}
	return nil
}

// refuseHalfRebuilt does not start over a registry that a rebuild has not filled: what it does not know it would let in.
func (s *state) refuseHalfRebuilt(ctx context.Context) error {
	switch state, err := s.registry.Repair(ctx); {
	case err != nil:
		return err
	case state == tokens.RepairMargin:
		return errors.New("the token registry was rebuilt from the stamps of objects, and its tokens are lower bounds: run `fenceproxy raise --all-by N` first, " +
			"with N larger than the number of tokens that were handed out for any one resource since its last object was written")
	case state != tokens.RepairNone:
		return errors.New("a rebuild of the token registry has not come to its end, and tokens are missing: run `fenceproxy rebuild` again, and then `fenceproxy raise --all-by N`; or restore the registry from a backup, and raise it then")
	}
	return nil
}

// holdForOthers has raises wait where another registry was in this one's place: what it has let through to S3 before it was lost may still take
// effect, and this one has none of its grants.
func (s *state) holdForOthers(ctx context.Context, log *slog.Logger) error {
	var settle time.Duration
	for _, b := range s.backends {
		settle = max(settle, b.SettleLong)
	}
	since, err := s.registry.LastAdopted(ctx)
	if err != nil {
		return err
	}
	if wait := min(time.Until(since.Add(settle)), settle); wait > 0 {
		log.Warn("another registry was here before: until its last writes can take effect no more, new tokens on S3 wait", "wait", wait.Round(time.Second))
		s.registry.Hold(time.Now().Add(wait))
	}
	return nil
}

// recordStart tells log and audit how this run began. After an unclean stop it names every grant that it inherits: writes that
// may still take effect, and that newer holders wait for.
func (s *state) recordStart(ctx context.Context, c *config, log *slog.Logger) {
	start := s.registry.Start()
	how := "after a clean stop"
	switch {
	case start.Created:
		how = "with a new registry"
	case start.Unclean:
		how = "after a crash or a kill"
	}
	if c.Registry.shared() { // what other instances have left, or this one before, is not this run's to wait for alone
		how = "an instance of registry " + start.ID
		if start.Created {
			how += ", which is new"
		}
		s.audit.Add(ctx, audit.Record{Kind: audit.KindStart, Detail: how})
		log.Info("token registry open", "registry", start.ID, "in", c.Registry.place(), "created", start.Created)
		return
	}
	detail := fmt.Sprintf("run %d of registry %s, %s, %d grants inherited", start.Run, start.ID, how, len(start.Inherited))
	s.audit.Add(ctx, audit.Record{Kind: audit.KindStart, Detail: detail})
	log.Info("token registry open", "run", start.Run, "registry", start.ID, "began", how, "inherited", len(start.Inherited))
	for _, g := range start.Inherited {
		s.audit.Add(ctx, audit.Record{
			Kind: audit.KindStart, Resource: g.Resource, Token: int64(g.Token),
			Detail: fmt.Sprintf("inherited: a write with this token may take effect for %v more; higher tokens wait", g.Settle),
		})
	}
}

// close lets go in the opposite order. What is past the gate and does not settle in time stays on record for the next run.
func (s *state) close(log *slog.Logger) error {
	var errs []error
	if s.fence != nil {
		ctx, cancel := context.WithTimeout(context.Background(), settleTime)
		defer cancel()
		if err := s.fence.Close(ctx); err != nil {
			log.Warn("some writes have not settled: the next start waits for them", "cause", err)
		}
	}
	if s.audit != nil {
		errs = append(errs, s.audit.Close())
	}
	if s.registry != nil {
		errs = append(errs, s.registry.Close())
	}
	for _, store := range s.stores {
		errs = append(errs, store.Close())
	}
	for _, store := range s.remote {
		errs = append(errs, store.Close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Release()) // last: the next process must find nothing of this one at work
	}
	return errors.Join(errs...)
}
